"""The command `steelyard`. Each subcommand has a module of its own."""

from __future__ import annotations

from typing import Annotated

import typer

from steelyard import __version__
from steelyard.cli._console import CommandGroup, DocumentedCommand, console
from steelyard.cli.bench import bench
from steelyard.cli.compare import compare
from steelyard.cli.contributions import contributions
from steelyard.cli.data import data_app, models_app, partitions_app
from steelyard.cli.merge import merge
from steelyard.cli.replay import replay
from steelyard.cli.report import plot, report, watch
from steelyard.cli.reproduce import reproduce
from steelyard.cli.rules import explain, rules
from steelyard.cli.run import resume, run
from steelyard.cli.sweep import sweep

app = typer.Typer(
    name="steelyard",
    cls=CommandGroup,
    help="Adaptive aggregation for federated learning: weight client models by more than their number of examples.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
for command in (
    run,
    resume,
    sweep,
    compare,
    report,
    plot,
    watch,
    replay,
    contributions,
    reproduce,
    bench,
    rules,
    explain,
    merge,
):
    app.command(cls=DocumentedCommand)(command)
groups = {"partitions": partitions_app, "models": models_app, "data": data_app}
for name, group in groups.items():
    app.add_typer(group, name=name)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        console.print(__version__, highlight=False)
        raise typer.Exit
