"""The command `report`: writes one HTML page about runs."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from steelyard.cli._console import Console, escape, fail
from steelyard.core.errors import SteelyardError

Directories = Annotated[list[Path], typer.Argument(help="Run directories, or directories that contain them.")]
Target = Annotated[
    float | None,
    typer.Option(
        help="The accuracy to reach, for rounds to target. Default: the target of the runs, or "
        "round numbers that they reach."
    ),
]
Open = Annotated[bool, typer.Option("--open", help="Open the page in the browser.")]


def report(
    directories: Directories,
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path("report.html"),
    target: Target = None,
    open_it: Open = False,
) -> None:
    """Write one HTML page: curves, weights, coherence, partition and timings, each with its table.

    The page is a single file that needs no network: open it from disk, send it, print it. Runs that
    differ only in the seed become one line with a band. Unfinished runs are included, and marked.

    steelyard report runs/awa-1 -o awa.html

    steelyard report runs/awa-vs-avg --target 0.9 -o comparison.html --open
    """
    from steelyard.report.build import gather
    from steelyard.report.page import write

    try:
        contents = gather(directories, target, out)
        path = write(contents, out)
    except (SteelyardError, OSError, ValueError) as error:
        fail(error)
    errors = Console(stderr=True)
    for note in contents.notes:
        errors.print(f"[yellow]note:[/] {escape(note)}", highlight=False, soft_wrap=True)
    size = f"{len(contents.figures)} figures, {path.stat().st_size / 1e6:.1f} MB"
    Console().print(f"{escape(str(path))}: {size}", highlight=False, soft_wrap=True)
    if open_it:
        webbrowser.open(path.resolve().as_uri())
