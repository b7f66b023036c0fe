"""Model Stock: interpolate between the global model and the clients' mean, layer by layer.

Jang, Yun, Han, "Model Stock: All we need is just a few fine-tuned models", ECCV 2024.

    t = N cos / (1 + (N - 1) cos) ,  theta' = t (1/N) sum_k theta_k + (1 - t) theta

`cos` is the cosine of the angle between the updates of two fine-tuned models. For N = 2, t is
`2 cos / (1 + cos)`. The derivation assumes that all updates of a layer have the same length and the
same angle to each other. Then theta' is the point between the global model and the mean that is
closest to the center around which fine-tuned models lie.

There is no code by the authors (their repository announces it). The paper does not say
which angle to take if the N angles differ: we take the mean cosine over pairs, as mergekit does.
Other differences from mergekit: a negative mean cosine gives t = 0, where the formula would move
away from the clients (the paper assumes angles below 90 degrees); one client is accepted, with
t = 1; a layer in which no update moves has t = 1, which has no effect; short updates have their
true cosine (mergekit's is too small if the product of the norms is below 1e-6).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steelyard.core._gram import Array, Gram
from steelyard.core._layout import Granularity, check_granularity
from steelyard.core._mixture import Mixture
from steelyard.core._needs import Needs
from steelyard.core._registry import RULES
from steelyard.core._state import State
from steelyard.core._view import View
from steelyard.core._weighting import Info, Weighting

# Instead of t = 0: the step is zero in any dtype of a model, and the shares of the clients still
# exist for later rules of a chain.
_SMALLEST = 1e-100


@RULES.register
@dataclass(frozen=True)
class ModelStock(Weighting):
    """The weight t / N for every client and each layer; sizes are not used.

    Attributes:
        layers: what a layer is.

    Examples:
        Two clients at an angle of 60 degrees: t = 2 * 0.5 / 1.5.

        >>> import torch
        >>> import steelyard
        >>> clients = torch.tensor([[1.0, 0.0], [0.5, 0.75**0.5]])
        >>> out = steelyard.aggregate("model_stock", torch.zeros(2), clients)
        >>> round(out.weights.sum().item(), 4)
        0.6667
    """

    layers: Granularity = "tensor"

    name = "model_stock"
    modifies = False
    info = Info(
        "moves to the mean of the clients as far as their updates agree",
        "Jang et al., ECCV 2024",
        secagg="yes: two secure sums, of d_k and, for the mean cosine, of d_k / |d_k|",
    )

    def __post_init__(self) -> None:
        check_granularity(self.layers)

    @property
    def needs(self) -> Needs:
        """One Gram per layer, for cosines between updates."""
        return Needs(gram=True, per_layer=self.layers)

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Return equal weights that sum to the interpolation ratio of each layer."""
        ratio = compute_ratio(view.split_layers(self.layers).gram)
        count = len(view.ids)
        weights = np.repeat(ratio[:, None] / count, count, axis=1)
        return Mixture(weights, np.ones(len(ratio)), layers=self.layers), state


def compute_ratio(gram: Gram) -> Array:
    """Return the interpolation ratio t of each layer, `[g]`, between `_SMALLEST` and 1."""
    # One client has no angle.
    count = gram.dots.shape[1]
    if count == 1:
        return np.ones(gram.dots.shape[0])

    # The mean cosine over pairs, without those of an update to itself.
    cosines = gram.cosines()
    own = np.trace(cosines, axis1=1, axis2=2)
    mean = (cosines.sum(axis=(1, 2)) - own) / (count * (count - 1))
    mean = np.clip(mean, 0.0, 1.0)

    # A layer in which nothing moves has no angle either.
    ratio = count * mean / (1 + (count - 1) * mean)
    is_moving = gram.sq_norms.any(axis=1)
    return np.where(is_moving, np.maximum(ratio, _SMALLEST), 1.0)
