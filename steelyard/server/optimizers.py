"""Server optimizers: Reddi et al., "Adaptive Federated Optimization", ICLR 2021, and server momentum.

With `D = target - theta`, the aggregated step:

    sgd        theta + lr D
    momentum   "hsu"   v <- beta v + D                 (Hsu et al. 2019; FedDF's code)
               "ema"   v <- beta v + (1 - beta) D      (FedDisco's and FedBE's code)
               "fedcos" as "ema", but v = D in the first round
               theta + lr v
    adam       m <- b1 m + (1 - b1) D ; v <- b2 v + (1 - b2) D^2              ; theta + lr m / (sqrt v + tau)
    yogi       m as adam              ; v <- v - (1 - b2) D^2 sign(v - D^2)   ; as adam
    adagrad    m as adam, b1 = 0      ; v <- v + D^2                          ; as adam

A rule's shrinking factor gamma (`shrink`, `gws`, `fedlaw`) is not part of D: it multiplies the result. With sgd the
new model is FedLAW's Eq. (4), `gamma (theta + lr D)`, and gamma and lambda are learned at that point. With the other
optimizers they are learned at `theta + D`, before the optimizer's step.

v starts at 0 and nothing is bias-corrected, as in FedLAW's code (Reddi et al. start at tau^2). Beware of lr = 1 for
adam: the first step is about +-1 per coordinate whatever D is; FedLAW's comments suggest 0.01.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from steelyard.core import checks
from steelyard.core.optimizer import ServerOptimizer
from steelyard.core.registry import OPTIMIZERS
from steelyard.core.weighting import Info

Slots = Mapping[str, torch.Tensor]


@OPTIMIZERS.register
@dataclass(frozen=True)
class SGD(ServerOptimizer):
    """A step of length `lr` towards the aggregated model."""

    lr: float = 1.0

    name = "sgd"
    info = Info("theta + lr D")
    slots = ()

    def __post_init__(self) -> None:
        checks.number("lr", self.lr, 0.0, open_low=True)

    @property
    def global_lr(self) -> float:
        """`lr`."""
        return self.lr

    def update(self, theta: torch.Tensor, step: torch.Tensor, slots: Slots, t: int) -> torch.Tensor:
        """`theta + lr D`."""
        return theta + self.lr * step


@OPTIMIZERS.register
@dataclass(frozen=True)
class Momentum(ServerOptimizer):
    """FedAvgM, in the convention you name."""

    beta: float = 0.9
    lr: float = 1.0
    convention: str = "hsu"

    name = "momentum"
    info = Info("server momentum (FedAvgM)", "Hsu et al., 2019")
    slots = ("v",)

    def __post_init__(self) -> None:
        checks.number("beta", self.beta, 0.0, 1.0)
        checks.number("lr", self.lr, 0.0, open_low=True)
        checks.one_of("convention", self.convention, "hsu", "ema", "fedcos")

    def update(self, theta: torch.Tensor, step: torch.Tensor, slots: Slots, t: int) -> torch.Tensor:
        """`theta + lr v`."""
        whole = self.convention == "hsu" or (self.convention == "fedcos" and t == 1)
        v = slots["v"].mul_(self.beta).add_(step, alpha=1.0 if whole else 1 - self.beta)
        return theta + self.lr * v


@OPTIMIZERS.register
@dataclass(frozen=True)
class Adam(ServerOptimizer):
    """FedAdam."""

    lr: float = 0.01
    betas: tuple[float, float] = (0.9, 0.99)
    tau: float = 1e-5

    name = "adam"
    info = Info("FedAdam", "Reddi et al., ICLR 2021")
    slots = ("m", "v")

    def __post_init__(self) -> None:
        _check_adaptive(self.lr, self.betas, self.tau)

    def update(self, theta: torch.Tensor, step: torch.Tensor, slots: Slots, t: int) -> torch.Tensor:
        """Moving averages of D and D^2."""
        m = slots["m"].mul_(self.betas[0]).add_(step, alpha=1 - self.betas[0])
        v = slots["v"].mul_(self.betas[1]).addcmul_(step, step, value=1 - self.betas[1])
        return theta + self.lr * m / (v.sqrt() + self.tau)


@OPTIMIZERS.register
@dataclass(frozen=True)
class Yogi(ServerOptimizer):
    """FedYogi."""

    lr: float = 0.01
    betas: tuple[float, float] = (0.9, 0.99)
    tau: float = 1e-3

    name = "yogi"
    info = Info("FedYogi", "Reddi et al., ICLR 2021")
    slots = ("m", "v")

    def __post_init__(self) -> None:
        _check_adaptive(self.lr, self.betas, self.tau)

    def update(self, theta: torch.Tensor, step: torch.Tensor, slots: Slots, t: int) -> torch.Tensor:
        """`v` moves towards D^2 by a bounded amount."""
        m = slots["m"].mul_(self.betas[0]).add_(step, alpha=1 - self.betas[0])
        square = step * step
        v = slots["v"]
        v.sub_((1 - self.betas[1]) * square * torch.sign(v - square))
        return theta + self.lr * m / (v.sqrt() + self.tau)


@OPTIMIZERS.register
@dataclass(frozen=True)
class Adagrad(ServerOptimizer):
    """FedAdagrad."""

    lr: float = 0.01
    tau: float = 1e-3

    name = "adagrad"
    info = Info("FedAdagrad", "Reddi et al., ICLR 2021")
    slots = ("v",)

    def __post_init__(self) -> None:
        _check_adaptive(self.lr, (0.0, 0.0), self.tau)

    def update(self, theta: torch.Tensor, step: torch.Tensor, slots: Slots, t: int) -> torch.Tensor:
        """`v` sums D^2."""
        v = slots["v"].addcmul_(step, step)
        return theta + self.lr * step / (v.sqrt() + self.tau)


def _check_adaptive(lr: float, betas: tuple[float, float], tau: float) -> None:
    checks.number("lr", lr, 0.0, open_low=True)
    checks.number("tau", tau, 0.0, open_low=True)
    checks.betas(betas)
