"""The commands `data list` and `data fetch`."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

from steelyard.cli._console import Console, escape, fail, show
from steelyard.cli._typer_compat import Taught
from steelyard.core.errors import SteelyardError
from steelyard.data.catalog import HOMES, File, bring, find_name
from steelyard.data.sources import SOURCES, VARIABLE, Source, data_directory

app = typer.Typer(help="Data sets: what there is, what is here, and fetching it.", no_args_is_help=True)

Directory = Annotated[
    Path | None, typer.Option("--dir", help=f"The data directory; else ${VARIABLE}.", show_default=False)
]


@app.command("list")
def list_sets(directory: Directory = None) -> None:
    """List every data set: what it is, how much there is to fetch, and where it is if it is here."""
    table = Table(title_justify="left")
    for column in ("name", "what", "to fetch", "here"):
        table.add_column(column, overflow="fold", justify="right" if column == "to fetch" else "left")
    place = data_directory(directory)
    titles = {entry.name: entry.info.title for entry in SOURCES}
    for name in sorted({*titles, *HOMES}):
        table.add_row(name, escape(titles.get(name, "")), _size(name), escape(_here(name, place)))
    show(table, Console())


@app.command(cls=Taught)
def fetch(
    names: Annotated[list[str], typer.Argument(help="Data sets, as in `steelyard data list`.")],
    directory: Directory = None,
) -> None:
    """Fetch data sets from their public homes: resumed if interrupted, verified, and unpacked.

    Example: steelyard data fetch fashion-mnist cifar10 --dir ~/data
    """
    console = Console()
    chosen = directory or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
    try:
        if chosen is None:
            raise SteelyardError(f"there is no place to fetch to: name one with --dir, or set {VARIABLE}")
        for name in names:
            find_name(name)
        with _bar(console) as bar:
            for name in names:
                bring(name, chosen, lambda file: _Shown(bar, file))
    except SteelyardError as error:
        fail(error)
    except KeyboardInterrupt:
        again = shlex.join(["steelyard", "data", "fetch", *names, "--dir", str(chosen)])
        fail(f"interrupted; go on with: {again}", 130)
    for name in names:
        console.print(escape(f"{name} is in {chosen}"), highlight=False, soft_wrap=True)


class _Shown:
    """A file's line in the progress bar."""

    def __init__(self, bar: Progress, file: File) -> None:
        self.bar, self.task = bar, bar.add_task(Path(file.path).name, total=file.size)

    def __call__(self, done: int, total: int | None) -> None:
        self.bar.update(self.task, completed=done, total=total)


def _bar(console: Console) -> Progress:
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    text = TextColumn("{task.description}")
    return Progress(text, *columns, console=console, transient=True, disable=not console.is_terminal)


def _size(name: str) -> str:
    sizes = [file.size for file in HOMES.get(name, ())]
    if not any(sizes):
        return "?" if sizes else "-"
    return f"{'' if all(sizes) else '> '}{sum(size or 0 for size in sizes) / 1e6:,.0f} MB"


def _here(name: str, directory: Path | None) -> str:
    """Where a data set is; empty if it is not here."""
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
