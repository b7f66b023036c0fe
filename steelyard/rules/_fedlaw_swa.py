"""FedLAW with stochastic weight averaging (SWA), section 6.1.

lambda and gamma are learned in two stages, and the logits of lambda are averaged over epochs. The
stage of lambda takes snapshots of the logits x after its epochs 6, 7, ... and ends at the softmax
of their mean; the stage of gamma has no averaging. Each stage has half of the epochs. Paper and
code differ:

               paper                         official
    order      gamma, then lambda            lambda, then gamma
    epochs     100                           20 (which takes 4 snapshots)
    init       "prior"                       "prior" for exp, "uniform" for quad

`learn="lambda"` is the paper's attentive LAW with SWA (Fig. 7): only the stage of lambda, which
then has all epochs; gamma is 1.

In both presets, the learning rates of the stage of lambda are those of the code: cosine annealing
(over 100 epochs) in epochs 0 to 6, then an increase to `swa_lr` within ten epochs, then constant.
The paper mentions a cyclical learning rate (footnote 6), which the code does not have. With 13
epochs or fewer the code takes no snapshot and silently keeps the prior: here that is an error,
unless `snapshots="optional"` is set.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from steelyard.core import checks
from steelyard.core._errors import SteelyardError
from steelyard.core._gram import Array
from steelyard.core._mixture import Mixture
from steelyard.core._needs import Needs
from steelyard.core._registry import RULES, UNSET, fill
from steelyard.core._state import State
from steelyard.core._view import View
from steelyard.core._weighting import Info, Weighting
from steelyard.rules._fedlaw import (
    BETAS,
    EPOCHS,
    Curves,
    Point,
    check_optimizer,
    default_init,
    describe_range,
    finish_mixture,
    minimize_proxy_loss,
    optimizer,
    rate,
)

FIRST = 6  # the epoch after which the first snapshot is taken
_ANNEAL = 100  # epochs
_RISE = 10  # epochs
_ORDERS = {"paper": "gamma_first", "official": "lambda_first"}


@RULES.register
@dataclass(frozen=True)
class FedLAWSWA(Weighting):
    """FedLAW in two stages; the weights are averaged over the last epochs of their stage.

    Attributes:
        preset: `paper` or `official`.
        epochs: passes over the proxy data, of all stages together.
        lr: learning rate of the first epochs.
        swa_lr: learning rate of the last epochs of the stage of lambda.
        optimizer: `adam` or `sgd` (momentum 0.9).
        betas: decay rates of adam.
        function: `exp` or `quad`.
        init: initial lambda: the `prior` or `uniform`.
        learn: `both`, or `lambda` (LAW with SWA).
        order: `lambda_first` or `gamma_first`.
        halve: number of epochs after which the learning rate of the stage of gamma is halved.
        snapshots: `required`; or `optional`: with too few epochs the prior is used, as in the code.
        average: what is averaged: `logits`, as in the code, or `weights`.
        floor: lower limit of the product of all gammas so far.
        trace: whether to report the server's training curves of all stages, at most 25 epochs, as
            `trace`.
        global_lr: learning rate on the aggregated step, inside the shrinking (eta in Eq. 4).
    """

    preset: str = "paper"
    epochs: int = UNSET
    lr: float = 0.01
    swa_lr: float = 0.05
    optimizer: str = "adam"
    betas: tuple[float, float] = BETAS
    function: str = "exp"
    init: str = UNSET
    learn: str = "both"
    order: str = UNSET
    halve: int = 20
    snapshots: str = "required"
    average: str = "logits"
    floor: float | None = None
    trace: bool = False
    global_lr: float = 1.0

    name = "fedlaw_swa"
    modifies = True
    info = Info(
        "FedLAW in two stages, weights averaged over epochs",
        "Li et al., ICML 2023",
        "yes in principle: each step needs two secure sums of vectors",
    )

    def __post_init__(self) -> None:
        checks.one_of("preset", self.preset, *_ORDERS)
        checks.one_of("function", self.function, "exp", "quad")
        checks.one_of("learn", self.learn, "both", "lambda")
        init = default_init(self.preset, self.function)
        fill(self, {"epochs": EPOCHS[self.preset], "order": _ORDERS[self.preset], "init": init})
        checks.one_of("init", self.init, "prior", "uniform")
        checks.integer("epochs", self.epochs, self._stages)
        checks.number("lr", self.lr, 0.0, open_low=True)
        checks.number("swa_lr", self.swa_lr, 0.0, open_low=True)
        check_optimizer(self.optimizer, self.betas)
        checks.one_of("average", self.average, "logits", "weights")
        checks.one_of("order", self.order, *_ORDERS.values())
        checks.integer("halve", self.halve)
        checks.one_of("snapshots", self.snapshots, "required", "optional")
        if self.snapshots == "required" and self._stage_epochs <= FIRST:
            raise SteelyardError(
                f"epochs={self.epochs}: the first snapshot is taken after epoch {FIRST} of a "
                f"stage, "
                f"but a stage has only {self._stage_epochs}: "
                f"use at least {self._stages * (FIRST + 1)}"
            )
        if self.floor is not None:
            checks.number("floor", self.floor, 0.0, 1.0, open_low=True)
            if self.learn == "lambda":
                raise SteelyardError(
                    f"floor={self.floor}: with learn=lambda gamma is 1: leave floor out"
                )
        checks.one_of("trace", self.trace, True, False)
        checks.number("global_lr", self.global_lr, 0.0, open_low=True)

    @property
    def _stages(self) -> int:
        return 1 if self.learn == "lambda" else 2

    @property
    def _stage_epochs(self) -> int:
        return self.epochs // self._stages

    @property
    def needs(self) -> Needs:
        """The proxy loss."""
        return Needs(probe=True)

    @property
    def reach(self) -> float:
        """How far log gamma can move with one batch per epoch, approximately."""
        return sum(rate(self.lr, epoch, self.halve) for epoch in range(self._stage_epochs))

    @property
    def remarks(self) -> tuple[str, ...]:
        """The range of gamma."""
        if self.learn == "lambda":
            return ()
        return (describe_range(self.reach, self.floor),)

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Run the stages in order."""
        # Choose the stages.
        prior = prior.scale_step(self.global_lr)
        point = Point.at(prior.shares[0], self.function, self.init)
        curves = Curves()
        stages = [self._lambda]
        if self.learn == "both":
            stages.append(self._gamma)
        if self.order == "gamma_first":
            stages.reverse()

        # Run them.
        for stage in stages:
            point = stage(point, prior, view, curves)

        # Build the mixture.
        mixture, after = finish_mixture(prior, point.shares, point.gamma, self.floor, view, state)
        if self.trace:
            mixture = mixture.add_report(trace=curves.thin_out(view.ids))
        return mixture, after

    def _lambda(self, point: Point, prior: Mixture, view: View, curves: Curves) -> Point:
        """Run the stage of lambda; return the point at the mean of the snapshots."""
        # Learn lambda, and take snapshots.
        snapshots: list[Array] = []

        def after(epoch: int, reached: Point, loss: float) -> None:
            curves.add(loss, reached.gamma, reached.shares)
            if epoch >= FIRST:
                snapshots.append(reached.x)

        def rates(epoch: int) -> float:
            return swa_rate(self.lr, self.swa_lr, epoch)

        step = optimizer(self.optimizer, self.betas)
        minimize_proxy_loss(view, prior, point, self._stage_epochs, rates, step, True, False, after)

        # Average logits or weights.
        if not snapshots:
            return point
        if self.average == "logits":
            return replace(point, x=np.mean(snapshots, axis=0))
        mean = np.mean([replace(point, x=x).shares for x in snapshots], axis=0)
        return replace(Point.at(mean, self.function, "prior"), g=point.g)

    def _gamma(self, point: Point, prior: Mixture, view: View, curves: Curves) -> Point:
        """Run the stage of gamma; return the last point."""

        def after(_: int, reached: Point, loss: float) -> None:
            curves.add(loss, reached.gamma, reached.shares)

        def rates(epoch: int) -> float:
            return rate(self.lr, epoch, self.halve)

        step = optimizer(self.optimizer, self.betas)
        return minimize_proxy_loss(
            view, prior, point, self._stage_epochs, rates, step, False, True, after
        )


def swa_rate(lr: float, swa_lr: float, epoch: int) -> float:
    """Return the learning rate of an epoch in the stage of lambda."""
    annealed = lr * (1 + math.cos(math.pi * min(epoch, FIRST) / _ANNEAL)) / 2
    swa_share = (1 - math.cos(math.pi * min(max(epoch - FIRST, 0), _RISE) / _RISE)) / 2
    return swa_lr * swa_share + annealed * (1 - swa_share)
