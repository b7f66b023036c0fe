"""NNM: nearest-neighbour mixing before any rule.

Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan, "Fixing by Mixing", AISTATS 2023: each update is replaced by the
mean of its n - f nearest, itself included. In Gram space this is `G -> M G M^T`; no tensor is touched.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steelyard.core import checks
from steelyard.core.client_state import State
from steelyard.core.mixture import Mixture
from steelyard.core.needs import Needs
from steelyard.core.registry import RULES
from steelyard.core.view import View
from steelyard.core.weighting import Info, Weighting
from steelyard.rules.chain import parse_rule
from steelyard.rules.krum import nearest, withstand


@RULES.register
@dataclass(frozen=True)
class NNM(Weighting):
    """The rule, on mixed updates. Costs some clean accuracy; buys collusion of up to 30 % of the clients."""

    rule: Weighting
    f: int = 1

    name = "nnm"
    modifies = True  # of an instance: whether its rule does
    info = Info("replaces each update by the mean of its nearest", "Allouah et al., AISTATS 2023")

    def __post_init__(self) -> None:
        object.__setattr__(self, "rule", parse_rule(self.rule))
        checks.integer("f", self.f)
        object.__setattr__(self, "modifies", self.rule.modifies)

    @property
    def needs(self) -> Needs:
        """Distances, and what the rule needs."""
        return Needs.of(gram=True) | self.rule.needs

    @property
    def parts(self) -> tuple[Weighting, ...]:
        """The rule inside."""
        return (self.rule,)

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Neighbours are those of whole models, also for a rule that works layer by layer."""
        count = len(view.ids)
        f = withstand(self.f, count)
        mix = np.zeros((count, count))
        np.put_along_axis(mix, nearest(view.whole_gram.sq_distances()[0], count - f), 1 / (count - f), axis=1)
        inner = view.transform(mix).restrict(self.rule.needs)
        mixture, kept = self.rule.apply(prior, inner, state.get(self.rule.name, {}))
        return mixture.of_rows(mix).add_report(withstands=f), ({self.rule.name: kept} if kept else {})
