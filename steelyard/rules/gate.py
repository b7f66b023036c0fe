"""gate: applies a rule only in critical periods."""

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
    """The rule in rounds that the detector calls critical, the prior in all others.

    In other rounds nothing of the rule is computed: there is no pass over the updates, and the
    rule's state does not change.
    """

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
        """The needs of the detector and of the rule."""
        return self.detector.needs | self.rule.needs

    @property
    def parts(self) -> tuple[Weighting, ...]:
        """The rule inside."""
        return (self.rule,)

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Apply the rule if the detector says that the round is critical."""
        # The detector.
        name = self.detector.name
        detector_view = view.restrict(self.detector.needs)
        critical, detector_state = self.detector.critical(detector_view, state.get(name, {}))
        after: dict[str, Any] = {**state, name: detector_state}

        # The rule.
        mixture = prior
        if critical:
            rule_view = view.restrict(self.rule.needs)
            rule_state = state.get(self.rule.name, {})
            mixture, after[self.rule.name] = self.rule.apply(prior, rule_view, rule_state)
        return mixture.add_report(critical=critical), after
