"""Krum and Multi-Krum: the update(s) with the closest neighbours.

Blanchard, El Mhamdi, Guerraoui, Stainer, "Machine Learning with Adversaries", NeurIPS 2017.

    score_i = sum of squared distances to the nearest neighbours ;  Krum takes the smallest, Multi-Krum the mean of the
    n - f smallest

`neighbours="byzfl"`: the n - f nearest, the update itself among them, as the ByzFL library counts. `"blanchard"`: the
paper's n - f - 2 nearest others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from steelyard.core import checks
from steelyard.core.client_state import State
from steelyard.core.gram import Array
from steelyard.core.mixture import Mixture
from steelyard.core.needs import Needs
from steelyard.core.registry import RULES
from steelyard.core.view import View
from steelyard.core.weighting import Info, Weighting


@RULES.register
@dataclass(frozen=True)
class MultiKrum(Weighting):
    """The mean of the `keep` updates with the smallest scores: n - f of them, or as many as you say.

    `f` is the number of Byzantine clients to withstand.
    """

    f: int = 1
    neighbours: str = "byzfl"
    keep: int | None = None

    name = "multikrum"
    modifies = False
    info = Info("the mean of the updates with the closest neighbours", "Blanchard et al., NeurIPS 2017")

    def __post_init__(self) -> None:
        checks.integer("f", self.f)
        checks.one_of("neighbours", self.neighbours, "byzfl", "blanchard")
        if self.keep is not None:
            checks.integer("keep", self.keep, 1)

    @property
    def needs(self) -> Needs:
        """Distances."""
        return Needs.of(gram=True)

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Equal weights on the selected."""
        count = len(view.ids)
        f = withstand(self.f, count)
        order = np.argsort(scores(view.gram.sq_distances(), f, self.neighbours), axis=1, kind="stable")
        weights = np.zeros(order.shape)
        np.put_along_axis(weights, order[:, : min(self.keep or count - f, count)], 1.0, axis=1)
        return replace(Mixture.convex(weights), selects=True).add_report(withstands=f), state


def krum(f: int = 1, neighbours: str = "byzfl") -> Weighting:
    """Krum: all weight on the update with the smallest score, `multikrum(f, neighbours, keep=1)`."""
    return MultiKrum(f, neighbours, keep=1)


RULES.alias("krum", Info("the one update with the closest neighbours", "Blanchard et al., NeurIPS 2017"), krum)


def withstand(f: int, clients: int) -> int:
    """How many Byzantine clients can be withstood among so many: never half of them or more."""
    return min(f, (clients - 1) // 2)


def scores(sq_distances: Array, f: int, neighbours: str) -> Array:
    """Krum's score of each update, `[g, K]`."""
    nearest = np.sort(sq_distances, axis=2)  # the first is the update itself, at distance 0
    count = nearest.shape[2]
    among = slice(0, count - f) if neighbours == "byzfl" else slice(1, max(2, count - f - 1))
    total: Array = nearest[:, :, among].sum(axis=2)
    return total


def nearest(sq_distances: Array, count: int) -> NDArray[np.intp]:
    """The `count` nearest neighbours of each update, itself included, `[K, count]`."""
    return np.argsort(sq_distances, axis=1, kind="stable")[:, :count]
