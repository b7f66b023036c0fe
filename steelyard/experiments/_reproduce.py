"""Runs a table of a paper: makes jobs from cells, and shows the paper's numbers beside ours."""

from __future__ import annotations

import csv
import os
import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from steelyard.core._errors import SteelyardError
from steelyard.core._processor import find_processor_name
from steelyard.core._spec import parse
from steelyard.data._partitions import PARTITIONS
from steelyard.data._sources import SOURCES, Source, data_directory
from steelyard.experiments._cost import SIZES, format_duration
from steelyard.experiments._jobs import Job, Outcome
from steelyard.experiments._paper_table import Cell, Number, Table
from steelyard.experiments._table_scores import POINTS, SHARE, TableScore, find_table_score
from steelyard.experiments._tables import csv_lines, format_processors, markdown_text
from steelyard.runs._directory import read_clients, read_environment, read_subset
from steelyard.sim._experiment import Experiment


@dataclass(frozen=True)
class Result:
    """The result of one cell.

    Attributes:
        cell: the cell.
        score: what the numbers are.
        rounds: the planned number of rounds; 0 if nothing was run.
        values: by seed, our number, in the unit of the paper's; None if the run has none, because
            the target was not reached or the rounds that count were not run.
        best: by seed, the highest accuracy in percent.
        seconds: by seed, the recorded time of all rounds.
        errors: by seed, why a run failed.
        fingerprints: by seed, of the settings; empty if they are not known.
        processors: by seed, the name of the processor; empty if it is not known.
        subset: what part of the data set was used; None for all. The paper's number cannot be
            compared with that of a subset.
    """

    cell: Cell
    score: TableScore
    rounds: int
    values: Mapping[int, float | None]
    best: Mapping[int, float]
    seconds: Mapping[int, float]
    errors: Mapping[int, str]
    fingerprints: Mapping[int, str]
    processors: Mapping[int, str]
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
        if self.cell.impossible is not None:
            return self.cell.impossible
        return "control" if self.cell.is_control else self.difference

    @property
    def has_all_values(self) -> bool:
        """Whether every seed has a value."""
        return bool(self.values) and None not in self.values.values()

    @property
    def mean(self) -> float | None:
        """The mean over seeds; None if a seed did not reach the target."""
        if not self.has_all_values:
            return None
        return statistics.mean(value for value in self.values.values() if value is not None)

    @property
    def deviation(self) -> float | None:
        """The sample standard deviation over seeds; None for fewer than two."""
        if not self.has_all_values or len(self.values) < 2:
            return None
        return statistics.stdev(value for value in self.values.values() if value is not None)


@dataclass(frozen=True)
class KnownValue:
    """What table.csv has of a cell and a seed.

    Attributes:
        value: our number; None if the run has none.
        best: the highest accuracy in percent.
        seconds: the recorded time of all rounds; 0 if the file does not have it.
        remark: what a reader must know about the cell; None for nothing.
        fingerprint: of the settings; empty if the file does not have it.
        processor: the name of the processor; empty if the file does not have it.
    """

    value: float | None
    best: float
    seconds: float
    remark: str | None
    fingerprint: str
    processor: str


KnownValues = Mapping[tuple[str, int], KnownValue]  # by the name of the cell and the seed


def read_values(path: Path, table: Table) -> dict[tuple[str, int], KnownValue]:
    """Read the values of a table.csv that `to_csv` made, perhaps on another machine.

    Cells that the table does not have are left out.

    Args:
        path: the file.
        table: the table, with the settings of the new runs.

    Raises:
        SteelyardError: if the file is not one of this table, or has other rounds or settings. A
            line without a fingerprint, of an older version, is accepted.
    """
    cells = {cell.name: cell for cell in table.cells}
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise SteelyardError(f"{path}: cannot be read: {error.strerror or error}") from None
    values = {}
    table_settings = _format_settings(table)
    for number, row in enumerate(rows, 2):
        try:
            if row["cell"] not in cells:
                continue
            seed = int(row["seed"])
            rounds = int(row["rounds_planned"])
            values[row["cell"], seed] = KnownValue(
                value=float(row["ours"]) if row["ours"] else None,
                best=float(row["best_accuracy"]),
                seconds=float(row.get("seconds") or 0),
                remark=row.get("remark") or None,
                fingerprint=row.get("fingerprint") or "",
                processor=row.get("processor") or "",
            )
        except (KeyError, TypeError, ValueError) as error:
            raise SteelyardError(
                f"{path}, line {number}: not a result of a table: {error!r}"
            ) from None
        planned = cells[row["cell"]].config(seed).rounds
        if rounds != planned:
            raise SteelyardError(
                f"{path}, line {number}: {rounds} rounds there, {planned} here: use the same"
            )
        settings = row.get("settings") or ""
        if settings != table_settings:
            raise SteelyardError(
                f"{path}, line {number}: run with --set {settings or 'nothing'}, here with "
                f"{table_settings or 'nothing'}: use the same"
            )
        fingerprint = values[row["cell"], seed].fingerprint
        if fingerprint not in ("", cells[row["cell"]].fingerprint):
            raise SteelyardError(
                f"{path}, line {number}: {row['cell']} was run with other settings than this "
                "version of the table has: remove the line, and the cell is run again"
            )
    if not values:
        raise SteelyardError(f"{path}: has no cell of {table.name}")
    return values


def select_missing_jobs(table: Table, jobs: Sequence[Job], known: KnownValues) -> list[Job]:
    """Return the jobs that a cell without a known value needs."""
    needed = set()
    for job in jobs:
        seed = job.config.seed
        for cell in table.cells:
            is_known = cell.impossible is not None or (cell.name, seed) in known
            if not is_known and job.labels["run"] in {run.name for run in cell.runs}:
                needed.add(job.name)
    return [job for job in jobs if job.name in needed]


def make_jobs(table: Table, seeds: Sequence[int]) -> list[Job]:
    """Return all runs of a table, seed by seed, so that an interrupted table has complete seeds."""
    table_jobs = []
    for seed in seeds:
        for run in table.runs:
            labels = {"run": run.name, "seed": str(seed)}
            table_jobs.append(Job(f"{run.name}/seed-{seed}", run.config(seed), labels))
    return table_jobs


def compute_results(
    table: Table, outcomes: Sequence[Outcome], known: KnownValues | None = None
) -> list[Result]:
    """Return the result of each cell.

    Args:
        table: the table.
        outcomes: those of its jobs, perhaps not of all.
        known: values that need no runs.
    """
    outcomes_by_seed: dict[int, dict[str, Outcome]] = {}
    for outcome in outcomes:
        seed = outcome.job.config.seed
        outcomes_by_seed.setdefault(seed, {})[outcome.job.labels["run"]] = outcome
    return [_compute_result(cell, outcomes_by_seed, known or {}) for cell in table.cells]


def _compute_result(
    cell: Cell, outcomes_by_seed: Mapping[int, Mapping[str, Outcome]], known: KnownValues
) -> Result:
    """Return the result of a cell.

    Args:
        cell: the cell.
        outcomes_by_seed: the outcomes of all runs, by seed and the name of the run.
        known: values that need no runs.
    """
    score = find_table_score(cell.metric)
    rounds = 0
    values: dict[int, float | None] = {}
    best = {}
    errors = {}
    seconds = {}
    fingerprints = {}
    processors = {}
    part = None
    known_seeds = {seed for name, seed in known if name == cell.name}
    seeds = sorted(known_seeds.union(outcomes_by_seed))
    if cell.impossible is not None:
        seeds = []
    for seed in seeds:
        # A known value.
        if seed in known_seeds:
            value = known[cell.name, seed]
            rounds = cell.config(seed).rounds
            values[seed] = value.value
            best[seed] = value.best
            seconds[seed] = value.seconds
            fingerprints[seed] = value.fingerprint
            processors[seed] = value.processor
            if value.remark not in (None, "control", cell.difference):
                part = value.remark
            continue

        # The runs of this seed: one, or several that are pooled. Some may not be finished.
        outcomes = outcomes_by_seed[seed]
        cell_outcomes = [outcomes[run.name] for run in cell.runs if run.name in outcomes]
        if len(cell_outcomes) < len(cell.runs):
            continue
        config = cell_outcomes[0].job.config
        rounds = config.rounds
        failures = [outcome.error for outcome in cell_outcomes if outcome.error is not None]
        if failures:
            errors[seed] = failures[0]
        histories = [item.history for item in cell_outcomes if item.history is not None]
        if len(histories) < len(cell_outcomes):
            continue

        # Their score.
        values[seed] = score.compute(histories, config.target)
        best[seed] = 100 * (histories[0].best or 0.0)
        fingerprints[seed] = cell.fingerprint
        processors[seed] = _read_processors(cell_outcomes)
        seconds[seed] = sum(
            record["timings"]["total"] for history in histories for record in history.records
        )
        for outcome in cell_outcomes:
            part = part or describe_subset(outcome.job.config, outcome.path)
    return Result(
        cell, score, rounds, values, best, seconds, errors, fingerprints, processors, part
    )


def _read_processors(outcomes: Sequence[Outcome]) -> str:
    """Return the name of the processor of some runs; several names if there are several."""
    names = [str(read_environment(outcome.path).get("processor", "")) for outcome in outcomes]
    return ", ".join(sorted(set(names) - {""}))


def find_missing_data(configs: Iterable[Experiment]) -> str | None:
    """Return which data set of these runs is not on this machine, and how to get it.

    None if all are there.
    """
    for config in configs:
        try:
            source: Source = parse(config.data.name, SOURCES)
            source.locate(data_directory(config.data.dir))
        except SteelyardError as error:
            return str(error)
    return None


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
    digits = result.score.digits
    if result.mean is None:
        if result.score.name != "rounds":
            return "-"
        missed = sum(value is None for value in result.values.values())
        best = statistics.mean(result.best.values())
        return f"N/A in {missed} of {len(result.values)} ({best:.2f} %)"
    text = f"{result.mean:.{digits}f}"
    if result.deviation is not None:
        text += f" ± {result.deviation:.{digits}f}"
    return text


def format_values(result: Result) -> str:
    """Return the values of all seeds as text."""
    digits = result.score.digits
    texts = ["N/A" if value is None else f"{value:.{digits}f}" for value in result.values.values()]
    return ", ".join(texts)


def format_gap(result: Result) -> str:
    """Return our number minus the paper's as text; empty if they cannot be compared.

    It is a difference, such as points of accuracy, or a share of the paper's rounds or seconds.
    """
    paper = result.cell.number.value
    if result.remark is not None or _is_missing(result.cell.number):
        return ""
    if result.mean is None and paper is None and result.values:
        return "both N/A"
    if result.mean is None or paper is None:
        return ""
    return result.score.format_gap(result.score.compute_gap(result.mean, paper))


def has_large_gap(result: Result) -> bool:
    """Return whether the gap is so large that it needs an explanation."""
    paper = result.cell.number.value
    limit = result.score.limit
    if result.remark is not None or _is_missing(result.cell.number) or limit is None:
        return False
    if result.mean is None or paper is None:
        return (result.mean is None) != (paper is None)
    return abs(result.score.compute_gap(result.mean, paper)) > limit


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
    seconds = sum(sum(result.seconds.values()) for result in cell_results)
    packages = ("steelyard", "python", "torch", "numpy")
    versions = ", ".join(f"{name} {environment[name]}" for name in packages)
    manner = "one run after the other" if table.measures_time else "runs side by side"
    lines = [
        f"# {table.name}: {table.title}",
        "",
        f"{table.paper}.",
        "",
        f"{describe_metrics(table)}. Ours is the mean over seeds ± the sample deviation.",
        "",
        "```console",
        f"$ {shlex.join(_drop_out_option(command))}",
        "```",
        "",
        f"{versions}; {environment['cores']} cores; {format_duration(seconds)} of rounds in all, "
        f"{manner}.",
        "",
    ]

    # The machine, if times are compared.
    if table.measures_time:
        lines += [f"The machine: {describe_processor()}.", ""]

    # The processors, if there are several.
    runs: dict[str, list[str]] = {}
    for result in cell_results:
        for seed, processor in result.processors.items():
            runs.setdefault(processor, []).append(f"{result.cell.name}/seed-{seed}")
    text = format_processors(runs)
    if text is not None:
        lines += [markdown_text(text), ""]

    # Warnings.
    reduced = {result.rounds for result in cell_results if is_reduced(result, table)}
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
    lines.append("")
    limits = [_describe_limit(find_table_score(metric)) for metric in table.metrics]
    limit_texts = [text for text in dict.fromkeys(limits) if text is not None]
    if limit_texts:
        lines += [f"*beyond*: further than {' or '.join(limit_texts)} from the paper.", ""]
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


def describe_metrics(table: Table) -> str:
    """Return what the numbers of a table are, as a sentence without its full stop."""
    titles = [find_table_score(metric).title for metric in table.metrics]
    return f"Metric{'s' if len(titles) > 1 else ''}: {'; '.join(titles)}"


def describe_processor() -> str:
    """Return the name of the processor, its number of cores, and the GPU if there is one."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{find_processor_name()}, {os.cpu_count()} cores, {gpu}"


def is_reduced(result: Result, table: Table) -> bool:
    """Return whether a cell was run with fewer rounds than the paper's."""
    return 0 < result.rounds < table.rounds


def _describe_limit(score: TableScore) -> str | None:
    """Return beyond which gap a number needs an explanation; None if there is no limit."""
    if score.limit is None:
        return None
    return f"{SHARE:.0%} of rounds" if score.is_share else f"{POINTS:g} points"


def _describe_flag(result: Result, table: Table) -> str:
    """Return the last column of a row: what a reader must know before the gap."""
    if result.cell.impossible is not None:
        return result.cell.impossible
    if result.cell.is_control:
        return "control, reduced" if is_reduced(result, table) else "control"
    if result.difference is not None:
        return result.difference
    if is_reduced(result, table):
        return "reduced"
    return "beyond" if has_large_gap(result) else ""


def to_csv(table: Table, cell_results: Sequence[Result]) -> str:
    """Return the file `table.csv`: one line per cell and seed.

    Args:
        table: the table.
        cell_results: the result of each cell.
    """
    settings = _format_settings(table)
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
            "seconds",
            "settings",
            "remark",
            "fingerprint",
            "processor",
        ]
    ]
    for result in cell_results:
        cell = result.cell
        paper = "" if cell.number.value is None else f"{cell.number.value:g}"
        for seed, value in result.values.items():
            number = "" if value is None else f"{value:g}"
            best = f"{result.best[seed]:.4f}"
            seconds = f"{result.seconds[seed]:.0f}"
            names = [cell.name, cell.column, cell.row]
            scores = [paper, number, best, seconds]
            tail = [
                settings,
                result.remark,
                result.fingerprints[seed],
                result.processors[seed],
            ]
            rows.append([*names, seed, result.rounds, *scores, *tail])
    return csv_lines(rows)


def _format_settings(table: Table) -> str:
    """Return the user's settings for every cell as text, without rounds and where the data is."""
    left_out = ("rounds=", "data.dir=")
    return " ".join(setting for setting in table.settings if not setting.startswith(left_out))


def _drop_out_option(command: Sequence[str]) -> list[str]:
    """Return the command without --out, which names a directory of the user."""
    words = []
    is_value = False
    for word in command:
        if not is_value and word != "--out" and not word.startswith("--out="):
            words.append(word)
        is_value = word == "--out"
    return words
