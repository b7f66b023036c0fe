"""What every command says the same way."""

from __future__ import annotations

import re
from typing import NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

console = Console()

_WIDEST = 10_000

# How the library names a cure, and what it is on the command line.
_FLAGS = {
    r"pass force=True": "use --force",
    r"pass allow_partial=True": "use --allow-partial",
    r"\(overwrite=True, --overwrite\)": "(--overwrite)",
    r"\(out, --out\)": "(--out)",
    r"pass metrics=\{('\w+'): \[\.\.\.\]\}": r"put \1 into a JSON file and name it with --metrics",
    r"use another rule, or steelyard\.aggregate\(.*\)$": "use another --rule",
}


def fail(error: Exception | str, code: int = 2) -> NoReturn:
    """One line on standard error, and a code that says it failed."""
    message = name_flags(str(error))
    Console(stderr=True).print(f"[red]steelyard:[/] {escape(message)}", soft_wrap=True, highlight=False)
    raise typer.Exit(code)


def name_flags(message: str) -> str:
    """A message of the library with the flags of the command line in the place of Python's arguments."""
    for pattern, flag in _FLAGS.items():
        message = re.sub(pattern, flag, message)
    return message


def show(table: Table, console: Console) -> None:
    """Prints a table with nothing cut off: on a terminal cells fold, and a file or a pipe has no edge."""
    for column in table.columns:
        column.overflow = "fold"
    if not console.is_terminal:
        wanted = Measurement.get(console, console.options.update(width=_WIDEST), table).maximum
        console = Console(file=console.file, width=max(console.width, wanted))
    console.print(table)
