"""angle_gap: detects a group of clients that agree with each other but not with the rest.

Let c_k be the cosine of client k's update to the sum of the other updates. If some clients have
data of all classes and the others of few, the c_k form two groups with a wide gap between them:
0.7 and below 0 (three IID clients and seven with one class). Under Dirichlet label skew they are
spread evenly. Rules that favour agreement, such as FedAdp, gain in the first case and lose in the
second: `gate(angle_gap, fedadp)` applies them in the first case only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steelyard.core import checks
from steelyard.core.client_state import State
from steelyard.core.needs import Needs
from steelyard.core.view import View
from steelyard.core.weighting import Info
from steelyard.rules.detectors import DETECTORS, Detector


@DETECTORS.register
@dataclass(frozen=True)
class AngleGap(Detector):
    """Critical if two neighbouring cosines differ by more than `gap`, with `group` or more clients above.

    Attributes:
        gap: the smallest difference between the two groups.
        group: the smallest number of clients in the upper group.
    """

    gap: float = 0.35
    group: int = 2

    name = "angle_gap"
    info = Info("open while a group of clients agrees, apart from the others")

    def __post_init__(self) -> None:
        checks.number("gap", self.gap, 0.0, 2.0)
        checks.integer("group", self.group, 1)

    @property
    def needs(self) -> Needs:
        """The Gram, for cosines between updates."""
        return Needs.of(gram=True)

    def critical(self, view: View, state: State) -> tuple[bool, State]:
        """Return whether a gap exceeds the threshold; the state is empty."""
        count = len(view.ids)
        equal = np.full((1, count), 1 / count)
        cosines = np.sort(view.gram.merge_layers().cosines_to_others(equal)[0])
        gaps = np.diff(cosines)
        # The gap below the n-th largest cosine has n clients above it.
        candidates = gaps[: max(0, count - self.group)]
        return bool((candidates > self.gap).any()), {}
