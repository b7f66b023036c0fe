"""Terminal output shared by all commands: safe texts, error messages and tables."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, get_type_hints

import typer
from click import Context
from rich import console as rich_console
from rich.console import ConsoleOptions, RenderableType
from rich.markup import escape as escape_markup
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from typer.core import TyperCommand, TyperGroup
from typer.models import ArgumentInfo

from steelyard.core._errors import SteelyardError, escape_lines, escape_text, shorten
from steelyard.core._registry import Entry

if TYPE_CHECKING:
    from steelyard.report._figures import Table as NumberTable

# Command classes that correct two defects of click and typer.


class CommandGroup(TyperGroup):
    """The group of all commands. Refuses arguments with a NUL character."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Refuse a NUL character: click would end with a traceback.

        A shell cannot pass one, but a program that starts `steelyard` can.
        """
        for argument in args:
            if "\0" in argument:
                fail(f"{shorten(argument)}: an argument cannot hold a NUL character: leave it out")
        return super().parse_args(ctx, args)


class DocumentedCommand(TyperCommand):
    """A command whose `--help` shows the help of its positional arguments.

    Since click 8.5, the constructor of click's arguments sets `help` after typer has set it,
    without receiving it. Typer before 0.21, which Flower requires, loses the text there.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        hints = get_type_hints(self.callback, include_extras=True)
        for param in self.params:
            annotations = getattr(hints.get(param.name or ""), "__metadata__", ())
            for annotation in annotations:
                if isinstance(annotation, ArgumentInfo):
                    param.help = annotation.help


class Console(rich_console.Console):
    """A console that prints control characters as escape sequences.

    Some texts, such as client names, come from other machines and are not trusted.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
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

    Long cells are folded on a terminal. In a file or a pipe, the table is as wide as it needs to
    be.
    """
    for column in table.columns:
        column.overflow = "fold"
    if not console.is_terminal:
        options = console.options.update(width=_MAX_WIDTH)
        table_width = Measurement.get(console, options, table).maximum
        console = Console(file=console.file, width=max(console.width, table_width))
    console.print(table)


def to_rich_table(table: NumberTable, title: str) -> Table:
    """Return a table of the report for the terminal."""
    rich_table = Table(title=escape(title), title_justify="left")
    for number, head in enumerate(table.heads):
        is_text = any(isinstance(row[number], str) for row in table.rows)
        rich_table.add_column(head, justify="left" if is_text else "right")
    for row in table.texts():
        rich_table.add_row(*map(escape, row))
    return rich_table


def write_csv(path: Path, rows: Iterable[Sequence[str | float | None]]) -> None:
    """Write rows to a CSV file."""
    from steelyard.experiments._tables import csv_lines

    try:
        path.write_text(csv_lines(rows), "utf-8", "replace")
    except OSError as error:
        raise SteelyardError(f"{path}: cannot be written: {error.strerror or error}") from None


# Tables of the entries of a registry: models, partitions, rules.

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def describe_entry(entry: Entry) -> dict[str, Any]:
    """Return the name, title, paper and options of an entry."""
    return {
        "name": entry.name,
        "title": entry.info.title,
        "paper": entry.info.paper,
        "options": {name: _format_default(entry, name) for name in entry.options},
    }


def _format_default(entry: Entry, name: str) -> str:
    """Return the default of an option as text; `?` for a required option."""
    option = entry.options[name]
    return "?" if option.default is option.empty else str(option.default)


def print_rows(title: str, rows: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """Print rows with equal keys as a table or as JSON.

    Args:
        title: the title of the table.
        rows: one mapping per row; the keys of the first row are the columns.
        as_json: print JSON instead of a table.
    """
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    table = Table(title=title, title_justify="left")
    for key in rows[0]:
        heading = "what it does" if key == "title" else key
        table.add_column(heading, overflow="fold", no_wrap=key == "name")
    for row in rows:
        table.add_row(*(escape(_format_cell(value)) for value in row.values()))
    show(table, Console())


def _format_cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={item}" for name, item in value.items())
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)
