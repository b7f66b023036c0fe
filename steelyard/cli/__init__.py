"""The command line. Needs the extra `steelyard[cli]` (typer and rich)."""

from __future__ import annotations

import gc
import io
import sys


def main() -> None:
    """Entry point of the command `steelyard`."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that knows no ± shows a question mark
    gc.disable()  # what is imported stays: looking through it again and again is a quarter of the time to start and end
    try:
        from steelyard.cli.app import app
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit(f"steelyard: the command line needs {error.name}: pip install 'steelyard[cli]'")
    gc.freeze()
    gc.enable()
    app()
