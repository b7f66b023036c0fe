"""VRL-SGD: variance-reduced local SGD.

Liang, Shen, Liu, Pan, Chen, Cheng, "Variance Reduced Local SGD with Lower Communication
Complexity", 2019.

    step     x <- x - eta (g - Delta_k)                                                    (Algorithm 1)
    server   Delta_k <- Delta_k + (x_{t+1} - x_k) / (K eta)    after averaging

K is the number of local steps (FedNova's a_k with local momentum; the authors use none). Clients
outside the cohort keep their Delta. CriticalFL's version, a baseline of PA3Fed, multiplies the
increment by 0.005: `scale`.

The sum of the Deltas is zero because x_{t+1} is the average. With a server optimizer, or a term
that changes the model, it would not be, and training would stall or diverge: both raise an error.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from steelyard.core import checks
from steelyard.core._registry import TERMS
from steelyard.core._term import ClientContext, ClientTerm, ServerContext, TermTags
from steelyard.core._weighting import Info


@TERMS.register
@dataclass(frozen=True)
class VRLSGD(ClientTerm):
    """Adds `-Delta_k` to every gradient.

    Attributes:
        scale: factor of the increment of Delta.
    """

    scale: float = 1.0

    name = "vrlsgd"
    info = Info("variance-reduced local SGD", "Liang et al., 2019")
    client_slots = ("delta",)
    tags = TermTags(
        reported_slots=("delta",),
        changes_client_vectors=True,
        requires_plain_average=True,
        requires_plain_sgd=True,
    )

    def __post_init__(self) -> None:
        checks.number("scale", self.scale, 0.0)

    def add(self, grad: torch.Tensor, x: torch.Tensor, at: ClientContext) -> None:
        """Add `-Delta_k`."""
        grad.sub_(at.own["delta"])

    def server_update(self, at: ServerContext) -> None:
        """Update `Delta_k += scale (theta' - x_k) / (K eta)`."""
        # Row by row: no second [K, d] in memory.
        step = at.theta - at.before
        for row, delta in enumerate(at.new["delta"]):
            delta.add_(step - at.updates[row], alpha=self.scale / (float(at.work[row]) * at.lr))
