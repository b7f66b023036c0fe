"""Series: the runs of one algorithm in one setting, which differ only in the seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steelyard.core._errors import SteelyardError
from steelyard.core._round_record import get_value
from steelyard.experiments._run_groups import Run, format_labels, group_runs, read_runs
from steelyard.experiments._statistics import deviation, mean
from steelyard.report._figures import Line

Read = Callable[[Mapping[str, Any]], float | None]


@dataclass(frozen=True)
class Series:
    """The finished runs that differ only in the seed, or a single unfinished run.

    Attributes:
        name: the algorithm, and the setting if there are several.
        style: the number of the series, for colour and dash.
        runs: the runs, one per seed.
    """

    name: str
    style: int
    runs: tuple[Run, ...]

    @property
    def first(self) -> Run:
        """The run that is shown where values by client are: partitions differ between seeds."""
        return self.runs[0]

    @property
    def is_unfinished(self) -> bool:
        """Whether the run has rounds to do."""
        return self.first.planned is not None

    def line(self, read: Read) -> Line | None:
        """Return the mean over seeds as a line; None if no run has the value.

        The line has the rounds that all runs have. The band is plus and minus one sample standard
        deviation.

        Args:
            read: returns the value of a record, or None.
        """
        # The values by round, for each run that has any.
        runs = []
        for run in self.runs:
            values = {}
            for record in run.history:
                value = read(record)
                if value is not None:
                    values[record["round"]] = value
            if values:
                runs.append(values)
        if not runs:
            return None

        # Means and deviations over the runs.
        rounds = sorted(set.intersection(*map(set, runs)))
        columns = [[values[number] for values in runs] for number in rounds]
        means = tuple(map(mean, columns))
        if len(runs) == 1:
            return Line(self.name, self.style, tuple(rounds), means)
        deviations = [deviation(column) or 0.0 for column in columns]
        low = tuple(m - d for m, d in zip(means, deviations, strict=True))
        high = tuple(m + d for m, d in zip(means, deviations, strict=True))
        return Line(self.name, self.style, tuple(rounds), means, low, high)

    def over(self, measure: Callable[[Run], float | None]) -> tuple[float | None, float | None]:
        """Return the mean and the deviation over seeds of a score.

        None and None without a value.
        """
        scores = [measure(run) for run in self.runs]
        values = [score for score in scores if score is not None]
        if not values:
            return None, None
        return mean(values), deviation(values)


def read_series(directories: Sequence[str | Path]) -> tuple[list[Series], list[str]]:
    """Return the series of runs in directories, and notes on unfinished runs.

    Args:
        directories: run directories, or directories that contain them.
    """
    runs, notes = read_runs(directories, unfinished=True)
    if not runs:
        paths = ", ".join(map(str, directories))
        raise SteelyardError(f"{paths}: no run has had a round yet: wait for the first round")

    # Finished runs of an algorithm are one series; each unfinished run is a series of its own.
    all_series: list[Series] = []
    settings = group_runs(runs)
    for setting, algorithms in settings.items():
        for algorithm, seeds in algorithms.items():
            name = format_labels(algorithm) or "run"
            if len(settings) > 1:
                name = f"{name} ({format_labels(setting)})"
            finished = tuple(run for run in seeds.values() if run.planned is None)
            if finished:
                all_series.append(Series(name, len(all_series), finished))
            for run in seeds.values():
                if run.planned is not None:
                    run_name = f"{name}, seed {run.seed}, unfinished"
                    all_series.append(Series(run_name, len(all_series), (run,)))
    return all_series, notes


def read_number(name: str) -> Read:
    """Return a function that reads or computes a number of a record; None if there is none."""

    def read(record: Mapping[str, Any]) -> float | None:
        return as_number(get_value(record, name))

    return read


def as_number(value: Any) -> float | None:
    """Return a finite number as float; None for anything else, and for booleans."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def find_critical_rounds(series: Series) -> list[int]:
    """Return the rounds that at least half of the seeds record as critical."""
    votes: dict[int, list[bool]] = {}
    for run in series.runs:
        for record in run.history:
            if isinstance(record.get("critical"), bool):
                votes.setdefault(record["round"], []).append(record["critical"])
    return sorted(number for number, values in votes.items() if 2 * sum(values) >= len(values))


def group_consecutive(rounds: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first and last round of each group of consecutive rounds."""
    ranges: list[tuple[int, int]] = []
    for number in rounds:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges
