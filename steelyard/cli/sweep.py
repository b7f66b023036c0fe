"""The command `sweep`, and the progress display and tables that it shares with other commands."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table as RichTable
from rich.text import Text

from steelyard.cli._console import Console, escape, fail, show
from steelyard.cli.run import Quiet
from steelyard.core._errors import SteelyardError, escape_text, shorten
from steelyard.core.checks import LARGEST

if TYPE_CHECKING:
    from steelyard.experiments._jobs import Job, Outcome
    from steelyard.experiments._sweep import Summary, Sweep
    from steelyard.experiments._tables import Table

MetricName = Annotated[
    str,
    typer.Option(
        "--metric",
        help="The score of a run: last10 (as in FedLAW), best (as in FedAWA), final, rounds (to the "
        "target), seconds, ...; any recorded value, such as loss or a metric of your own; or a "
        "function of one, such as mean(gamma,90-110).",
    ),
]
_MAX_ROWS = 16  # with more jobs, the live table shows only those that are running
_COLOURS = {"failed": "red", "finished": "green", "reused": "green", "running": "bold"}


class Board:
    """A live table with the state, round, accuracy and remaining time of every job.

    `run_jobs` calls the methods `on_start`, `on_progress` and `on_finish`.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = jobs
        self.state: dict[str, str] = {job.name: "waiting" for job in jobs}
        self.record: dict[str, Mapping[str, Any]] = {}
        # The time and the number of the first round of this session, by job.
        self.first: dict[str, tuple[float, int]] = {}

    def on_start(self, job: Job) -> None:
        """Mark a job as running."""
        self.state[job.name] = "running"

    def on_progress(self, job: Job, record: Mapping[str, Any]) -> None:
        """Store the record of a round; without an accuracy, the last one is kept."""
        if job.name not in self.first:
            self.first[job.name] = (time.monotonic(), record["round"])
        accuracy = record.get("accuracy")
        if accuracy is None:
            accuracy = self.record.get(job.name, {}).get("accuracy")
        self.record[job.name] = {**record, "accuracy": accuracy}

    def on_finish(self, outcome: Outcome) -> None:
        """Mark a job as failed, reused or finished."""
        name = outcome.job.name
        if outcome.error:
            self.state[name] = "failed"
        elif outcome.reused:
            self.state[name] = "reused"
        else:
            self.state[name] = "finished"
        history = outcome.history
        if history is not None:
            self.record[name] = {"round": len(history), "accuracy": history.final_accuracy}

    def seconds_left(self, job: Job) -> float | None:
        """Return the estimated seconds to the last round; None if it is not known yet."""
        if self.state[job.name] != "running" or job.name not in self.first:
            return None
        start_time, first_round = self.first[job.name]
        current_round = self.record[job.name]["round"]
        rounds_done = current_round - first_round
        if rounds_done == 0:
            return None
        seconds_per_round = (time.monotonic() - start_time) / rounds_done
        return float(seconds_per_round * (job.config.rounds - current_round))

    def summary(self) -> str:
        """Return how many jobs are in each state."""
        counts = Counter(self.state.values())
        states = ", ".join(f"{count} {state}" for state, count in counts.items())
        return f"{len(self.jobs)} runs: {states}"

    def __rich__(self) -> Group:
        table = RichTable(title_justify="left")
        table.add_column("run", justify="left")
        table.add_column("state", justify="left", no_wrap=True)
        for column in ("round", "accuracy", "left"):
            table.add_column(column, justify="right", no_wrap=True)
        for job in self.jobs:
            state = self.state[job.name]
            if len(self.jobs) > _MAX_ROWS and state != "running":
                continue
            record = self.record.get(job.name, {})
            accuracy = record.get("accuracy")
            seconds = self.seconds_left(job)
            table.add_row(
                Text(job.name),
                Text(state, style=_COLOURS.get(state, "dim")),
                f"{record.get('round', 0)}/{job.config.rounds}",
                "" if accuracy is None else f"{accuracy:.4f}",
                "" if seconds is None else _format_time(seconds),
            )
        return Group(table, Text(self.summary()))


class Lines(Board):
    """Prints a line for every run that starts or ends, for logs."""

    def __init__(self, jobs: Sequence[Job], console: Console) -> None:
        super().__init__(jobs)
        self.console = console

    def on_start(self, job: Job) -> None:
        """Print that a job starts."""
        super().on_start(job)
        self._print(f"started   {job.name}")

    def on_finish(self, outcome: Outcome) -> None:
        """Print the result of a job, and how many jobs have ended."""
        super().on_finish(outcome)
        name = outcome.job.name
        record = self.record.get(name, {})
        if outcome.error:
            result = outcome.error
        else:
            result = f"round {record['round']}"
            if record.get("accuracy") is not None:
                result += f"  accuracy {record['accuracy']:.4f}"
        ended = sum(state not in ("waiting", "running") for state in self.state.values())
        self._print(f"{self.state[name]:<9} {name}  {result}  ({ended}/{len(self.jobs)})")

    def _print(self, line: str) -> None:
        self.console.print(escape_text(line), highlight=False, markup=False, soft_wrap=True)


def sweep(
    file: Annotated[Path, typer.Argument(help="A TOML file in the format above.")],
    out: Annotated[
        Path | None,
        typer.Option(
            help="The directory that will contain the runs. Default: `out` of the file, or runs/NAME."
        ),
    ] = None,
    parallel: Annotated[
        int | None, typer.Option(help="Number of simultaneous runs. Default: one per core.")
    ] = None,
    metric: MetricName = "last10",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the runs and which are finished, and exit.")
    ] = False,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace runs in --out that have another configuration."),
    ] = False,
    quiet: Quiet = False,
) -> None:
    r"""Run all combinations of rules, partitions, seeds and other settings, and write tables.

    [bold]sweep.toml[/] has the keys of a run (as for steelyard run) in \[base], and lists of values
    in \[grid]:

    weighting = \["fedavg", "fedadp", "fedawa"]

    "data.partition" = \["iid", "dirichlet:0.1"]

    seed = \[1, 2, 3]

    Runs with the same seed have the same data, initial model and cohorts, whatever the algorithm.
    After Ctrl-C or a crash, start the same command again: finished runs are kept and others are
    resumed. --out contains results.md, results.tex, table.csv, and results.csv with one row per
    finished run. The exit code is 1 if a run failed.
    """
    console = Console()
    try:
        from steelyard.experiments._sweep import read_sweep, run_sweep
        from steelyard.experiments.scores import find_score

        # Read the file.
        plan = read_sweep(file)
        score = find_score(metric)
        directory = out or plan.out or Path("runs") / plan.name
        if dry_run:
            _print_plan(plan, directory, console)
            return

        # Run the jobs.
        with open_board(plan.jobs, quiet, console) as board:
            summary = run_sweep(
                plan,
                directory,
                metric=score,
                parallel=parallel,
                watch=board,
                overwrite=overwrite,
            )
    except KeyboardInterrupt:
        fail(
            f"interrupted; finished runs are kept: start the same command again to resume {file}",
            130,
        )
    except (SteelyardError, OSError) as error:
        fail(error)

    # Print the results.
    if not quiet:
        print_table(summary.table, console)
        for comparison in summary.comparisons:
            console.print(escape(comparison.sentence(score)), highlight=False, soft_wrap=True)
        path = escape(str(directory / "results.md"))
        console.print(f"results: {path}", highlight=False, soft_wrap=True)
    _print_problems(plan, summary, quiet)


@contextmanager
def open_board(jobs: Sequence[Job], quiet: bool, console: Console) -> Iterator[Board]:
    """Return a context manager that shows the progress of jobs.

    It shows a live table on a terminal, lines of text elsewhere, nothing if `quiet`.
    """
    if quiet:
        yield Board(jobs)
    elif console.is_terminal:
        board = Board(jobs)
        with Live(board, console=console, refresh_per_second=4, transient=True):
            yield board
    else:
        yield Lines(jobs, console)


def run_with_board(
    jobs: Sequence[Job],
    out: Path,
    kind: str,
    parallel: int | None,
    overwrite: bool,
    quiet: bool,
    console: Console,
) -> list[Outcome]:
    """Run jobs and show their progress.

    Args:
        jobs: the jobs.
        out: the directory that will contain the runs. It is locked meanwhile.
        kind: what the directory is, for messages: "sweep", "reproduction".
        parallel: number of simultaneous runs; None for one per core.
        overwrite: replace runs of another configuration.
        quiet: show nothing.
        console: where to show progress.

    Returns:
        One outcome per job.
    """
    from steelyard.experiments._jobs import run_jobs
    from steelyard.runs._lock import lock_directory

    with lock_directory(out, kind), open_board(jobs, quiet, console) as board:
        return run_jobs(jobs, out, parallel=parallel, watch=board, overwrite=overwrite)


def read_seeds(text: str) -> tuple[int, ...]:
    """Return the seeds of `--seeds 1,2,3`."""
    try:
        seeds = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise SteelyardError(
            f"--seeds {shorten(text)}: write whole numbers with commas, e.g. --seeds 1,2,3"
        ) from None
    if min(seeds) < 0 or max(seeds) > LARGEST or len(set(seeds)) < len(seeds):
        raise SteelyardError(
            f"--seeds {shorten(text)}: use distinct numbers, 0 or more and below 2^63"
        )
    return seeds


def print_failures(failed: Sequence[Outcome], total: int) -> None:
    """Print the failed runs on standard error; exit with code 1 if there are any."""
    errors = Console(stderr=True)
    for outcome in failed:
        reason = escape(f"{outcome.job.name}: {outcome.error}")
        errors.print(f"[red]failed[/] {reason}", highlight=False, soft_wrap=True)
    if failed:
        count = f"{len(failed)} of {total}"
        fail(f"{count} runs failed: start the same command again to retry them", 1)


def _print_problems(plan: Sweep, summary: Summary, quiet: bool) -> None:
    """Print notes and errors of a sweep on standard error; exit with code 1 if there are errors."""
    errors = Console(stderr=True)
    if not quiet:
        for note in summary.notes:
            errors.print(f"[yellow]note:[/] {escape(note)}", highlight=False, soft_wrap=True)
    for sentence in summary.start_differences:
        errors.print(f"[red]steelyard:[/] {escape(sentence)}", highlight=False, soft_wrap=True)
    print_failures(summary.failed, len(plan.jobs))
    if summary.start_differences:
        raise typer.Exit(1)


def _print_plan(plan: Sweep, directory: Path, console: Console) -> None:
    """Print the state of every job of a sweep."""
    from steelyard.experiments._jobs import is_finished

    lines = []
    finished_count = 0
    for job in plan.jobs:
        if is_finished(job, directory):
            state = "finished"
            finished_count += 1
        elif (directory / job.name / "config.json").exists():
            state = "unfinished"
        else:
            state = "to do"
        lines.append(f"{state:<10}  {job.name}")
    lines.append(f"{len(plan.jobs)} runs in {directory}, {finished_count} finished")
    lines += [f"note: {note}" for note in plan.notes]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def print_table(table: Table, console: Console) -> None:
    """Print a table of results; the best cell of a column is bold."""
    grid = RichTable(title=escape(table.title), title_justify="left")
    grid.add_column(escape(table.corner))
    for head in table.heads:
        grid.add_column(escape(head), justify="right")
    for name, cells in table.rows:
        texts = []
        for cell in cells:
            if cell is None:
                texts.append(Text(""))
            else:
                texts.append(Text(str(cell), style="bold" if cell.best else ""))
        grid.add_row(Text(escape_text(name)), *texts)
    show(grid, console)


def _format_time(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    return f"{minutes / 60:.1f} h"
