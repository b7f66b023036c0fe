"""The command `plot`: one figure of the report, for print."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from steelyard.cli._console import Console, escape, fail, show
from steelyard.cli.report import Target
from steelyard.core.errors import SteelyardError


def plot(
    directories: Annotated[
        list[str], typer.Argument(help="Run directories, or directories of runs; then the name of a figure.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="A .png, .svg or .pdf to draw, or a .csv of its numbers.", show_default=False),
    ] = None,
    target: Target = None,
) -> None:
    """Draw one figure of the report for print: PNG, SVG or PDF. Without its name, list the figures there are.

    steelyard plot runs/awa-vs-avg

    steelyard plot runs/awa-vs-avg coherence -o coherence.pdf

    steelyard plot runs/avg-1 runs/awa-1 accuracy -o accuracy.csv
    """
    from steelyard.report.build import find, gather
    from steelyard.report.matplotlib_figures import save

    # os.path.isdir is false for what cannot be a path, where Path.is_dir raises an error.
    name = None if len(directories) < 2 or os.path.isdir(directories[-1]) else directories[-1]
    try:
        made = gather(directories if name is None else directories[:-1], target)
        if name is None:
            table = Table(title="Figures", title_justify="left")
            for column in ("name", "title", "section"):
                table.add_column(column)
            for figure in made.figures:
                table.add_row(escape(figure.name), escape(figure.title), figure.section)
            console = Console()
            show(table, console)
            console.print(
                escape(f"Draw one: steelyard plot {shlex.join(directories)} NAME -o NAME.pdf"),
                highlight=False,
                soft_wrap=True,
            )
            return
        path = save(find(made, name), out or Path(f"{name}.pdf"))
    except (SteelyardError, OSError, ValueError) as error:
        fail(error)
    Console().print(escape(str(path)), highlight=False, soft_wrap=True)
