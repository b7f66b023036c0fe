"""A paper's table as data: how each cell is run, the number the paper gives, and what is known to differ.

A file in `papers/` has

    [base]       the run all cells share, in the keys of `steelyard run`
    [[row]]      what a row changes: the algorithm; `where` holds what it changes more in columns of a pattern;
                 `control = true` marks a row of ours that the paper does not have
    [[column]]   what a column changes: data, partition, model; `paper_models` names the networks that the paper's
                 number is of, where the file runs another one
    [numbers]    the paper's numbers, one list per row, in the order of the columns; none for a control
    rounds_source   who says how many rounds to train, if not "the paper"
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from steelyard.core.errors import SteelyardError, unknown
from steelyard.core.spec import parse
from steelyard.models import MODELS
from steelyard.sim.config import Config, merge_sections, set_key, validate_config

FOLDER = Path(__file__).with_name("papers")
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
        is_control: whether the row is ours: the paper has no number for it.
        paper_models: text forms of the networks that the paper's number is of; empty if nothing is known.
        paper_data: name of the data set that the paper's number is of; None if nothing is known.
    """

    name: str
    row: str
    column: str
    raw: Mapping[str, Any]
    number: Number
    is_control: bool = False
    paper_models: tuple[str, ...] = ()
    paper_data: str | None = None

    @property
    def paper_text(self) -> str:
        """The paper's number as text; nothing for a control."""
        return "" if self.is_control else str(self.number)

    @property
    def difference(self) -> str | None:
        """Why the run cannot be compared with the paper's number: another network or data set; None if it can."""
        model = str(self.raw.get("model"))
        if self.paper_models and not any(_is_same_model(model, other) for other in self.paper_models):
            return f"another network: {model} (paper: {self.paper_models[0]})"
        data = _data_name(self.raw)
        if self.paper_data is not None and data != self.paper_data:
            return f"another data set: {data} (paper: {self.paper_data})"
        return None

    def config(self, seed: int) -> Config:
        """The run with this seed."""
        return validate_config({**self.raw, "seed": seed}, f"cell {self.name}")


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
        rounds_source: who says how many rounds to train: the paper, or its authors' code.
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
    rounds_source: str = "the paper"

    def select_cells(self, patterns: Sequence[str]) -> Table:
        """The table with only the cells whose name matches one of these patterns, e.g. `mnist-*/fedavg`."""
        for pattern in patterns:
            if not any(fnmatchcase(cell.name, pattern) for cell in self.cells):
                some = ", ".join(cell.name for cell in self.cells[:4])
                raise SteelyardError(f"--cells {pattern!r}: {self.name} has no such cell; it has {some}, ...")
        kept = [cell for cell in self.cells if not patterns or any(fnmatchcase(cell.name, p) for p in patterns)]
        return replace(self, cells=tuple(kept))

    def apply_settings(self, settings: Sequence[str]) -> Table:
        """The table with `key=value` put on top of every cell."""
        cells = []
        for cell in self.cells:
            raw = merge_sections(cell.raw, {})
            for setting in settings:
                set_key(raw, setting)
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
    return parse_table(name, tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8")))


def parse_table(name: str, raw: Mapping[str, Any]) -> Table:
    """A table from the plain data of its file."""
    columns, base = raw["column"], raw["base"]
    metric: str = raw["metric"]
    if metric not in METRICS:
        raise SteelyardError(unknown("metric", metric, list(METRICS)))
    cells = []
    for row in raw["row"]:
        is_control = bool(row.get("control", False))
        label = f"{row['label']} (control)" if is_control else row["label"]
        numbers = _numbers(name, row["id"], is_control, raw["numbers"], len(columns))
        for column, number in zip(columns, numbers, strict=True):
            run = merge_sections(merge_sections(base, column["set"]), row["set"])
            for pattern, more in row.get("where", {}).items():
                if fnmatchcase(column["id"], pattern):
                    run = merge_sections(run, more)
            if metric == "rounds":
                run["target"] = column["target"]
            cells.append(
                Cell(
                    f"{column['id']}/{row['id']}",
                    label,
                    column["label"],
                    run,
                    _number(number),
                    is_control,
                    tuple(column.get("paper_models", raw.get("paper_models", _models(run)))),
                    _data_name(run),
                )
            )
    return Table(
        name,
        raw["title"],
        raw["paper"],
        metric,
        tuple(raw["seeds"]),
        base["rounds"],
        tuple(raw.get("deviations", ())),
        tuple(cells),
        rounds_source=raw.get("rounds_source", "the paper"),
    )


def _numbers(table: str, row: str, is_control: bool, numbers: Mapping[str, Any], count: int) -> Sequence[Any]:
    """The paper's numbers of a row, one per column; a control has none, and says nothing in each."""
    if is_control:
        if row in numbers:
            raise SteelyardError(f"{table}: row {row!r} is a control and has numbers: leave one of the two out")
        return ["-"] * count
    found: Sequence[Any] = numbers.get(row, [])
    if len(found) != count:
        raise SteelyardError(f"{table}: row {row!r} has {len(found)} numbers for {count} columns")
    return found


def _models(run: Mapping[str, Any]) -> tuple[str, ...]:
    """The network of a run, if its configuration names one."""
    return (run["model"],) if "model" in run else ()


def _data_name(run: Mapping[str, Any]) -> str | None:
    """The data set of a run without its options, e.g. `cifar10`; None if its configuration names none."""
    name = run.get("data", {}).get("name")
    return None if name is None else str(name).partition(":")[0]


def _is_same_model(one: str, other: str) -> bool:
    """Whether two text forms are one network: `resnet20` is `resnet:depth=20`."""
    try:
        return bool(parse(one, MODELS) == parse(other, MODELS))
    except SteelyardError:  # the run will say what is wrong with it
        return one == other


def _number(raw: Any) -> Number:
    """A number, `"N/A 94.48"` for a target not reached, or `"-"` for a cell the paper leaves out."""
    if isinstance(raw, (int, float)):
        return Number(float(raw))
    if raw == "-":
        return Number(None)
    return Number(None, float(str(raw).removeprefix("N/A ")))
