"""Tables of results as Markdown, LaTeX (booktabs) and CSV, with names escaped for each format."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from steelyard.experiments._comparisons import find_reference
from steelyard.experiments._run_groups import Run, format_labels, group_runs, list_algorithms
from steelyard.experiments._statistics import deviation, mean
from steelyard.experiments.scores import SCORES, Score, of_monitored, saved

_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
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
    """A mean over seeds, in the unit in which it is shown.

    Attributes:
        mean: the mean; None if no run has a value.
        deviation: the deviation; None for a single run.
        have: the number of runs with a value.
        count: the number of runs that there should be.
        digits: the number of decimals.
        best: whether no other cell of the column is better.
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
        rounded = round(self.mean, self.digits) + 0.0  # + 0.0 turns -0.0 into 0.0
        text = f"{rounded:.{self.digits}f}"
        if self.deviation is not None:
            text += f" ± {self.deviation:.{self.digits}f}"
        if not self.is_complete:
            text += f" ({self.have}/{self.count})"
        return text

    @property
    def is_complete(self) -> bool:
        """Whether all runs have a value."""
        return self.have == self.count


@dataclass(frozen=True)
class Table:
    """A table of results.

    Attributes:
        title: what the cells are.
        corner: the head of the first column.
        heads: the heads of the other columns.
        rows: the name and the cells of each row.
    """

    title: str
    corner: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell | None, ...]], ...]

    def markdown(self) -> str:
        """Return the table in Markdown; the best cell of a column is bold."""
        heads = [markdown_text(head) for head in (self.corner, *self.heads)]
        body = [_format_row(name, cells, markdown_text, "**{}**") for name, cells in self.rows]
        lines = [heads, ["---", *("---:" for _ in self.heads)], *body]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def latex(self) -> str:
        r"""Return a `tabular` for the LaTeX package booktabs; the best of a column is bold."""
        heads = " & ".join(map(latex_text, (self.corner, *self.heads)))
        body = []
        for name, cells in self.rows:
            body.append(" & ".join(_format_row(name, cells, latex_text, "\\textbf{{{}}}")))
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
        """Return the table as CSV, with the same texts."""
        rows = [_format_row(name, cells, str, "{}") for name, cells in self.rows]
        return csv_lines([[self.corner, *self.heads], *rows])


def pivot(
    runs: Iterable[Run], metric: Score, target: float | None = None, count: int | None = None
) -> Table:
    """Return a table of algorithms x settings with mean ± deviation over seeds.

    Args:
        runs: the finished runs.
        metric: the score.
        target: the accuracy to reach, for the metric `rounds`.
        count: the number of seeds that each cell should have; by default the largest number.
    """
    # The cells of each setting.
    settings = group_runs(runs)
    algorithms = list_algorithms(settings)
    if not count:
        seed_counts = [len(seeds) for column in settings.values() for seeds in column.values()]
        count = max(seed_counts, default=0)
    columns = []
    for column in settings.values():
        cells: list[Cell | None] = []
        for algorithm in algorithms:
            if algorithm in column:
                values = [metric.of(run.history, target) for run in column[algorithm].values()]
                cells.append(_make_cell(values, count, metric))
            else:
                cells.append(None)
        columns.append(_mark_best(cells, metric.higher))

    # The title and the rows.
    title = metric.title
    if metric.name == "rounds":
        title += f" {target:g}"
    if metric.percent:
        title += ", in %"
    title += "; one seed" if count == 1 else f"; mean ± deviation over {count} seeds"
    rows = []
    for number, algorithm in enumerate(algorithms):
        rows.append((format_labels(algorithm), tuple(column[number] for column in columns)))
    heads = tuple(format_labels(setting) or metric.name for setting in settings)
    return Table(title, "algorithm", heads, tuple(rows))


def overview(runs: Iterable[Run], target: float | None = None, against: str | None = None) -> Table:
    """Return a table of all scores, with a row for every algorithm in every setting.

    The last column is the share of communication saved compared with the reference.

    Args:
        runs: the finished runs.
        target: the accuracy to reach; without it there is no column `rounds`.
        against: the label of the reference; by default plain FedAvg, or the first algorithm.
    """
    # The scores and the reference.
    runs = list(runs)
    settings = group_runs(runs)
    base = find_reference(list_algorithms(settings), against)
    histories = [run.history for run in runs]
    metrics = [of_monitored(metric, histories, strict=False) for metric in _list_scores(target)]
    share = Score("saved", f"communication saved against {format_labels(base)}", lambda *_: None)

    # One row per algorithm and setting.
    rows = []
    for setting, column in settings.items():
        base_runs = column.get(base, {})
        for algorithm, seeds in column.items():
            cells = []
            for metric in metrics:
                values = [metric.of(run.history, target) for run in seeds.values()]
                cells.append(_make_cell(values, len(seeds), metric))
            shares = []
            for seed, run in seeds.items():
                if seed in base_runs:
                    shares.append(saved(run.history, base_runs[seed].history))
            cells.append(_make_cell(shares, len(seeds), share))
            name = ", ".join(filter(None, (format_labels(algorithm), format_labels(setting))))
            rows.append((name, tuple(cells)))
    return Table(
        f"means over seeds, accuracies in %; saved: communication against {format_labels(base)}, "
        f"in %",
        "run",
        tuple(metric.name for metric in (*metrics, share)),
        tuple(rows),
    )


def long_head(axes: Sequence[str], target: float | None) -> list[str]:
    """Return the head of a table with one row per finished run."""
    return ["name", *axes, *(metric.name for metric in _list_scores(target)), "rounds_run"]


def long_row(
    name: str, axes: Sequence[str], run: Run, target: float | None
) -> list[str | float | None]:
    """Return the row of a run; accuracies are between 0 and 1.

    Args:
        name: the name of the run.
        axes: the keys of its labels.
        run: the run.
        target: the accuracy to reach, or None.
    """
    labels = {**dict(run.algorithm), **dict(run.setting), "seed": run.seed}
    scores = [metric.of(run.history, target) for metric in _list_scores(target)]
    return [name, *(labels.get(axis, "") for axis in axes), *scores, len(run.history)]


def _list_scores(target: float | None) -> list[Score]:
    """Return all scores; without a target, all except `rounds`."""
    return [score for score in SCORES.values() if score.name != "rounds" or target is not None]


def csv_lines(rows: Iterable[Sequence[str | float | None]]) -> str:
    """Return rows as CSV.

    A text that a spreadsheet would read as a formula gets an apostrophe in front.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    for row in rows:
        writer.writerow([_csv_value(value) for value in row])
    return file.getvalue()


def markdown_text(text: str) -> str:
    """Return a text in one line, with the special characters of Markdown escaped."""
    line = " ".join(text.split())
    return "".join(f"\\{c}" if c in "\\`*_[]<>|~#" else c for c in line)


def format_processors(names: Mapping[str, Sequence[str]]) -> str | None:
    """Return which processor ran what, and what that means; None if one ran everything.

    Args:
        names: what was run, by the name of the processor; the name is empty if it is not known.
    """
    if len(names) < 2:
        return None
    groups = []
    for processor, parts in names.items():
        groups.append(f"on {processor or 'a processor that was not recorded'}: {', '.join(parts)}")
    return (
        f"Processors: {'; '.join(groups)}. Another processor rounds differently, which changes a "
        "run as other batches do."
    )


def latex_text(text: str) -> str:
    """Return a text in one line, with the special characters of LaTeX escaped."""
    line = " ".join(text.split())
    return "".join(_LATEX.get(character, character) for character in line)


def _csv_value(value: str | float | None) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return f"'{value}" if value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
    return repr(value)


def _format_row(
    name: str, cells: Iterable[Cell | None], escape: Callable[[str], str], bold: str
) -> list[str]:
    """Return the texts of a row; `bold` is the format of the best cell of a column."""
    texts = [escape(name)]
    for cell in cells:
        text = "" if cell is None else escape(str(cell))
        is_best = cell is not None and cell.best
        texts.append(bold.format(text) if is_best else text)
    return texts


def _make_cell(values: Sequence[float | None], count: int, metric: Score) -> Cell:
    """Return the cell of the values of runs; None is a run without a value."""
    numbers = [metric.to_display(value) for value in values if value is not None]
    average = mean(numbers) if numbers else None
    digits = metric.digits
    if digits is None:
        digits = 2 if metric.percent else 1
    return Cell(average, deviation(numbers), len(numbers), count, digits)


def _mark_best(cells: Sequence[Cell | None], higher: bool) -> list[Cell | None]:
    """Return the cells with the best of them marked, and those that look the same.

    A cell that lacks runs is never marked: its mean may be that of lucky seeds. Nothing is marked
    if fewer than two cells can be compared.
    """
    sign = 1 if higher else -1
    scores: list[float | None] = []
    for cell in cells:
        if cell is None or cell.mean is None or not cell.is_complete:
            scores.append(None)
        else:
            scores.append(sign * round(cell.mean, cell.digits))
    comparable = [score for score in scores if score is not None]
    if len(comparable) < 2:
        return list(cells)
    highest = max(comparable)
    marked: list[Cell | None] = []
    for cell, score in zip(cells, scores, strict=True):
        if cell is not None and score is not None and math.isclose(score, highest):
            marked.append(replace(cell, best=True))
        else:
            marked.append(cell)
    return marked
