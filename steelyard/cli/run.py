"""The commands `run` and `resume`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from steelyard.cli._console import Console, escape, fail, show
from steelyard.core.errors import SteelyardError
from steelyard.runs.directory import CONFIG, read_config
from steelyard.runs.history import History
from steelyard.sim.callbacks import Callback
from steelyard.sim.simulate import simulate

if TYPE_CHECKING:  # pydantic takes a while to load: only commands that need it do
    from steelyard.sim.config import Config

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON per round instead.")]
Workers = Annotated[int | None, typer.Option(help="Processes; one per core by default. Results do not depend on it.")]


def run(
    experiment: Annotated[
        Path | None, typer.Argument(help="A TOML file; without one, the embedded digits.", show_default=False)
    ] = None,
    weighting: Annotated[
        str | None,
        typer.Option("--weighting", "-w", help="The rule: short for --set weighting=...", show_default=False),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", help="key=value on top of the file; repeat it.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run directory; by default a new one under runs/.", show_default=False)
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start afresh in --out even if it holds a run.")
    ] = False,
    quiet: Quiet = False,
    as_json: Json = False,
    options: Annotated[bool, typer.Option("--options", help="List every key with its default, and exit.")] = False,
) -> None:
    """Train a federation on this machine, and leave a run directory that can be resumed.

    Without arguments: FedAvg on the embedded digits, ten clients, strongly non-IID. Every key of the file can be set on
    the command line:

    steelyard run --set weighting=fedawa --set client=fedcos:mu=0.02 --set data.partition=dirichlet:0.1 --set rounds=50

    steelyard run experiment.toml --set seed=3 --set data.name=fashion-mnist --out runs/awa-3

    [bold]steelyard rules[/] lists what weighting, client, server and broadcast can be; [bold]--options[/] lists all
    keys.
    """
    from steelyard.sim.config import read

    console = Console()
    if options:
        _print_options(console)
        return
    try:
        config = read(experiment, [*(settings or []), *([f"weighting={weighting}"] if weighting else [])])
        directory = out or _new_directory(config)
        _go(config, directory, console, quiet, as_json, overwrite=overwrite)
    except (SteelyardError, OSError) as error:
        fail(error)


def resume(
    directory: Annotated[Path, typer.Argument(help="A run directory.")],
    rounds: Annotated[int | None, typer.Option(help="Go on to this round, beyond the one planned.")] = None,
    workers: Workers = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Go on with a run that was killed or interrupted, from its last checkpoint: the same bits as if it had not been.

    A damaged checkpoint is named, and the one before it is used. A finished run can be prolonged with --rounds.
    """
    from steelyard.sim.config import validate_config

    console = Console()
    try:
        stored = read_config(directory)
        if "config" not in stored:
            raise SteelyardError(
                f"{directory}: was started from Python: call simulate(..., out=..., resume=True) again"
            )
        plain = {**stored["config"]}
        if rounds is not None:
            plain["rounds"] = rounds
        if workers is not None:
            plain["workers"] = workers
        config = validate_config(plain, str(directory / CONFIG))
        _go(config, directory, console, quiet, as_json, resume=True)
    except (SteelyardError, OSError) as error:
        fail(error)


def _go(config: Config, directory: Path, console: Console, quiet: bool, as_json: bool, **how: Any) -> None:
    from steelyard.cli.progress import Bar, JsonLines, Lines

    shown: Callback | None = (
        None if quiet else JsonLines() if as_json else Bar(console) if console.is_terminal else Lines(console)
    )
    arguments = config.arguments()
    if not quiet and not as_json:
        data = f"{config.data.clients} clients of {config.data.name}, {config.data.partition}"
        console.print(f"[bold]{escape(str(arguments['algorithm']))}[/] on {escape(data)}", highlight=False)
    try:
        history = simulate(
            **arguments,
            out=directory,
            config={"config": config.to_stored()},
            callbacks=[shown] if shown is not None else [],
            **how,
        )
    except KeyboardInterrupt:
        if isinstance(shown, Bar):
            shown.bar.stop()
        fail(f"interrupted; go on with: {shlex.join(['steelyard', 'resume', str(directory)])}", 130)
    finally:
        if isinstance(shown, Bar):
            shown.bar.stop()
    if not quiet and not as_json:
        _print_result(history, console)


def _print_result(history: History, console: Console) -> None:
    table = Table(title_justify="left")
    metric = history.monitor.metric
    last = {name: next(reversed(history.column(name)), None) for name in (metric, "loss")}
    values = {metric: last[metric], "best": history.best, **last}
    for column in ("algorithm", "rounds", *values, "seconds"):
        table.add_column(column, justify="left" if column == "algorithm" else "right")
    seconds = sum(record["timings"]["total"] for record in history.records)
    figures = [f"{value:.4f}" if value is not None else "-" for value in values.values()]
    table.add_row(escape(history.name), str(len(history)), *figures, f"{seconds:.1f}")
    show(table, console)
    quarantined = sorted({name for record in history.records for name in record.get("quarantined", {})})
    if quarantined:
        console.print(f"quarantined at least once: client {', '.join(map(escape, quarantined))}", highlight=False)
    console.print(escape(f"run: {history.path}"), highlight=False, soft_wrap=True)


def _new_directory(config: Config) -> Path:
    """`runs/<rule>-<data>-s<seed>`, with a number if that is taken."""
    rule, data = (
        "".join(c if c.isalnum() or c in "-_" else "-" for c in text)[:40].strip("-")
        for text in (config.weighting, config.data.name)
    )
    stem = f"{rule}-{data}-s{config.seed}"
    number, path = 1, Path("runs") / stem
    while path.exists():
        number += 1
        path = Path("runs") / f"{stem}-{number}"
    return path


def _print_options(console: Console) -> None:
    from steelyard.sim.config import Config

    table = Table(title="Keys of a run", title_justify="left")
    for column in ("key", "default", "meaning"):
        table.add_column(column, overflow="fold")

    def rows(model: Any, prefix: str) -> None:
        for name, field in model.model_fields.items():
            if hasattr(field.annotation, "model_fields"):
                rows(field.annotation, f"{prefix}{name}.")
            else:
                default = "none" if field.default is None else str(field.default)
                table.add_row(f"{prefix}{name}", escape(default), escape(field.description or ""))

    rows(Config, "")
    show(table, console)
