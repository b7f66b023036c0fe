"""Krum and Multi-Krum: the update(s) with the closest neighbours.

Blanchard, El Mhamdi, Guerraoui, Stainer, "Machine Learning with Adversaries", NeurIPS 2017.

    score_i = sum of squared distances to the nearest neighbours ;  Krum takes the update with the
    smallest score, Multi-Krum the mean of the n - f updates with the smallest scores

`neighbours="byzfl"`: the n - f nearest updates including the update itself, as in the ByzFL
library. `"blanchard"`: the paper's n - f - 2 nearest other updates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from steelyard.core import checks
from steelyard.core._gram import Array
from steelyard.core._mixture import Mixture
from steelyard.core._needs import Needs
from steelyard.core._registry import RULES
from steelyard.core._state import State
from steelyard.core._view import View
from steelyard.core._weighting import Info, Weighting


@RULES.register
@dataclass(frozen=True)
class MultiKrum(Weighting):
    """The mean of the updates with the smallest scores.

    Attributes:
        f: the number of Byzantine clients to tolerate.
        neighbours: which neighbours count, `byzfl` or `blanchard`.
        keep: number of selected updates; n - f by default.
    """

    f: int = 1
    neighbours: str = "byzfl"
    keep: int | None = None

    name = "multikrum"
    modifies = False
    info = Info(
        "the mean of the updates with the closest neighbours", "Blanchard et al., NeurIPS 2017"
    )

    def __post_init__(self) -> None:
        checks.integer("f", self.f)
        checks.one_of("neighbours", self.neighbours, "byzfl", "blanchard")
        if self.keep is not None:
            checks.integer("keep", self.keep, 1)

    @property
    def needs(self) -> Needs:
        """The Gram, for distances."""
        return Needs.of(gram=True)

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Return equal weights for the selected updates."""
        count = len(view.ids)
        f = withstand(self.f, count)
        krum_scores = scores(view.gram.sq_distances(), f, self.neighbours)
        order = np.argsort(krum_scores, axis=1, kind="stable")
        keep = min(self.keep or count - f, count)
        weights = np.zeros(order.shape)
        np.put_along_axis(weights, order[:, :keep], 1.0, axis=1)
        return replace(Mixture.convex(weights), selects=True).add_report(withstands=f), state


def krum(f: int = 1, neighbours: str = "byzfl") -> Weighting:
    """Return Krum: all weight on the update with the smallest score, `multikrum(keep=1)`."""
    return MultiKrum(f, neighbours, keep=1)


RULES.alias(
    "krum",
    Info("the one update with the closest neighbours", "Blanchard et al., NeurIPS 2017"),
    krum,
)


def withstand(f: int, clients: int) -> int:
    """Return how many Byzantine clients can be tolerated.

    At most `f`, and less than half of all.
    """
    return min(f, (clients - 1) // 2)


def scores(sq_distances: Array, f: int, neighbours: str) -> Array:
    """Return Krum's score of each update, `[g, K]`."""
    distances = np.sort(sq_distances, axis=2)  # the first is the update itself, at distance 0
    count = distances.shape[2]
    if neighbours == "byzfl":
        included = slice(0, count - f)
    else:
        included = slice(1, max(2, count - f - 1))
    total: Array = distances[:, :, included].sum(axis=2)
    return total


def nearest(sq_distances: Array, count: int) -> NDArray[np.intp]:
    """Return the `count` nearest neighbours of each update, including itself, `[K, count]`."""
    return np.argsort(sq_distances, axis=1, kind="stable")[:, :count]
