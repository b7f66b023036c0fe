"""Terminal output shared by all commands: safe texts, error messages and tables."""

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
    """A console that prints control characters as escape sequences.

    Some texts, such as client names, come from other machines and are not trusted.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as rich does, but escape texts that would move the cursor or change colours.

        The control codes that rich itself writes are kept.
        """
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(escape_lines(segment.text), segment.style)


console = Console()

_MAX_WIDTH = 10_000
_MAX_ERROR_LENGTH = 2000

# Patterns in messages of the library, and what replaces them on the command line.
_FLAGS = {
    r"pass force=True": "use --force",
    r"pass allow_partial=True": "use --allow-partial",
    r"\(overwrite=True, --overwrite\)": "(--overwrite)",
    r"\(out, --out\)": "(--out)",
    r"pass metrics=\{('\w+'): \[\.\.\.\]\}": r"put \1 into a JSON file and name it with --metrics",
    r"use another rule, or steelyard\.aggregate\(.*\)$": "use another --rule",
}


def escape(text: object) -> str:
    """Return a text as one line that rich prints unchanged.

    Markup, control characters and line breaks are escaped.
    """
    return escape_markup(escape_text(text))


def fail(error: Exception | str, code: int = 2) -> NoReturn:
    """Print an error as one line on standard error and exit.

    Args:
        error: the error or its message. A very long message is cut in the middle.
        code: the exit code.
    """
    message = name_flags(str(error))
    if len(message) > _MAX_ERROR_LENGTH:
        message = f"{message[: _MAX_ERROR_LENGTH // 2]} ... {message[-_MAX_ERROR_LENGTH // 2 :]}"
    errors = Console(stderr=True)
    errors.print(f"[red]steelyard:[/] {escape(message)}", soft_wrap=True, highlight=False)
    raise typer.Exit(code)


def name_flags(message: str) -> str:
    """Return a message of the library with command-line flags instead of Python arguments."""
    for pattern, flag in _FLAGS.items():
        message = re.sub(pattern, flag, message)
    return message


def show(table: Table, console: Console) -> None:
    """Print a table without cutting off text.

    Long cells are folded on a terminal. In a file or a pipe, the table is as wide as it needs to be.
    """
    for column in table.columns:
        column.overflow = "fold"
    if not console.is_terminal:
        options = console.options.update(width=_MAX_WIDTH)
        table_width = Measurement.get(console, options, table).maximum
        console = Console(file=console.file, width=max(console.width, table_width))
    console.print(table)
