"""MGDA: the shortest convex combination of the updates.

Desideri, "Multiple-gradient descent algorithm (MGDA) for multiobjective optimization", C. R. Acad.
Sci. Paris 2012; Sener and Koltun, "Multi-Task Learning as Multi-Objective Optimization", NeurIPS
2018.

    w = argmin |sum_k w_k d_k|^2 ,  w_k >= 0 ,  sum_k w_k = 1

The result d satisfies `<d, d_k> >= |d|^2` for every client: no client's update is contradicted, and
if d is zero, no step is good for all clients. Sener and Koltun solve the problem by Frank-Wolfe
steps, to a tolerance; so does TorchJD. Here it is solved exactly, on the Gram.

The shortest update has the greatest weight, so training slows down, and a client with a zero update
stops it. Such clients are set aside by `guard(mgda)`. FedMGDA+ (`fedmgda`) compares directions
instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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
class MGDA(Weighting):
    """The weights of the shortest convex combination; sizes are not used.

    Examples:
        Two clients at a right angle, one of them twice as long.

        >>> import torch
        >>> import steelyard
        >>> clients = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> out = steelyard.aggregate("mgda", torch.zeros(2), clients)
        >>> [round(weight, 4) for weight in out.weights.tolist()]
        [0.2, 0.8]
    """

    name = "mgda"
    modifies = False
    info = Info(
        "the shortest convex combination of the updates", "Desideri 2012; Sener & Koltun 2018"
    )

    @property
    def needs(self) -> Needs:
        """The Gram."""
        return Needs.of(gram=True)

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Solve the quadratic program of each layer."""
        gram = view.gram
        cosines = gram.cosines()
        weights = [weigh(cosines[layer], norms) for layer, norms in enumerate(gram.norms)]
        return Mixture.convex(np.stack(weights)), state


def weigh(cosines: Array, norms: Array) -> Array:
    """Return the weights of the shortest convex combination, `[K]`.

    Args:
        cosines: cosines of the updates, `[K, K]`.
        norms: their norms, `[K]`; if some are zero, they share the whole weight.
    """
    if not norms.all():
        is_zero = np.where(norms == 0, 1.0, 0.0)
        equal: Array = is_zero / is_zero.sum()
        return equal
    # In units of the shortest update, weights and coordinates are of the same size.
    lengths = norms / norms.min()
    count = len(norms)
    y = find_shortest(
        cosines,
        prices=1 / lengths,
        start=lengths / count,
        low=np.zeros(count),
        high=np.full(count, np.inf),
    )
    weights: Array = y / lengths
    return weights
