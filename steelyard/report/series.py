"""Runs sorted into series: the seeds of one algorithm in one setting are a line with a band."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steelyard.core.errors import SteelyardError
from steelyard.experiments.run_groups import Run, groups, label, read_runs
from steelyard.experiments.statistics import deviation, mean
from steelyard.report.figures import Line

Read = Callable[[Mapping[str, Any]], float | None]


@dataclass(frozen=True)
class Series:
    """The runs that differ in nothing but the seed, or one that is not finished.

    Attributes:
        name: what tells it from the others.
        style: its number, for colour and dash.
        runs: by seed.
    """

    name: str
    style: int
    runs: tuple[Run, ...]

    @property
    def first(self) -> Run:
        """The run that stands for all where only one can be shown: by client, partitions differ with the seed."""
        return self.runs[0]

    @property
    def going(self) -> bool:
        """Whether it has not had all its rounds."""
        return self.first.planned is not None

    def line(self, read: Read) -> Line | None:
        """The mean over seeds, over the rounds that all have; the band is one sample deviation either way."""
        found = [
            {record["round"]: value for record in run.history if (value := read(record)) is not None}
            for run in self.runs
        ]
        found = [values for values in found if values]
        if not found:
            return None
        rounds = sorted(set.intersection(*map(set, found)))
        columns = [[values[number] for values in found] for number in rounds]
        middle = tuple(map(mean, columns))
        if len(found) == 1:
            return Line(self.name, self.style, tuple(rounds), middle)
        spreads = [deviation(column) or 0.0 for column in columns]
        low = tuple(m - s for m, s in zip(middle, spreads, strict=True))
        high = tuple(m + s for m, s in zip(middle, spreads, strict=True))
        return Line(self.name, self.style, tuple(rounds), middle, low, high)

    def over(self, measure: Callable[[Run], float | None]) -> tuple[float | None, float | None]:
        """Mean and deviation over seeds of what a run is worth."""
        values = [value for run in self.runs if (value := measure(run)) is not None]
        return (mean(values), deviation(values)) if values else (None, None)


def read_series(directories: Sequence[str | Path]) -> tuple[list[Series], list[str]]:
    """The series in and below directories, and notes on runs that are not finished."""
    runs, notes = read_runs(directories, unfinished=True)
    if not runs:
        raise SteelyardError(f"{', '.join(map(str, directories))}: no run has had a round yet: wait for the first")
    made: list[Series] = []
    settings = groups(runs)
    for setting, algorithms in settings.items():
        for algorithm, seeds in algorithms.items():
            name = label(algorithm) or "run"
            if len(settings) > 1:
                name = f"{name} ({label(setting)})"
            done = tuple(run for run in seeds.values() if run.planned is None)
            if done:
                made.append(Series(name, len(made), done))
            for run in seeds.values():
                if run.planned is not None:
                    so_far = f"{name}, seed {run.seed}, unfinished"
                    made.append(Series(so_far, len(made), (run,)))
    return made, notes


def number(name: str) -> Read:
    """Reads a number off a record; None where there is none."""

    def read(record: Mapping[str, Any]) -> float | None:
        return as_number(record.get(name))

    return read


def mean_of(name: str) -> Read:
    """Reads the mean over clients of what a record says by client."""

    def read(record: Mapping[str, Any]) -> float | None:
        by_client = record.get(name)
        if not isinstance(by_client, Mapping):
            return None
        values = [found for value in by_client.values() if (found := as_number(value)) is not None]
        return mean(values) if values else None

    return read


def as_number(value: Any) -> float | None:
    """A finite number that is no truth value, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def critical_rounds(series: Series) -> list[int]:
    """The rounds that at least half of the seeds call critical; empty for a rule that knows no periods."""
    votes: dict[int, list[bool]] = {}
    for run in series.runs:
        for record in run.history:
            if isinstance(record.get("critical"), bool):
                votes.setdefault(record["round"], []).append(record["critical"])
    return sorted(number for number, said in votes.items() if 2 * sum(said) >= len(said))


def stretches(rounds: Sequence[int]) -> list[tuple[int, int]]:
    """Rounds as stretches of those that follow one another, first and last of each."""
    made: list[tuple[int, int]] = []
    for at in rounds:
        if made and at == made[-1][1] + 1:
            made[-1] = (made[-1][0], at)
        else:
            made.append((at, at))
    return made
