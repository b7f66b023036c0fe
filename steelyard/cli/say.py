"""What every command says the same way."""

from __future__ import annotations

from typing import NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

console = Console()

_WIDEST = 10_000


def fail(error: Exception | str, code: int = 2) -> NoReturn:
    """One line on standard error, and a code that says it failed."""
    Console(stderr=True).print(f"[red]steelyard:[/] {escape(str(error))}", soft_wrap=True, highlight=False)
    raise typer.Exit(code)


def show(table: Table, console: Console) -> None:
    """Prints a table with nothing cut off: on a terminal cells fold, and a file or a pipe has no edge."""
    for column in table.columns:
        column.overflow = "fold"
    if not console.is_terminal:
        wanted = Measurement.get(console, console.options.update(width=_WIDEST), table).maximum
        console = Console(file=console.file, width=max(console.width, wanted))
    console.print(table)
