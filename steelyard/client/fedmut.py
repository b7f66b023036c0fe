"""FedMut: clients start from mutated copies of the global model.

Hu et al., "FedMut: Generalized Federated Learning via Stochastic Mutation", AAAI 2024.

With Delta = theta_t - theta_{t-1}, client j of the cohort starts from

    theta_t + radius c_{j,l} Delta      for every tensor l, c shuffled for each tensor on its own

c is +1 for one half of the cohort and -1 + r for the other, `r = rate (1 - min(t / bound, 1))`, t counting rounds from
0; the last client of an odd cohort is not mutated. The authors average uniformly (rule `uniform`), and mutate BatchNorm
statistics too, which can make variances negative: here only parameters are mutated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from steelyard.core import checks
from steelyard.core.gram import Array
from steelyard.core.layout import Leaf
from steelyard.core.registry import BROADCASTS
from steelyard.core.term import Broadcast
from steelyard.core.weighting import Info


class Draws(Protocol):
    """A source of randomness: numpy's generators, or Python's."""

    def random(self) -> float:
        """A number in [0, 1)."""

    def shuffle(self, x: Any) -> None:
        """Shuffles a list in place."""


@BROADCASTS.register
@dataclass(frozen=True)
class FedMut(Broadcast):
    """Mutation along the last global step."""

    radius: float = 4.0
    rate: float = 0.3
    bound: int = 50

    name = "fedmut"
    info = Info("clients start from mutated copies of the global model", "Hu et al., AAAI 2024")

    def __post_init__(self) -> None:
        checks.number("radius", self.radius, 0.0)
        checks.number("rate", self.rate, 0.0)
        checks.integer("bound", self.bound, 1)

    def coefficients(self, clients: int, leaves: Sequence[Leaf], round: int, rng: np.random.Generator) -> Array:
        """One shuffled column of signs for each tensor."""
        return self.mutations(clients, len(leaves), round - 1, rng)

    def mutations(self, clients: int, tensors: int, t: int, rng: Draws) -> Array:
        """Multiples of Delta, `[clients, tensors]`: pairs in a random order, shuffled, as the authors draw them."""
        forth, back = self.radius, self.radius * (-1.0 + self.rate * (1 - min(t / self.bound, 1.0)))
        columns = []
        for _ in range(tensors):
            column: list[float] = []
            for _ in range(clients // 2):
                column += [forth, back] if rng.random() > 0.5 else [back, forth]
            rng.shuffle(column)
            columns.append(column + [0.0] * (clients % 2))
        return np.array(columns, dtype=np.float64).T
