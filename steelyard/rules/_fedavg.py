"""Sources: weights from a reported number, or equal weights.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas, "Communication-Efficient Learning of Deep Networks
from Decentralized
Data", AISTATS 2017:  theta' = sum_k (n_k / n) theta_k  (Algorithm 1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steelyard.core._errors import RefusedReports, SteelyardError, shorten
from steelyard.core._mixture import Mixture
from steelyard.core._needs import Needs
from steelyard.core._registry import RULES
from steelyard.core._state import State
from steelyard.core._view import View
from steelyard.core._weighting import Info, Weighting


@RULES.register
@dataclass(frozen=True)
class FedAvg(Weighting):
    """Weights proportional to a number that clients report.

    Differences from common code: BatchNorm statistics are averaged with the same weights, integer
    counters keep their dtype, and a client that reports no examples, a negative or a non-finite
    number is quarantined.

    Attributes:
        by: name of the reported number.
    """

    by: str = "num_examples"

    name = "fedavg"
    modifies = False
    info = Info(
        "weights by number of examples, or by any reported number",
        "McMahan et al., AISTATS 2017",
        secagg="yes: one secure sum of [n_k, n_k d_k]",
        dp="use public or capped sizes: a private n_k must not be a weight",
    )

    def __post_init__(self) -> None:
        if not isinstance(self.by, str) or not self.by:
            raise SteelyardError(
                f"by={shorten(self.by)}: use the name of a number that clients report"
            )

    @property
    def needs(self) -> Needs:
        """The reported number."""
        return Needs.of(self.by)

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Return the weights `w_k = n_k / sum_j n_j`."""
        sizes = view.metric(self.by)
        if sizes.ndim != 1:
            raise SteelyardError(
                f"by={self.by!r}: clients report a list: use a metric that is one number"
            )
        negative = np.flatnonzero(sizes < 0)
        if negative.size:
            raise RefusedReports(
                {view.ids[k]: f"negative {self.by}={sizes[k]:g}" for k in negative}
            )
        if not sizes.any():
            raise SteelyardError(
                f"by={self.by!r}: every client reports 0: at least one number must be positive"
            )
        return Mixture.convex(sizes[None, :]), state


@RULES.register
@dataclass(frozen=True)
class Uniform(Weighting):
    """The same weight for every client, `w_k = 1/K`."""

    name = "uniform"
    modifies = False
    info = Info(
        "every client the same weight",
        secagg="yes: one secure sum of d_k",
        dp="yes: sensitivity C/K",
    )

    @property
    def needs(self) -> Needs:
        """No needs."""
        return Needs()

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Return the weights `w_k = 1/K`."""
        return Mixture.convex(np.ones((1, len(view.ids)))), state
