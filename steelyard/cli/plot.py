"""The command `plot`: draws one figure of the report for print."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from steelyard.cli._console import Console, escape, fail, show
from steelyard.cli.report import Target
from steelyard.core.errors import SteelyardError

if TYPE_CHECKING:
    from steelyard.report.figures import Report


def plot(
    directories: Annotated[
        list[str],
        typer.Argument(help="Run directories, or directories that contain them; then the name of a figure."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="The file to write: .png, .svg or .pdf, or .csv for the numbers. Default: NAME.pdf.",
            show_default=False,
        ),
    ] = None,
    target: Target = None,
) -> None:
    """Draw one figure of the report as PNG, SVG or PDF. Without a name, list the figures.

    steelyard plot runs/awa-vs-avg

    steelyard plot runs/awa-vs-avg coherence -o coherence.pdf

    steelyard plot runs/avg-1 runs/awa-1 accuracy -o accuracy.csv
    """
    from steelyard.report.build import find, gather
    from steelyard.report.matplotlib_figures import save

    # The last argument is the name of a figure unless it is a directory. os.path.isdir returns
    # False for texts that cannot be a path; Path.is_dir raises an error.
    name = None
    if len(directories) >= 2 and not os.path.isdir(directories[-1]):
        name = directories[-1]
    try:
        if name is None:
            _print_figures(gather(directories, target), directories)
            return
        report = gather(directories[:-1], target)
        path = save(find(report, name), out or Path(f"{name}.pdf"))
    except (SteelyardError, OSError, ValueError) as error:
        fail(error)
    Console().print(escape(str(path)), highlight=False, soft_wrap=True)


def _print_figures(report: Report, directories: list[str]) -> None:
    """Print a table of the figures, and the command that draws one."""
    table = Table(title="Figures", title_justify="left")
    for column in ("name", "title", "section"):
        table.add_column(column)
    for figure in report.figures:
        table.add_row(escape(figure.name), escape(figure.title), figure.section)
    console = Console()
    show(table, console)
    command = f"steelyard plot {shlex.join(directories)} NAME -o NAME.pdf"
    console.print(escape(f"Draw one: {command}"), highlight=False, soft_wrap=True)
