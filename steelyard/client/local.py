"""Options of local training, and the two optimizers for flat vectors."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from steelyard.client.augment import Augmentation, parse_augmentation
from steelyard.core import checks
from steelyard.core.errors import SteelyardError
from steelyard.core.registry import Registry
from steelyard.core.spec import parse
from steelyard.core.term import ClientTerm
from steelyard.core.weighting import Info

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
    """Options of local training, the same for every algorithm.

    Attributes:
        epochs: passes over the local data per round; use either `epochs` or `steps`.
        steps: optimizer steps per round, instead of epochs; a new pass starts when the data ends.
        batch_size: samples per step; the last batch of a pass may be smaller.
        lr: learning rate of round 1.
        schedule: spec string of the learning rate's factor by round: `exponential:0.995`,
            `step:every=10,gamma=0.1`, `cosine`.
        optimizer: `sgd` or `adam`.
        momentum: momentum of SGD.
        nesterov: whether to use Nesterov's momentum.
        weight_decay: added to the gradient as `weight_decay * x`.
        betas: decay rates of Adam.
        eps: epsilon of Adam.
        clip: largest norm of a step's gradient, including client terms; None for no limit.
        persistent: whether clients keep momentum (or Adam's moments) between their rounds, as in
            FedLAW's code.
        train_share: share of each client's data for training; the rest is its validation set (the
            authors use 0.7).
        norm_decay: whether the gradient norm that clients report includes weight decay, as in
            CriticalFL's FedProx and FedNova.
        drop_last: whether to leave out the last batch of a pass if it is not full (and not the only
            one).
        augment: spec string of random changes to training images: `crop_flip:padding=4`; None for
            none.
        batch_seed: another number gives another order of batches with the same data, initial model
            and cohorts, to measure the effect of noise.
    """

    epochs: int | None = None
    steps: int | None = None
    batch_size: int = 32
    lr: float = 0.1
    schedule: str | Schedule = "constant"
    optimizer: str = "sgd"
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    clip: float | None = None
    persistent: bool = False
    train_share: float = 1.0
    norm_decay: bool = False
    drop_last: bool = False
    augment: str | Augmentation | None = None
    batch_seed: int = 0

    def __post_init__(self) -> None:
        # Epochs or steps.
        if self.epochs is not None and self.steps is not None:
            raise SteelyardError(
                f"epochs={self.epochs} and steps={self.steps}: use only one of them"
            )
        if self.epochs is None and self.steps is None:
            object.__setattr__(self, "epochs", 1)

        # Each option by itself.
        checks.integer("epochs", self.epochs if self.epochs is not None else 1, 1)
        checks.integer("steps", self.steps if self.steps is not None else 1, 1)
        checks.integer("batch_size", self.batch_size, 1)
        checks.integer("batch_seed", self.batch_seed)
        checks.number("lr", self.lr, 0.0, open_low=True)
        checks.one_of("optimizer", self.optimizer, "sgd", "adam")
        checks.number("momentum", self.momentum, 0.0, 1.0)
        checks.number("weight_decay", self.weight_decay, 0.0)
        checks.number("train_share", self.train_share, 0.0, 1.0, open_low=True)
        if self.clip is not None:
            checks.number("clip", self.clip, 0.0, open_low=True)
        checks.betas(self.betas)
        checks.number("eps", self.eps, 0.0, open_low=True)

        # Options together.
        if self.nesterov and not self.momentum:
            raise SteelyardError("nesterov=True with momentum=0: set momentum")
        if self.momentum and self.optimizer == "adam":
            raise SteelyardError(
                f"momentum={self.momentum} with optimizer=adam: only sgd has momentum: use betas"
            )

        # Parse spec strings.
        object.__setattr__(self, "schedule", parse_schedule(self.schedule))
        object.__setattr__(self, "augment", parse_augmentation(self.augment))

    def rate(self, round: int, rounds: int) -> float:
        """Return the learning rate of a round."""
        assert isinstance(self.schedule, Schedule)
        return self.lr * self.schedule.factor(round, rounds)

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
