"""Tables of papers as data: how to run each cell, the paper's number, and known deviations.

A file in `papers/` has

    metric       what the numbers are: see `_table_scores.py`. A row or a column may name its own
    source       where the table stands in the paper
    [base]       settings of all cells, with the keys of `steelyard run`
    [[row]]      settings of a row: the algorithm. `where` has further settings for columns whose id
                 matches a pattern; `control = true` marks a row that the paper does not have;
                 `impossible = "why"` marks a row that cannot be run here
    [[column]]   settings of a column: data, partition, model. `paper_models` names the networks of
                 the paper's numbers, if the file uses another one; `pools = ["a", "b"]` makes a
                 column without runs of its own: its numbers are of the runs of the columns whose
                 ids match these patterns, such as their average
    [numbers]    the paper's numbers: one list per row, in the order of the columns; none for a
                 control
    [lines]      where the numbers of a row stand in the text of the paper: lines of `fedlaw.txt`
                 for the tables `fedlaw-...`. With several lines, each has an equal part of them
    rounds_source   where the number of rounds comes from, if not from "the paper"

Cells with the same settings, such as the best and the last accuracy of a run, share one run.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from steelyard.core._errors import SteelyardError, describe_unknown_name
from steelyard.core._spec import parse
from steelyard.experiments._jobs import compute_fingerprint
from steelyard.experiments._table_scores import find_table_score
from steelyard.models import MODELS
from steelyard.sim._experiment import Experiment, merge_sections, set_key

FOLDER = Path(__file__).with_name("papers")

# A quick run of a cell: it checks that the cell works, its number means nothing.
QUICK = ("rounds=2", "local.epochs=none", "local.steps=2")
QUICK_PROXY = 10  # proxy images of each class, at most


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
class Run:
    """The settings of a run, which one or several cells need.

    Attributes:
        name: the name of the first cell with these settings; its run directory.
        raw: the settings, without a seed.
    """

    name: str
    raw: Mapping[str, Any]

    def config(self, seed: int) -> Experiment:
        """Return the configuration with this seed."""
        return Experiment.from_dict({**self.raw, "seed": seed}, f"cell {self.name}")


@dataclass(frozen=True)
class Cell:
    """One number of a table.

    Attributes:
        name: `column/row`, e.g. `mnist-1class-5iid/fedadp`.
        row: the label of its row.
        column: the label of its column.
        metric: what the number is: see `_table_scores.py`.
        runs: the runs whose score the number is: one, or several that are pooled.
        number: the paper's number.
        is_control: whether the row is our own: the paper has no number for it.
        impossible: why the cell cannot be run; None if it can.
        paper_models: the networks of the paper's number, as text; empty if they are not known.
        paper_data: the data set of the paper's number; None if it is not known.
    """

    name: str
    row: str
    column: str
    metric: str
    runs: tuple[Run, ...]
    number: Number
    is_control: bool = False
    impossible: str | None = None
    paper_models: tuple[str, ...] = ()
    paper_data: str | None = None

    @property
    def raw(self) -> Mapping[str, Any]:
        """The settings of the run, or of the first of several."""
        return self.runs[0].raw

    @property
    def paper_text(self) -> str:
        """The paper's number as text; empty for a control."""
        return "" if self.is_control else str(self.number)

    @property
    def fingerprint(self) -> str:
        """A short hash of what the cell runs and of its metric."""
        runs = {str(position): run.raw for position, run in enumerate(self.runs)}
        return compute_fingerprint(runs, self.metric)

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
        """Return the configuration with this seed, of the first run if there are several."""
        return self.runs[0].config(seed)


@dataclass(frozen=True)
class Table:
    """A table of a paper.

    Attributes:
        name: the name, such as `fedadp-table1`.
        title: what the table shows.
        paper: the paper.
        source: where the table stands in the paper.
        seeds: the seeds of the paper, or ours if it names none.
        rounds: the number of rounds in the paper.
        deviations: known differences from the paper or its code.
        cells: the cells, row by row.
        settings: the user's settings for every cell, as `key=value`.
        rounds_source: where the number of rounds comes from: the paper, or its authors' code.
        lines: by row id, the lines of the paper's text that hold its numbers.
    """

    name: str
    title: str
    paper: str
    source: str
    seeds: tuple[int, ...]
    rounds: int
    deviations: tuple[str, ...]
    cells: tuple[Cell, ...]
    settings: tuple[str, ...] = ()
    rounds_source: str = "the paper"
    lines: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics of the cells, each once."""
        return tuple(dict.fromkeys(cell.metric for cell in self.cells))

    @property
    def measures_time(self) -> bool:
        """Whether a number is a time, so that runs must not disturb each other."""
        return any(find_table_score(metric).is_time for metric in self.metrics)

    @property
    def runs(self) -> tuple[Run, ...]:
        """The runs that the cells need, each once."""
        runs: dict[str, Run] = {}
        for cell in self.cells:
            if cell.impossible is None:
                runs |= {run.name: run for run in cell.runs}
        return tuple(runs.values())

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

    def make_quick(self) -> Table:
        """Return the table with its first cell of the paper only, as small as it can be run.

        The cell has two rounds in which a client makes two steps, and little proxy data. The model
        is tested once.
        """
        possible = [cell for cell in self.cells if cell.impossible is None]
        if not possible:
            raise SteelyardError(f"--quick: {self.cells[0].name}: {self.cells[0].impossible}")
        cell = next((cell for cell in possible if not cell.is_control), possible[0])
        settings = list(QUICK)
        if cell.raw.get("evaluate_every", 1) > 0:
            settings.append("evaluate_every=2")
        if cell.raw.get("proxy", {}).get("per_class", 0) > QUICK_PROXY:
            settings.append(f"proxy.per_class={QUICK_PROXY}")
        return replace(self, cells=(cell,)).apply_settings(settings)

    def apply_settings(self, settings: Sequence[str]) -> Table:
        """Return the table with settings `key=value` applied to every cell."""
        cells = []
        for cell in self.cells:
            runs = []
            for run in cell.runs:
                raw = merge_sections(run.raw, {})
                for setting in settings:
                    set_key(raw, setting)
                if cell.metric == "rounds" and raw.get("target") is None:
                    raise SteelyardError(
                        "--set target=none: this table counts rounds to a target: use one in (0, 1]"
                    )
                runs.append(replace(run, raw=raw))
            cells.append(replace(cell, runs=tuple(runs)))
        return replace(self, cells=tuple(cells), settings=(*self.settings, *settings))


def names() -> list[str]:
    """Return the names of all tables, by paper and number."""
    return sorted((path.stem for path in FOLDER.glob("*.toml")), key=_split_name)


def _split_name(name: str) -> tuple[str, int]:
    """Return the text of a name and the number at its end: table 10 comes after table 9."""
    text = name.rstrip("0123456789")
    return text, int(name.removeprefix(text) or 0)


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
    # One cell per row and column.
    cells = []
    runs: dict[str, Run] = {}
    for row in raw["row"]:
        is_control = bool(row.get("control", False))
        numbers = _select_numbers(name, row["id"], is_control, raw["numbers"], len(raw["column"]))
        for column, number in zip(raw["column"], numbers, strict=True):
            metric = row.get("metric") or column.get("metric") or raw["metric"]
            find_table_score(metric)  # raises an error for an unknown name
            shared_runs = {} if "impossible" in row else runs
            cell_runs = _find_runs(raw, row, column, metric, shared_runs)
            settings = cell_runs[0].raw
            own_model = [settings["model"]] if "model" in settings else []
            paper_models = column.get("paper_models", raw.get("paper_models", own_model))
            cells.append(
                Cell(
                    name=f"{column['id']}/{row['id']}",
                    row=f"{row['label']} (control)" if is_control else row["label"],
                    column=column["label"],
                    metric=metric,
                    runs=cell_runs,
                    number=_parse_number(number),
                    is_control=is_control,
                    impossible=row.get("impossible"),
                    paper_models=tuple(paper_models),
                    paper_data=_data_name(settings),
                )
            )
    return Table(
        name=name,
        title=raw["title"],
        paper=raw["paper"],
        source=raw.get("source", ""),
        seeds=tuple(raw["seeds"]),
        rounds=raw["base"]["rounds"],
        deviations=tuple(raw.get("deviations", ())),
        cells=tuple(cells),
        rounds_source=raw.get("rounds_source", "the paper"),
        lines={row: tuple(lines) for row, lines in raw.get("lines", {}).items()},
    )


def _find_runs(
    table: Mapping[str, Any],
    row: Mapping[str, Any],
    column: Mapping[str, Any],
    metric: str,
    runs: dict[str, Run],
) -> tuple[Run, ...]:
    """Return the runs of a cell; cells with the same settings get the same run.

    Args:
        table: the contents of the TOML file.
        row: the row of the cell.
        column: its column.
        metric: its metric.
        runs: the runs of earlier cells by their settings; new ones are added.
    """
    # The columns whose runs the cell needs: its own, or those that it pools.
    columns = [column]
    if "pools" in column:
        columns = [other for other in table["column"] if _is_pooled(other, column["pools"])]

    # The settings of each run.
    cell_runs = []
    for source in columns:
        settings = merge_sections(merge_sections(table["base"], source["set"]), row["set"])
        for pattern, changes in row.get("where", {}).items():
            if fnmatchcase(source["id"], pattern):
                settings = merge_sections(settings, changes)
        if metric == "rounds":
            settings["target"] = source["target"]
        run = Run(f"{source['id']}/{row['id']}", settings)
        cell_runs.append(runs.setdefault(json.dumps(settings, sort_keys=True), run))
    return tuple(cell_runs)


def _is_pooled(column: Mapping[str, Any], patterns: Sequence[str]) -> bool:
    """Return whether a column with runs of its own matches a pattern."""
    return "set" in column and any(fnmatchcase(column["id"], pattern) for pattern in patterns)


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
