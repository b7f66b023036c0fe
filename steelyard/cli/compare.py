"""The command `compare`: algorithms over common seeds."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steelyard.cli._console import Console, escape, fail
from steelyard.cli.sweep import MetricName, print_table
from steelyard.core.errors import SteelyardError

if TYPE_CHECKING:
    from steelyard.experiments.comparisons import Comparison
    from steelyard.experiments.run_groups import Run
    from steelyard.experiments.scores import Metric


def compare(
    directories: Annotated[list[Path], typer.Argument(help="Run directories, or directories of runs.")],
    metric: MetricName = "last10",
    target: Annotated[
        float | None, typer.Option(help="What to reach, for --metric rounds: an accuracy, or the monitored metric.")
    ] = None,
    confidence: Annotated[float, typer.Option(help="Of the intervals.")] = 0.95,
    against: Annotated[
        str | None, typer.Option(help="What to compare with, by its label; plain FedAvg or the first by default.")
    ] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Compare runs even if they did not start alike, or differ in more.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    """Say which algorithm does better, and whether the difference is more than seed noise.

    Runs are grouped by everything but the seed. Runs with the same seed share data, initial model and cohorts, so
    algorithms are compared seed by seed, over the seeds that both have: the mean difference with a confidence interval
    (Student's t). Three seeds are the least that say much; with one, nothing can be said about noise. Several
    algorithms are several chances to be lucky: p-values are corrected for their number (Holm).

    steelyard compare runs/awa-vs-avg

    steelyard compare runs/avg-1 runs/avg-2 runs/awa-1 runs/awa-2 --metric rounds --target 0.9

    steelyard compare runs/house-prices --metric mae
    """
    from steelyard.experiments.comparisons import compare as compared
    from steelyard.experiments.run_groups import read_runs
    from steelyard.experiments.scores import metric as find_metric
    from steelyard.experiments.tables import pivot

    try:
        runs, notes = read_runs(directories)
        chosen = find_metric(metric, [run.history for run in runs])
        runs, warnings = _check_comparable(runs, anyway)
        made = compared(runs, chosen, target=target, confidence=confidence, against=against)
        table = pivot(runs, chosen, target)
    except (SteelyardError, OSError) as error:
        fail(error)
    errors = Console(stderr=True)
    for note in (*notes, *warnings):
        errors.print(f"[yellow]note:[/] {escape(note)}", highlight=False, soft_wrap=True)
    if as_json:
        typer.echo(json.dumps([_comparison_to_dict(one, chosen) for one in made], indent=1))
        return
    console = Console()
    print_table(table, console)
    for one in made:
        said = " ".join(filter(None, (one.sentence(chosen), one.communication())))
        console.print(escape(said), highlight=False, soft_wrap=True)


def _check_comparable(runs: list[Run], anyway: bool) -> tuple[list[Run], list[str]]:
    """Runs that may be compared. What speaks against it is an error, or a warning if the user will have it."""
    from steelyard.experiments.run_groups import find_differences, groups, label

    if not runs:
        raise SteelyardError("no finished run to compare: go on with them first (steelyard resume DIR)")
    settings = groups(runs)
    algorithms = {algorithm for column in settings.values() for algorithm in column}
    if len(settings) == 1 and len(algorithms) == 1:
        raise SteelyardError(
            f"all {len(runs)} runs are of the same algorithm ({label(runs[0].algorithm)}): give those of another, too"
        )
    wrong = find_differences(runs)
    if all(len(column) < 2 for column in settings.values()):
        keys = ", ".join(key for key, _ in runs[0].setting)
        wrong.append(f"the runs differ in {keys}, not in the algorithm alone: no two of them can be paired")
        if anyway:
            runs = [dataclasses.replace(run, algorithm=run.algorithm + run.setting, setting=()) for run in runs]
    if wrong and not anyway:
        raise SteelyardError(f"{wrong[0]}: compare runs that differ in the algorithm only, or use --anyway")
    return runs, wrong


def _comparison_to_dict(one: Comparison, metric: Metric) -> dict[str, Any]:
    return {
        "setting": one.setting,
        "algorithm": one.difference.first,
        "against": one.difference.second,
        "metric": metric.name,
        "seeds": list(one.difference.by_seed),
        "left_out": dict(one.difference.left_out),
        "difference": one.difference.mean,
        "interval": one.difference.interval,
        "confidence": one.difference.confidence,
        "beyond_noise": one.difference.beyond_noise,
        "p_value": one.difference.p_value,
        "p_corrected": one.p_corrected,
        "speedups": dict(one.speedups),
        "sentence": one.sentence(metric),
    }
