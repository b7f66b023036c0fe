"""The command `watch`: serves the report of runs while they are running."""

from __future__ import annotations

import webbrowser
from typing import Annotated

import typer

from steelyard.cli._console import Console, fail
from steelyard.cli.report import Directories, Open, Target
from steelyard.core.errors import SteelyardError


def watch(
    directories: Directories,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1. 0 means any free port.")] = 0,
    target: Target = None,
    open_it: Open = False,
) -> None:
    """Serve a report that updates itself while runs are running. Ctrl-C stops the server.

    Only this machine can open the page. It remains when a run ends, and shows runs that start later
    in the same directory.

    steelyard watch runs --open

    steelyard watch runs/awa-1 --port 8008
    """
    from steelyard.report.watch import Watch

    try:
        server = Watch(directories, port, target)
    except (SteelyardError, OSError) as error:
        fail(error)
    console = Console()
    console.print(f"{server.address}  (Ctrl-C stops it)", highlight=False, soft_wrap=True)
    if open_it:
        webbrowser.open(server.address)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        console.print("stopped", highlight=False)
    finally:
        server.server_close()
