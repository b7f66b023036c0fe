"""What every command says the same way."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NoReturn

import typer
from rich import console as rich_console
from rich.console import ConsoleOptions, RenderableType
from rich.markup import escape as escape_markup
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table

from steelyard.core.escape import escape_lines, escape_text


class Console(rich_console.Console):
    """A console that shows control characters in texts as escape sequences: others wrote some of the texts."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as usual, but let no text move the cursor or change colours; rich's own control codes stay."""
        for segment in super().render(renderable, options):
            is_safe = bool(segment.control) or segment.text.isprintable()
            yield segment if is_safe else Segment(escape_lines(segment.text), segment.style)


console = Console()

_WIDEST = 10_000
_LONGEST = 2000  # characters of an error

# How the library names a cure, and what it is on the command line.
_FLAGS = {
    r"pass force=True": "use --force",
    r"pass allow_partial=True": "use --allow-partial",
    r"\(overwrite=True, --overwrite\)": "(--overwrite)",
    r"\(out, --out\)": "(--out)",
    r"pass metrics=\{('\w+'): \[\.\.\.\]\}": r"put \1 into a JSON file and name it with --metrics",
    r"use another rule, or steelyard\.aggregate\(.*\)$": "use another --rule",
}


def escape(text: object) -> str:
    """Return a text as one line that shows as it is: without markup, control characters or line breaks."""
    return escape_markup(escape_text(text))


def fail(error: Exception | str, code: int = 2) -> NoReturn:
    """One line on standard error, and a code that says it failed."""
    message = name_flags(str(error))
    if len(message) > _LONGEST:  # a path or a value of thousands of characters
        message = f"{message[: _LONGEST // 2]} ... {message[-_LONGEST // 2 :]}"
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
