"""Reads a sweep: `sweep.toml` with a base configuration and axes becomes a list of jobs.

[base]    settings of all runs, with the keys of `steelyard run`
[grid]    axes: lists of values by key; all combinations are run
[[case]]  labelled sets of settings: one more axis, combined with the grid
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steelyard._version import __version__
from steelyard.core._errors import SteelyardError, nearest_name
from steelyard.core._options import list_keys
from steelyard.experiments._comparisons import Comparison, compare
from steelyard.experiments._jobs import Job, Outcome, Silent, Watch, flatten_keys, run_jobs
from steelyard.experiments._run_groups import (
    Run,
    describe_subsets,
    find_differences,
    format_setting,
    is_bare,
    is_of_algorithm,
)
from steelyard.experiments._tables import (
    Table,
    csv_lines,
    long_head,
    long_row,
    markdown_text,
    overview,
    pivot,
)
from steelyard.experiments.scores import SCORES, Score, find_score, of_monitored
from steelyard.runs._directory import write_text
from steelyard.runs._lock import lock_directory
from steelyard.runs._monitor import check_target
from steelyard.sim._experiment import Experiment, check_values, read_toml

_KEYS = ("name", "out", "target", "base", "grid", "case")
_MAX_RUNS = 10_000  # more are probably a mistake in the file


@dataclass(frozen=True)
class Sweep:
    """The jobs of a sweep.

    Attributes:
        name: the name of the sweep.
        out: the directory that contains the runs; None if the file has no `out`.
        target: the accuracy to reach, for the score `rounds`.
        axes: the keys that differ between runs, the seed last.
        seeds: the number of runs in each cell of a table.
        jobs: the jobs, one per combination.
        notes: what the user should know.
    """

    name: str
    out: Path | None
    target: float | None
    axes: tuple[str, ...]
    seeds: int
    jobs: tuple[Job, ...]
    notes: tuple[str, ...] = ()


def read_sweep(path: str | Path) -> Sweep:
    """Return the sweep of a TOML file."""
    path = Path(path)
    return plan({"name": path.stem, **read_toml(path)}, str(path))


def plan(raw: Mapping[str, Any], source: str = "sweep") -> Sweep:
    """Return the sweep of the contents of a file.

    Args:
        raw: the contents.
        source: the name of the file, for messages.

    Raises:
        SteelyardError: for the first mistake, with its key and what to do.
    """
    # Read the axes: the grid, the cases and the seeds.
    check_values(raw, source)
    _check_keys(raw, source)
    base = raw.get("base", {})
    grid = _parse_grid(raw.get("grid", {}), source)
    seeds = grid.pop("seed", [])
    cases = _parse_cases(raw.get("case", []), source)
    case_keys = {key for settings in cases.values() for key in settings}
    grid_keys = {*grid, "seed"} if seeds else {*grid}
    for key in case_keys & grid_keys:
        raise SteelyardError(
            f"{source}: {key!r} is in [grid] and in a [[case]]: keep it in one of them"
        )
    total = max(1, len(seeds)) * max(1, len(cases)) * math.prod(map(len, grid.values()))
    if total > _MAX_RUNS:
        raise SteelyardError(
            f"{source}: {total} runs: use fewer values in [grid] (at most {_MAX_RUNS} runs)"
        )

    # Combine them. Runs of a case that changes the data must not be compared with those of another
    # case: such a case is a setting.
    case_axis = "case" if all(map(is_of_algorithm, case_keys)) else "setting"
    case_items: list[tuple[str | None, dict[str, Any]]] = [*cases.items()] or [(None, {})]
    configs = []
    all_labels = []
    for *values, (case, case_settings), seed in itertools.product(
        *grid.values(), case_items, seeds or [None]
    ):
        grid_settings = dict(zip(grid, values, strict=True))
        settings = grid_settings | case_settings
        if seed is not None:
            settings["seed"] = seed
        config = _make_config(base, settings, source)
        labels = {} if case is None else {case_axis: case}
        labels |= {key: format_setting(value) for key, value in grid_settings.items()}
        labels["seed"] = str(config.seed)
        configs.append(config)
        all_labels.append(labels)

    # Check the target and the number of seeds.
    _check_target(raw.get("target"), configs, source)
    notes = []
    if len({config.seed for config in configs}) == 1:
        notes.append(
            f"one seed ({configs[0].seed}) says nothing about noise: use several, such as seed = "
            f"[1, 2, 3] in [grid]"
        )

    # Make the jobs.
    names = _make_names(all_labels)
    jobs = tuple(map(Job, names, configs, all_labels))
    out = raw.get("out")
    return Sweep(
        name=raw.get("name", "sweep"),
        out=None if out is None else Path(out),
        target=raw.get("target", jobs[0].config.target),
        axes=tuple(jobs[0].labels),
        seeds=len(seeds) or 1,
        jobs=jobs,
        notes=tuple(notes),
    )


def _check_keys(raw: Mapping[str, Any], source: str) -> None:
    """Raise an error for an unknown key, or for a value of the wrong type."""
    for key in raw:
        if key not in _KEYS:
            if key in {each.path.partition(".")[0] for each in list_keys(Experiment)}:
                raise SteelyardError(
                    f"{source}: unknown key {key!r}: keys of a run go below [base]"
                )
            near = nearest_name(key, _KEYS)
            hint = f"did you mean {near!r}?" if near else f"known: {', '.join(_KEYS)}"
            raise SteelyardError(f"{source}: unknown key {key!r}: {hint}")
    kinds: dict[str, tuple[type, str]] = {
        "name": (str, "text"),
        "out": (str, "text"),
        "base": (Mapping, "a section [base]"),
        "grid": (Mapping, "a section [grid]"),
        "case": (Sequence, "sections [[case]]"),
    }
    for key, (kind, description) in kinds.items():
        if key not in raw:
            continue
        value = raw[key]
        is_text = isinstance(value, str)  # a text is a sequence, too
        if not isinstance(value, kind) or (is_text and kind is not str):
            raise SteelyardError(f"{source}: {key} = {value!r}: use {description}")


def _check_target(target: Any, configs: Sequence[Experiment], source: str) -> None:
    """Raise an error for a target that is impossible for the metric that the runs monitor."""
    metrics = {config.monitor if config.loss == "cross_entropy" else "loss" for config in configs}
    try:
        check_target(target, "accuracy" if "accuracy" in metrics else "loss")
    except SteelyardError as error:
        raise SteelyardError(f"{source}: {str(error).replace('=', ' = ', 1)}") from None


def _parse_grid(grid: Mapping[str, Any], source: str) -> dict[str, list[Any]]:
    """Return the values of each axis by key.

    A key such as `data.partition` may be written with or without quotes.
    """
    axes = flatten_keys(grid)
    for key, values in axes.items():
        if not isinstance(values, (list, tuple)) or not values:
            raise SteelyardError(f"{source}: grid.{key} = {values!r}: use a list of values")
        for value, count in Counter(map(format_setting, values)).items():
            if count > 1:
                raise SteelyardError(f"{source}: grid.{key}: {value!r} is given twice")
    return {key: list(values) for key, values in axes.items()}


def _parse_cases(raw: Sequence[Any], source: str) -> dict[str, dict[str, Any]]:
    """Return the settings of each case by its label."""
    cases: dict[str, dict[str, Any]] = {}
    for number, case in enumerate(raw, 1):
        name = case.get("label") if isinstance(case, Mapping) else None
        if not isinstance(name, str) or not name.strip():
            raise SteelyardError(
                f'{source}: case {number} has no label: give it one, such as label = "FedCos"'
            )
        if name in cases:
            raise SteelyardError(
                f"{source}: case {number}: the label {name!r} is taken: give it another"
            )
        cases[name] = flatten_keys({key: value for key, value in case.items() if key != "label"})
    return cases


def _make_config(base: Mapping[str, Any], settings: Mapping[str, Any], source: str) -> Experiment:
    """Return the base configuration with settings such as `data.partition` changed."""
    raw = copy.deepcopy(dict(base))
    for key, value in settings.items():
        *section_names, name = key.split(".")
        section = raw
        for section_name in section_names:
            section = section.setdefault(section_name, {})
            if not isinstance(section, dict):
                raise SteelyardError(
                    f"{source}: {key!r}: {section_name!r} is a value, not a section"
                )
        section[name] = value
    return Experiment.from_dict(raw, source)


def _make_names(all_labels: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the names of jobs, which are directories: the values of the axes, then the seed.

    A short hash is appended if two names would be the same, or if a name is too long.
    """
    # The values that each name stands for. Some file systems ignore upper and lower case.
    stems = []
    texts = []
    texts_by_stem: dict[str, set[str]] = {}
    for labels in all_labels:
        pairs = [(axis, value) for axis, value in labels.items() if axis != "seed"]
        stem = "-".join(_to_file_name(axis, value) for axis, value in pairs)
        exact_text = "\n".join(f"{axis}={value}" for axis, value in pairs)
        stems.append(stem)
        texts.append(exact_text)
        texts_by_stem.setdefault(stem.lower(), set()).add(exact_text)

    # Make them unique.
    names = []
    for stem, exact_text, labels in zip(stems, texts, all_labels, strict=True):
        name = stem
        if len(texts_by_stem[stem.lower()]) > 1 or len(stem) > 100:
            name = f"{stem[:100]}-{hashlib.sha256(exact_text.encode()).hexdigest()[:6]}"
        names.append(f"{name}/seed-{labels['seed']}" if name else f"seed-{labels['seed']}")
    return names


def _to_file_name(axis: str, value: str) -> str:
    """Return a value as part of a file name; a number with its key."""
    name = f"{axis.rpartition('.')[2]}-{value}" if is_bare(value) else value
    characters = [c if c.isascii() and (c.isalnum() or c in "._+") else "-" for c in name]
    parts = "".join(characters).split("-")
    return "-".join(filter(None, parts)).strip(".-") or axis


# Runs a sweep and writes its results.
#
# `results.csv` is written while the sweep runs; `results.md`, `results.tex` and `table.csv` at
# its end.

RESULTS = "results.csv"


@dataclass(frozen=True)
class Summary:
    """The results of a sweep.

    Attributes:
        table: one score of all algorithms and settings.
        overview: all scores.
        comparisons: the comparison of every algorithm with the reference.
        failed: the outcomes of failed jobs.
        start_differences: sentences about runs with the same seed that did not start alike.
        notes: what the user should know.
    """

    table: Table
    overview: Table
    comparisons: tuple[Comparison, ...]
    failed: tuple[Outcome, ...]
    start_differences: tuple[str, ...]
    notes: tuple[str, ...]


def summarise(
    sweep: Sweep, outcomes: Sequence[Outcome], metric: Score, confidence: float = 0.95
) -> Summary:
    """Return the tables and comparisons of the finished runs.

    Args:
        sweep: the sweep.
        outcomes: the outcomes of its jobs.
        metric: the score of the table and of comparisons.
        confidence: the confidence level of intervals.
    """
    runs = [Run.of(outcome) for outcome in outcomes if outcome.history is not None]
    return Summary(
        pivot(runs, metric, sweep.target, sweep.seeds),
        overview(runs, sweep.target),
        tuple(compare(runs, metric, target=sweep.target, confidence=confidence)),
        tuple(outcome for outcome in outcomes if outcome.error is not None),
        tuple(find_differences(runs)),
        (*sweep.notes, *describe_subsets(run.path for run in runs)),
    )


def to_markdown(sweep: Sweep, summary: Summary, metric: Score) -> str:
    """Return the page `results.md`."""
    table = summary.table
    parts = [f"# {markdown_text(sweep.name)}\n", f"{table.title}.\n", table.markdown()]

    # Differences.
    sentences = [comparison.sentence(metric) for comparison in summary.comparisons]
    sentences += [comparison.communication() for comparison in summary.comparisons]
    if sentences:
        parts += ["## Differences\n", _format_list(filter(None, sentences))]

    # All scores, failures and notes.
    parts += ["## All measures\n", f"{summary.overview.title}.\n", summary.overview.markdown()]
    if summary.failed:
        errors = [f"{outcome.job.name}: {outcome.error or ''}" for outcome in summary.failed]
        parts += ["## Failed\n", _format_list(errors)]
    notes = (*summary.start_differences, *summary.notes)
    if notes:
        parts += ["## Notes\n", _format_list(notes)]
    parts.append(
        f"{len(sweep.jobs)} runs, Steelyard {__version__}; `environment.json` of each run has the "
        f"rest.\n"
    )
    return "\n".join(parts)


def _format_list(texts: Iterable[str]) -> str:
    """Return texts as a list in Markdown."""
    return "".join(f"- {markdown_text(text)}\n" for text in texts)


def write(
    sweep: Sweep, outcomes: Sequence[Outcome], summary: Summary, metric: Score, out: Path
) -> list[Path]:
    """Write the files of a finished sweep, each atomically, and return their paths.

    Args:
        sweep: the sweep.
        outcomes: the outcomes of its jobs.
        summary: their summary.
        metric: the score of comparisons.
        out: the directory.
    """
    rows = []
    for outcome in outcomes:
        if outcome.history is not None:
            rows.append(long_row(outcome.job.name, sweep.axes, Run.of(outcome), sweep.target))
    texts = {
        "results.md": to_markdown(sweep, summary, metric),
        "results.tex": summary.table.latex() + "\n" + summary.overview.latex(),
        "table.csv": summary.table.csv(),
        RESULTS: csv_lines([long_head(sweep.axes, sweep.target), *rows]),
    }
    for name, text in texts.items():
        write_text(out / name, text)
    return [out / name for name in texts]


class _ResultWriter:
    """Writes a row to `results.csv` when a run finishes, and forwards all calls to `watch`."""

    def __init__(self, sweep: Sweep, out: Path, watch: Watch) -> None:
        self.sweep = sweep
        self.path = out / RESULTS
        self.watch = watch
        self.on_start = watch.on_start
        self.on_progress = watch.on_progress
        self.has_head = False

    def on_finish(self, outcome: Outcome) -> None:
        """Write a row, unless the job failed."""
        axes = self.sweep.axes
        target = self.sweep.target
        rows: list[list[str | float | None]] = []
        if not self.has_head:
            rows.append([*long_head(axes, target)])
        if outcome.history is not None:
            rows.append(long_row(outcome.job.name, axes, Run.of(outcome), target))
        with open(self.path, "a" if self.has_head else "w", encoding="utf-8") as file:
            file.write(csv_lines(rows))
        self.has_head = True
        self.watch.on_finish(outcome)


def run_sweep(
    sweep: Sweep,
    out: str | Path,
    *,
    metric: str | Score = "last10",
    parallel: int | None = None,
    watch: Watch | None = None,
    overwrite: bool = False,
) -> Summary:
    """Run the unfinished jobs of a sweep, and write the results.

    Args:
        sweep: the sweep.
        out: the directory of the runs and the results. It is locked meanwhile.
        metric: the score of the table and of comparisons, or its name.
        parallel: the number of simultaneous runs; by default one per core.
        watch: callbacks.
        overwrite: replace runs of another configuration instead of raising an error.
    """
    score = find_score(metric) if isinstance(metric, str) else metric
    if score.name == "rounds" and sweep.target is None:
        raise SteelyardError("metric 'rounds': no target is given: use target = 0.9 in the file")
    out = Path(out)
    writer = _ResultWriter(sweep, out, watch or Silent())
    with lock_directory(out, "sweep"):
        outcomes = run_jobs(sweep.jobs, out, parallel=parallel, watch=writer, overwrite=overwrite)
        histories = [outcome.history for outcome in outcomes if outcome.history is not None]
        if score.name in SCORES:
            score = of_monitored(score, histories, strict=False)
        summary = summarise(sweep, outcomes, score)
        write(sweep, outcomes, summary, score, out)
    return summary
