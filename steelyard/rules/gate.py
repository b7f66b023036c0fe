"""gate: a rule that acts only in critical periods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from steelyard.core.client_state import State
from steelyard.core.mixture import Mixture
from steelyard.core.needs import Needs
from steelyard.core.registry import RULES
from steelyard.core.view import View
from steelyard.core.weighting import Info, Weighting
from steelyard.rules.chain import parse_rule
from steelyard.rules.detectors import Detector, parse_detector


@RULES.register
@dataclass(frozen=True)
class Gate(Weighting):
    """Closed, the prior passes through and nothing inside is computed: no pass over the updates, no change of state."""

    detector: Detector
    rule: Weighting

    name = "gate"
    modifies = True
    info = Info("the rule in critical periods, the prior outside", "", "as the rule inside", "as the rule inside")

    def __post_init__(self) -> None:
        object.__setattr__(self, "detector", parse_detector(self.detector))
        object.__setattr__(self, "rule", parse_rule(self.rule))

    @property
    def needs(self) -> Needs:
        """Those of the detector and of the rule."""
        return self.detector.needs | self.rule.needs

    @property
    def parts(self) -> tuple[Weighting, ...]:
        """The rule inside."""
        return (self.rule,)

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Asks the detector first."""
        seen = view.restrict(self.detector.needs)
        critical, detected = self.detector.critical(seen, state.get(self.detector.name, {}))
        after: dict[str, Any] = {**state, self.detector.name: detected}
        mixture = prior
        if critical:
            mixture, kept = self.rule.apply(prior, view.restrict(self.rule.needs), state.get(self.rule.name, {}))
            after[self.rule.name] = kept
        return mixture.add_report(critical=critical), after
