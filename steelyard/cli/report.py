"""The commands `report`, `plot` and `watch`: a page about runs, one figure, a live page."""

from __future__ import annotations

import os
import shlex
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from steelyard.cli._console import Console, escape, fail, show
from steelyard.core._errors import SteelyardError

Directories = Annotated[
    list[Path], typer.Argument(help="Run directories, or directories that contain them.")
]
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
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path(
        "report.html"
    ),
    target: Target = None,
    open_it: Open = False,
) -> None:
    """Write one HTML page: curves, weights, coherence, partition and timings, each with its table.

    The page is a single file that needs no network: open it from disk, send it, print it. Runs that
    differ only in the seed become one line with a band. Unfinished runs are included, and marked.

    steelyard report runs/awa-1 -o awa.html

    steelyard report runs/awa-vs-avg --target 0.9 -o comparison.html --open
    """
    from steelyard.report._build import build_report, write_report

    try:
        contents = build_report(directories, target, out)
        path = write_report(contents, out)
    except (SteelyardError, OSError, ValueError) as error:
        fail(error)
    errors = Console(stderr=True)
    for note in contents.notes:
        errors.print(f"[yellow]note:[/] {escape(note)}", highlight=False, soft_wrap=True)
    size = f"{len(contents.figures)} figures, {path.stat().st_size / 1e6:.1f} MB"
    Console().print(f"{escape(str(path))}: {size}", highlight=False, soft_wrap=True)
    if open_it:
        webbrowser.open(path.resolve().as_uri())


if TYPE_CHECKING:
    from steelyard.report._figures import Report


# The command `plot`: draws one figure of the report for print.


def plot(
    directories: Annotated[
        list[str],
        typer.Argument(
            help="Run directories, or directories that contain them; then the name of a figure."
        ),
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
    from steelyard.report._build import build_report, find_figure
    from steelyard.report._matplotlib_figures import save_figure

    # The last argument is the name of a figure unless it is a directory. os.path.isdir returns
    # False for texts that cannot be a path; Path.is_dir raises an error.
    name = None
    if len(directories) >= 2 and not os.path.isdir(directories[-1]):
        name = directories[-1]
    try:
        if name is None:
            _print_figures(build_report(directories, target), directories)
            return
        report = build_report(directories[:-1], target)
        path = save_figure(find_figure(report, name), out or Path(f"{name}.pdf"))
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


# The command `watch`: serves the report of runs while they are running.


def watch(
    directories: Directories,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1. 0 means any free port.")] = 0,
    target: Target = None,
    open_it: Open = False,
    alert: Annotated[
        list[str] | None,
        typer.Option(
            help="Print a line when a recorded number satisfies this condition: 'weight>0.3 for 5'. "
            "Repeat for several."
        ),
    ] = None,
    exit_on_alert: Annotated[
        int | None,
        typer.Option(
            metavar="CODE", min=1, max=255, help="End with this exit code after the first alert."
        ),
    ] = None,
) -> None:
    """Serve a report that updates itself while runs are running. Ctrl-C stops the server.

    Only this machine can open the page. It remains when a run ends, and shows runs that start later
    in the same directory. The page also shows what each client contributes, if inner products are
    recorded.

    A condition is a key of the round record, <, <=, > or >=, a number, and how many rounds in a row
    must satisfy it. [bold]weight[/] is the largest share of a client. With a number by client, such
    as [bold]cosines[/], every client is checked, and the alert names it.

    steelyard watch runs --open

    steelyard watch runs/awa-1 --port 8008

    steelyard watch runs/awa-1 --alert 'weight>0.3 for 5' --alert 'mean_cosine<0 for 3'

    steelyard watch runs/awa-1 --alert 'accuracy<0.2 for 10' --exit-on-alert 3
    """
    from steelyard.report._alerts import Alert, describe_unknown_key, parse_condition
    from steelyard.report._watch import Watch

    # Parse the conditions. A key that Steelyard does not record may be a mistake.
    if exit_on_alert is not None and not alert:
        fail("--exit-on-alert needs a condition: --alert 'weight>0.3 for 5'")
    console = Console()

    def print_alert(raised: Alert) -> None:
        console.print(f"[red]alert:[/] {escape(raised)}", highlight=False, soft_wrap=True)
        if exit_on_alert is not None:
            raise typer.Exit(exit_on_alert)

    try:
        conditions = [parse_condition(text) for text in alert or ()]
        report_alert = print_alert if conditions else None
        server = Watch(directories, port, target, conditions, report_alert)
    except (SteelyardError, OSError) as error:
        fail(error)
    for note in filter(None, map(describe_unknown_key, conditions)):
        Console(stderr=True).print(
            f"[yellow]note:[/] {escape(note)}", highlight=False, soft_wrap=True
        )

    # Serve the page until Ctrl-C, or an alert.
    console.print(f"{server.address}  (Ctrl-C stops it)", highlight=False, soft_wrap=True)
    if open_it:
        webbrowser.open(server.address)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        console.print("stopped", highlight=False)
    finally:
        server.server_close()
