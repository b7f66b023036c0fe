"""CRAFT: the step nearest to the previous one that agrees with every client.

Wang, Liu, Thuerey, "CRAFT: Conflict-Resolved Aggregation for Federated Training", arXiv 2605.21317.
For each layer, with the unit updates `u_k = d_k / |d_k|` as the rows of U, the weights by number of
examples rho, and the direction r of the layer's previous step (0 in the first round):

    step   = argmin |x - r|  subject to  <u_k, x> = rho_k  for all k
           = r + U^+ (rho - U r)
    theta' = theta + lr step

Every client gets a component along its own direction, in proportion to its data, so that no client
is moved backwards. Where the directions depend on each other, U^+ satisfies the conditions in the
sense of least squares. U^+ follows from the cosines, `U^+ = U^T (U U^T)^+`. Coefficients may be
negative.

r is outside the span of this round's updates. The rule is therefore not a function of their Gram
matrix alone: it reads the products with the previous step, which costs one more pass over the
updates, and the server keeps this step, a vector as long as the model.

The equations are those of the authors' code; the full text of the paper was not at hand. As in the
code, a layer in which only one client has an update takes this update without dividing it by its
norm. `lr` is the code's `server_lr`, with the value of its configuration.

Differences from the code: it puts all tensors of a model into the vectors of the layers, here only
parameters are. It joins a GroupNorm or LayerNorm to the convolution before it, here they are two
modules (name patterns in `layers` can join them). Its pseudoinverse drops singular values below
n * 1.2e-7 of the greatest, where n is the number of coordinates of the layer: 0.004 for the largest
layer of ResNet20, and all of them for more than 8.4 million coordinates. Here the limit is `rtol`.

The length of the step does not depend on the lengths of the updates. `length="mean"` is our
addition: the step of a layer is multiplied by the mean norm of its updates, so that it shrinks with
them. Use it inside a guard, which limits weights. Where K clients agree, the conditions make the
step 1/K as long as the updates: an lr above 1 is then in order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from steelyard.core import checks
from steelyard.core._gram import Array
from steelyard.core._layout import Granularity, check_granularity
from steelyard.core._mixture import Mixture
from steelyard.core._needs import Needs
from steelyard.core._registry import RULES
from steelyard.core._state import State
from steelyard.core._view import View
from steelyard.core._weighting import Info, Weighting


@RULES.register
@dataclass(frozen=True)
class Craft(Weighting):
    """The previous step of each layer, corrected until it agrees with every client.

    Attributes:
        lr: factor of the step.
        length: the length of the clients' directions: `unit`, or the `mean` norm of the updates.
        rtol: singular values below this share of the greatest are dropped.
        layers: what a layer is.

    Examples:
        The step has the component 1/2 along each of the two directions, also the shorter one.

        >>> import torch
        >>> import steelyard
        >>> clients = torch.tensor([[4.0, 0.0], [0.0, 1.0]])
        >>> out = steelyard.aggregate("uniform|craft:lr=1", torch.zeros(2), clients)
        >>> out.params.tolist()
        [0.5, 0.5]
    """

    lr: float = 0.1
    length: str = "unit"
    rtol: float = 1e-3
    layers: Granularity = "module"

    name = "craft"
    modifies = True
    info = Info(
        "the step nearest to the previous one that agrees with every client",
        "Wang et al., arXiv 2605.21317",
        passes="three passes over the updates: inner products, products with the previous step, "
        "then the sum",
    )

    def __post_init__(self) -> None:
        checks.number("lr", self.lr, 0.0, open_low=True)
        checks.one_of("length", self.length, "unit", "mean")
        checks.number("rtol", self.rtol, 0.0, 1.0)
        check_granularity(self.layers)

    @property
    def needs(self) -> Needs:
        """One Gram per layer, and the products with the previous step."""
        return Needs(gram=True, per_layer=self.layers, last_step=True)

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Compute the coefficients of each layer, on the updates and on the previous step."""
        # Unit vectors, and their products with the direction of the previous step.
        layered = view.split_layers(self.layers)
        gram = layered.gram
        last_step = layered.last_step
        norms = gram.norms
        cosines = gram.cosines()
        step_norms = np.sqrt(last_step.square)
        lengths = norms * step_norms[:, None]
        along = np.divide(last_step.dots, lengths, out=np.zeros_like(norms), where=lengths > 0)

        # Coefficients on the unit vectors, layer by layer.
        shares = np.broadcast_to(prior.shares, norms.shape)
        weights = np.zeros_like(norms)
        step_weight = np.zeros(len(norms))
        for layer, is_used in enumerate(norms > 0):
            if is_used.sum() == 1:
                weights[layer, is_used] = 1.0
            elif is_used.any():
                length = norms[layer, is_used].mean() if self.length == "mean" else 1.0
                pair = np.ix_(is_used, is_used)
                residual = _divide_by_sum(shares[layer, is_used]) - along[layer, is_used]
                solution = _solve(cosines[layer][pair], residual, self.rtol)
                weights[layer, is_used] = length * solution / norms[layer, is_used]
                if step_norms[layer] > 0:
                    step_weight[layer] = length / step_norms[layer]

        # The prior's total weight counts as a factor of the step.
        total = np.broadcast_to(prior.weights.sum(axis=1), step_weight.shape)
        mixture = replace(
            prior,
            weights=weights * total[:, None],
            base=np.broadcast_to(prior.base, step_weight.shape),
            layers=self.layers,
            step_weight=step_weight * total,
        )
        return mixture.scale_step(self.lr), state


def _divide_by_sum(shares: Array) -> Array:
    """Return the shares divided by their sum; equal ones if all are zero."""
    total = shares.sum()
    divided: Array = shares / total if total > 0 else np.full_like(shares, 1 / len(shares))
    return divided


def _solve(cosines: Array, right: Array, rtol: float) -> Array:
    """Return `(U U^T)^+ right`.

    Args:
        cosines: the matrix `U U^T`, whose eigenvalues are the squared singular values of U.
        right: the right-hand side, `[K]`.
        rtol: singular values below this share of the greatest are dropped.
    """
    values, vectors = np.linalg.eigh(cosines)
    is_kept = values > max(rtol**2, np.finfo(np.float64).eps * len(right)) * values[-1]
    basis = vectors[:, is_kept]
    solution: Array = basis @ ((basis.T @ right) / values[is_kept])
    return solution
