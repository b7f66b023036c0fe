"""The command line. Requires the extra `steelyard[cli]` (typer and rich)."""

from __future__ import annotations

import gc
import io
import sys


def main() -> None:
    """Run the command `steelyard`."""
    # A terminal that cannot print a character, for example ±, prints a question mark.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    # Imported modules are never freed: collecting garbage would take a quarter of the start-up
    # time.
    gc.disable()
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
