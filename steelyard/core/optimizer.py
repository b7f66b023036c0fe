"""The interface of a server optimizer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch

from steelyard.core.weighting import Info


class ServerOptimizer(ABC):
    """An element-wise optimizer of the global model; it runs chunk by chunk in the combine pass.

    The aggregated model is the target, and `step = target - theta` is a pseudo-gradient (with the
    sign of an ascent) from which the optimizer computes the new model. BatchNorm statistics and
    counters do not pass through it. A shrinking factor (`shrink`, `gws`, `fedlaw`) is not part of
    the step: it is applied to the result.

    Attributes:
        name: the key in spec strings.
        info: title and paper, shown by the command line.
        slots: names of the vectors that it keeps between rounds; they start at zero.
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
        """Return the new parameters of one chunk.

        Args:
            theta: the global model.
            step: the aggregated step.
            slots: the optimizer's vectors; they are updated in place.
            t: number of rounds, from 1.
        """
