"""Callbacks: code of yours that a run calls."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steelyard.sim.simulator import Simulation


class Callback:
    """Override what you need; every method does nothing by default.

    `simulation.records` holds the rounds so far, `simulation.server.model()` makes a state dict of the global model.
    """

    def start(self, simulation: Simulation) -> None:
        """Before the first round (or the first one after a resume)."""

    def progress(self, simulation: Simulation, round: int, done: int, total: int) -> None:
        """Within a round, after each group of clients."""

    def round(self, simulation: Simulation, record: Mapping[str, Any]) -> bool | None:
        """After each round; return True to end the run here."""

    def warn(self, message: str) -> None:
        """Something the user should know, such as a damaged checkpoint; where nobody listens, a Python warning."""

    def end(self, simulation: Simulation) -> None:
        """After the last round."""

    def failed(self, simulation: Simulation, error: BaseException) -> None:
        """Instead of `end`, when an error ends the run, or an interrupt."""


class Until(Callback):
    """Ends a run at an accuracy on the test set."""

    def __init__(self, accuracy: float) -> None:
        self.accuracy = accuracy

    def round(self, simulation: Simulation, record: Mapping[str, Any]) -> bool:
        """Whether it is reached."""
        return self.reached(record, self.accuracy)

    @staticmethod
    def reached(record: Mapping[str, Any], target: float | None) -> bool:
        """Whether the model of this round has the accuracy; never, if none is asked for."""
        accuracy = record.get("accuracy")
        return target is not None and accuracy is not None and accuracy >= target


def warn(callbacks: Sequence[Callback], message: str) -> None:
    """Tells those who listen to warnings; where nobody does, Python's own warn."""
    listening = [callback for callback in callbacks if type(callback).warn is not Callback.warn]
    for callback in listening:
        callback.warn(message)
    if not listening:
        warnings.warn(message, RuntimeWarning, stacklevel=3)
