"""The command `compare`: compares algorithms over the seeds that they share."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steelyard.cli._console import Console, escape, fail
from steelyard.cli.sweep import MetricName, print_table
from steelyard.core._errors import SteelyardError

if TYPE_CHECKING:
    from steelyard.experiments._comparisons import Comparison
    from steelyard.experiments._run_groups import Run
    from steelyard.experiments.scores import Score


def compare(
    directories: Annotated[
        list[Path], typer.Argument(help="Run directories, or directories that contain them.")
    ],
    metric: MetricName = "last10",
    target: Annotated[
        float | None,
        typer.Option(
            help="For --metric rounds: the accuracy (or value of the monitored metric) to reach."
        ),
    ] = None,
    confidence: Annotated[
        float, typer.Option(help="Confidence level of the intervals, between 0 and 1.")
    ] = 0.95,
    against: Annotated[
        str | None,
        typer.Option(
            help="Label of the algorithm to compare with. By default plain FedAvg, or the first."
        ),
    ] = None,
    anyway: Annotated[
        bool,
        typer.Option(
            "--anyway",
            help="Compare even if the runs started differently or differ in other settings.",
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON instead of a table and sentences.")
    ] = False,
) -> None:
    """Tell which algorithm is better, and whether the difference is larger than seed noise.

    Runs are grouped by all settings except the seed. Runs with the same seed share data, initial
    model and cohorts, so algorithms are compared seed by seed, over the seeds that both have: the
    mean difference with a confidence interval (Student's t). Use at least three seeds; one seed
    tells nothing about noise. If several algorithms are compared, p-values are corrected for their
    number (Holm).

    steelyard compare runs/awa-vs-avg

    steelyard compare runs/avg-1 runs/avg-2 runs/awa-1 runs/awa-2 --metric rounds --target 0.9

    steelyard compare runs/house-prices --metric mae
    """
    from steelyard.experiments._comparisons import compare as compare_runs
    from steelyard.experiments._run_groups import read_runs
    from steelyard.experiments._tables import pivot
    from steelyard.experiments.scores import find_score

    # Read the runs and compute the comparisons.
    try:
        runs, notes = read_runs(directories)
        score = find_score(metric, [run.history for run in runs])
        runs, warnings = _check_comparable(runs, anyway)
        comparisons = compare_runs(
            runs, score, target=target, confidence=confidence, against=against
        )
        table = pivot(runs, score, target)
    except (SteelyardError, OSError) as error:
        fail(error)

    # Print notes and warnings on standard error.
    errors = Console(stderr=True)
    for note in (*notes, *warnings):
        errors.print(f"[yellow]note:[/] {escape(note)}", highlight=False, soft_wrap=True)

    # Print the results.
    if as_json:
        rows = [_comparison_to_dict(comparison, score) for comparison in comparisons]
        typer.echo(json.dumps(rows, indent=1))
        return
    console = Console()
    print_table(table, console)
    for comparison in comparisons:
        sentences = filter(None, (comparison.sentence(score), comparison.communication()))
        console.print(escape(" ".join(sentences)), highlight=False, soft_wrap=True)


def _check_comparable(runs: list[Run], anyway: bool) -> tuple[list[Run], list[str]]:
    """Check that runs differ in the algorithm only.

    Args:
        runs: finished runs.
        anyway: return objections as warnings instead of raising the first one.

    Returns:
        The runs and the warnings. With `anyway`, runs that cannot be paired otherwise count their
        settings as part of the algorithm.

    Raises:
        SteelyardError: if there is nothing to compare, or an objection without `anyway`.
    """
    from steelyard.experiments._run_groups import find_differences, format_labels, group_runs

    if not runs:
        raise SteelyardError(
            "there is no finished run to compare: finish the runs first (steelyard resume DIR)"
        )
    settings = group_runs(runs)
    algorithms = {algorithm for column in settings.values() for algorithm in column}
    if len(settings) == 1 and len(algorithms) == 1:
        raise SteelyardError(
            f"all {len(runs)} runs are of the same algorithm ({format_labels(runs[0].algorithm)}): "
            "add runs of another algorithm"
        )
    objections = find_differences(runs)
    if all(len(column) < 2 for column in settings.values()):
        keys = ", ".join(key for key, _ in runs[0].setting)
        objections.append(
            f"the runs differ in {keys}, not in the algorithm alone: no two of them can be paired"
        )
        if anyway:
            runs = [
                dataclasses.replace(run, algorithm=run.algorithm + run.setting, setting=())
                for run in runs
            ]
    if objections and not anyway:
        raise SteelyardError(
            f"{objections[0]}: compare runs that differ in the algorithm only, or use --anyway"
        )
    return runs, objections


def _comparison_to_dict(comparison: Comparison, metric: Score) -> dict[str, Any]:
    difference = comparison.difference
    return {
        "setting": comparison.setting,
        "algorithm": difference.first,
        "against": difference.second,
        "metric": metric.name,
        "seeds": list(difference.by_seed),
        "left_out": dict(difference.left_out),
        "difference": difference.mean,
        "interval": difference.interval,
        "confidence": difference.confidence,
        "beyond_noise": difference.beyond_noise,
        "p_value": difference.p_value,
        "p_corrected": comparison.p_corrected,
        "speedups": dict(comparison.speedups),
        "sentence": comparison.sentence(metric),
    }
