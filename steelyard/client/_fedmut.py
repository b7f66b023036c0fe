"""FedMut: clients start from mutated copies of the global model.

Hu et al., "FedMut: Generalized Federated Learning via Stochastic Mutation", AAAI 2024.

With Delta = theta_t - theta_{t-1}, client j of the cohort starts from

    theta_t + radius c_{j,l} Delta      for every tensor l, c shuffled separately for each tensor

c is +1 for one half of the cohort and -1 + r for the other, `r = rate (1 - min(t / bound, 1))`,
where t counts rounds from 0; the last client of an odd cohort is not mutated. The authors use equal
weights (rule `uniform`). They also mutate BatchNorm statistics, which can make variances negative:
here only parameters are mutated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from steelyard.core import checks
from steelyard.core._gram import Array
from steelyard.core._layout import Leaf
from steelyard.core._registry import BROADCASTS
from steelyard.core._term import Broadcast
from steelyard.core._weighting import Info


class Draws(Protocol):
    """A random generator, of numpy or of Python."""

    def random(self) -> float:
        """Return a number in [0, 1)."""

    def shuffle(self, x: Any) -> None:
        """Shuffle a list in place."""


@BROADCASTS.register
@dataclass(frozen=True)
class FedMut(Broadcast):
    """Mutation along the last global step.

    Attributes:
        radius: factor of the mutation.
        rate: initial value of r, the difference between the two directions.
        bound: the round from which on r is zero.
    """

    radius: float = 4.0
    rate: float = 0.3
    bound: int = 50

    name = "fedmut"
    info = Info("clients start from mutated copies of the global model", "Hu et al., AAAI 2024")

    def __post_init__(self) -> None:
        checks.number("radius", self.radius, 0.0)
        checks.number("rate", self.rate, 0.0)
        checks.integer("bound", self.bound, 1)

    def coefficients(
        self, clients: int, leaves: Sequence[Leaf], round: int, rng: np.random.Generator
    ) -> Array:
        """Return the factors of Delta, one shuffled column per tensor."""
        return self.mutations(clients, len(leaves), round - 1, rng)

    def mutations(self, clients: int, tensors: int, t: int, rng: Draws) -> Array:
        """Return factors of Delta, `[clients, tensors]`.

        As in the authors' code, pairs are drawn in random order, and then shuffled.
        """
        forward = self.radius
        backward = self.radius * (-1.0 + self.rate * (1 - min(t / self.bound, 1.0)))
        columns = []
        for _ in range(tensors):
            column: list[float] = []
            for _ in range(clients // 2):
                column += [forward, backward] if rng.random() > 0.5 else [backward, forward]
            rng.shuffle(column)
            columns.append(column + [0.0] * (clients % 2))
        return np.array(columns, dtype=np.float64).T
