"""The commands `data list` and `data fetch`."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from steelyard.cli._console import Console, escape, fail, show
from steelyard.cli._typer_compat import DocumentedCommand
from steelyard.core.errors import SteelyardError
from steelyard.data.catalog import HOMES, File, bring, find_name
from steelyard.data.sources import SOURCES, VARIABLE, Source, data_directory

app = typer.Typer(help="List data sets, and download them.", no_args_is_help=True)

Directory = Annotated[
    Path | None,
    typer.Option("--dir", help=f"The data directory. Default: ${VARIABLE}.", show_default=False),
]


@app.command("list")
def list_sets(directory: Directory = None) -> None:
    """List every data set: what it is, its download size, and its path if it is on this machine."""
    table = Table(title_justify="left")
    table.add_column("name", overflow="fold")
    table.add_column("what", overflow="fold")
    table.add_column("to fetch", overflow="fold", justify="right")
    table.add_column("here", overflow="fold")
    data_path = data_directory(directory)
    titles = {entry.name: entry.info.title for entry in SOURCES}
    for name in sorted({*titles, *HOMES}):
        title = escape(titles.get(name, ""))
        table.add_row(name, title, _format_size(name), escape(_find_path(name, data_path)))
    show(table, Console())


@app.command(cls=DocumentedCommand)
def fetch(
    names: Annotated[list[str], typer.Argument(help="Names of data sets, as `steelyard data list` shows them.")],
    directory: Directory = None,
) -> None:
    """Download data sets from their public sources, verify them and unpack them.

    An interrupted download is resumed by the same command.

    Example: steelyard data fetch fashion-mnist cifar10 --dir ~/data
    """
    console = Console()
    if directory is None and os.environ.get(VARIABLE):
        directory = Path(os.environ[VARIABLE])
    try:
        if directory is None:
            raise SteelyardError(f"there is no data directory: name one with --dir, or set {VARIABLE}")
        # Refuse unknown names before anything is downloaded.
        for name in names:
            find_name(name)
        with _create_bar(console) as bar:
            for name in names:
                bring(name, directory, lambda file: _FileProgress(bar, file))
    except SteelyardError as error:
        fail(error)
    except KeyboardInterrupt:
        command = shlex.join(["steelyard", "data", "fetch", *names, "--dir", str(directory)])
        fail(f"interrupted; resume with: {command}", 130)
    for name in names:
        console.print(escape(f"{name} is in {directory}"), highlight=False, soft_wrap=True)


class _FileProgress:
    """The line of one file in the progress bar."""

    def __init__(self, bar: Progress, file: File) -> None:
        self.bar = bar
        self.task = bar.add_task(Path(file.path).name, total=file.size)

    def __call__(self, completed: int, total: int | None) -> None:
        self.bar.update(self.task, completed=completed, total=total)


def _create_bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def _format_size(name: str) -> str:
    """Return the download size; `?` if it is unknown, `-` if there is nothing to download."""
    sizes = [file.size for file in HOMES.get(name, ())]
    if not sizes:
        return "-"
    if not any(sizes):
        return "?"
    at_least = "" if all(sizes) else "> "
    megabytes = sum(size or 0 for size in sizes) / 1e6
    return f"{at_least}{megabytes:,.0f} MB"


def _find_path(name: str, directory: Path | None) -> str:
    """Return the path of a data set; empty if it is not on this machine."""
    if name not in SOURCES:
        return ""
    entry = SOURCES[name]
    try:
        source = entry.make()
        return str(source.locate(directory)) if isinstance(source, Source) else ""
    except SteelyardError:
        return ""
    except Exception:  # a plugin's data set that cannot be made without options
        if entry.is_builtin:
            raise
        return ""
