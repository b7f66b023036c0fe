"""FedNova: normalise updates by the amount of local work.

Wang, Liu, Liang, Joshi, Poor, "Tackling the Objective Inconsistency Problem in Heterogeneous
Federated Optimization", NeurIPS 2020.

    theta' = theta + tau_eff sum_i p_i d_i / a_i ,   tau_eff = sum_i p_i a_i

`a_i` is the client's `normalizer`: its number of steps for plain SGD, more with momentum, less with
a proximal term. The authors' code uses `tau_eff = sum_i p_i steps_i` with a proximal term:
`tau_eff="steps"`. CriticalFL's version divides the weights `p_i / a_i` by their sum, so that
tau_eff cancels: that is not FedNova; it is `tau_eff="none"` here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from steelyard.core import checks
from steelyard.core._mixture import Mixture
from steelyard.core._needs import Needs
from steelyard.core._registry import RULES
from steelyard.core._state import State
from steelyard.core._view import View
from steelyard.core._weighting import Info, Weighting


@RULES.register
@dataclass(frozen=True)
class FedNova(Weighting):
    """Prior weights times `tau_eff / a_i`; the weights need not sum to 1.

    Attributes:
        tau_eff: how tau_eff is computed: from the `normalizer`, from the `steps`, or `none`.
    """

    tau_eff: str = "normalizer"

    name = "fednova"
    modifies = True
    info = Info(
        "divides each update by its local work",
        "Wang et al., NeurIPS 2020",
        secagg="yes: clients divide their own update; tau_eff is a secure sum of a number",
        dp="with public step counts, as fedavg",
    )

    def __post_init__(self) -> None:
        checks.one_of("tau_eff", self.tau_eff, "normalizer", "steps", "none")

    @property
    def needs(self) -> Needs:
        """`normalizer`, and `num_steps` if tau_eff is computed from steps."""
        if self.tau_eff == "steps":
            return Needs.of("normalizer", "num_steps")
        return Needs.of("normalizer")

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Return the weights `w_i = p_i tau_eff / a_i`; `base` does not change."""
        normalizer = view.metric("normalizer")[None, :]
        if self.tau_eff == "none":
            return prior.reweight(prior.shares / normalizer), state
        work = normalizer
        if self.tau_eff == "steps":
            work = view.metric("num_steps")[None, :]
        tau = (prior.shares * work).sum(axis=1, keepdims=True)
        mixture = replace(prior, weights=prior.weights * tau / normalizer)
        return mixture.add_report(tau_eff=float(tau[0, 0])), state
