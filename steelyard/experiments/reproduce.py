"""A paper's table run here: jobs out of cells, numbers out of runs, the paper's beside ours."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from steelyard.experiments.cost import duration
from steelyard.experiments.jobs import Job, Outcome
from steelyard.experiments.paper_table import METRICS, Cell, Number, Table
from steelyard.experiments.scores import Metric, metric
from steelyard.experiments.subset import subset
from steelyard.experiments.tables import csv_lines, markdown_text

POINTS, SHARE = 2.0, 0.25  # gaps beyond these ask for a cause: points of accuracy, share of rounds


@dataclass(frozen=True)
class Result:
    """One cell, run.

    Attributes:
        cell: what was run.
        metric: what was measured.
        rounds: how many were planned.
        values: by seed, rounds to the target or accuracy in percent; None where the target was not reached.
        best: by seed, the highest accuracy in percent.
        seconds: of all seeds together, as their rounds recorded them.
        errors: by seed, why a run has no result.
        subset: what there was of the data set, if it was not the whole: the paper's number is then of something else.
    """

    cell: Cell
    metric: Metric
    rounds: int
    values: Mapping[int, float | None]
    best: Mapping[int, float]
    seconds: float
    errors: Mapping[int, str]
    subset: str | None = None

    @property
    def difference(self) -> str | None:
        """Why it cannot be compared with the paper's number: a subset, another network; None if it can."""
        return self.subset or self.cell.difference

    @property
    def remark(self) -> str | None:
        """What a reader has to know of the cell; None if nothing."""
        return "control" if self.cell.is_control else self.difference

    @property
    def reached(self) -> bool:
        """Whether every seed has a number."""
        return bool(self.values) and None not in self.values.values()

    @property
    def mean(self) -> float | None:
        """Over seeds; None if one of them did not reach the target."""
        return statistics.mean(v for v in self.values.values() if v is not None) if self.reached else None

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation over seeds; None for fewer than two."""
        known = [value for value in self.values.values() if value is not None]
        return statistics.stdev(known) if self.reached and len(known) > 1 else None


def jobs(table: Table, seeds: Sequence[int]) -> list[Job]:
    """All runs of a table, seed by seed, so that a table cut short has whole seeds."""
    return [
        Job(f"{cell.name}/seed-{seed}", cell.config(seed), {"cell": cell.name, "seed": str(seed)})
        for seed in seeds
        for cell in table.cells
    ]


def results(table: Table, outcomes: Sequence[Outcome]) -> list[Result]:
    """The numbers of each cell."""
    measure = metric(table.metric)
    found = []
    for cell in table.cells:
        mine = [outcome for outcome in outcomes if outcome.job.labels["cell"] == cell.name]
        runs = {outcome.job.config.seed: outcome.history for outcome in mine if outcome.history is not None}
        values = {seed: measure.of(history, mine[0].job.config.target) for seed, history in runs.items()}
        parts = [subset(outcome.job.config, outcome.path) for outcome in mine if outcome.history is not None]
        found.append(
            Result(
                cell,
                measure,
                mine[0].job.config.rounds if mine else 0,
                {seed: None if value is None else measure.to_display(value) for seed, value in values.items()},
                {seed: 100 * (history.best or 0.0) for seed, history in runs.items()},
                sum(record["timings"]["total"] for history in runs.values() for record in history.records),
                {outcome.job.config.seed: outcome.error for outcome in mine if outcome.error is not None},
                next(filter(None, parts), None),
            )
        )
    return found


def ours(result: Result) -> str:
    """Mean and deviation as text; where a target was not reached, how often, and the best accuracy."""
    if not result.values:
        return "failed" if result.errors else "-"
    digits = _digits(result)
    if result.mean is None:
        missed = sum(value is None for value in result.values.values())
        best = statistics.mean(result.best.values())
        return f"N/A in {missed} of {len(result.values)} ({best:.2f} %)"
    spread = "" if result.deviation is None else f" ± {result.deviation:.{digits}f}"
    return f"{result.mean:.{digits}f}{spread}"


def by_seed(result: Result) -> str:
    """The number of each seed."""
    digits = _digits(result)
    return ", ".join("N/A" if value is None else f"{value:.{digits}f}" for value in result.values.values())


def _digits(result: Result) -> int:
    return 2 if result.metric.percent else 0


def gap(result: Result) -> str:
    """Ours less the paper's: in points, or in percent of the paper's rounds; nothing where they cannot be compared."""
    if result.remark is not None or _silent(result.cell.number):
        return ""
    if result.mean is None or result.cell.number.value is None:
        return "" if (result.mean is None) != (result.cell.number.value is None) else "both N/A"
    if not result.metric.percent:
        return f"{result.mean / result.cell.number.value - 1:+.0%}"
    return f"{result.mean - result.cell.number.value:+.2f}"


def beyond(result: Result) -> bool:
    """Whether the gap asks for a cause."""
    paper = result.cell.number.value
    if result.remark is not None or _silent(result.cell.number):
        return False
    if result.mean is None or paper is None:
        return (result.mean is None) != (paper is None)
    if not result.metric.percent:
        return abs(result.mean / paper - 1) > SHARE
    return abs(result.mean - paper) > POINTS


def _silent(number: Number) -> bool:
    return number.value is None and number.best is None


def markdown(table: Table, found: Sequence[Result], command: Sequence[str], environment: Mapping[str, Any]) -> str:
    """The table with everything needed to judge it: command, versions, time, deviations."""
    seconds = sum(result.seconds for result in found)
    versions = ", ".join(f"{name} {environment[name]}" for name in ("steelyard", "python", "torch", "numpy"))
    lines = [
        f"# {table.name}: {table.title}",
        "",
        f"{table.paper}.",
        "",
        f"Metric: {METRICS[table.metric]}. Ours is the mean over seeds ± the sample deviation.",
        "",
        "```console",
        f"$ {shlex.join(_drop_out_option(command))}",
        "```",
        "",
        f"{versions}; {environment['cores']} cores; {duration(seconds)} of rounds in all, runs side by side.",
        "",
    ]
    short = {result.rounds for result in found if result.rounds < table.rounds}
    if short:
        planned = f"{table.rounds_source}'s {table.rounds}"
        lines += [f"**Reduced: {_either(short)} rounds instead of {planned}.** Gaps say little.", ""]
    if any(result.subset for result in found):
        lines += ["**Some cells had only a subset of their data set.** They cannot be compared with the paper's.", ""]
    if any(result.cell.difference and not result.cell.is_control for result in found):
        lines += ["**Some cells had another network or data set than the paper's.** They have no gap.", ""]
    lines += ["| setting | algorithm | paper | ours | by seed | gap | |", "|---|---|---|---|---|---|---|"]
    for result in found:
        cell = result.cell
        fields = [cell.column, cell.row, cell.paper_text, ours(result), by_seed(result), gap(result)]
        lines.append(f"| {' | '.join(map(markdown_text, [*fields, _flag(result, table)]))} |")
    limits = f"{SHARE:.0%} of rounds" if table.metric == "rounds" else f"{POINTS:g} points"
    lines += ["", f"*beyond*: further than {limits} from the paper.", ""]
    if any(result.cell.is_control for result in found):
        lines += ["*control*: a row of ours, which the paper does not have.", ""]
    errors = [(result.cell.name, seed, error) for result in found for seed, error in result.errors.items()]
    if errors:
        lines += ["Failed:", "", *(f"- {name}, seed {seed}: {markdown_text(text)}" for name, seed, text in errors), ""]
    lines += ["Known deviations:", ""]
    changed = [setting for setting in table.settings if not setting.startswith("data.dir=")]
    if changed:
        lines.append(f"- **Changed on the command line**, whatever is said below: `{'`, `'.join(changed)}`.")
    lines += [*(f"- {text}" for text in table.deviations), ""]
    return "\n".join(lines)


def _flag(result: Result, table: Table) -> str:
    """The last column of a cell: what a reader has to know before the gap."""
    is_short = result.rounds < table.rounds
    if result.cell.is_control:
        return "control, reduced" if is_short else "control"
    if result.difference is not None:
        return result.difference
    if is_short:
        return "reduced"
    return "beyond" if beyond(result) else ""


def comma_separated(found: Sequence[Result]) -> str:
    """One line per cell and seed."""
    head = ["cell", "setting", "algorithm", "seed", "rounds_planned", "paper", "ours", "best_accuracy", "remark"]
    rows: list[list[str | float | None]] = [[*head]]
    for result in found:
        cell = result.cell
        for seed, value in result.values.items():
            paper = "" if cell.number.value is None else f"{cell.number.value:g}"
            mine = "" if value is None else f"{value:g}"
            best = f"{result.best[seed]:.4f}"
            rows.append([cell.name, cell.column, cell.row, seed, result.rounds, paper, mine, best, result.remark])
    return csv_lines(rows)


def _drop_out_option(command: Sequence[str]) -> list[str]:
    """The command without where its runs went, which is nobody else's business."""
    kept, skip = [], False
    for word in command:
        if not skip and word != "--out" and not word.startswith("--out="):
            kept.append(word)
        skip = word == "--out"
    return kept


def _either(values: set[int]) -> str:
    return " or ".join(map(str, sorted(values)))
