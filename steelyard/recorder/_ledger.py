"""The contributions to a run that may still be running: only new rounds are read."""

from __future__ import annotations

from pathlib import Path

from steelyard.recorder._contributions import (
    Contributions,
    RoundValues,
    summarize,
    value_round,
)
from steelyard.runs._files import GRAMS
from steelyard.runs._following import AppendedFile, follow_grams


class Ledger:
    """The contributions of the clients of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = AppendedFile(path / GRAMS)
        self._rounds: list[RoundValues] = []
        self._summary: Contributions | None = None

    def read(self) -> Contributions | None:
        """Return the contributions up to now; None if no round is recorded.

        Raises:
            SteelyardError: if the file is damaged.
        """
        rounds, is_other = follow_grams(self._file)
        if is_other:
            self._rounds = []
            self._summary = None
        if rounds:
            self._rounds += [value_round(round_gram) for round_gram in rounds]
            self._summary = summarize(self.path.name, self._rounds)
        return self._summary


class Ledgers:
    """The ledgers of several runs, which are kept from one reading to the next."""

    def __init__(self) -> None:
        self._ledgers: dict[Path, Ledger] = {}

    def read(self, path: Path) -> Contributions | None:
        """Return the contributions to a run; None if no round is recorded."""
        if path not in self._ledgers:
            self._ledgers[path] = Ledger(path)
        return self._ledgers[path].read()
