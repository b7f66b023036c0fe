"""Plans, runs, draws and writes a figure of a paper.

The directory of figures has

    runs/                one run directory per configuration and seed, shared by all figures
    NAME/figure.md       the claim, the verdict, the settings, the command
    NAME/figure.png      the picture; also figure.svg
    NAME/figure.csv      the numbers of the picture
    NAME/measurements.json   measurements after the runs, computed once
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard.core._errors import SteelyardError
from steelyard.experiments._jobs import Job, Outcome, Watch, flatten_keys, run_jobs
from steelyard.experiments._tables import csv_lines, markdown_text
from steelyard.figures._figure import Key, PaperFigure, Results, Scale, Verdict
from steelyard.figures._style import collect_numbers, save_drawing, use_style
from steelyard.runs._directory import describe_environment, write_text
from steelyard.runs._lock import lock_directory
from steelyard.sim._experiment import Experiment, merge_sections, set_key

if TYPE_CHECKING:  # optional, and slow to import
    from matplotlib.figure import Figure as Drawing

RUNS = "runs"
MEASUREMENTS = "measurements.json"


@dataclass(frozen=True)
class Plan:
    """The runs of a figure.

    Attributes:
        figure: the figure.
        scale: its settings at the chosen size.
        is_quick: whether it is the small version.
        seeds: the seeds.
        jobs_by_key: the jobs of each run, one per seed.
        changes: the user's settings for all runs, as `key=value`.
    """

    figure: PaperFigure
    scale: Scale
    is_quick: bool
    seeds: tuple[int, ...]
    jobs_by_key: Mapping[Key, Sequence[Job]]
    changes: tuple[str, ...] = ()

    @property
    def jobs(self) -> list[Job]:
        """All jobs, each once, seed by seed, so that an interrupted figure has complete seeds."""
        jobs: dict[str, Job] = {}
        for position in range(len(self.seeds)):
            for seed_jobs in self.jobs_by_key.values():
                job = seed_jobs[position]
                jobs[job.name] = job
        return list(jobs.values())


@dataclass(frozen=True)
class Reproduction:
    """A figure that was drawn from runs.

    Attributes:
        plan: its runs.
        verdict: whether it shows what the paper says; None if runs failed, so that nothing was
            drawn.
        path: the directory with figure.md, figure.png, figure.svg and figure.csv.
        drawing: the matplotlib figure; None if runs failed.
        failed: the outcomes of failed runs.
        run_count: the number of runs.
    """

    plan: Plan
    verdict: Verdict | None
    path: Path
    drawing: Drawing | None
    failed: tuple[Outcome, ...]
    run_count: int


def plan_figure(
    figure: PaperFigure,
    is_quick: bool = False,
    *,
    rounds: int | None = None,
    seeds: Sequence[int] | None = None,
    settings: Sequence[str] = (),
) -> Plan:
    """Return the runs of a figure.

    Args:
        figure: the figure.
        is_quick: take the small version instead of the paper's settings.
        rounds: the number of rounds of all runs; by default those of the figure.
        seeds: the seeds; by default those of the figure.
        settings: settings for all runs, as `key=value`.
    """
    scale = figure.scale(is_quick)
    chosen_seeds = scale.seeds if seeds is None else tuple(seeds)
    if not chosen_seeds:
        raise SteelyardError(f"{figure.name}: no seeds: give at least one")
    changes = list(settings)
    if rounds is not None:
        changes.append(f"rounds={rounds}")

    # One job per run and seed.
    jobs_by_key: dict[Key, list[Job]] = {}
    for key, run_settings in scale.runs.items():
        raw = merge_sections(run_settings, {})
        for change in changes:
            set_key(raw, change)
        where = f"{figure.name}, run {format_key(key)}"
        config = Experiment.from_dict(raw, where)
        directory = name_directory(config)
        jobs = []
        for seed in chosen_seeds:
            labels = {"run": format_key(key), "seed": str(seed)}
            jobs.append(Job(f"{directory}/seed-{seed}", replace(config, seed=seed), labels))
        jobs_by_key[key] = jobs
    return Plan(figure, scale, is_quick, chosen_seeds, jobs_by_key, tuple(changes))


def run_figure(
    plan: Plan,
    out: str | Path,
    *,
    parallel: int | None = None,
    watch: Watch | None = None,
    overwrite: bool = False,
    command: Sequence[str] = (),
) -> Reproduction:
    """Run what a figure needs, draw it, judge it and write it.

    Finished runs are reused, also those of other figures in the same directory.

    Args:
        plan: the runs of the figure.
        out: the directory of figures. It contains the runs and one directory per figure.
        parallel: the number of simultaneous runs; by default one per core.
        watch: callbacks for progress.
        overwrite: replace runs of another configuration instead of raising an error.
        command: the command that was called, for figure.md; by default the shortest one.

    Returns:
        The verdict and the files. If a run failed, nothing is drawn.
    """
    figure = plan.figure
    out = Path(out)
    path = out / figure.name
    with use_style():  # an error before hours of runs if matplotlib is missing
        # Run the jobs.
        outcomes: list[Outcome] = []
        if plan.jobs:
            with lock_directory(out / RUNS, "figures"):
                outcomes = run_jobs(
                    plan.jobs, out / RUNS, parallel=parallel, watch=watch, overwrite=overwrite
                )
        failed = tuple(outcome for outcome in outcomes if outcome.error is not None)
        if failed:
            return Reproduction(plan, None, path, None, failed, len(outcomes))

        # Measure, draw and judge.
        path.mkdir(parents=True, exist_ok=True)
        results = collect_results(plan, outcomes, path)
        drawing = figure.draw(results)
        verdict = figure.judge(results)

        # Write the files.
        for suffix in (".png", ".svg"):
            save_drawing(drawing, path / f"figure{suffix}")
        write_text(path / "figure.csv", csv_lines(collect_numbers(drawing)))
        page = write_page(plan, verdict, command or default_command(plan), describe_environment())
        write_text(path / "figure.md", page)
    return Reproduction(plan, verdict, path, drawing, (), len(outcomes))


def collect_results(plan: Plan, outcomes: Sequence[Outcome], path: Path) -> Results:
    """Return the histories of finished runs, and measurements of them.

    Measurements are stored; they are computed again if the runs are others.

    Args:
        plan: the runs of the figure.
        outcomes: the outcomes of its jobs.
        path: the directory of the figure.
    """
    # Histories by run, in the order of the seeds.
    by_name = {}
    for outcome in outcomes:
        assert outcome.history is not None
        by_name[outcome.job.name] = outcome.history
    histories = {}
    for key, jobs in plan.jobs_by_key.items():
        histories[key] = [by_name[job.name] for job in jobs]
    results = Results(plan.scale, plan.seeds, histories)

    # Measurements: those that are stored, if they are of the same runs.
    stamp = _compute_stamp(plan)
    file = path / MEASUREMENTS
    measurements = _read_measurements(file, stamp)
    if measurements is None:
        measurements = plan.figure.measure(results, path)
        if measurements:
            write_text(file, json.dumps({"runs": stamp, "values": measurements}) + "\n")
    return Results(plan.scale, plan.seeds, histories, measurements)


def _compute_stamp(plan: Plan) -> str:
    """Return a hash of the runs and of the other values of a figure."""
    jobs = [job.name for job in plan.jobs]
    text = json.dumps([jobs, plan.seeds, plan.changes, repr(plan.scale.values)])
    return hashlib.sha256(text.encode()).hexdigest()


def _read_measurements(file: Path, stamp: str) -> dict[str, Any] | None:
    """Return stored measurements; None if there are none, or if they are of other runs."""
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(stored, dict) or stored.get("runs") != stamp:
        return None
    values = stored.get("values")
    return values if isinstance(values, dict) else None


def name_directory(config: Experiment) -> str:
    """Return the directory of a run: data set, algorithm, and a hash of the settings.

    Runs with the same settings have the same directory, so figures share them. Only settings that
    differ from their defaults count, so that a new option does not change the name.
    """
    changes = {}
    for key, value in flatten_keys(config.to_stored()).items():
        if key != "seed" and value != _list_defaults().get(key):
            changes[key] = value
    digest = hashlib.sha256(json.dumps(changes, sort_keys=True).encode()).hexdigest()[:10]
    data = str(config.data.name).partition(":")[0]
    parts = [data, *(str(text) for text in config.algorithm.texts.values() if text)]
    slug = re.sub("[^a-z0-9.]+", "-", " ".join(parts).lower())[:60].strip("-.")
    return f"{slug}-{digest}"


@cache
def _list_defaults() -> dict[str, Any]:
    """Return the defaults of all options that are stored."""
    return flatten_keys(Experiment().to_stored())


def format_key(key: Key) -> str:
    """Return the key of a run as text."""
    if isinstance(key, tuple):
        return ", ".join(str(value) for value in key)
    return str(key)


def default_command(plan: Plan) -> list[str]:
    """Return the command that draws a figure again."""
    command = ["steelyard", "reproduce", plan.figure.name]
    if plan.is_quick:
        command.append("--quick")
    if plan.seeds != plan.scale.seeds:
        command += ["--seeds", ",".join(map(str, plan.seeds))]
    for change in plan.changes:
        command += ["--set", change]
    return command


def write_page(
    plan: Plan, verdict: Verdict, command: Sequence[str], environment: Mapping[str, Any]
) -> str:
    """Return the page `figure.md`.

    Args:
        plan: the runs of the figure.
        verdict: whether it shows what the paper says.
        command: the command that draws it.
        environment: the versions and cores.
    """
    figure = plan.figure
    versions = ", ".join(
        f"{name} {environment[name]}" for name in ("steelyard", "python", "torch", "numpy")
    )
    lines = [
        f"# {figure.name}: {figure.title}",
        "",
        f"{figure.paper_title}, {figure.source.figure}, {figure.source.place}.",
        "",
        f"![{figure.title}](figure.png)",
        "",
        f"**The paper says:** {figure.claim}",
        "",
        f"**Verdict: {verdict.state}.** {verdict.sentence}",
        "",
        *describe_settings(plan),
        "",
        "```console",
        f"$ {shlex.join(command)}",
        "```",
        "",
        f"{versions}; {environment['cores']} cores.",
        "",
    ]
    return "\n".join(lines)


def describe_settings(plan: Plan) -> list[str]:
    """Return the lines of figure.md about the settings, and how they differ from the paper's."""
    lines = []
    if plan.jobs:
        seeds = ", ".join(map(str, plan.seeds))
        lines += [f"**Settings.** {len(plan.jobs)} runs, seeds {seeds}.", ""]

    # Settings that all runs have in common, and those in which they differ.
    tables = {}
    for key in plan.jobs_by_key:
        raw = merge_sections(plan.scale.runs[key], {})
        for change in plan.changes:
            set_key(raw, change)
        tables[format_key(key)] = flatten_keys(raw)
    common = {}
    if tables:
        first = next(iter(tables.values()))
        for name, value in first.items():
            if all(table.get(name) == value for table in tables.values()):
                common[name] = value
    if common:
        lines += [f"All runs: {_format_settings(common)}.", ""]
    for key_text, table in tables.items():
        own = {name: value for name, value in table.items() if name not in common}
        lines.append(f"- {markdown_text(key_text)}: {_format_settings(own)}")
    if tables:
        lines.append("")

    # Differences from the paper.
    differences = [f"- {text}" for text in plan.scale.differences]
    if plan.changes:
        changes = ", ".join(f"`{change}`" for change in plan.changes)
        differences.append(f"- **Changed on the command line:** {changes}.")
    if differences:
        lines += ["What differs from the paper:", "", *differences]
    else:
        lines += ["The settings are the paper's."]
    return lines


def _format_settings(settings: Mapping[str, Any]) -> str:
    """Return settings as text: `rounds=20`, `local.lr=0.1`."""
    if not settings:
        return "the settings above"
    return ", ".join(f"`{name}={value}`" for name, value in settings.items())
