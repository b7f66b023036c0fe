"""The command `report`: runs as one page."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from steelyard.cli._console import Console, escape, fail
from steelyard.core.errors import SteelyardError

Directories = Annotated[list[Path], typer.Argument(help="Run directories, or directories of runs.")]
Target = Annotated[
    float | None,
    typer.Option(help="Accuracy to reach, for rounds to target; else the runs' own, or round numbers they reach."),
]
Open = Annotated[bool, typer.Option("--open", help="Open it in the browser.")]


def report(
    directories: Directories,
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("report.html"),
    target: Target = None,
    open_it: Open = False,
) -> None:
    """Write one page on runs: curves, weights, coherence, partition, timings, with a table under every figure.

    The page is a single file that needs no network: open it from disk, send it, print it. Runs that differ in the seed
    alone become one line with a band. Unfinished runs are shown as far as they got, and say so.

    steelyard report runs/awa-1 -o awa.html

    steelyard report runs/awa-vs-avg --target 0.9 -o comparison.html --open
    """
    from steelyard.report.build import gather
    from steelyard.report.page import write

    try:
        made = gather(directories, target, out)
        path = write(made, out)
    except (SteelyardError, OSError, ValueError) as error:
        fail(error)
    for note in made.notes:
        Console(stderr=True).print(f"[yellow]note:[/] {escape(note)}", highlight=False, soft_wrap=True)
    size = path.stat().st_size / 1e6
    Console().print(f"{escape(str(path))}: {len(made.figures)} figures, {size:.1f} MB", highlight=False, soft_wrap=True)
    if open_it:
        webbrowser.open(path.resolve().as_uri())
