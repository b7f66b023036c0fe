"""Options of local training, and the two optimizers for flat vectors."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from steelyard.client._augment import Augmentation, parse_augmentation
from steelyard.core import checks
from steelyard.core._errors import SteelyardError, locate_errors
from steelyard.core._options import check_options, option
from steelyard.core._registry import Registry
from steelyard.core._spec import parse
from steelyard.core._term import ClientTerm
from steelyard.core._weighting import Info

# Learning rate schedules: `lr(t) = lr * factor(t)`; the factor of the first round, t = 1, is 1.

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


@dataclass(frozen=True)
class LocalTraining:
    """How clients train; the same for every algorithm.

    Examples:
        >>> import steelyard
        >>> steelyard.LocalTraining(epochs=2, lr=0.05, momentum=0.9).rate(1, rounds=10)
        0.05
    """

    epochs: int | None = option(
        None, "passes over the local data per round (1 if steps is not given)", low=1
    )
    steps: int | None = option(None, "optimizer steps per round, instead of epochs", low=1)
    batch_size: int = option(32, "samples per step; the last batch of a pass may be smaller", low=1)
    lr: float = option(0.1, "learning rate of round 1", low=0.0, open_low=True)
    schedule: str | Schedule = option(
        "constant",
        "factor of the learning rate by round: constant, exponential:0.995, "
        "step:every=10,gamma=0.1, cosine",
    )
    optimizer: str = option("sgd", "sgd or adam", choices=("sgd", "adam"))
    momentum: float = option(0.0, "momentum of sgd", low=0.0, high=1.0)
    nesterov: bool = option(False, "use Nesterov's momentum")
    weight_decay: float = option(0.0, "added to the gradient as weight_decay * x", low=0.0)
    betas: tuple[float, float] = option((0.9, 0.999), "decay rates of adam")
    eps: float = option(1e-8, "epsilon of adam", low=0.0, open_low=True)
    clip: float | None = option(
        None, "largest norm of a step's gradient, with client terms", low=0.0, open_low=True
    )
    persistent: bool = option(
        False, "clients keep their momentum or moments between rounds, as in FedLAW's code"
    )
    train_share: float = option(
        1.0,
        "share of each client's data for training, the rest is for validation (the authors' 0.7)",
        low=0.0,
        high=1.0,
        open_low=True,
    )
    norm_decay: bool = option(
        False, "the reported gradient norm includes weight decay, as in CriticalFL's code"
    )
    drop_last: bool = option(False, "leave out the last batch of a pass if it is not full")
    augment: str | Augmentation | None = option(
        None,
        "random changes to training images: crop_flip, crop_flip:padding=4,flip=0",
        is_late=True,
    )
    batch_seed: int = option(
        0,
        "another number gives other batches with all else the same, to measure noise",
        is_late=True,
    )

    def __post_init__(self) -> None:
        # Each option by itself.
        check_options(self)
        checks.betas(self.betas)

        # Options together.
        if self.epochs is not None and self.steps is not None:
            raise SteelyardError(
                f"epochs={self.epochs} and steps={self.steps}: use only one of them"
            )
        if self.nesterov and not self.momentum:
            raise SteelyardError("nesterov=True with momentum=0: set momentum")
        if self.momentum and self.optimizer == "adam":
            raise SteelyardError(
                f"momentum={self.momentum} with optimizer=adam: only sgd has momentum: use betas"
            )

        # Spec strings that cannot be parsed raise an error now.
        with locate_errors(f"schedule={self.schedule!r}"):
            _ = self.rate_schedule
        with locate_errors(f"augment={self.augment!r}"):
            _ = self.augmentation

    @functools.cached_property
    def rate_schedule(self) -> Schedule:
        """The schedule of the learning rate, as an object."""
        return parse_schedule(self.schedule)

    @functools.cached_property
    def augmentation(self) -> Augmentation | None:
        """The augmentation of training images, as an object."""
        return parse_augmentation(self.augment)

    @property
    def num_epochs(self) -> int | None:
        """Passes over the local data per round; None where `steps` is given instead."""
        return 1 if self.epochs is None and self.steps is None else self.epochs

    def rate(self, round: int, rounds: int) -> float:
        """Return the learning rate of a round."""
        return self.lr * self.rate_schedule.factor(round, rounds)

    def check_terms(self, terms: Iterable[ClientTerm]) -> None:
        """Raise an error for terms whose correction is wrong with this optimizer."""
        has_persistent_momentum = self.persistent and self.momentum > 0
        for term in terms:
            if term.tags.requires_plain_sgd and (
                self.optimizer != "sgd" or has_persistent_momentum
            ):
                conflict = f"optimizer={self.optimizer}"
                hint = "optimizer=sgd"
                if has_persistent_momentum:
                    conflict = "momentum that persists"
                    hint = "persistent=false, or momentum=0"
                raise SteelyardError(
                    f"client={term.name} with {conflict}: its correction is "
                    "(x_t - x) / (steps * lr), which is a mean gradient only for SGD whose "
                    "velocity "
                    f"starts at zero in each round: use {hint}"
                )

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the optimizer's vectors."""
        if self.optimizer == "adam":
            return ("m", "v")
        return ("v",) if self.momentum else ()

    def work(self, steps: int, lr: float, proximal: float) -> float:
        """Return FedNova's a_i: how often the round's gradients count in the displacement.

        Momentum: `c <- rho c + 1, a <- a + c`. A proximal term: `a <- a (1 - eta mu) + 1`. With
        both, the recursions are added, as in the authors' code. Nesterov's momentum is one step
        ahead. For Adam it is the number of steps.

        Args:
            steps: number of local steps.
            lr: the learning rate.
            proximal: mu of the proximal term; 0 without one.
        """
        if self.optimizer == "adam" or not (self.momentum or proximal):
            return float(steps)
        a = c = 0.0
        for _ in range(steps):
            if self.momentum:
                c = self.momentum * c + 1
                a += 1 + self.momentum * c if self.nesterov else c
            if proximal:
                a = a * (1 - lr * proximal) + 1
        return a

    def update(
        self,
        x: torch.Tensor,
        grad: torch.Tensor,
        slots: Mapping[str, torch.Tensor],
        lr: float,
        past_steps: torch.Tensor,
        step: int,
        free: torch.Tensor | None = None,
    ) -> None:
        """Run one step of the optimizer on `[C, d]`, in place.

        Args:
            x: the parameters; they are changed.
            grad: the gradient; it may be changed.
            slots: the optimizer's vectors, by name; they are changed.
            lr: the learning rate.
            past_steps: number of steps of each client before this round, `[C, 1]`, on the CPU.
            step: number of steps in this round, including this one.
            free: a vector `[d]` that is 0 at parameters that are not trained; None if all are.
        """
        # Weight decay. Nothing else would change a parameter that is not trained.
        if self.weight_decay:
            grad.add_(x, alpha=self.weight_decay)
            if free is not None:
                grad.mul_(free)

        # SGD.
        if self.optimizer == "sgd":
            if self.momentum:
                v = slots["v"].mul_(self.momentum).add_(grad)
                grad = grad.add_(v, alpha=self.momentum) if self.nesterov else v
            x.add_(grad, alpha=-lr)
            return

        # Adam. In float32, 1 - 0.999^t would have a relative error of 1e-5.
        first, second = self.betas
        t = past_steps.double() + step
        m = slots["m"].mul_(first).add_(grad, alpha=1 - first)
        v = slots["v"].mul_(second).addcmul_(grad, grad, value=1 - second)
        size = v.div((1 - second**t).to(x)).sqrt_().add_(self.eps)
        x.sub_(m.div(size).mul_((lr / (1 - first**t)).to(x)))
