"""VRL-SGD: variance-reduced local SGD.

Liang, Shen, Liu, Pan, Chen, Cheng, "Variance Reduced Local SGD with Lower Communication Complexity", 2019.

    step     x <- x - eta (g - Delta_k)                                                    (Algorithm 1)
    server   Delta_k <- Delta_k + (x_{t+1} - x_k) / (K eta)    after averaging

K is the number of local steps (FedNova's a_k with local momentum; the authors use none). Clients outside the cohort
keep their Delta. CriticalFL's port, a baseline of PA3Fed, multiplies the increment by 0.005: `scale`.

The Deltas cancel out because x_{t+1} is the average. A server optimizer, or a term that moves the model on, would leave
a rest in them that stalls the run or blows it up: both are refused.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from steelyard.core import checks
from steelyard.core.registry import TERMS
from steelyard.core.term import ClientContext, ClientTerm, ServerContext
from steelyard.core.weighting import Info


@TERMS.register
@dataclass(frozen=True)
class VRLSGD(ClientTerm):
    """`-Delta_k` on every gradient."""

    scale: float = 1.0

    name = "vrlsgd"
    info = Info("variance-reduced local SGD", "Liang et al., 2019")
    client_slots = ("delta",)
    wants_average = True
    told_slots = ("delta",)
    writes_slots = True
    wants_sgd = True

    def __post_init__(self) -> None:
        checks.number("scale", self.scale, 0.0)

    def add(self, grad: torch.Tensor, x: torch.Tensor, at: ClientContext) -> None:
        """`-Delta_k`."""
        grad.sub_(at.own["delta"])

    def settle(self, at: ServerContext) -> None:
        """`Delta_k += scale (theta' - x_k) / (K eta)`."""
        step = at.theta - at.before
        for row, delta in enumerate(at.new["delta"]):  # row by row: no second [K, d] in memory
            delta.add_(step - at.updates[row], alpha=self.scale / (float(at.work[row]) * at.lr))
