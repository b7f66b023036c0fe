"""The interface of a server optimizer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch

from steelyard.core.weighting import Info


class ServerOptimizer(ABC):
    """Element-wise, so it runs chunk by chunk inside the combine pass.

    The aggregated model is a target, `step = target - theta` a pseudo-gradient (with the sign of an ascent), and the
    optimizer says where the global model goes. BatchNorm statistics and counters do not pass through it. A shrinking
    factor (`shrink`, `gws`, `fedlaw`) is applied to the result: it is not part of the step.

    Attributes:
        name: the key in text form.
        slots: names of the vectors it keeps between rounds; they start at zero.
    """

    name: str
    info: Info
    slots: tuple[str, ...]

    @property
    def global_lr(self) -> float:
        """The learning rate of an optimizer that only scales the step, `theta + lr D`; 1 for all others.

        Rules that learn on proxy data evaluate the model at `theta + global_lr * D`.
        """
        return 1.0

    @abstractmethod
    def update(
        self, theta: torch.Tensor, step: torch.Tensor, slots: Mapping[str, torch.Tensor], t: int
    ) -> torch.Tensor:
        """The new parameters of one chunk; `slots` are changed in place; `t` counts rounds from 1."""
