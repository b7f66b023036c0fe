"""Runs a table of a paper: makes jobs from cells, and shows the paper's numbers beside ours."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steelyard.core._spec import parse
from steelyard.data._partitions import PARTITIONS
from steelyard.experiments._cost import SIZES, format_duration
from steelyard.experiments._jobs import Job, Outcome
from steelyard.experiments._paper_table import METRICS, Cell, Number, Table
from steelyard.experiments._tables import csv_lines, markdown_text
from steelyard.experiments.scores import Score, find_score
from steelyard.runs._directory import read_clients, read_subset
from steelyard.sim._experiment import Experiment

# Gaps larger than these need an explanation: points of accuracy, share of rounds.
POINTS = 2.0
SHARE = 0.25


@dataclass(frozen=True)
class Result:
    """The result of one cell.

    Attributes:
        cell: the cell.
        metric: the score.
        rounds: the planned number of rounds.
        values: by seed, rounds to the target or accuracy in percent; None if the target was not
            reached.
        best: by seed, the highest accuracy in percent.
        seconds: the recorded time of all rounds of all seeds.
        errors: by seed, why a run failed.
        subset: what part of the data set was used; None for all. The paper's number cannot be
            compared with that of a subset.
    """

    cell: Cell
    metric: Score
    rounds: int
    values: Mapping[int, float | None]
    best: Mapping[int, float]
    seconds: float
    errors: Mapping[int, str]
    subset: str | None = None

    @property
    def difference(self) -> str | None:
        """Why the result cannot be compared with the paper's number; None if it can.

        The reason is a subset of the data, another network or another data set.
        """
        return self.subset or self.cell.difference

    @property
    def remark(self) -> str | None:
        """What a reader must know about the cell; None for nothing."""
        return "control" if self.cell.is_control else self.difference

    @property
    def reached(self) -> bool:
        """Whether every seed has a value."""
        return bool(self.values) and None not in self.values.values()

    @property
    def mean(self) -> float | None:
        """The mean over seeds; None if a seed did not reach the target."""
        if not self.reached:
            return None
        return statistics.mean(value for value in self.values.values() if value is not None)

    @property
    def deviation(self) -> float | None:
        """The sample standard deviation over seeds; None for fewer than two."""
        if not self.reached or len(self.values) < 2:
            return None
        return statistics.stdev(value for value in self.values.values() if value is not None)


def make_jobs(table: Table, seeds: Sequence[int]) -> list[Job]:
    """Return all runs of a table, seed by seed, so that an interrupted table has complete seeds."""
    table_jobs = []
    for seed in seeds:
        for cell in table.cells:
            labels = {"cell": cell.name, "seed": str(seed)}
            table_jobs.append(Job(f"{cell.name}/seed-{seed}", cell.config(seed), labels))
    return table_jobs


def compute_results(table: Table, outcomes: Sequence[Outcome]) -> list[Result]:
    """Return the result of each cell."""
    score = find_score(table.metric)
    cell_results = []
    for cell in table.cells:
        # The outcomes of the cell, one per seed.
        cell_outcomes = [item for item in outcomes if item.job.labels["cell"] == cell.name]
        rounds = cell_outcomes[0].job.config.rounds if cell_outcomes else 0
        values: dict[int, float | None] = {}
        best = {}
        errors = {}
        times: list[float] = []
        part = None
        for outcome in cell_outcomes:
            config = outcome.job.config
            if outcome.error is not None:
                errors[config.seed] = outcome.error
            if outcome.history is None:
                continue
            value = score.of(outcome.history, config.target)
            values[config.seed] = None if value is None else score.to_display(value)
            best[config.seed] = 100 * (outcome.history.best or 0.0)
            times += [record["timings"]["total"] for record in outcome.history.records]
            part = part or describe_subset(config, outcome.path)
        cell_results.append(Result(cell, score, rounds, values, best, sum(times), errors, part))
    return cell_results


def describe_subset(config: Experiment, path: Path) -> str | None:
    """Return what part of a data set a run used; None if it used all, or if it is not known.

    Old runs do not say so themselves. Their number of samples is checked only if the partition uses
    all samples.

    Args:
        config: the settings of the run.
        path: the run directory.
    """
    subset = read_subset(path)
    if subset is not None:
        return subset
    sizes = SIZES.get(config.data.name.partition(":")[0])
    clients = read_clients(path)
    if sizes is None or clients is None or "counts" not in clients:
        return None
    all_samples, _, _, all_classes = sizes
    samples = sum(clients["sizes"])
    classes = len(clients["counts"][0])
    uses_all_samples = parse(config.data.partition, PARTITIONS).covers_all_samples
    has_all_samples = samples == all_samples or not uses_all_samples
    if classes == all_classes and has_all_samples:
        return None
    return f"subset: {samples:,} samples, {classes} classes"


def format_mean(result: Result) -> str:
    """Return the mean and deviation as text.

    If a target was not reached: in how many runs, and the mean of the best accuracies.
    """
    if not result.values:
        return "failed" if result.errors else "-"
    digits = _digits(result)
    if result.mean is None:
        missed = sum(value is None for value in result.values.values())
        best = statistics.mean(result.best.values())
        return f"N/A in {missed} of {len(result.values)} ({best:.2f} %)"
    text = f"{result.mean:.{digits}f}"
    if result.deviation is not None:
        text += f" ± {result.deviation:.{digits}f}"
    return text


def format_values(result: Result) -> str:
    """Return the values of all seeds as text."""
    digits = _digits(result)
    texts = ["N/A" if value is None else f"{value:.{digits}f}" for value in result.values.values()]
    return ", ".join(texts)


def _digits(result: Result) -> int:
    return 2 if result.metric.percent else 0


def format_gap(result: Result) -> str:
    """Return our number minus the paper's as text; empty if they cannot be compared.

    It is in points of accuracy, or in percent of the paper's rounds.
    """
    paper = result.cell.number.value
    if result.remark is not None or _is_missing(result.cell.number):
        return ""
    if result.mean is None and paper is None:
        return "both N/A"
    if result.mean is None or paper is None:
        return ""
    if not result.metric.percent:
        return f"{result.mean / paper - 1:+.0%}"
    return f"{result.mean - paper:+.2f}"


def has_large_gap(result: Result) -> bool:
    """Return whether the gap is so large that it needs an explanation."""
    paper = result.cell.number.value
    if result.remark is not None or _is_missing(result.cell.number):
        return False
    if result.mean is None or paper is None:
        return (result.mean is None) != (paper is None)
    if not result.metric.percent:
        return abs(result.mean / paper - 1) > SHARE
    return abs(result.mean - paper) > POINTS


def _is_missing(number: Number) -> bool:
    """Return whether the paper has no number."""
    return number.value is None and number.best is None


def to_markdown(
    table: Table,
    cell_results: Sequence[Result],
    command: Sequence[str],
    environment: Mapping[str, Any],
) -> str:
    """Return the page `table.md`: the table with command, versions, time and deviations.

    Args:
        table: the table.
        cell_results: the result of each cell.
        command: the command that ran the table.
        environment: the versions and cores, as `environment.json` has them.
    """
    # The command and the versions.
    seconds = sum(result.seconds for result in cell_results)
    packages = ("steelyard", "python", "torch", "numpy")
    versions = ", ".join(f"{name} {environment[name]}" for name in packages)
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
        f"{versions}; {environment['cores']} cores; {format_duration(seconds)} of rounds in all, "
        f"runs side by side.",
        "",
    ]

    # Warnings.
    reduced = {result.rounds for result in cell_results if result.rounds < table.rounds}
    if reduced:
        rounds = " or ".join(map(str, sorted(reduced)))
        paper_rounds = f"{table.rounds_source}'s {table.rounds}"
        lines += [f"**Reduced: {rounds} rounds instead of {paper_rounds}.** Gaps say little.", ""]
    if any(result.subset for result in cell_results):
        lines += [
            "**Some cells had only a subset of their data set.** They cannot be compared with the "
            "paper's.",
            "",
        ]
    if any(result.cell.difference and not result.cell.is_control for result in cell_results):
        lines += [
            "**Some cells had another network or data set than the paper's.** They have no gap.",
            "",
        ]

    # The table.
    lines += [
        "| setting | algorithm | paper | ours | by seed | gap | |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in cell_results:
        cell = result.cell
        fields = [cell.column, cell.row, cell.paper_text]
        fields += [
            format_mean(result),
            format_values(result),
            format_gap(result),
            _describe_flag(result, table),
        ]
        lines.append(f"| {' | '.join(map(markdown_text, fields))} |")

    # What the flags mean.
    limit = f"{SHARE:.0%} of rounds" if table.metric == "rounds" else f"{POINTS:g} points"
    lines += ["", f"*beyond*: further than {limit} from the paper.", ""]
    if any(result.cell.is_control for result in cell_results):
        lines += ["*control*: a row of ours, which the paper does not have.", ""]

    # Failures and deviations.
    errors = []
    for result in cell_results:
        for seed, error in result.errors.items():
            errors.append(f"- {result.cell.name}, seed {seed}: {markdown_text(error)}")
    if errors:
        lines += ["Failed:", "", *errors, ""]
    lines += ["Known deviations:", ""]
    settings = [setting for setting in table.settings if not setting.startswith("data.dir=")]
    if settings:
        texts = ", ".join(f"`{setting}`" for setting in settings)
        lines.append(f"- **Changed on the command line**, whatever is said below: {texts}.")
    lines += [*(f"- {text}" for text in table.deviations), ""]
    return "\n".join(lines)


def _describe_flag(result: Result, table: Table) -> str:
    """Return the last column of a row: what a reader must know before the gap."""
    is_reduced = result.rounds < table.rounds
    if result.cell.is_control:
        return "control, reduced" if is_reduced else "control"
    if result.difference is not None:
        return result.difference
    if is_reduced:
        return "reduced"
    return "beyond" if has_large_gap(result) else ""


def to_csv(cell_results: Sequence[Result]) -> str:
    """Return the file `table.csv`: one line per cell and seed."""
    rows: list[list[str | float | None]] = [
        [
            "cell",
            "setting",
            "algorithm",
            "seed",
            "rounds_planned",
            "paper",
            "ours",
            "best_accuracy",
            "remark",
        ]
    ]
    for result in cell_results:
        cell = result.cell
        paper = "" if cell.number.value is None else f"{cell.number.value:g}"
        for seed, value in result.values.items():
            number = "" if value is None else f"{value:g}"
            best = f"{result.best[seed]:.4f}"
            names = [cell.name, cell.column, cell.row]
            rows.append([*names, seed, result.rounds, paper, number, best, result.remark])
    return csv_lines(rows)


def _drop_out_option(command: Sequence[str]) -> list[str]:
    """Return the command without --out, which names a directory of the user."""
    words = []
    is_value = False
    for word in command:
        if not is_value and word != "--out" and not word.startswith("--out="):
            words.append(word)
        is_value = word == "--out"
    return words
