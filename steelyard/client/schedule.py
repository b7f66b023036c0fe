"""Learning rate schedules: `lr(t) = lr * factor(t)`; the factor of the first round, t = 1, is 1."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from steelyard.core import checks
from steelyard.core.errors import SteelyardError
from steelyard.core.registry import Registry
from steelyard.core.spec import parse
from steelyard.core.weighting import Info

SCHEDULES = Registry("schedule")


class Schedule(ABC):
    """The factor of the learning rate for every round.

    Attributes:
        name: the key in spec strings.
        info: the title, shown by the command line.
    """

    name: str
    info: Info

    @abstractmethod
    def factor(self, round: int, rounds: int) -> float:
        """Return the factor of round `round` (from 1) out of `rounds`."""


@SCHEDULES.register
@dataclass(frozen=True)
class Constant(Schedule):
    """The same learning rate in every round."""

    name = "constant"
    info = Info("the same learning rate throughout")

    def factor(self, round: int, rounds: int) -> float:
        """Return 1."""
        return 1.0


@SCHEDULES.register
@dataclass(frozen=True)
class Exponential(Schedule):
    """The factor `gamma^(t-1)`: FedLAW and FedAWA use 0.99, FedAdp 0.995, PA3Fed 0.8."""

    gamma: float = 0.99

    name = "exponential"
    info = Info("multiplied by gamma after every round")

    def __post_init__(self) -> None:
        checks.number("gamma", self.gamma, 0.0, open_low=True)

    def factor(self, round: int, rounds: int) -> float:
        """Return `gamma^(t-1)`."""
        return self.gamma ** (round - 1)


@SCHEDULES.register
@dataclass(frozen=True)
class Step(Schedule):
    """Multiplied by `gamma` after every `every` rounds."""

    every: int = 10
    gamma: float = 0.1

    name = "step"
    info = Info("multiplied by gamma after every so many rounds")

    def __post_init__(self) -> None:
        checks.integer("every", self.every, 1)
        checks.number("gamma", self.gamma, 0.0, open_low=True)

    def factor(self, round: int, rounds: int) -> float:
        """Return `gamma^floor((t-1)/every)`."""
        return float(self.gamma ** ((round - 1) // self.every))


@SCHEDULES.register
@dataclass(frozen=True)
class Cosine(Schedule):
    """Half a cosine from 1 to `floor`."""

    floor: float = 0.0

    name = "cosine"
    info = Info("half a cosine over the run")

    def __post_init__(self) -> None:
        checks.number("floor", self.floor, 0.0, 1.0)

    def factor(self, round: int, rounds: int) -> float:
        """Return a factor that is 1 in the first round and close to `floor` in the last."""
        angle = math.pi * (round - 1) / max(rounds, 1)
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(angle))


def parse_schedule(spec: Any) -> Schedule:
    """Return the schedule of a spec string (`"exponential:0.995"`) or a schedule itself."""
    schedule = parse(spec, SCHEDULES) if isinstance(spec, str) else spec
    if not isinstance(schedule, Schedule):
        kind = type(schedule).__name__
        raise SteelyardError(f"schedule={spec!r} is a {kind}: pass a schedule or its spec string")
    return schedule
