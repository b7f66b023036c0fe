"""FedCos: a cosine penalty along the last global step.

Zhang et al., "FedCos: A Scene-adaptive Enhancement for Federated Learning", IEEE Internet of Things
Journal, 2023.

With D = x - x_t, the client's displacement so far, and d, the last displacement of the global
model:

    paper      F_k(x) + mu (1 - cos(D, d)) ,  cos = 1 where D or d is zero                          (6)
    official   F_k(x) + mu (1 - <D, d> / sqrt(|D|^2 |d|^2 + e)) ,  e = 1e-4

The official epsilon is large on purpose: it reduces the penalty as steps get small, and at D = 0 it
pulls along d with the finite gradient -mu d / sqrt(e), where that of the plain cosine is unbounded.

`direction` selects d: "step" is the aggregated step before the server optimizer, as in the authors'
code; "move" is x^r - x^{r-1}, the displacement of the global model, as in Eq. (7). They are equal
unless a server optimizer, a refiner or another term changes the aggregated model. The parameters
form one vector, without BatchNorm statistics. In round 1, d and the term are zero.

Eq. (3) of the paper has weights by size: the rule `fedavg`. The authors' code has equal weights and
parts of equal size, for which both are the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from steelyard.core import checks
from steelyard.core._needs import Needs
from steelyard.core._registry import TERMS
from steelyard.core._term import ClientContext, ClientTerm
from steelyard.core._weighting import Info

_BLOCK = 1 << 18  # numbers that are worked on at a time


@TERMS.register
@dataclass(frozen=True)
class FedCos(ClientTerm):
    """The penalty `mu (1 - cos(x - start, d))`.

    Attributes:
        mu: weight of the penalty.
        form: `official` or `paper`.
        eps: the epsilon of the official form.
        direction: d, the last `step` or `move`.
    """

    mu: float = 0.02
    form: str = "official"
    eps: float = 1e-4
    direction: str = "step"

    name = "fedcos"
    info = Info("a cosine penalty along the last global step", "Zhang et al., IoT-J 2023")

    def __post_init__(self) -> None:
        checks.number("mu", self.mu, 0.0)
        checks.one_of("form", self.form, "official", "paper")
        checks.number("eps", self.eps, 0.0, open_low=True)
        checks.one_of("direction", self.direction, "step", "move")

    @property
    def needs(self) -> Needs:
        """The last displacement of the global model."""
        return Needs(broadcast=frozenset({self.direction}))

    def add(self, grad: torch.Tensor, x: torch.Tensor, at: ClientContext) -> None:
        """Add `-mu [ d / r - <D, d> |d|^2 D / r^3 ]` with `r = sqrt(|D|^2 |d|^2 + e)`."""
        # Nothing to add if d is zero.
        step = at.sent[self.direction]
        length = torch.dot(step, step)
        if not length > 0:
            return

        # All clients together, or a few at a time if they would not fit into the cache.
        if x.numel() <= _BLOCK:
            self._add_block(grad, x - at.start, step, length)
            return
        starts = at.start.expand_as(x)
        rows = max(1, _BLOCK // x.shape[1])
        for first in range(0, len(x), rows):
            block = slice(first, first + rows)
            self._add_block(grad[block], x[block] - starts[block], step, length)

    def _add_block(
        self, grad: torch.Tensor, change: torch.Tensor, step: torch.Tensor, length: torch.Tensor
    ) -> None:
        """Add the gradient of some clients; `change` is D, and is overwritten."""
        # |D|^2 and <D, d>. The bits of a matrix product would depend on the other clients.
        square = (change * change).sum(dim=1, keepdim=True)  # [C, 1]
        inner = (change * step).sum(dim=1, keepdim=True)  # [C, 1]

        # In the paper's form the gradient is zero where D is zero: there, cos = 1 is constant.
        eps = self.eps if self.form == "official" else 0.0
        root = torch.sqrt(square * length + eps)
        safe = torch.where(root > 0, root, torch.ones_like(root))
        defined = (root > 0).to(root.dtype).mul_(self.mu)
        grad.sub_(step * (defined / safe))
        grad.add_(change.mul_(defined * inner * length / safe**3))
