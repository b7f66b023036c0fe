"""The command `watch`: the report of runs that go on."""

from __future__ import annotations

import webbrowser
from typing import Annotated

import typer

from steelyard.cli._console import Console, fail
from steelyard.cli.report import Directories, Open, Target
from steelyard.core.errors import SteelyardError


def watch(
    directories: Directories,
    port: Annotated[int, typer.Option(help="Of 127.0.0.1; 0 takes any that is free.")] = 0,
    target: Target = None,
    open_it: Open = False,
) -> None:
    """Serve the report of runs that go on, on this machine alone; the page follows them. Ctrl-C ends it.

    The page stays when a run ends, and shows runs that begin later in the same directory.

    steelyard watch runs --open

    steelyard watch runs/awa-1 --port 8008
    """
    from steelyard.report.watch import Watch

    try:
        server = Watch(directories, port, target)
    except (SteelyardError, OSError) as error:
        fail(error)
    console = Console()
    console.print(f"{server.address}  (Ctrl-C ends it)", highlight=False, soft_wrap=True)
    if open_it:
        webbrowser.open(server.address)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        console.print("ended", highlight=False)
    finally:
        server.server_close()
