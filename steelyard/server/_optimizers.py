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

A rule's shrinking factor gamma (`shrink`, `gws`, `fedlaw`) is not part of D: it multiplies the
result. With sgd the new model is FedLAW's Eq. (4), `gamma (theta + lr D)`, and gamma and lambda are
learned at that point. With the other optimizers they are learned at `theta + D`, before the
optimizer's step.

v starts at 0 and there is no bias correction, as in FedLAW's code (Reddi et al. start at tau^2). Do
not use lr = 1 for adam: the first step would be about +-1 per coordinate, whatever D is; FedLAW's
comments suggest 0.01.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from steelyard.core import checks
from steelyard.core._optimizer import ServerOptimizer
from steelyard.core._registry import OPTIMIZERS
from steelyard.core._weighting import Info

Slots = Mapping[str, torch.Tensor]


@OPTIMIZERS.register
@dataclass(frozen=True)
class SGD(ServerOptimizer):
    """A step of `lr` times D towards the aggregated model.

    Attributes:
        lr: learning rate.
    """

    lr: float = 1.0

    name = "sgd"
    info = Info("theta + lr D")
    slots = ()

    def __post_init__(self) -> None:
        checks.number("lr", self.lr, 0.0, open_low=True)

    @property
    def global_lr(self) -> float:
        """The learning rate."""
        return self.lr

    def update(self, theta: torch.Tensor, step: torch.Tensor, slots: Slots, t: int) -> torch.Tensor:
        """Return `theta + lr D`."""
        return theta + self.lr * step


@OPTIMIZERS.register
@dataclass(frozen=True)
class Momentum(ServerOptimizer):
    """FedAvgM: server momentum.

    Attributes:
        beta: decay rate of the momentum.
        lr: learning rate.
        convention: `hsu`, `ema` or `fedcos`, as in the module's docstring.
    """

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
        """Return `theta + lr v`."""
        adds_full_step = self.convention == "hsu" or (self.convention == "fedcos" and t == 1)
        alpha = 1.0 if adds_full_step else 1 - self.beta
        v = slots["v"].mul_(self.beta).add_(step, alpha=alpha)
        return theta + self.lr * v


@OPTIMIZERS.register
@dataclass(frozen=True)
class Adam(ServerOptimizer):
    """FedAdam.

    Attributes:
        lr: learning rate.
        betas: decay rates of the moving averages.
        tau: added to the denominator.
    """

    lr: float = 0.01
    betas: tuple[float, float] = (0.9, 0.99)
    tau: float = 1e-5

    name = "adam"
    info = Info("FedAdam", "Reddi et al., ICLR 2021")
    slots = ("m", "v")

    def __post_init__(self) -> None:
        _check_adaptive(self.lr, self.betas, self.tau)

    def update(self, theta: torch.Tensor, step: torch.Tensor, slots: Slots, t: int) -> torch.Tensor:
        """Return `theta + lr m / (sqrt v + tau)`."""
        m = slots["m"].mul_(self.betas[0]).add_(step, alpha=1 - self.betas[0])
        v = slots["v"].mul_(self.betas[1]).addcmul_(step, step, value=1 - self.betas[1])
        return theta + self.lr * m / (v.sqrt() + self.tau)


@OPTIMIZERS.register
@dataclass(frozen=True)
class Yogi(ServerOptimizer):
    """FedYogi.

    Attributes:
        lr: learning rate.
        betas: decay rates of the moving averages.
        tau: added to the denominator.
    """

    lr: float = 0.01
    betas: tuple[float, float] = (0.9, 0.99)
    tau: float = 1e-3

    name = "yogi"
    info = Info("FedYogi", "Reddi et al., ICLR 2021")
    slots = ("m", "v")

    def __post_init__(self) -> None:
        _check_adaptive(self.lr, self.betas, self.tau)

    def update(self, theta: torch.Tensor, step: torch.Tensor, slots: Slots, t: int) -> torch.Tensor:
        """Return `theta + lr m / (sqrt v + tau)`; v moves towards D^2 by a bounded amount."""
        m = slots["m"].mul_(self.betas[0]).add_(step, alpha=1 - self.betas[0])
        square = step * step
        v = slots["v"]
        v.sub_((1 - self.betas[1]) * square * torch.sign(v - square))
        return theta + self.lr * m / (v.sqrt() + self.tau)


@OPTIMIZERS.register
@dataclass(frozen=True)
class Adagrad(ServerOptimizer):
    """FedAdagrad.

    Attributes:
        lr: learning rate.
        tau: added to the denominator.
    """

    lr: float = 0.01
    tau: float = 1e-3

    name = "adagrad"
    info = Info("FedAdagrad", "Reddi et al., ICLR 2021")
    slots = ("v",)

    def __post_init__(self) -> None:
        _check_adaptive(self.lr, (0.0, 0.0), self.tau)

    def update(self, theta: torch.Tensor, step: torch.Tensor, slots: Slots, t: int) -> torch.Tensor:
        """Return `theta + lr D / (sqrt v + tau)`; v is the sum of D^2."""
        v = slots["v"].addcmul_(step, step)
        return theta + self.lr * step / (v.sqrt() + self.tau)


def _check_adaptive(lr: float, betas: tuple[float, float], tau: float) -> None:
    """Raise an error for options that are not valid."""
    checks.number("lr", lr, 0.0, open_low=True)
    checks.number("tau", tau, 0.0, open_low=True)
    checks.betas(betas)
