"""FedProx: a penalty on the distance to the received model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous Networks",
MLSys 2020.

    min  F_k(x) + mu/2 |x - x_t|^2                                                                  (2)
    gradient of the term: mu (x - x_t)

FedCos's code has no factor 1/2 (its mu is half of ours). The code of FedLAW and FedAWA runs FedProx
without momentum and weight decay, and compares it with a FedAvg that has both.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from steelyard.core import checks
from steelyard.core._registry import TERMS
from steelyard.core._term import ClientContext, ClientTerm
from steelyard.core._weighting import Info


@TERMS.register
@dataclass(frozen=True)
class FedProx(ClientTerm):
    """The penalty `mu/2 |x - start|^2`.

    Attributes:
        mu: weight of the penalty.
    """

    mu: float = 0.01

    name = "fedprox"
    info = Info("a proximal term around the model received", "Li et al., MLSys 2020")

    def __post_init__(self) -> None:
        checks.number("mu", self.mu, 0.0)

    @property
    def proximal(self) -> float:
        """`mu`: the whole term is proximal."""
        return self.mu

    def add(self, grad: torch.Tensor, x: torch.Tensor, at: ClientContext) -> None:
        """Add `mu (x - start)`."""
        grad.add_(x, alpha=self.mu).sub_(at.start, alpha=self.mu)
