"""How clients train: the options, and the two optimizers on flat vectors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from steelyard.client.augment import Augmentation, parse_augmentation
from steelyard.client.schedule import Schedule, parse_schedule
from steelyard.core import checks
from steelyard.core.errors import SteelyardError
from steelyard.core.term import ClientTerm


@dataclass(frozen=True)
class LocalTraining:
    """Local training: one loop for every algorithm.

    Attributes:
        epochs: passes over the local data per round; or give `steps`.
        steps: optimizer steps per round, instead of epochs; a new pass starts where the data ends.
        batch_size: samples per step; the last batch of a pass is what is left.
        lr: learning rate of round 1.
        schedule: factor by round, as text: `exponential:0.995`, `step:every=10,gamma=0.1`, `cosine`.
        optimizer: `sgd` or `adam`.
        momentum: of SGD.
        nesterov: Nesterov's momentum.
        weight_decay: added to the gradient as `weight_decay * x`.
        betas: of Adam.
        eps: of Adam.
        clip: largest norm of a step's gradient, terms included; None for no limit.
        persistent: keep momentum (Adam's moments) from one participation to the next, as FedLAW's code does.
        train_share: share of each client's data used for training; the rest is its validation set (the authors' 0.7).
        norm_decay: count weight decay in the gradient norm clients report, as CriticalFL's FedProx and FedNova do.
        drop_last: leave out the last batch of a pass if it is not full (and not the only one).
        augment: random changes to training images, as text: `crop_flip:padding=4`; None for none.
        batch_seed: another number is another order of batches, with the same data, initial model
            and cohorts: what noise alone does.
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
        if self.epochs is not None and self.steps is not None:
            raise SteelyardError(f"epochs={self.epochs} and steps={self.steps}: give one of them")
        if self.epochs is None and self.steps is None:
            object.__setattr__(self, "epochs", 1)
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
        if self.nesterov and not self.momentum:
            raise SteelyardError("nesterov=True with momentum=0: give a momentum")
        if self.momentum and self.optimizer == "adam":
            raise SteelyardError(f"momentum={self.momentum} belongs to sgd: adam has betas")
        checks.betas(self.betas)
        checks.number("eps", self.eps, 0.0, open_low=True)
        object.__setattr__(self, "schedule", parse_schedule(self.schedule))
        object.__setattr__(self, "augment", parse_augmentation(self.augment))

    def rate(self, round: int, rounds: int) -> float:
        """The learning rate of a round."""
        assert isinstance(self.schedule, Schedule)
        return self.lr * self.schedule.factor(round, rounds)

    def check_terms(self, terms: Iterable[ClientTerm]) -> None:
        """Refuses terms whose correction this optimizer would spoil."""
        carried = self.persistent and self.momentum > 0
        for term in terms:
            if term.wants_sgd and (self.optimizer != "sgd" or carried):
                found = "momentum that persists" if carried else f"optimizer={self.optimizer}"
                cure = "persistent=false, or momentum=0" if carried else "optimizer=sgd"
                raise SteelyardError(
                    f"client={term.name} with {found}: its correction is (x_t - x) / (steps * lr), which is a mean "
                    f"gradient only under SGD whose velocity starts at zero in each round: use {cure}"
                )

    @property
    def slots(self) -> tuple[str, ...]:
        """Vectors the optimizer holds."""
        if self.optimizer == "adam":
            return ("m", "v")
        return ("v",) if self.momentum else ()

    def work(self, steps: int, lr: float, proximal: float) -> float:
        """FedNova's a_i after so many steps: how often the round's gradients count in the displacement.

        Momentum: `c <- rho c + 1, a <- a + c`. A proximal term: `a <- a (1 - eta mu) + 1`. With both, the authors' code
        adds both recursions up, and so does this. Nesterov looks one step ahead. Adam: the number of steps.
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
        held: Mapping[str, torch.Tensor],
        lr: float,
        taken: torch.Tensor,
        step: int,
        free: torch.Tensor | None = None,
    ) -> None:
        """One step on `[C, d]`, in place.

        `taken` `[C, 1]`, on the CPU, counts each client's steps before this round, `step` those in it, this one
        included; `free` `[d]` is 0 where nothing is learned.
        """
        if self.weight_decay:
            grad.add_(x, alpha=self.weight_decay)
            if free is not None:
                grad.mul_(free)  # weight decay is the only part that would move a frozen parameter
        if self.optimizer == "sgd":
            if self.momentum:
                v = held["v"].mul_(self.momentum).add_(grad)
                grad = grad.add_(v, alpha=self.momentum) if self.nesterov else v
            x.add_(grad, alpha=-lr)
            return
        first, second = self.betas
        t = taken.double() + step  # in float32, 1 - 0.999^t is off by 1e-5 of it
        m = held["m"].mul_(first).add_(grad, alpha=1 - first)
        v = held["v"].mul_(second).addcmul_(grad, grad, value=1 - second)
        size = v.div((1 - second**t).to(x)).sqrt_().add_(self.eps)
        x.sub_(m.div(size).mul_((lr / (1 - first**t)).to(x)))
