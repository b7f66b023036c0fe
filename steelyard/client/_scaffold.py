"""SCAFFOLD: control variates against client drift.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning", ICML 2020.

    step     x <- x - eta (g - c_k + c)                                                              (3)
    option I    c_k <- g_k(x_t), the gradient at the model received                                  (4)
    option II   c_k <- c_k - c + (x_t - x) / (K eta)                                                 (4)
    server   c <- c + (1/N) sum_k (c_k' - c_k)                                                       (5)

Option II is implemented. K is the number of steps for plain SGD; with local momentum, a gradient
counts more than once and K is FedNova's a_k, so that `(x_t - x) / (K eta)` is still a mean of
gradients. Momentum that persists between rounds would add gradients of earlier rounds to it, and
c_k would grow without limit: this raises an error, as does Adam.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from steelyard.core._registry import TERMS
from steelyard.core._term import ClientContext, ClientTerm, ServerContext, TermTags
from steelyard.core._weighting import Info


@TERMS.register
@dataclass(frozen=True)
class Scaffold(ClientTerm):
    """Adds `c - c_k` to every gradient."""

    name = "scaffold"
    info = Info("control variates", "Karimireddy et al., ICML 2020")
    client_slots = ("control",)
    server_slots = ("control",)
    tags = TermTags(reported_slots=("control",), requires_plain_sgd=True)

    def add(self, grad: torch.Tensor, x: torch.Tensor, at: ClientContext) -> None:
        """Apply Equation (3)."""
        grad.add_(at.sent["control"]).sub_(at.own["control"])

    def finish(self, x: torch.Tensor, at: ClientContext, work: torch.Tensor) -> None:
        """Apply Equation (4), option II."""
        at.own["control"].sub_(at.sent["control"]).add_((at.start - x) / (work * at.lr))

    def server_update(self, at: ServerContext) -> None:
        """Apply Equation (5)."""
        change = (at.new["control"] - at.old["control"]).sum(dim=0)
        at.server_vectors["control"].add_(change, alpha=1 / at.population)
