"""FedDyn: dynamic regularisation.

Acar, Zhao, Matas, Mattina, Whatmough, Saligrama, "Federated Learning Based on Dynamic
Regularization", ICLR 2021.

With h_k the sum of client k's past displacements, and H that of the server:

    official   term  alpha_k ( <x, h_k - x_t> + |x|^2 / 2 ) ,  alpha_k = alpha mean(n) / n_k
               gradient  alpha_k (x - x_t + h_k)
    fedlaw     term  mu/2 |x - x_t|  (not squared)  + mu <x, h_k>
               gradient  mu/2 (x - x_t) / |x - x_t| + mu h_k
    both       h_k <- h_k + (x - x_t) after training
               H <- H + sum_k q_k d_k ,  theta <- (aggregated model) + H
               q_k = 1 / number of all clients (official), the aggregation weight (fedlaw)

The official code has equal weights (rule `uniform`), and reports the accuracy of the average before
H is added; with `form="official"`, the simulator does the same. FedLAW's form sends and evaluates
theta. Its h is our -mu H; if all clients train and a cohort is drawn afterwards, as in its code,
all clients update their h_k. In the official form H is the mean of the h_k, so only those of the
cohort change. Clients that do not start at x_t (FedMut) would change H by more than their h_k: this
combination raises an error.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from steelyard.core import checks
from steelyard.core._registry import TERMS
from steelyard.core._term import ClientContext, ClientTerm, ServerContext, TermTags, Vectors
from steelyard.core._weighting import Info


@TERMS.register
@dataclass(frozen=True)
class FedDyn(ClientTerm):
    """Linear and quadratic terms that move each client's optimum towards the global one.

    Attributes:
        alpha: weight of the terms (mu in FedLAW's form).
        form: `official` or `fedlaw`.
    """

    alpha: float = 0.01
    form: str = "official"

    name = "feddyn"
    info = Info("dynamic regularisation", "Acar et al., ICLR 2021")
    client_slots = ("h",)
    server_slots = ("h",)

    def __post_init__(self) -> None:
        checks.number("alpha", self.alpha, 0.0)
        checks.one_of("form", self.form, "official", "fedlaw")

    @property
    def proximal(self) -> float:
        """`alpha` for the official form, which has a quadratic term; otherwise 0."""
        return self.alpha if self.form == "official" else 0.0

    @property
    def tags(self) -> TermTags:
        """With FedLAW's form, clients outside the cohort update their vectors, as in its code."""
        return TermTags(
            changes_model=True,
            updates_outside_cohort=self.form == "fedlaw",
            requires_global_start=True,
        )

    def add(self, grad: torch.Tensor, x: torch.Tensor, at: ClientContext) -> None:
        """Add the gradient of the term."""
        change = x - at.start
        if self.form == "official":
            grad.add_(change.add_(at.own["h"]).mul_(self.alpha / at.relative_size))
            return
        length = change.norm(dim=1, keepdim=True)
        length = torch.where(length > 0, length, torch.ones_like(length))
        grad.add_(change.mul_(0.5 * self.alpha / length))
        grad.add_(at.own["h"], alpha=self.alpha)

    def finish(self, x: torch.Tensor, at: ClientContext, work: torch.Tensor) -> None:
        """Update `h_k <- h_k + (x - start)`."""
        at.own["h"].add_(x).sub_(at.start)

    def server_update(self, at: ServerContext) -> None:
        """Update `H <- H + sum q_k d_k`, and add H to the model."""
        share = at.weights
        if self.form == "official":
            share = torch.full_like(at.weights, 1 / at.population)
        at.server_vectors["h"].add_(share @ at.updates)
        at.theta.add_(at.server_vectors["h"])

    def params_to_evaluate(self, theta: torch.Tensor, server_vectors: Vectors) -> torch.Tensor:
        """Return the average without H for the official form, as in its code; otherwise `theta`."""
        return theta - server_vectors["h"] if self.form == "official" else theta
