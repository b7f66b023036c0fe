"""PA3Fed: adapt weights only inside critical learning periods.

"PA3Fed: Period-Aware Adaptive Aggregation for Improved Federated Learning", AAAI 2025. No public
code exists.

    s_i     = mean cross-entropy of client i on its whole local data                               (8)
    alpha_i = exp(-beta (s_i^{t-sigma} - s_i^t)) ,  sigma = rounds since its last selection        (10)
    weight  = m_i alpha_i inside a critical period, m_i outside                        (Algorithm 1, line 20)

The paper contradicts itself on two points, and `preset` selects the interpretation:

                 "intended" (default)   "literal"
    score        "neg_loss"             "loss"       as printed, a client whose loss decreased gets
                                                     less weight, unlike the text: "the score serves
                                                     as an indicator of a client's performance ...
                                                     ideally, it should show a gradual increase"
    model        "global"               "global"     Eq. (7) has the downloaded w^t; Algorithm 1
                                                     scores after local training, which is
                                                     model="local"

`score="accuracy"` is Eq. (9). After long local training the loss of the trained model hardly
changes from one selection to the next, so with `model="local"` every alpha is close to 1
(docs/pa3fed.md). The paper does not define the first selection of a client (here alpha = 1) and
round 1 (here the detector decides).

Line 20 of Algorithm 1 is "Aggregate w_i with factor m_i x alpha_i", and does not divide. Here the
factors are divided by their sum over the cohort. With `divide=false` they are not: the new model is
sum_i m_i alpha_i w_i, which is longer or shorter than the clients' models by the factor sum_i m_i
alpha_i in every critical round. Nothing bounds the product of these factors, so it can diverge.

PA3Fed is not written as `gate(detector, scores)`: scores must be stored outside critical periods,
too, and a closed gate computes nothing.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from steelyard.core import checks
from steelyard.core._mixture import Mixture
from steelyard.core._needs import Needs
from steelyard.core._registry import RULES, UNSET, fill
from steelyard.core._state import State, gather, scatter
from steelyard.core._view import View
from steelyard.core._weighting import Info, Weighting
from steelyard.rules._detectors import Detector, parse_detector

_UNDIVIDED = (
    "weights do not sum to 1, so the global model is multiplied by their sum in every critical "
    "round; nothing bounds the product over rounds, and runs can diverge"
)
_PRESETS = {
    "intended": {"score": "neg_loss", "model": "global"},
    "literal": {"score": "loss", "model": "global"},
}


@RULES.register
@dataclass(frozen=True)
class PA3Fed(Weighting):
    """Prior weights times `exp(-beta * (last score - score))` in critical periods.

    Attributes:
        beta: the strength of the adaptation.
        score: `loss`, `neg_loss` or `accuracy`; by default that of the preset.
        detector: a detector or its spec string: `"eq6"`, `"criticalfl_window:window=5"`,
            `"always"`.
        model: score the `global` or the `local` model; by default that of the preset.
        preset: `intended` or `literal`.
        divide: whether the weights are divided by their sum. Without it (Algorithm 1, line 20, read
            to the letter) the global model grows or shrinks in critical rounds, and can diverge.
    """

    beta: float = 0.3
    score: str = UNSET
    detector: str | Detector = "eq6"
    model: str = UNSET
    preset: str = "intended"
    divide: bool = True

    name = "pa3fed"
    modifies = True
    info = Info(
        "weighs clients by the change of their score, in critical periods",
        "PA3Fed, AAAI 2025",
        secagg="yes: clients scale their own update; the period needs one secure sum of a number",
        dp="only with weights that never exceed 1 and a noised FGN",
    )

    def __post_init__(self) -> None:
        checks.one_of("preset", self.preset, *_PRESETS)
        fill(self, _PRESETS[self.preset])
        checks.number("beta", self.beta)
        checks.one_of("score", self.score, "loss", "neg_loss", "accuracy")
        checks.one_of("model", self.model, "local", "global")
        checks.one_of("divide", self.divide, True, False)
        # A plain name is not replaced, so that the spec string stays short.
        if self._detector.name != self.detector:
            object.__setattr__(self, "detector", self._detector)

    @cached_property
    def _detector(self) -> Detector:
        return parse_detector(self.detector)

    @property
    def needs(self) -> Needs:
        """The score, and the needs of the detector."""
        return Needs.of(self._metric) | self._detector.needs

    @property
    def _metric(self) -> str:
        """The metric that clients report for the score."""
        metric = "accuracy" if self.score == "accuracy" else "loss"
        return f"{metric}_before" if self.model == "global" else metric

    @property
    def scales_by_reports(self) -> bool:
        """Whether weights are not divided by their sum."""
        return not self.divide

    @property
    def remarks(self) -> tuple[str, ...]:
        """Warnings about `model="local"`, which has little effect, and about `divide=False`."""
        sentences = []
        if self.model == "local":
            sentences.append(
                "model=local scores trained models: after long local training scores change "
                "little, and so do weights"
            )
        if not self.divide:
            sentences.append(f"divide=false: {_UNDIVIDED}")
        return tuple(sentences)

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Apply Algorithm 1, lines 13 to 20; scores are stored in every round."""
        # Scores. A new client has no earlier score: its change is zero.
        reported = view.metric(self._metric)
        sign = -1.0 if self.score == "neg_loss" else 1.0
        score = (sign * reported)[None, :]  # [1, K]
        key = f"{self.score} {self.model}"  # scores of other kinds cannot be compared with these
        earlier = state.get("scores", {}).get(key, {})
        last = gather(earlier, view.ids, score)

        # The period check.
        detector_view = view.restrict(self._detector.needs)
        critical, period = self._detector.critical(detector_view, state.get("period", {}))

        # Equation (10). Only relative shares matter: a common factor is removed so that exp does
        # not overflow.
        power = -self.beta * (last - score) if critical else np.zeros_like(score)
        alpha = np.exp(power - max(float(power.max()) - 700.0, 0.0))

        # State and report.
        after: dict[str, Any] = {
            "period": period,
            "scores": {key: scatter(earlier, view.ids, score)},
        }
        notes = {"critical": critical, "alpha": dict(zip(view.ids, alpha[0].tolist(), strict=True))}
        mixture = prior.reweight(prior.shares * alpha, **notes)
        if self.divide:
            return mixture, after

        # Algorithm 1, line 20, read to the letter. Warn in the first round.
        if not state:
            warnings.warn(f"pa3fed:divide=false: {_UNDIVIDED}", RuntimeWarning, stacklevel=2)
        # Multiply the models, theta + d_i, by the factors.
        factor = float((prior.shares * alpha).sum())
        return mixture.scale_by(factor).add_report(gamma=factor), after
