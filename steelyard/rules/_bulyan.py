"""Bulyan: Krum's selection, then a mean around the median.

El Mhamdi, Guerraoui, Rouault, "The Hidden Vulnerability of Distributed Learning in Byzantium", ICML
2018.

    select n - 2f updates by applying Krum repeatedly; then, for each coordinate, take the mean of
    the n - 4f values nearest to the median of the selected updates
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
from steelyard.rules._coordinate import around_median
from steelyard.rules._krum import scores


@RULES.register
@dataclass(frozen=True)
class Bulyan(Weighting):
    """Tolerates `f` Byzantine clients among at least `4f + 3`; fewer if there are fewer clients."""

    f: int = 1

    name = "bulyan"
    modifies = False
    info = Info("Krum's selection, then a mean around the median", "El Mhamdi et al., ICML 2018")

    def __post_init__(self) -> None:
        checks.integer("f", self.f)

    @property
    def needs(self) -> Needs:
        """The Gram to select updates, and chunks of updates to reduce."""
        return Needs(gram=True, coordinates=True)

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Select updates by their distances; the combine pass reduces them."""
        count = len(view.ids)
        f = max(0, min(self.f, (count - 3) // 4))
        selected = select(view.whole_gram.sq_distances()[0], count - 2 * f, f)
        weights = np.zeros((1, count))
        weights[0, selected] = 1.0
        mixture = replace(Mixture.convex(weights), reduce=around_median(count - 4 * f))
        return mixture.add_report(withstands=f, selected=[view.ids[k] for k in selected]), state


def select(sq_distances: Array, count: int, f: int) -> list[int]:
    """Return the positions of `count` updates, each selected by Krum among the remaining ones.

    The scores use the neighbours of Blanchard et al.
    """
    remaining = list(range(len(sq_distances)))
    selected: list[int] = []
    while len(selected) < count:
        distances = sq_distances[np.ix_(remaining, remaining)][None]
        best = int(np.argmin(scores(distances, f, "blanchard")[0]))
        selected.append(remaining.pop(best))
    return sorted(selected)
