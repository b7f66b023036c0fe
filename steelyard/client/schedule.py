"""Learning rates by round: `lr(t) = lr * factor(t)`, t = 1 for the first round, which is never decayed."""

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
    """A factor on the learning rate for every round."""

    name: str
    info: Info

    @abstractmethod
    def factor(self, round: int, rounds: int) -> float:
        """The factor of round `round` (from 1) out of `rounds`."""


@SCHEDULES.register
@dataclass(frozen=True)
class Constant(Schedule):
    """The same learning rate throughout."""

    name = "constant"
    info = Info("the same learning rate throughout")

    def factor(self, round: int, rounds: int) -> float:
        """1."""
        return 1.0


@SCHEDULES.register
@dataclass(frozen=True)
class Exponential(Schedule):
    """`gamma^(t-1)`: FedLAW and FedAWA 0.99, FedAdp 0.995, PA3Fed 0.8."""

    gamma: float = 0.99

    name = "exponential"
    info = Info("multiplied by gamma after every round")

    def __post_init__(self) -> None:
        checks.number("gamma", self.gamma, 0.0, open_low=True)

    def factor(self, round: int, rounds: int) -> float:
        """`gamma^(t-1)`."""
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
        """`gamma^floor((t-1)/every)`."""
        return float(self.gamma ** ((round - 1) // self.every))


@SCHEDULES.register
@dataclass(frozen=True)
class Cosine(Schedule):
    """Half a cosine from 1 down to `floor`."""

    floor: float = 0.0

    name = "cosine"
    info = Info("half a cosine over the run")

    def __post_init__(self) -> None:
        checks.number("floor", self.floor, 0.0, 1.0)

    def factor(self, round: int, rounds: int) -> float:
        """1 in the first round, close to `floor` in the last."""
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * (round - 1) / max(rounds, 1)))


def parse_schedule(spec: Any) -> Schedule:
    """A schedule from its text form (`"exponential:0.995"`)."""
    made = parse(spec, SCHEDULES) if isinstance(spec, str) else spec
    if not isinstance(made, Schedule):
        raise SteelyardError(f"{spec!r} is a {type(made).__name__}, not a schedule or its text form")
    return made
