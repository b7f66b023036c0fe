"""What every command says the same way."""

from __future__ import annotations

from typing import NoReturn

import typer
from rich.console import Console
from rich.markup import escape

console = Console()


def fail(error: Exception | str, code: int = 2) -> NoReturn:
    """One line on standard error, and a code that says it failed."""
    Console(stderr=True).print(f"[red]steelyard:[/] {escape(str(error))}", soft_wrap=True, highlight=False)
    raise typer.Exit(code)
