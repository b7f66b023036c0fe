"""Callbacks: your own code that a run calls."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from steelyard.runs._monitor import Monitor

if TYPE_CHECKING:
    from steelyard.sim._simulator import Simulation


class Callback:
    """Override what you need; every method does nothing by default.

    `simulation.records` holds the rounds so far, `simulation.server.model()` makes a state dict of
    the global model.
    """

    def start(self, simulation: Simulation) -> None:
        """Called before the first round, or the first one after a resume."""

    def progress(self, simulation: Simulation, round: int, done: int, total: int) -> None:
        """Called within a round, after each group of clients."""

    def round(self, simulation: Simulation, record: dict[str, Any]) -> bool | None:
        """Called after each round, before its record is written; return True to end the run.

        Values that you add to the record are written to `rounds.jsonl` and are there after a
        resume. Numbers and arrays of numpy and torch become numbers and lists.
        """

    def warn(self, message: str) -> None:
        """Called with a message to the user, such as a damaged checkpoint.

        If no callback overrides this, the message is a Python warning.
        """

    def end(self, simulation: Simulation) -> None:
        """Called after the last round."""

    def failed(self, simulation: Simulation, error: BaseException) -> None:
        """Called instead of `end` when an error or an interrupt ends the run."""


class Until(Callback):
    """Ends a run when it reaches its target."""

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor

    def round(self, simulation: Simulation, record: Mapping[str, Any]) -> bool:
        """Return whether the round has reached the target."""
        return self.monitor.is_target_reached([record])


def warn(callbacks: Sequence[Callback], message: str) -> None:
    """Send a message to the callbacks that override `warn`; without any, warn as Python does."""
    listening = [callback for callback in callbacks if type(callback).warn is not Callback.warn]
    for callback in listening:
        callback.warn(message)
    if not listening:
        warnings.warn(message, RuntimeWarning, stacklevel=3)
