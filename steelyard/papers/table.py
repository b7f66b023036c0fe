"""A paper's table as data: how each cell is run, the number the paper gives, and what is known to differ.

A file in `tables/` has

    [base]       the run all cells share, in the keys of `steelyard run`
    [[row]]      what a row changes: the algorithm; `where` holds what it changes more in columns of a pattern
    [[column]]   what a column changes: data, partition, model
    [numbers]    the paper's numbers, one list per row, in the order of the columns
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from steelyard.core.errors import SteelyardError, unknown
from steelyard.sim.config import Config, put, validated

FOLDER = Path(__file__).with_name("tables")
METRICS = {
    "rounds": "rounds to the target accuracy",
    "last10": "mean accuracy of the last 10 rounds, %",
    "best": "accuracy of the best round, %",
    "final": "accuracy of the last round, %",
}


@dataclass(frozen=True)
class Number:
    """What the paper says of a cell.

    Attributes:
        value: rounds, or accuracy in percent; None if the paper says the target was not reached, or says nothing.
        best: the accuracy it reached instead, in percent.
    """

    value: float | None
    best: float | None = None

    def __str__(self) -> str:
        if self.value is None:
            return "-" if self.best is None else f"N/A ({self.best:g} %)"
        return f"{self.value:g}"


@dataclass(frozen=True)
class Cell:
    """One number of a table.

    Attributes:
        name: `column/row`, e.g. `mnist-1class-5iid/fedadp`.
        row: label of its row.
        column: label of its column.
        raw: the run, as plain configuration without a seed.
        number: what the paper says.
    """

    name: str
    row: str
    column: str
    raw: Mapping[str, Any]
    number: Number

    def config(self, seed: int) -> Config:
        """The run with this seed."""
        return validated({**self.raw, "seed": seed}, f"cell {self.name}")


@dataclass(frozen=True)
class Table:
    """A table of a paper.

    Attributes:
        name: `fedadp-table1`.
        title: what it shows.
        paper: where it is from.
        metric: a key of `METRICS`.
        seeds: those of the paper, or ours where it names none.
        rounds: how many the paper trains.
        deviations: what is known to differ from the paper or its code.
        cells: row by row.
        settings: what the user has put on top of every cell, as `key=value`.
    """

    name: str
    title: str
    paper: str
    metric: str
    seeds: tuple[int, ...]
    rounds: int
    deviations: tuple[str, ...]
    cells: tuple[Cell, ...]
    settings: tuple[str, ...] = ()

    def chosen(self, patterns: Sequence[str]) -> Table:
        """The table with only the cells whose name matches one of these patterns, e.g. `mnist-*/fedavg`."""
        for pattern in patterns:
            if not any(fnmatchcase(cell.name, pattern) for cell in self.cells):
                some = ", ".join(cell.name for cell in self.cells[:4])
                raise SteelyardError(f"--cells {pattern!r}: {self.name} has no such cell; it has {some}, ...")
        kept = [cell for cell in self.cells if not patterns or any(fnmatchcase(cell.name, p) for p in patterns)]
        return replace(self, cells=tuple(kept))

    def changed(self, settings: Sequence[str]) -> Table:
        """The table with `key=value` put on top of every cell."""
        cells = []
        for cell in self.cells:
            raw = _copy(cell.raw)
            for setting in settings:
                put(raw, setting)
            if self.metric == "rounds" and raw.get("target") is None:
                raise SteelyardError("--set target=none: this table counts rounds to a target: use one in (0, 1]")
            cells.append(replace(cell, raw=raw))
        return replace(self, cells=tuple(cells), settings=(*self.settings, *settings))


def names() -> list[str]:
    """All tables there are."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def tables() -> Iterator[Table]:
    """All tables."""
    return (read(name) for name in names())


def read(name: str) -> Table:
    """A table by name."""
    if name not in names():
        raise SteelyardError(unknown("table", name, names()))
    return parsed(name, tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8")))


def parsed(name: str, raw: Mapping[str, Any]) -> Table:
    """A table from the plain data of its file."""
    columns, base = raw["column"], raw["base"]
    metric: str = raw["metric"]
    if metric not in METRICS:
        raise SteelyardError(unknown("metric", metric, list(METRICS)))
    cells = []
    for row in raw["row"]:
        numbers = raw["numbers"].get(row["id"], [])
        if len(numbers) != len(columns):
            raise SteelyardError(f"{name}: row {row['id']!r} has {len(numbers)} numbers for {len(columns)} columns")
        for column, number in zip(columns, numbers, strict=True):
            run = merged(merged(base, column["set"]), row["set"])
            for pattern, more in row.get("where", {}).items():
                if fnmatchcase(column["id"], pattern):
                    run = merged(run, more)
            if metric == "rounds":
                run["target"] = column["target"]
            cell = f"{column['id']}/{row['id']}"
            cells.append(Cell(cell, row["label"], column["label"], run, _number(number)))
    return Table(
        name,
        raw["title"],
        raw["paper"],
        metric,
        tuple(raw["seeds"]),
        base["rounds"],
        tuple(raw.get("deviations", ())),
        tuple(cells),
    )


def merged(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    """Two configurations, section by section; the second wins."""
    out = _copy(low)
    for key, value in high.items():
        out[key] = merged(out.get(key, {}), value) if isinstance(value, Mapping) else value
    return out


def _copy(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copy(item) if isinstance(item, Mapping) else item for key, item in value.items()}


def _number(raw: Any) -> Number:
    """A number, `"N/A 94.48"` for a target not reached, or `"-"` for a cell the paper leaves out."""
    if isinstance(raw, (int, float)):
        return Number(float(raw))
    if raw == "-":
        return Number(None)
    return Number(None, float(str(raw).removeprefix("N/A ")))
