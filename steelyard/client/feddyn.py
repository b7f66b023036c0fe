"""FedDyn: dynamic regularisation.

Acar, Zhao, Matas, Mattina, Whatmough, Saligrama, "Federated Learning Based on Dynamic Regularization", ICLR 2021.

With h_k the sum of client k's past displacements, and H that of the server:

    official   term  alpha_k ( <x, h_k - x_t> + |x|^2 / 2 ) ,  alpha_k = alpha mean(n) / n_k
               gradient  alpha_k (x - x_t + h_k)
    fedlaw     term  mu/2 |x - x_t|  (not squared)  + mu <x, h_k>
               gradient  mu/2 (x - x_t) / |x - x_t| + mu h_k
    both       h_k <- h_k + (x - x_t) after training
               H <- H + sum_k q_k d_k ,  theta <- (aggregated model) + H
               q_k = 1 / number of all clients (official), the aggregation weight (fedlaw)

The official code averages uniformly (rule `uniform`), and reports the accuracy of the average before H is added; the
simulator does so, too, under `form="official"`. FedLAW's reading sends and evaluates theta. Its h is our -mu H; where
all clients train and a cohort is drawn afterwards, as in its code, all update their h_k. Officially H is the mean of
the h_k, so there only the cohort's change. Clients that start elsewhere than at x_t (FedMut) would move H by more than
their h_k: that is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from steelyard.core import checks
from steelyard.core.registry import TERMS
from steelyard.core.term import ClientContext, ClientTerm, ServerContext, Vectors
from steelyard.core.weighting import Info


@TERMS.register
@dataclass(frozen=True)
class FedDyn(ClientTerm):
    """Linear and quadratic terms that shift each client's optimum towards the global one."""

    alpha: float = 0.01
    form: str = "official"

    name = "feddyn"
    info = Info("dynamic regularisation", "Acar et al., ICLR 2021")
    client_slots = ("h",)
    server_slots = ("h",)
    moves_model = True
    wants_start = True

    def __post_init__(self) -> None:
        checks.number("alpha", self.alpha, 0.0)
        checks.one_of("form", self.form, "official", "fedlaw")

    @property
    def proximal(self) -> float:
        """The quadratic part, which only the official form has."""
        return self.alpha if self.form == "official" else 0.0

    @property
    def files_all(self) -> bool:
        """As in FedLAW's code."""
        return self.form == "fedlaw"

    def add(self, grad: torch.Tensor, x: torch.Tensor, at: ClientContext) -> None:
        """The gradient of the form chosen."""
        moved = x - at.start
        if self.form == "official":
            grad.add_(moved.add_(at.own["h"]).mul_(self.alpha / at.relative_size))
            return
        length = moved.norm(dim=1, keepdim=True)
        grad.add_(moved.mul_(0.5 * self.alpha / torch.where(length > 0, length, torch.ones_like(length))))
        grad.add_(at.own["h"], alpha=self.alpha)

    def finish(self, x: torch.Tensor, at: ClientContext, work: torch.Tensor) -> None:
        """`h_k <- h_k + (x - start)`."""
        at.own["h"].add_(x).sub_(at.start)

    def settle(self, at: ServerContext) -> None:
        """`H <- H + sum q_k d_k`, and the model moves by H."""
        share = at.weights if self.form == "fedlaw" else torch.full_like(at.weights, 1 / at.population)
        at.kept["h"].add_(share @ at.updates)
        at.theta.add_(at.kept["h"])

    def params_to_evaluate(self, theta: torch.Tensor, kept: Vectors) -> torch.Tensor:
        """The official code evaluates the average, without H."""
        return theta - kept["h"] if self.form == "official" else theta
