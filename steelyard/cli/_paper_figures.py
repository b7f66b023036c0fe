"""Terminal output of `reproduce` for figures: a list, runs, and the verdict."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table as RichTable

from steelyard.cli._console import Console, escape
from steelyard.cli.sweep import open_board, print_failures

if TYPE_CHECKING:
    from steelyard.experiments._jobs import Job
    from steelyard.figures import Plan, Reproduction


def print_figures(console: Console) -> None:
    """Print the names of all figures with the estimated time of their runs."""
    from steelyard.experiments._cost import format_duration
    from steelyard.figures import names, plan_figure, read_figure

    grid = RichTable(title="Figures of the papers", title_justify="left")
    for column in ("name", "what it shows"):
        grid.add_column(column, justify="left", overflow="fold")
    for column in ("runs", "here", "quick runs", "here"):
        grid.add_column(column, justify="right", overflow="fold")
    for name in names():
        figure = read_figure(name)
        fields = [name, escape(figure.title)]
        for is_quick in (False, True):
            seeds = figure.scale(is_quick).seeds
            jobs = plan_figure(figure, is_quick, seeds=seeds[:1]).jobs
            seconds = _estimate_jobs(jobs)
            if seconds is not None:
                seconds *= len(seeds)
            fields += [str(len(jobs) * len(seeds)), format_duration(seconds)]
        grid.add_row(*fields)
    console.print(grid)


def print_runs(plan: Plan, console: Console) -> None:
    """Print the runs of a figure with their estimated time."""
    from steelyard.experiments._cost import estimate_seconds, format_duration

    title = escape(f"{plan.figure.name}: {plan.figure.title}")
    grid = RichTable(title=title, title_justify="left")
    grid.add_column("run", overflow="fold")
    grid.add_column("seed", justify="right")
    grid.add_column("here", justify="right")
    for job in plan.jobs:
        seconds = format_duration(estimate_seconds(job.config))
        grid.add_row(escape(job.labels["run"]), job.labels["seed"], seconds)
    console.print(grid)


def _estimate_jobs(jobs: list[Job]) -> float | None:
    """Return the estimated seconds of all jobs; None if one is not known."""
    from steelyard.experiments._cost import estimate_seconds

    costs = [estimate_seconds(job.config) for job in jobs]
    return None if None in costs else sum(cost for cost in costs if cost is not None)


def run_paper_figure(
    plan: Plan, out: Path, parallel: int | None, overwrite: bool, quiet: bool, console: Console
) -> Reproduction:
    """Run what a figure needs, draw it and judge it, while progress is shown.

    Args:
        plan: the runs of the figure.
        out: the directory of figures.
        parallel: number of simultaneous runs; None for one per core.
        overwrite: replace runs of another configuration.
        quiet: do not show progress.
        console: where to show it.
    """
    from steelyard.figures import run_figure

    with open_board(plan.jobs, quiet, console) as board:
        return run_figure(
            plan,
            out,
            parallel=parallel,
            watch=board,
            overwrite=overwrite,
            command=["steelyard", *sys.argv[1:]],
        )


def print_figure(reproduction: Reproduction, quiet: bool, console: Console) -> None:
    """Print the claim and the verdict, or the failed runs; then exit with code 1."""
    print_failures(reproduction.failed, reproduction.run_count)
    if quiet or reproduction.verdict is None:
        return
    claim = escape(f"the paper says: {reproduction.plan.figure.claim}")
    console.print(claim, highlight=False, soft_wrap=True)
    verdict = escape(f"verdict: {reproduction.verdict}")
    console.print(verdict, highlight=False, soft_wrap=True)
    path = escape(str(reproduction.path / "figure.md"))
    console.print(f"figure: {path}", highlight=False, soft_wrap=True)
