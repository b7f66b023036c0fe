"""Tables of papers as data: how to run each cell, the paper's number, and known deviations.

A file in `papers/` has

    [base]       settings of all cells, with the keys of `steelyard run`
    [[row]]      settings of a row: the algorithm. `where` has further settings for columns whose id
                 matches a pattern; `control = true` marks a row that the paper does not have
    [[column]]   settings of a column: data, partition, model. `paper_models` names the networks of
                 the paper's numbers, if the file uses another one
    [numbers]    the paper's numbers: one list per row, in the order of the columns; none for a
                 control
    rounds_source   where the number of rounds comes from, if not from "the paper"
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from steelyard.core._errors import SteelyardError, describe_unknown_name
from steelyard.core._spec import parse
from steelyard.models import MODELS
from steelyard.sim._experiment import Experiment, merge_sections, set_key

FOLDER = Path(__file__).with_name("papers")
METRICS = {
    "rounds": "rounds to the target accuracy",
    "last10": "mean accuracy of the last 10 rounds, %",
    "best": "accuracy of the best round, %",
    "final": "accuracy of the last round, %",
}


@dataclass(frozen=True)
class Number:
    """The paper's number of a cell.

    Attributes:
        value: rounds, or accuracy in percent; None if the target was not reached, or if the paper
            has no number.
        best: the accuracy in percent that was reached instead of the target.
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
        row: the label of its row.
        column: the label of its column.
        raw: the settings of the run, without a seed.
        number: the paper's number.
        is_control: whether the row is our own: the paper has no number for it.
        paper_models: the networks of the paper's number, as text; empty if they are not known.
        paper_data: the data set of the paper's number; None if it is not known.
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
        """The paper's number as text; empty for a control."""
        return "" if self.is_control else str(self.number)

    @property
    def difference(self) -> str | None:
        """Why the run cannot be compared with the paper's number; None if it can.

        The reason is another network or another data set.
        """
        model = str(self.raw.get("model"))
        is_paper_model = any(_is_same_model(model, name) for name in self.paper_models)
        if self.paper_models and not is_paper_model:
            return f"another network: {model} (paper: {self.paper_models[0]})"
        data = _data_name(self.raw)
        if self.paper_data is not None and data != self.paper_data:
            return f"another data set: {data} (paper: {self.paper_data})"
        return None

    def config(self, seed: int) -> Experiment:
        """Return the configuration with this seed."""
        return Experiment.from_dict({**self.raw, "seed": seed}, f"cell {self.name}")


@dataclass(frozen=True)
class Table:
    """A table of a paper.

    Attributes:
        name: the name, such as `fedadp-table1`.
        title: what the table shows.
        paper: the paper.
        metric: a key of `METRICS`.
        seeds: the seeds of the paper, or ours if it names none.
        rounds: the number of rounds in the paper.
        deviations: known differences from the paper or its code.
        cells: the cells, row by row.
        settings: the user's settings for every cell, as `key=value`.
        rounds_source: where the number of rounds comes from: the paper, or its authors' code.
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
        """Return the table with only the cells whose names match a pattern.

        Args:
            patterns: patterns such as `mnist-*/fedavg`; none for all cells.
        """
        if not patterns:
            return self
        for pattern in patterns:
            if not any(fnmatchcase(cell.name, pattern) for cell in self.cells):
                names = ", ".join(cell.name for cell in self.cells[:4])
                raise SteelyardError(
                    f"--cells {pattern!r}: {self.name} has no such cell; it has {names}, ..."
                )
        cells = []
        for cell in self.cells:
            if any(fnmatchcase(cell.name, pattern) for pattern in patterns):
                cells.append(cell)
        return replace(self, cells=tuple(cells))

    def apply_settings(self, settings: Sequence[str]) -> Table:
        """Return the table with settings `key=value` applied to every cell."""
        cells = []
        for cell in self.cells:
            raw = merge_sections(cell.raw, {})
            for setting in settings:
                set_key(raw, setting)
            if self.metric == "rounds" and raw.get("target") is None:
                raise SteelyardError(
                    "--set target=none: this table counts rounds to a target: use one in (0, 1]"
                )
            cells.append(replace(cell, raw=raw))
        return replace(self, cells=tuple(cells), settings=(*self.settings, *settings))


def names() -> list[str]:
    """Return the names of all tables."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def tables() -> Iterator[Table]:
    """Return all tables."""
    return (read_table(name) for name in names())


def read_table(name: str) -> Table:
    """Return a table by name."""
    if name not in names():
        raise SteelyardError(describe_unknown_name("table", name, names()))
    text = (FOLDER / f"{name}.toml").read_text(encoding="utf-8")
    return parse_table(name, tomllib.loads(text))


def parse_table(name: str, raw: Mapping[str, Any]) -> Table:
    """Return a table from the data of its file.

    Args:
        name: the name of the table.
        raw: the contents of the TOML file.
    """
    columns = raw["column"]
    base = raw["base"]
    metric: str = raw["metric"]
    if metric not in METRICS:
        raise SteelyardError(describe_unknown_name("metric", metric, list(METRICS)))

    # One cell per row and column.
    cells = []
    for row in raw["row"]:
        is_control = bool(row.get("control", False))
        label = f"{row['label']} (control)" if is_control else row["label"]
        numbers = _select_numbers(name, row["id"], is_control, raw["numbers"], len(columns))
        for column, number in zip(columns, numbers, strict=True):
            run = merge_sections(merge_sections(base, column["set"]), row["set"])
            for pattern, settings in row.get("where", {}).items():
                if fnmatchcase(column["id"], pattern):
                    run = merge_sections(run, settings)
            if metric == "rounds":
                run["target"] = column["target"]
            own_model = [run["model"]] if "model" in run else []
            paper_models = column.get("paper_models", raw.get("paper_models", own_model))
            cells.append(
                Cell(
                    name=f"{column['id']}/{row['id']}",
                    row=label,
                    column=column["label"],
                    raw=run,
                    number=_parse_number(number),
                    is_control=is_control,
                    paper_models=tuple(paper_models),
                    paper_data=_data_name(run),
                )
            )
    return Table(
        name=name,
        title=raw["title"],
        paper=raw["paper"],
        metric=metric,
        seeds=tuple(raw["seeds"]),
        rounds=base["rounds"],
        deviations=tuple(raw.get("deviations", ())),
        cells=tuple(cells),
        rounds_source=raw.get("rounds_source", "the paper"),
    )


def _select_numbers(
    table: str, row: str, is_control: bool, numbers: Mapping[str, Any], count: int
) -> Sequence[Any]:
    """Return the paper's numbers of a row, one per column; `-` for each cell of a control.

    Args:
        table: the name of the table, for messages.
        row: the id of the row.
        is_control: whether the row is a control.
        numbers: the numbers of all rows.
        count: the number of columns.
    """
    if is_control:
        if row in numbers:
            raise SteelyardError(
                f"{table}: row {row!r} is a control and has numbers: remove one of the two"
            )
        return ["-"] * count
    row_numbers: Sequence[Any] = numbers.get(row, [])
    if len(row_numbers) != count:
        raise SteelyardError(
            f"{table}: row {row!r} has {len(row_numbers)} numbers for {count} columns"
        )
    return row_numbers


def _data_name(run: Mapping[str, Any]) -> str | None:
    """Return the data set of a run without its options, e.g. `cifar10`; None if it has none."""
    name = run.get("data", {}).get("name")
    return None if name is None else str(name).partition(":")[0]


def _is_same_model(first: str, second: str) -> bool:
    """Return whether two texts are the same network: `resnet20` is `resnet:depth=20`."""
    try:
        return bool(parse(first, MODELS) == parse(second, MODELS))
    except SteelyardError:  # an invalid name: the run will raise an error
        return first == second


def _parse_number(raw: Any) -> Number:
    """Return a number of the file.

    It is a number, `"N/A 94.48"` for a target not reached, or `"-"` for a cell without a number.
    """
    if isinstance(raw, (int, float)):
        return Number(float(raw))
    if raw == "-":
        return Number(None)
    return Number(None, float(str(raw).removeprefix("N/A ")))
