"""FedMGDA+: the shortest combination of unit updates, with weights near the prior's.

Hu, Shaloudegi, Zhang, Yu, "Federated Learning Meets Multi-objective Optimization", IEEE TNSE 2022.

    lambda = argmin |sum_k lambda_k d_k / |d_k||^2 ,
             lambda_k >= 0 ,  sum_k lambda_k = 1 ,  |lambda_k - p_k| <= epsilon
    theta' = theta + eta sum_k lambda_k d_k / |d_k|

p is the prior: weights by number of examples, unless another rule comes before. `epsilon=0` is
FedAvg of unit updates; `epsilon=1` leaves out the box. `normalize=False` with `epsilon=1` is `mgda`,
which the paper calls FedMGDA.

We did not find code by the authors. The code of others (FLGo) has the same definition and adds 1e-8
to the norms. Here a zero update counts as a vector of length 0, and nothing is added.

The step of the paper has a length of at most 1, for clients with short and with long updates: the
learning rate eta sets its size (`server="sgd:lr=..."`). `length="mean"` is our addition: the step is
multiplied by the mean norm of the updates, so that it is as long as that of other rules, and the
weights are comparable with those of other rules. Use it inside a guard, which limits weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from steelyard.core import checks
from steelyard.core._gram import Array
from steelyard.core._mixture import Mixture
from steelyard.core._needs import Needs
from steelyard.core._registry import RULES
from steelyard.core._state import State
from steelyard.core._view import View
from steelyard.core._weighting import Info, Weighting
from steelyard.rules._min_norm import find_shortest


@RULES.register
@dataclass(frozen=True)
class FedMGDA(Weighting):
    """The prior's shares, moved by at most `epsilon` each to make the step shortest.

    Attributes:
        epsilon: the largest difference between a client's lambda and its share in the prior.
        normalize: whether updates are divided by their norm.
        length: the length of normalised updates: `unit`, or the `mean` norm of the updates.

    Examples:
        Two clients agree, and the third gets as much more weight as the box allows.

        >>> import torch
        >>> import steelyard
        >>> clients = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        >>> out = steelyard.aggregate("uniform|fedmgda:epsilon=0.1", torch.zeros(2), clients)
        >>> [round(weight, 4) for weight in out.weights.tolist()]
        [0.2833, 0.2833, 0.4333]
    """

    epsilon: float = 0.1
    normalize: bool = True
    length: str = "unit"

    name = "fedmgda"
    modifies = True
    info = Info(
        "the shortest combination of unit updates, near the prior", "Hu et al., IEEE TNSE 2022"
    )

    def __post_init__(self) -> None:
        checks.number("epsilon", self.epsilon, 0.0, 1.0)
        checks.one_of("normalize", self.normalize, True, False)
        checks.one_of("length", self.length, "unit", "mean")

    @property
    def needs(self) -> Needs:
        """The Gram."""
        return Needs.of(gram=True)

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Solve the quadratic program of each layer."""
        # Lambda, layer by layer.
        gram = view.gram
        cosines = gram.cosines()
        shares = np.broadcast_to(prior.shares, gram.norms.shape)
        lengths = np.where(gram.norms > 0, 1.0, 0.0) if self.normalize else gram.norms
        rows = []
        for layer in range(len(shares)):
            rows.append(move_shares(cosines[layer], lengths[layer], shares[layer], self.epsilon))
        moved = np.stack(rows)
        if not self.normalize:
            return prior.reweight(moved), state

        # From weights on unit vectors to weights on updates; those of zero updates do not matter.
        scale = gram.norms.mean(axis=1, keepdims=True) if self.length == "mean" else 1.0
        factors = np.divide(scale, gram.norms, out=np.ones_like(gram.norms), where=gram.norms > 0)
        total = prior.weights.sum(axis=1, keepdims=True)
        return replace(prior, weights=total * moved * factors), state


def move_shares(cosines: Array, lengths: Array, shares: Array, epsilon: float) -> Array:
    """Return the shares within `epsilon` of these that make the combination shortest, `[K]`.

    Args:
        cosines: cosines of the updates, `[K, K]`.
        lengths: lengths of the updates in the combination, `[K]`.
        shares: the prior, a distribution, `[K]`.
        epsilon: half the side of the box around the prior.
    """
    # The coordinates are share times length. A length of zero gives no coordinate: such an update
    # has the length of the shortest one instead, and cosine 0 also to itself.
    has_length = lengths > 0
    if not has_length.any():
        return shares.copy()
    shortest = lengths[has_length].min()
    units = np.where(has_length, lengths, shortest) / shortest

    # Solve within the box, and within the range of shares.
    low = np.maximum(shares - epsilon, 0.0)
    high = np.minimum(shares + epsilon, 1.0)
    y = find_shortest(cosines, 1 / units, shares * units, low * units, high * units)
    moved = np.clip(y / units, low, high)
    shares_moved: Array = moved / moved.sum()
    return shares_moved
