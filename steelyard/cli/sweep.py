"""The command `sweep`: many runs, a live table of them, and their results."""

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
from rich.table import Table as Shown
from rich.text import Text

from steelyard.cli._console import Console, escape, fail, show
from steelyard.cli.run import Quiet
from steelyard.core.checks import LARGEST
from steelyard.core.errors import SteelyardError, shorten
from steelyard.core.escape import escape_text

if TYPE_CHECKING:
    from steelyard.experiments.jobs import Job, Outcome
    from steelyard.experiments.results import Summary
    from steelyard.experiments.sweep import Sweep
    from steelyard.experiments.tables import Table

MetricName = Annotated[
    str,
    typer.Option(
        "--metric",
        help="last10 (FedLAW's), best (FedAWA's), final, rounds (to the target), seconds, ...; or a number on record, "
        "such as loss or a metric of your own.",
    ),
]
_ROWS = 16  # more jobs than this: only those that run are shown


class Board:
    """State, round, accuracy and time left of every job; what `run_jobs` tells is written down here."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = jobs
        self.state: dict[str, str] = {job.name: "waiting" for job in jobs}
        self.record: dict[str, Mapping[str, Any]] = {}
        self.began: dict[str, tuple[float, int]] = {}  # the time and number of the first round of this session

    def on_start(self, job: Job) -> None:
        """It runs."""
        self.state[job.name] = "running"

    def on_progress(self, job: Job, record: Mapping[str, Any]) -> None:
        """It has done a round; an accuracy stays until the next is measured."""
        if job.name not in self.began:
            self.began[job.name] = (time.monotonic(), record["round"])
        before = self.record.get(job.name, {}).get("accuracy")
        shown = record.get("accuracy")
        self.record[job.name] = {**record, "accuracy": before if shown is None else shown}

    def on_finish(self, outcome: Outcome) -> None:
        """It is done."""
        self.state[outcome.job.name] = "failed" if outcome.error else "reused" if outcome.reused else "finished"
        if outcome.history is not None:
            last = {"round": len(outcome.history), "accuracy": outcome.history.final_accuracy}
            self.record[outcome.job.name] = last

    def seconds_left(self, job: Job) -> float | None:
        """Seconds until its last round, at the pace so far."""
        if self.state[job.name] != "running" or job.name not in self.began:
            return None
        began, first = self.began[job.name]
        done = self.record[job.name]["round"] - first
        return (time.monotonic() - began) / done * (job.config.rounds - first - done) if done else None

    def summary(self) -> str:
        """How many are in which state."""
        counts = Counter(self.state.values())
        return f"{len(self.jobs)} runs: " + ", ".join(f"{count} {state}" for state, count in counts.items())

    def __rich__(self) -> Group:
        table = Shown(title_justify="left")
        for column in ("run", "state", "round", "accuracy", "left"):
            table.add_column(column, justify="left" if column in ("run", "state") else "right", no_wrap=column != "run")
        few = len(self.jobs) <= _ROWS
        colours = {"failed": "red", "finished": "green", "reused": "green", "running": "bold"}
        for job in (job for job in self.jobs if few or self.state[job.name] == "running"):
            record, state = self.record.get(job.name, {}), self.state[job.name]
            accuracy, left = record.get("accuracy"), self.seconds_left(job)
            table.add_row(
                Text(job.name),
                Text(state, style=colours.get(state, "dim")),
                f"{record.get('round', 0)}/{job.config.rounds}",
                "" if accuracy is None else f"{accuracy:.4f}",
                "" if left is None else _time(left),
            )
        return Group(table, Text(self.summary()))


class Lines(Board):
    """A line for every run that starts or ends, for logs."""

    def __init__(self, jobs: Sequence[Job], console: Console) -> None:
        super().__init__(jobs)
        self.console = console

    def on_start(self, job: Job) -> None:
        """Says so."""
        super().on_start(job)
        self._say(f"started   {job.name}")

    def on_finish(self, outcome: Outcome) -> None:
        """Says how it went, and how many are left."""
        super().on_finish(outcome)
        name = outcome.job.name
        record = self.record.get(name, {})
        accuracy = record.get("accuracy")
        measured = "" if accuracy is None else f"  accuracy {accuracy:.4f}"
        said = outcome.error if outcome.error else f"round {record['round']}{measured}"
        done = sum(state not in ("waiting", "running") for state in self.state.values())
        self._say(f"{self.state[name]:<9} {name}  {said}  ({done}/{len(self.jobs)})")

    def _say(self, line: str) -> None:
        self.console.print(escape_text(line), highlight=False, markup=False, soft_wrap=True)


def sweep(
    file: Annotated[Path, typer.Argument(help="A TOML file, as above.")],
    out: Annotated[
        Path | None, typer.Option(help="The directory above the runs; else the file's, else runs/NAME.")
    ] = None,
    parallel: Annotated[int | None, typer.Option(help="Runs at a time; one per core by default.")] = None,
    metric: MetricName = "last10",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs and what is finished, and exit.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start afresh where --out holds a run of another configuration.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    r"""Run every combination of rules, partitions, seeds and anything else, and put the results into tables.

    [bold]sweep.toml[/]: below \[base] the keys of a run (as for steelyard run), below \[grid] lists of values by key:

    weighting = \["fedavg", "fedadp", "fedawa"]

    "data.partition" = \["iid", "dirichlet:0.1"]

    seed = \[1, 2, 3]

    Runs with the same seed have the same data, initial model and cohorts, whatever the algorithm. Start it again after
    Ctrl-C or a crash: finished runs are kept, others go on. In --out: results.md, results.tex, table.csv, and
    results.csv with one row per finished run. The exit code is 1 if a run failed.
    """
    console = Console()
    try:
        from steelyard.experiments.results import run_sweep
        from steelyard.experiments.scores import metric as find_metric
        from steelyard.experiments.sweep import read_sweep

        planned = read_sweep(file)
        chosen = find_metric(metric)
        directory = out or planned.out or Path("runs") / planned.name
        if dry_run:
            _print_plan(planned, directory, console)
            return
        with open_board(planned.jobs, quiet, console) as board:
            summary = run_sweep(planned, directory, metric=chosen, parallel=parallel, watch=board, overwrite=overwrite)
    except KeyboardInterrupt:
        fail(f"interrupted; finished runs are kept: start the same command again to go on with {file}", 130)
    except (SteelyardError, OSError) as error:
        fail(error)
    if not quiet:
        print_table(summary.table, console)
        for comparison in summary.comparisons:
            console.print(escape(comparison.sentence(chosen)), highlight=False, soft_wrap=True)
        console.print(f"results: {escape(str(directory / 'results.md'))}", highlight=False, soft_wrap=True)
    _complain(planned, summary, quiet)


@contextmanager
def open_board(jobs: Sequence[Job], quiet: bool, console: Console) -> Iterator[Board]:
    """Show how jobs go on while the block runs: a live table on a terminal, lines in a log, nothing if quiet."""
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
    what: str,
    parallel: int | None,
    overwrite: bool,
    quiet: bool,
    console: Console,
) -> list[Outcome]:
    """Run jobs, and show how they go on.

    Args:
        jobs: what to run.
        out: the directory above the runs; nobody else may use it meanwhile.
        what: what the directory holds, for messages.
        parallel: runs at a time.
        overwrite: start afresh where there is another run.
        quiet: show nothing.
        console: where to show it.
    """
    from steelyard.experiments.jobs import run_jobs
    from steelyard.runs.lock import lock_directory

    with lock_directory(out, what), open_board(jobs, quiet, console) as board:
        return run_jobs(jobs, out, parallel=parallel, watch=board, overwrite=overwrite)


def read_seeds(text: str) -> tuple[int, ...]:
    """Return the seeds of `--seeds 1,2,3`."""
    try:
        seeds = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise SteelyardError(f"--seeds {shorten(text)}: write whole numbers with commas, e.g. --seeds 1,2,3") from None
    if min(seeds) < 0 or max(seeds) > LARGEST or len(set(seeds)) < len(seeds):
        raise SteelyardError(f"--seeds {shorten(text)}: use distinct numbers, 0 or more and below 2^63")
    return seeds


def print_failures(failed: Sequence[Outcome], total: int) -> None:
    """Name the runs that failed, on standard error, and end with exit code 1 if there are any."""
    errors = Console(stderr=True)
    for outcome in failed:
        reason = escape(f"{outcome.job.name}: {outcome.error}")
        errors.print(f"[red]failed[/] {reason}", highlight=False, soft_wrap=True)
    if failed:
        fail(f"{len(failed)} of {total} runs failed: start the same command again to retry them", 1)


def _complain(planned: Sweep, summary: Summary, quiet: bool) -> None:
    """Notes, then what went wrong, on standard error; it decides on the exit code."""
    errors = Console(stderr=True)
    for note in () if quiet else summary.notes:
        errors.print(f"[yellow]note:[/] {escape(note)}", highlight=False, soft_wrap=True)
    for sentence in summary.unlike:
        errors.print(f"[red]steelyard:[/] {escape(sentence)}", highlight=False, soft_wrap=True)
    print_failures(summary.failed, len(planned.jobs))
    if summary.unlike:
        raise typer.Exit(1)


def _print_plan(planned: Sweep, directory: Path, console: Console) -> None:
    from steelyard.experiments.jobs import is_finished

    done = [is_finished(job, directory) for job in planned.jobs]
    for job, there in zip(planned.jobs, done, strict=True):
        state = "finished" if there else "unfinished" if (directory / job.name / "config.json").exists() else "to do"
        console.print(f"{state:<10}  {job.name}", highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"{len(done)} runs in {directory}, {sum(done)} finished", highlight=False, markup=False, soft_wrap=True
    )
    for note in planned.notes:
        console.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)


def print_table(table: Table, console: Console) -> None:
    """A table of results on the terminal; the best of a column is bold."""
    shown = Shown(title=escape(table.title), title_justify="left")
    shown.add_column(escape(table.corner))
    for head in table.heads:
        shown.add_column(escape(head), justify="right")
    for name, cells in table.rows:
        texts = [Text("" if cell is None else str(cell), style="bold" if cell and cell.best else "") for cell in cells]
        shown.add_row(Text(escape_text(name)), *texts)
    show(shown, console)


def _time(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s" if seconds < 100 else f"{minutes} min" if minutes < 100 else f"{minutes / 60:.1f} h"
