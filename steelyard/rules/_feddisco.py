"""FedDisco: reduce the weight of clients by the discrepancy of their labels.

Ye, Xu, Wang, Xu, Chen, Wang, "FedDisco: Federated Learning with Discrepancy-Aware Collaboration",
ICML 2023.

    w_k = ReLU(p_k - a d_k + b) / sum_j ReLU(p_j - a d_j + b)

d_k compares the client's label distribution with the uniform one (as in the authors' code: not with
the mixture of clients). `"kl"`, the default, is KL(client | uniform) divided by its sum over the
cohort, so it depends on the cohort; `"l1"`, `"l2"` and `"cosine"` (1 - cos) are not divided.
Differences from the code: a and b have its recommended values 0.5 and 0.1 as defaults (its flag
defaults to off); where every weight would be zero, the prior is used (the code crashes).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steelyard.core import checks
from steelyard.core._gram import Array
from steelyard.core._mixture import Mixture
from steelyard.core._needs import Needs
from steelyard.core._registry import RULES
from steelyard.core._state import State
from steelyard.core._view import View
from steelyard.core._weighting import Info, Weighting


@RULES.register
@dataclass(frozen=True)
class FedDisco(Weighting):
    """Prior weights minus `a` times the discrepancy plus `b`, but at least zero.

    Attributes:
        a: factor of the discrepancy.
        b: constant added to every weight.
        metric: the discrepancy: `kl`, `l1`, `l2` or `cosine`.
    """

    a: float = 0.5
    b: float = 0.1
    metric: str = "kl"

    name = "feddisco"
    modifies = True
    info = Info(
        "weighs clients down by the discrepancy of their labels",
        "Ye et al., ICML 2023",
        secagg="partly: label histograms are disclosed, or compared at the client",
        dp="label histograms need noise of their own",
    )

    def __post_init__(self) -> None:
        checks.number("a", self.a)
        checks.number("b", self.b)
        checks.one_of("metric", self.metric, "kl", "l1", "l2", "cosine")

    @property
    def needs(self) -> Needs:
        """Label histograms."""
        return Needs.of("label_hist")

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Return the weights w_k of the module's equation, for the cohort."""
        difference = discrepancy(view.metric("label_hist"), self.metric)
        weights = np.maximum(prior.shares - self.a * difference + self.b, 0.0)
        total = weights.sum(axis=1, keepdims=True)
        notes = {"discrepancy": dict(zip(view.ids, difference.tolist(), strict=True))}
        return prior.reweight(np.where(total > 0, weights, prior.shares), **notes), state


def discrepancy(histograms: Array, metric: str) -> Array:
    """Return the discrepancy of label histograms `[K, C]` from the uniform distribution, `[K]`."""
    local = histograms / histograms.sum(axis=1, keepdims=True)
    uniform = 1 / local.shape[1]
    if metric == "kl":
        ratio = np.where(local > 0, local / uniform, 1.0)
        divergence: Array = (local * np.log(ratio)).sum(axis=1)
        total = divergence.sum()
        return divergence / total if total > 0 else divergence
    distance: Array
    if metric == "cosine":
        norms = np.linalg.norm(local, axis=1) * np.sqrt(uniform)
        distance = 1 - local.sum(axis=1) * uniform / norms
    else:
        distance = np.linalg.norm(local - uniform, ord={"l1": 1, "l2": 2}[metric], axis=1)
    return distance
