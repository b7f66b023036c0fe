"""PA3Fed: adapt weights only inside critical learning periods.

"PA3Fed: Period-Aware Adaptive Aggregation for Improved Federated Learning", AAAI 2025. No public code exists.

    s_i     = mean cross-entropy of client i on its whole local data                               (8)
    alpha_i = exp(-beta (s_i^{t-sigma} - s_i^t)) ,  sigma = rounds since its last selection        (10)
    weight  = m_i alpha_i inside a critical period, m_i outside                        (Algorithm 1, line 20)

Taken literally (`score="loss"`) a client whose loss fell is weighed down, which contradicts the paper's text three
times ("performance ... should show a gradual increase", "clients with greater stability are given more weight"). The
text is consistent if s is a performance score: `score="neg_loss"` or `"accuracy"` (Eq. 9). The paper leaves open: the
normalisation (here over the cohort), the first selection of a client (alpha = 1), round 1 (the detector's say), and the
model that is scored: the one trained (`model="local"`, Algorithm 1 scores after training) or the one received
(`model="global"`, Eq. 7 writes the downloaded w).

PA3Fed is not written as `gate(detector, scores)`: scores must be remembered outside critical periods too, and a
closed gate computes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from steelyard.core import checks
from steelyard.core.mixture import Mixture
from steelyard.core.needs import Needs
from steelyard.core.registry import RULES
from steelyard.core.table import State, gather, scatter
from steelyard.core.view import View
from steelyard.core.weighting import Card, Weighting
from steelyard.weightings.detectors import Detector, parse_detector


@RULES.register
@dataclass(frozen=True)
class PA3Fed(Weighting):
    """Prior weights times `exp(-beta * (last score - score))` in critical periods.

    `detector` is one, or its text form: `"eq6"`, `"criticalfl_window:window=5"`.
    """

    beta: float = 0.3
    score: str = "loss"
    detector: str | Detector = "eq6"
    model: str = "local"

    name = "pa3fed"
    modifies = True
    card = Card(
        "weighs clients by the change of their score, in critical periods",
        "PA3Fed, AAAI 2025",
        secagg="yes: clients scale their own update; the period needs one secure sum of a number",
        dp="only with weights that never exceed 1 and a noised FGN",
    )

    def __post_init__(self) -> None:
        checks.number("beta", self.beta)
        checks.one_of("score", self.score, "loss", "neg_loss", "accuracy")
        checks.one_of("model", self.model, "local", "global")
        if self._detector.name != self.detector:  # a plain name stays one, for the sake of a short text form
            object.__setattr__(self, "detector", self._detector)

    @cached_property
    def _detector(self) -> Detector:
        return parse_detector(self.detector)

    @property
    def needs(self) -> Needs:
        """The score, and what the detector asks for."""
        return Needs.of(self._metric) | self._detector.needs

    @property
    def _metric(self) -> str:
        return ("accuracy" if self.score == "accuracy" else "loss") + ("_before" if self.model == "global" else "")

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Algorithm 1, lines 13 to 20; scores are remembered in and out of critical periods."""
        reported = view.metric(self._metric)
        score = (-reported if self.score == "neg_loss" else reported)[None, :]  # [1, K]
        critical, detected = self._detector.critical(view.restricted(self._detector.needs), state.get("period", {}))
        last = gather(state.get("scores", {}), view.ids, score)
        power = -self.beta * (last - score) if critical else np.zeros_like(score)
        alpha = np.exp(power - max(float(power.max()) - 700.0, 0.0))  # shares are relative: a common factor is free
        after: dict[str, Any] = {
            "period": detected,
            "scores": scatter(state.get("scores", {}), view.ids, score),
        }
        shares = prior.shares * alpha
        notes = {"critical": critical, "alpha": dict(zip(view.ids, alpha[0].tolist(), strict=True))}
        return prior.reweighted(shares, **notes), after
