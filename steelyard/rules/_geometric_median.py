"""Geometric median, by the smoothed Weiszfeld iteration.

Pillutla, Kakade, Harchaoui, "Robust Aggregation for Federated Learning" (RFA), IEEE TSP 2022.

    z_0 = 0 ,  b_k = 1 / max(nu, |d_k - z|) ,  z <- sum_k b_k d_k / sum_k b_k        (`steps` times)

starting at the unchanged global model, as ByzFL's code does (three steps from there differ from
three steps from the mean).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steelyard.core import checks
from steelyard.core._mixture import Mixture
from steelyard.core._needs import Needs
from steelyard.core._registry import RULES
from steelyard.core._state import State
from steelyard.core._view import View
from steelyard.core._weighting import Info, Weighting


@RULES.register
@dataclass(frozen=True)
class GeometricMedian(Weighting):
    """The point with the smallest total distance to the updates; sizes are not used.

    Attributes:
        steps: number of iterations.
        nu: lower limit of the distances in the iteration.
    """

    steps: int = 3
    nu: float = 0.1

    name = "geometric_median"
    modifies = False
    info = Info(
        "the point of least total distance",
        "Pillutla et al., IEEE TSP 2022",
        secagg="yes: each step is one secure sum, clients compute their own distance",
    )

    def __post_init__(self) -> None:
        checks.integer("steps", self.steps, 1)
        checks.number("nu", self.nu, 0.0, open_low=True)

    @property
    def needs(self) -> Needs:
        """The Gram, for distances."""
        return Needs.of(gram=True)

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Iterate on the coefficients of `z` as a combination of the updates."""
        gram = view.gram
        weights = np.zeros((gram.dots.shape[0], len(view.ids)))
        floor = max(self.nu, 1e-150)  # the inverse of a smaller number overflows
        for _ in range(self.steps):
            pull = 1 / np.maximum(floor, np.sqrt(gram.sq_distances_to(weights)))
            weights = pull / pull.sum(axis=1, keepdims=True)
        return Mixture.convex(weights), state
