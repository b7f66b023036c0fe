"""if_finite: applies a rule unless its weights are not finite."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from steelyard.core.client_state import State
from steelyard.core.errors import NonFiniteLoss
from steelyard.core.mixture import Mixture
from steelyard.core.needs import Needs
from steelyard.core.registry import RULES
from steelyard.core.view import View
from steelyard.core.weighting import Info, Weighting
from steelyard.rules.chain import parse_rule


@RULES.register
@dataclass(frozen=True)
class IfFinite(Weighting):
    """The rule's mixture if every coefficient is finite, otherwise the prior.

    If the prior is used, the rule's state does not change.
    """

    rule: Weighting

    name = "if_finite"
    modifies = True
    info = Info("the rule, unless it gives NaN or infinity", "", "as the rule inside", "as the rule inside")

    def __post_init__(self) -> None:
        object.__setattr__(self, "rule", parse_rule(self.rule))

    @property
    def needs(self) -> Needs:
        """The needs of the rule."""
        return self.rule.needs

    @property
    def parts(self) -> tuple[Weighting, ...]:
        """The rule inside."""
        return (self.rule,)

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Apply the rule; the report says if the prior is used instead."""
        with np.errstate(all="ignore"), suppress(NonFiniteLoss):
            mixture, rule_state = self.rule.apply(prior, view, state.get(self.rule.name, {}))
            if mixture.finite:
                return mixture, ({self.rule.name: rule_state} if rule_state else {})
        return prior.add_report(fallback=f"{self.rule.name} gave non-finite weights"), state
