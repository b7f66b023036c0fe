"""The commands `run` and `resume`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from steelyard.cli._console import Console, escape, fail, show
from steelyard.core._errors import SteelyardError
from steelyard.core._options import list_keys
from steelyard.runs._directory import CONFIG, read_config, read_subset
from steelyard.runs._history import History
from steelyard.sim._callbacks import Callback
from steelyard.sim._experiment import Experiment, read_experiment
from steelyard.sim._simulate import simulate

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")]
Json = Annotated[
    bool, typer.Option("--json", help="Print one line of JSON per round instead of the progress.")
]
Workers = Annotated[
    int | None,
    typer.Option(help="Number of processes. Default: one per core. It does not change results."),
]


def run(
    experiment: Annotated[
        Path | None,
        typer.Argument(
            help="A TOML file of settings. Without it, FedAvg runs on the digits that come with Steelyard.",
            show_default=False,
        ),
    ] = None,
    weighting: Annotated[
        str | None,
        typer.Option(
            "--weighting",
            "-w",
            help="The aggregation rule; the same as --set weighting=RULE.",
            show_default=False,
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            "-s",
            help="A setting, KEY=VALUE; it replaces the value in the file. Repeat the option for more.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The run directory to write. Default: a new directory in runs/.",
            show_default=False,
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run that --out contains.")
    ] = False,
    quiet: Quiet = False,
    as_json: Json = False,
    options: Annotated[
        bool,
        typer.Option("--options", help="List every key with its default and meaning, and exit."),
    ] = False,
) -> None:
    """Simulate federated learning on this machine, and write a run directory that can be resumed.

    Without arguments: FedAvg on the digits that come with Steelyard, ten clients, strongly non-IID.
    Every key of the file can be set on the command line:

    steelyard run --set weighting=fedawa --set client=fedcos:mu=0.02 --set
    data.partition=dirichlet:0.1 --set rounds=50

    steelyard run experiment.toml --set seed=3 --set data.name=fashion-mnist --out runs/awa-3

    [bold]steelyard rules[/] lists the values of weighting, client, server and broadcast;
    [bold]--options[/] lists all keys.
    """
    console = Console()
    if options:
        _print_options(console)
        return
    changes = list(settings or [])
    if weighting:
        changes.append(f"weighting={weighting}")
    try:
        chosen = read_experiment(experiment, changes)
        directory = out or _new_directory(chosen)
        _simulate(chosen, directory, console, quiet, as_json, overwrite=overwrite)
    except (SteelyardError, OSError) as error:
        fail(error)


def resume(
    directory: Annotated[Path, typer.Argument(help="The run directory to resume.")],
    rounds: Annotated[
        int | None,
        typer.Option(help="The last round; may be beyond the planned one. Default: as planned."),
    ] = None,
    workers: Workers = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Resume a run that was killed or interrupted, from its last checkpoint.

    The results are bit for bit those of an uninterrupted run. If the last checkpoint is damaged, a
    message names it and the one before it is used. --rounds extends a finished run.
    """
    console = Console()
    try:
        stored_config = read_config(directory)
        if "config" not in stored_config:
            raise SteelyardError(
                f"{directory}: was started from Python with objects of its own (data, a model or "
                "functions): call simulate(..., out=..., resume=True) again"
            )
        values = {**stored_config["config"]}
        if rounds is not None:
            values["rounds"] = rounds
        if workers is not None:
            values["workers"] = workers
        experiment = Experiment.from_dict(values, str(directory / CONFIG))
        _simulate(experiment, directory, console, quiet, as_json, resume=True)
    except (SteelyardError, OSError) as error:
        fail(error)


def _simulate(
    experiment: Experiment,
    directory: Path,
    console: Console,
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Run a simulation, show its progress and print its result.

    Args:
        experiment: what to run.
        directory: the run directory.
        console: where to print.
        quiet: print nothing.
        as_json: print only the records, as JSON.
        options: further arguments of `simulate`: `overwrite` or `resume`.
    """
    from steelyard.cli.progress import Bar, JsonLines, Lines

    # Choose how to show progress.
    progress: Callback | None
    if quiet:
        progress = None
    elif as_json:
        progress = JsonLines()
    elif console.is_terminal:
        progress = Bar(console)
    else:
        progress = Lines(console)

    # Print the algorithm and the data.
    if not quiet and not as_json:
        section = experiment.data
        data = f"{section.clients} clients of {section.name}, {section.partition}"
        algorithm = escape(str(experiment.algorithm))
        console.print(f"[bold]{algorithm}[/] on {escape(data)}", highlight=False)

    # Simulate; the bar is removed before a message is printed.
    try:
        history = simulate(
            experiment,
            out=directory,
            callbacks=[] if progress is None else [progress],
            **options,
        )
    except KeyboardInterrupt:
        if isinstance(progress, Bar):
            progress.bar.stop()
        command = shlex.join(["steelyard", "resume", str(directory)])
        fail(f"interrupted; resume with: {command}", 130)
    finally:
        if isinstance(progress, Bar):
            progress.bar.stop()
    if not quiet and not as_json:
        _print_result(history, console)


def _print_result(history: History, console: Console) -> None:
    """Print the last scores of a run, its quarantined clients, its data and its directory."""
    # Collect the last values.
    metric = history.monitor.metric
    last = {name: next(reversed(history.column(name)), None) for name in (metric, "loss")}
    values = {metric: last[metric], "best": history.best, **last}
    seconds = sum(record["timings"]["total"] for record in history.records)

    # Print the table.
    table = Table(title_justify="left")
    table.add_column("algorithm", justify="left")
    for column in ("rounds", *values, "seconds"):
        table.add_column(column, justify="right")
    scores = ["-" if value is None else f"{value:.4f}" for value in values.values()]
    table.add_row(escape(history.name), str(len(history)), *scores, f"{seconds:.1f}")
    show(table, console)

    # Name the quarantined clients, a subset of the data and the run directory.
    quarantined: set[str] = set()
    for record in history.records:
        quarantined.update(record.get("quarantined", {}))
    if quarantined:
        names = ", ".join(map(escape, sorted(quarantined)))
        console.print(f"quarantined at least once: client {names}", highlight=False)
    subset = None if history.path is None else read_subset(history.path)
    if subset is not None:
        console.print(escape(f"data: {subset}"), highlight=False, soft_wrap=True)
    console.print(escape(f"run: {history.path}"), highlight=False, soft_wrap=True)


def _new_directory(experiment: Experiment) -> Path:
    """Return `runs/<rule>-<data>-s<seed>`, with a number appended if it exists."""
    rule = _to_file_name(str(experiment.weighting))
    data = _to_file_name(str(experiment.data.name))
    stem = f"{rule}-{data}-s{experiment.seed}"
    path = Path("runs") / stem
    number = 1
    while path.exists():
        number += 1
        path = Path("runs") / f"{stem}-{number}"
    return path


def _to_file_name(text: str) -> str:
    """Return at most 40 characters of a text, with `-` for those that are unusual in file names."""
    characters = [c if c.isalnum() or c in "-_" else "-" for c in text]
    return "".join(characters)[:40].strip("-")


def _print_options(console: Console) -> None:
    """Print every key of a configuration with its default and meaning."""
    table = Table(title="Keys of a run", title_justify="left")
    for column in ("key", "default", "meaning"):
        table.add_column(column, overflow="fold")

    for key in list_keys(Experiment):
        table.add_row(key.path, escape(key.default), escape(key.option.help))
    show(table, console)
