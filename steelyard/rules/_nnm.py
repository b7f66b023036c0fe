"""NNM: nearest-neighbour mixing before any rule.

Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan, "Fixing by Mixing", AISTATS 2023: each
update is replaced by the mean of its n - f nearest updates, including itself. For the Gram this is
`G -> M G M^T`; the updates are not read again.
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
from steelyard.rules._combinators import parse_rule
from steelyard.rules._krum import nearest, withstand


@RULES.register
@dataclass(frozen=True)
class NNM(Weighting):
    """The rule, applied to mixed updates.

    It costs some accuracy without attacks, and tolerates collusion of up to 30 % of the clients.

    Attributes:
        rule: the rule inside.
        f: the number of Byzantine clients to tolerate.
    """

    rule: Weighting
    f: int = 1

    name = "nnm"
    modifies = True  # an instance has the value of its rule
    info = Info("replaces each update by the mean of its nearest", "Allouah et al., AISTATS 2023")

    def __post_init__(self) -> None:
        object.__setattr__(self, "rule", parse_rule(self.rule))
        checks.integer("f", self.f)
        object.__setattr__(self, "modifies", self.rule.modifies)

    @property
    def needs(self) -> Needs:
        """The Gram, for distances, and the needs of the rule."""
        return Needs.of(gram=True) | self.rule.needs

    @property
    def parts(self) -> tuple[Weighting, ...]:
        """The rule inside."""
        return (self.rule,)

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Apply the rule to mixed updates.

        Neighbours are those of the whole model, also for a rule that works layer by layer.
        """
        # The mixing matrix.
        count = len(view.ids)
        f = withstand(self.f, count)
        neighbours = nearest(view.whole_gram.sq_distances()[0], count - f)
        mix = np.zeros((count, count))
        np.put_along_axis(mix, neighbours, 1 / (count - f), axis=1)

        # The rule.
        name = self.rule.name
        inner = view.transform(mix).restrict(self.rule.needs)
        mixture, rule_state = self.rule.apply(prior, inner, state.get(name, {}))
        after = {name: rule_state} if rule_state else {}
        return mixture.of_rows(mix).add_report(withstands=f), after
