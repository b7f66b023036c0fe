"""Server optimizers: their interface, and how one is applied within a round."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch

from steelyard.core._errors import OversizedUpdate, RoundOverflow, SteelyardError
from steelyard.core._layout import Layout
from steelyard.core._state import State
from steelyard.core._sums import are_finite
from steelyard.core._weighting import Info


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


# Applies a server optimizer within a round, chunk by chunk.


class ServerStep:
    """Applies a server optimizer to chunks; its slots are flat vectors in `state["server"]`.

    Args:
        optimizer: the server optimizer.
        layout: the layout of the model.
        state: the state for the next round; receives the new slots.
        before: the state of the previous round.
        scale: the shrinking factor that targets contain: the optimizer gets the step without it,
            and its result is multiplied by it.
    """

    def __init__(
        self,
        optimizer: ServerOptimizer,
        layout: Layout,
        state: dict[str, Any],
        before: State,
        scale: float,
    ) -> None:
        # Check that the state belongs to this optimizer and this model.
        previous = before.get("server", {})
        if previous and previous.get("name") != optimizer.name:
            raise SteelyardError(
                f"state is of server optimizer {previous.get('name')!r}, not {optimizer.name!r}: "
                f"start from state=None"
            )
        sizes = {previous[name].numel() for name in optimizer.slots if name in previous}
        sizes -= {layout.dim}
        if sizes:
            raise SteelyardError(
                f"state of {optimizer.name} is of a model with {sizes.pop()} parameters, "
                f"this one has {layout.dim}: start from state=None"
            )

        # Copy the slots: the old state must not change.
        self.optimizer = optimizer
        self.scale = scale
        self.t = int(previous.get("rounds", 0)) + 1
        self.slots: dict[str, torch.Tensor] = {}
        for name in optimizer.slots:
            if name in previous:
                self.slots[name] = previous[name].clone()
            else:
                self.slots[name] = torch.zeros(layout.dim, dtype=layout.row_dtype)
        state["server"] = {"name": optimizer.name, "rounds": self.t, **self.slots}

    def __call__(
        self, theta: torch.Tensor, target: torch.Tensor, start: int, stop: int
    ) -> torch.Tensor:
        """Return the new parameters `start:stop`, where `target` is the aggregated model."""
        slots = {name: slot[start:stop] for name, slot in self.slots.items()}
        if self.scale == 1.0:
            return self.optimizer.update(theta, target - theta, slots, self.t)
        return self.scale * self.optimizer.update(theta, target / self.scale - theta, slots, self.t)

    def is_finite(self, start: int, stop: int) -> bool:
        """Return whether the slots are finite at the coordinates `start:stop`."""
        return all(are_finite(slot[start:stop]) for slot in self.slots.values())

    def refuse_overflow(self, rows: torch.Tensor) -> None:
        """Raise an error for slots that overflowed.

        The error names the clients whose updates are too large to be squared, if there are any.
        With an infinite second moment, every later step would be zero without any message.
        """
        # Find the clients that are the cause.
        largest = math.sqrt(torch.finfo(rows.dtype).max)
        oversized = torch.nonzero(rows[:-1].abs().amax(dim=1) > largest).flatten().tolist()
        name = self.optimizer.name
        if oversized:
            reason = (
                f"its update is too large for the server optimizer {name}: "
                f"the square of a number above {largest:.2g} overflows"
            )
            raise OversizedUpdate(tuple(oversized), reason)

        # No single client is the cause.
        raise RoundOverflow(
            f"the state of the server optimizer {name} overflows {rows.dtype}: model and state are "
            "unchanged. If this happens again, start from state=None"
        )
