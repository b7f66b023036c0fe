"""Results as tables: Markdown, LaTeX (booktabs) and CSV, with names escaped for each."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from steelyard.experiments.comparisons import reference
from steelyard.experiments.run_groups import Run, groups, label
from steelyard.experiments.scores import METRICS, Metric, of_monitored, saved
from steelyard.experiments.statistics import deviation, mean

_LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
}


@dataclass(frozen=True)
class Cell:
    """A mean over seeds, in the unit it is shown in.

    Attributes:
        mean: None if no run has a value.
        deviation: None for a single run.
        have: how many runs have a value.
        count: how many runs there should be.
        digits: decimals.
        best: whether no other of its column is better.
    """

    mean: float | None
    deviation: float | None
    have: int
    count: int
    digits: int = 2
    best: bool = False

    def __str__(self) -> str:
        if self.mean is None:
            return "n/a"
        shown = f"{round(self.mean, self.digits) + 0.0:.{self.digits}f}"  # + 0.0: no minus before a zero
        if self.deviation is not None:
            shown += f" ± {self.deviation:.{self.digits}f}"
        return shown if self.have == self.count else f"{shown} ({self.have}/{self.count})"


@dataclass(frozen=True)
class Table:
    """Cells under heads; `title` says what they are."""

    title: str
    corner: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell | None, ...]], ...]

    def markdown(self) -> str:
        """A pipe table; the best of a column is bold."""
        heads = [markdown_text(head) for head in (self.corner, *self.heads)]
        body = [_row(name, cells, markdown_text, "**{}**") for name, cells in self.rows]
        lines = [heads, ["---", *("---:" for _ in self.heads)], *body]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def latex(self) -> str:
        r"""A `tabular` for the package booktabs; the best of a column is bold."""
        heads = " & ".join(map(latex_text, (self.corner, *self.heads)))
        body = [" & ".join(_row(name, cells, latex_text, "\\textbf{{{}}}")) for name, cells in self.rows]
        lines = [
            f"% {' '.join(self.title.split())}",
            f"\\begin{{tabular}}{{l{'r' * len(self.heads)}}}",
            "\\toprule",
            f"{heads} \\\\",
            "\\midrule",
            *(f"{line} \\\\" for line in body),
            "\\bottomrule",
            "\\end{tabular}",
        ]
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        """As shown, one line per row."""
        return csv_lines([[self.corner, *self.heads], *(_row(name, cells, str, "{}") for name, cells in self.rows)])


def pivot(runs: Iterable[Run], metric: Metric, target: float | None = None, count: int | None = None) -> Table:
    """Algorithms by settings, mean ± deviation over seeds.

    Args:
        runs: the finished ones.
        metric: what to show.
        target: accuracy, for the metric `rounds`.
        count: how many seeds each cell should have; by default as many as the fullest has.
    """
    sorted_runs = groups(runs)
    algorithms = list(dict.fromkeys(one for column in sorted_runs.values() for one in column))
    most = count or max((len(seeds) for column in sorted_runs.values() for seeds in column.values()), default=0)
    columns = []
    for column in sorted_runs.values():
        cells = [
            _cell([metric.of(run.history, target) for run in column[one].values()], most, metric)
            if one in column
            else None
            for one in algorithms
        ]
        columns.append(_best_marked(cells, metric.higher))
    over = f"mean ± deviation over {most} seeds" if most != 1 else "one seed"
    reached = "" if metric.name != "rounds" else f" {target:g}"
    return Table(
        f"{metric.title}{reached}{', in %' if metric.percent else ''}; {over}",
        "algorithm",
        tuple(label(setting) or metric.name for setting in sorted_runs),
        tuple((label(one), tuple(column[n] for column in columns)) for n, one in enumerate(algorithms)),
    )


def overview(runs: Iterable[Run], target: float | None = None, against: str | None = None) -> Table:
    """Every algorithm in every setting, by all measures, with the communication saved against the reference."""
    runs = list(runs)
    sorted_runs = groups(runs)
    algorithms = list(dict.fromkeys(one for column in sorted_runs.values() for one in column))
    base = reference(algorithms, against)
    histories = [run.history for run in runs]
    metrics = [of_monitored(metric, histories, strict=False) for metric in _measures(target)]
    share = Metric("saved", f"communication saved against {label(base)}", lambda *_: None)
    rows = []
    for setting, column in sorted_runs.items():
        for algorithm, seeds in column.items():
            cells = [
                _cell([metric.of(run.history, target) for run in seeds.values()], len(seeds), metric)
                for metric in metrics
            ]
            theirs = column.get(base, {})
            shares = [saved(run.history, theirs[seed].history) for seed, run in seeds.items() if seed in theirs]
            cells.append(_cell(shares, len(seeds), share))
            rows.append((", ".join(filter(None, (label(algorithm), label(setting)))), tuple(cells)))
    return Table(
        f"means over seeds, accuracies in %; saved: communication against {label(base)}, in %",
        "run",
        tuple(metric.name for metric in (*metrics, share)),
        tuple(rows),
    )


def long_head(axes: Sequence[str], target: float | None) -> list[str]:
    """The head of the long form: one row per finished run."""
    return ["name", *axes, *(metric.name for metric in _measures(target)), "rounds_run"]


def long_row(name: str, axes: Sequence[str], run: Run, target: float | None) -> list[str | float | None]:
    """A run in the long form; accuracies as shares."""
    labels = {**dict(run.algorithm), **dict(run.setting), "seed": run.seed}
    measures = [metric.of(run.history, target) for metric in _measures(target)]
    return [name, *(labels.get(axis, "") for axis in axes), *measures, len(run.history)]


def _measures(target: float | None) -> list[Metric]:
    """All that can be told: rounds to a target need one."""
    return [metric for metric in METRICS.values() if metric.name != "rounds" or target is not None]


def csv_lines(rows: Iterable[Sequence[str | float | None]]) -> str:
    """As CSV; text that a spreadsheet would take for a formula is led by an apostrophe."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([[_csv_value(value) for value in row] for row in rows])
    return file.getvalue()


def markdown_text(text: str) -> str:
    """Text that stays text in a Markdown table."""
    plain = " ".join(text.split())
    return "".join(f"\\{sign}" if sign in "\\`*_[]<>|~#" else sign for sign in plain)


def latex_text(text: str) -> str:
    """Text that stays text in LaTeX."""
    return "".join(_LATEX.get(sign, sign) for sign in " ".join(text.split()))


def _csv_value(value: str | float | None) -> str:
    if isinstance(value, str):
        return f"'{value}" if value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
    return "" if value is None else repr(value)


def _row(name: str, cells: Iterable[Cell | None], escape: Callable[[str], str], bold: str) -> list[str]:
    shown = [(escape(str(cell)), cell.best) if cell is not None else ("", False) for cell in cells]
    return [escape(name), *(bold.format(text) if best else text for text, best in shown)]


def _cell(values: Sequence[float | None], count: int, metric: Metric) -> Cell:
    have = [metric.to_display(value) for value in values if value is not None]
    middle = mean(have) if have else None
    usual = 2 if metric.percent else 1
    return Cell(middle, deviation(have), len(have), count, usual if metric.digits is None else metric.digits)


def _best_marked(cells: Sequence[Cell | None], higher: bool) -> list[Cell | None]:
    """Marks the best, and those that look the same; a mean of the seeds that happened to do well is none of them."""
    sign = 1 if higher else -1
    whole = [
        sign * round(c.mean, c.digits) for c in cells if c is not None and c.mean is not None and c.have == c.count
    ]
    if len(whole) < 2:
        return list(cells)
    top = max(whole)
    return [
        replace(c, best=True)
        if c is not None
        and c.mean is not None
        and c.have == c.count
        and math.isclose(sign * round(c.mean, c.digits), top)
        else c
        for c in cells
    ]
