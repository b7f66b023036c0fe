"""A server optimizer within the round: applied chunk by chunk, with what it keeps under `state["server"]`."""

from __future__ import annotations

import math
from typing import Any

import torch

from steelyard.core.client_state import State
from steelyard.core.errors import OversizedUpdate, RoundOverflow, SteelyardError
from steelyard.core.layout import Layout
from steelyard.core.optimizer import ServerOptimizer
from steelyard.core.sums import are_finite


class ServerStep:
    """Applies a server optimizer to chunks; its slots are flat vectors under `state["server"]`.

    `scale` is the shrinking factor that targets contain: the optimizer gets the step without it, and its result is
    multiplied by it.
    """

    def __init__(
        self, optimizer: ServerOptimizer, layout: Layout, state: dict[str, Any], before: State, scale: float
    ) -> None:
        held = before.get("server", {})
        if held and held.get("name") != optimizer.name:
            raise SteelyardError(
                f"state is of server optimizer {held.get('name')!r}, not {optimizer.name!r}: start from state=None"
            )
        sizes = {held[name].numel() for name in optimizer.slots if name in held} - {layout.dim}
        if sizes:
            raise SteelyardError(
                f"state of {optimizer.name} is of a model of {sizes.pop()} parameters, this one has {layout.dim}: "
                "start from state=None"
            )
        self.optimizer = optimizer
        self.scale = scale
        self.t = int(held.get("rounds", 0)) + 1
        self.slots = {
            name: held[name].clone() if name in held else torch.zeros(layout.dim, dtype=layout.row_dtype)
            for name in optimizer.slots
        }
        state["server"] = {"name": optimizer.name, "rounds": self.t, **self.slots}

    def __call__(self, theta: torch.Tensor, target: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """The new parameters from `start` to `stop`, where `target` is the aggregated model."""
        slots = {name: slot[start:stop] for name, slot in self.slots.items()}
        if self.scale == 1.0:
            return self.optimizer.update(theta, target - theta, slots, self.t)
        return self.scale * self.optimizer.update(theta, target / self.scale - theta, slots, self.t)

    def is_finite(self, start: int, stop: int) -> bool:
        """Whether the slots are, after an update of these coordinates."""
        return all(are_finite(slot[start:stop]) for slot in self.slots.values())

    def refuse_overflow(self, rows: torch.Tensor) -> None:
        """Raises an error that names the clients whose updates are too large to be squared, if there are any.

        With an infinite second moment every later step would be zero, and nothing would say so.
        """
        largest = math.sqrt(torch.finfo(rows.dtype).max)
        oversized = torch.nonzero(rows[:-1].abs().amax(dim=1) > largest).flatten().tolist()
        name = self.optimizer.name
        if oversized:
            reason = (
                f"its update is too large for the server optimizer {name}: beyond {largest:.2g} its square overflows"
            )
            raise OversizedUpdate(tuple(oversized), reason)
        raise RoundOverflow(
            f"the state of the server optimizer {name} overflows {rows.dtype}: model and state stay as they were. If "
            "this goes on, start from state=None"
        )
