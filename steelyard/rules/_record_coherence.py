"""Records further measurements of coherence, and leaves the weights as they are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from steelyard.core import checks
from steelyard.core._gram import Gram
from steelyard.core._mixture import Mixture
from steelyard.core._needs import Needs
from steelyard.core._registry import RULES
from steelyard.core._round_report import coherence
from steelyard.core._state import State
from steelyard.core._view import View
from steelyard.core._weighting import Info, Weighting


@RULES.register
@dataclass(frozen=True)
class RecordCoherence(Weighting):
    """Records the coherence (FedLAW, Def. 5.1) of groups of clients, and across the global model.

    `coherence_across` is that of the updates without their part along the global model. A server
    that shrinks the model makes all clients enlarge it again: this part of the updates is
    coherent, and of no use. `coherence_of_groups` has those of equal groups of clients, in the
    order of their ids, by the numbers 1, 2, ... of the groups. They are recorded only if there are
    several groups with at least two clients each.

    Attributes:
        groups: the number of groups.
    """

    groups: int = 1

    name = "record_coherence"
    modifies = True
    info = Info("records coherence by group and across the model", "FedLAW, Figs. 5 and 6")

    def __post_init__(self) -> None:
        checks.integer("groups", self.groups, 1)

    @property
    def needs(self) -> Needs:
        """The inner products of the updates."""
        return Needs.of(gram=True)

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Return the weights unchanged, with the measurements in the report."""
        gram = view.whole_gram
        shares = prior.shares.mean(axis=0)
        count = len(shares)
        report: dict[str, Any] = {"coherence_across": coherence(remove_model_part(gram), shares)}

        # Groups of clients, whose shares are divided by their sum.
        members = np.array_split(np.arange(count), self.groups)
        if self.groups > 1 and count >= 2 * self.groups:
            by_group = {}
            for number, group in enumerate(members, 1):
                part = gram.transform(np.eye(count)[group])
                total = float(shares[group].sum())
                group_shares = np.full(len(group), 1 / len(group))
                if total > 0:
                    group_shares = shares[group] / total
                by_group[str(number)] = coherence(part, group_shares)
            report["coherence_of_groups"] = by_group
        return prior.add_report(**report), state


def remove_model_part(gram: Gram) -> Gram:
    """Return the inner products of the updates without their part along the global model."""
    theta_sq = gram.theta_sq[:, None, None]
    along = gram.theta_dots[:, :, None] * gram.theta_dots[:, None, :]
    part = np.divide(along, theta_sq, out=np.zeros_like(along), where=theta_sq > 0)
    return replace(gram, dots=gram.dots - part)
