"""Participation: the cohorts of all rounds, dropouts, and stragglers with a deadline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from steelyard.core._errors import SteelyardError
from steelyard.core._options import check_options, option
from steelyard.core._rng import stream
from steelyard.core._state import ClientId


@dataclass(frozen=True)
class Participation:
    """Who is asked in a round, and who answers.

    Examples:
        >>> import steelyard
        >>> steelyard.Participation(share=0.1).size(clients=50)
        5
    """

    share: float = option(
        1.0, "share of clients asked in each round", low=0.0, high=1.0, open_low=True
    )
    count: int | None = option(
        None, "number of clients asked in each round, instead of a share", low=1
    )
    train_all: bool = option(
        False, "all clients train, the cohort is drawn afterwards, as in FedLAW's and FedAWA's code"
    )
    dropout: float = option(
        0.0, "probability that a client asked does not answer", low=0.0, high=1.0
    )
    # The deviation of a logarithm: at 50, speeds are still finite.
    spread: float = option(
        0.0, "deviation of the logarithm of clients' speeds; 0: equally fast", low=0.0, high=50.0
    )
    deadline: float | None = option(
        None,
        "replies later than this many median durations of the cohort are left out",
        low=0.0,
        open_low=True,
    )
    quorum: int = option(1, "a round with fewer replies is void: the model stays", low=1)
    patience: int = option(5, "this many void rounds in a row end the run", low=1)

    def __post_init__(self) -> None:
        check_options(self)

    def size(self, clients: int) -> int:
        """Return how many clients are asked in a round.

        `int(share * clients)`, as the authors do, but at least one.
        """
        size = max(1, math.floor(self.share * clients + 1e-9)) if self.count is None else self.count
        if size > clients:
            raise SteelyardError(f"participation.count={size}: there are only {clients} clients")
        if self.quorum > size:
            problem = f"only {size} of {clients} clients are asked"
            raise SteelyardError(
                f"participation.quorum={self.quorum}: {problem} in a round: use at most {size}"
            )
        return size

    def draw(self, seed: int, clients: int, rounds: int) -> list[list[int]]:
        """Return the cohorts of all rounds, sorted.

        A function of seed and round alone, the same for every algorithm.
        """
        size = self.size(clients)
        if size == clients:
            return [list(range(clients)) for _ in range(rounds)]
        return [
            sorted(
                stream(seed, "cohort", t)
                .choice(clients, size, replace=False, shuffle=False)
                .tolist()
            )
            for t in range(1, rounds + 1)
        ]

    def draw_absent(
        self,
        seed: int,
        round: int,
        cohort: Sequence[int],
        ids: Sequence[ClientId],
        work: Sequence[float],
    ) -> tuple[list[int], list[int], float]:
        """Return who drops out, who is late, and the simulated duration of the round.

        `work` is each client's number of steps. A duration is work over speed: speeds are
        log-normal, one for each client for good, and every round adds a delay of half that spread.
        """
        dropped = [
            client
            for client in cohort
            if self.dropout and stream(seed, "dropout", round, ids[client]).random() < self.dropout
        ]
        remaining = [
            (client, amount)
            for client, amount in zip(cohort, work, strict=True)
            if client not in dropped
        ]
        if not remaining:
            return dropped, [], 0.0
        usual = np.array([amount / self._speed(seed, ids[client]) for client, amount in remaining])
        delays = np.array([self._delay(seed, round, ids[client]) for client, _ in remaining])
        durations = usual * delays
        limit = math.inf if self.deadline is None else self.deadline * float(np.median(usual))
        late = [
            client for (client, _), time in zip(remaining, durations, strict=True) if time > limit
        ]
        return dropped, late, float(min(durations.max(), limit))

    def _speed(self, seed: int, client: ClientId) -> float:
        return (
            math.exp(self.spread * stream(seed, "speed", 0, client).standard_normal())
            if self.spread
            else 1.0
        )

    def _delay(self, seed: int, round: int, client: ClientId) -> float:
        if not self.spread:
            return 1.0
        return math.exp(0.5 * self.spread * stream(seed, "delay", round, client).standard_normal())
