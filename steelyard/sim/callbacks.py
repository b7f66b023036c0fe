"""Callbacks: code of yours that a run calls."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from steelyard.runs.monitor import Monitor

if TYPE_CHECKING:
    from steelyard.sim.simulator import Simulation


class Callback:
    """Override what you need; every method does nothing by default.

    `simulation.records` holds the rounds so far, `simulation.server.model()` makes a state dict of
    the global model.
    """

    def start(self, simulation: Simulation) -> None:
        """Before the first round (or the first one after a resume)."""

    def progress(self, simulation: Simulation, round: int, done: int, total: int) -> None:
        """Within a round, after each group of clients."""

    def round(self, simulation: Simulation, record: dict[str, Any]) -> bool | None:
        """After each round, before its record is written; return True to end the run here.

        What you add to the record is written to `rounds.jsonl` and is there after a resume, as JSON
        has it: numbers and arrays of numpy and torch become numbers and lists.
        """

    def warn(self, message: str) -> None:
        """Something the user should know, such as a damaged checkpoint.

        Where nobody listens, a Python warning.
        """

    def end(self, simulation: Simulation) -> None:
        """After the last round."""

    def failed(self, simulation: Simulation, error: BaseException) -> None:
        """Instead of `end`, when an error ends the run, or an interrupt."""


class Until(Callback):
    """Ends a run at its target."""

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor

    def round(self, simulation: Simulation, record: Mapping[str, Any]) -> bool:
        """Return whether the round has reached it."""
        return self.monitor.is_target_reached([record])


def warn(callbacks: Sequence[Callback], message: str) -> None:
    """Tells those who listen to warnings; where nobody does, Python's own warn."""
    listening = [callback for callback in callbacks if type(callback).warn is not Callback.warn]
    for callback in listening:
        callback.warn(message)
    if not listening:
        warnings.warn(message, RuntimeWarning, stacklevel=3)
