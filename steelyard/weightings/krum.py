"""Krum and Multi-Krum: the update(s) with the closest neighbours.

Blanchard, El Mhamdi, Guerraoui, Stainer, "Machine Learning with Adversaries", NeurIPS 2017.

    score_i = sum of squared distances to the nearest neighbours ;  Krum takes the smallest, Multi-Krum the mean of the
    n - f smallest

`neighbours="byzfl"`: the n - f nearest, the update itself among them, as the ByzFL library counts. `"blanchard"`: the
paper's n - f - 2 nearest others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.core import checks
from steelyard.core.gram import Array
from steelyard.core.mixture import Mixture
from steelyard.core.needs import Needs
from steelyard.core.registry import RULES
from steelyard.core.table import State
from steelyard.core.view import View
from steelyard.core.weighting import Card, Weighting


@RULES.register
@dataclass(frozen=True)
class Krum(Weighting):
    """All weight on the update with the smallest score; `f` is the number of Byzantine clients to withstand."""

    f: int = 1
    neighbours: str = "byzfl"

    name = "krum"
    modifies = False
    card = Card("the one update with the closest neighbours", "Blanchard et al., NeurIPS 2017")

    def __post_init__(self) -> None:
        checks.whole("f", self.f)
        checks.one_of("neighbours", self.neighbours, "byzfl", "blanchard")

    @property
    def needs(self) -> Needs:
        """Distances."""
        return Needs.of(gram=True)

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """One-hot weights."""
        return _best(view, self.f, self.neighbours, single=True), state


@RULES.register
@dataclass(frozen=True)
class MultiKrum(Weighting):
    """The mean of the n - f updates with the smallest scores."""

    f: int = 1
    neighbours: str = "byzfl"

    name = "multikrum"
    modifies = False
    card = Card("the mean of the n - f updates with the closest neighbours", "Blanchard et al., NeurIPS 2017")

    def __post_init__(self) -> None:
        checks.whole("f", self.f)
        checks.one_of("neighbours", self.neighbours, "byzfl", "blanchard")

    @property
    def needs(self) -> Needs:
        """Distances."""
        return Needs.of(gram=True)

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Equal weights on the selected."""
        return _best(view, self.f, self.neighbours, single=False), state


def withstand(f: int, clients: int) -> int:
    """How many Byzantine clients can be withstood among so many: never half of them or more."""
    return min(f, (clients - 1) // 2)


def _best(view: View, f: int, neighbours: str, single: bool) -> Mixture:
    count = len(view.ids)
    f = withstand(f, count)
    order = np.argsort(scores(view.gram.sq_distances(), f, neighbours), axis=1, kind="stable")
    weights = np.zeros(order.shape)
    np.put_along_axis(weights, order[:, : 1 if single else count - f], 1.0, axis=1)
    return Mixture.convex(weights).noted(withstands=f)


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
