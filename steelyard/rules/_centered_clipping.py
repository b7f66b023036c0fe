"""Centered clipping.

Karimireddy, He, Jaggi, "Learning from History for Byzantine Robust Optimization", ICML 2021.

    v <- v + (1/K) sum_k (d_k - v) min(1, tau / |d_k - v|)        (`steps` times)

starting at v = 0, the unchanged global model (the paper starts at the last aggregate).
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
class CenteredClipping(Weighting):
    """The mean of clipped updates, computed by iteration.

    The weights sum to at most 1; the clipped part of an update is replaced by the global model.

    Attributes:
        tau: the radius of clipping.
        steps: number of iterations.
    """

    tau: float = 1.0
    steps: int = 3

    name = "centered_clipping"
    modifies = False
    info = Info(
        "moves to the mean of clipped updates",
        "Karimireddy et al., ICML 2021",
        secagg="yes: each step is one secure sum of clipped updates",
        dp="yes for one step: sensitivity tau/K",
    )

    def __post_init__(self) -> None:
        checks.number("tau", self.tau, 0.0, open_low=True)
        checks.integer("steps", self.steps, 1)

    @property
    def needs(self) -> Needs:
        """The Gram, for distances."""
        return Needs.of(gram=True)

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Iterate on the coefficients of `v` as a combination of the updates."""
        gram = view.gram
        weights = np.zeros((gram.dots.shape[0], len(view.ids)))
        for _ in range(self.steps):
            distance = np.sqrt(gram.sq_distances_to(weights))
            scale = np.minimum(1.0, self.tau / np.maximum(distance, self.tau))
            weights = weights * (1 - scale.mean(axis=1, keepdims=True)) + scale / len(view.ids)
        return Mixture(weights, np.ones(weights.shape[0])), state
