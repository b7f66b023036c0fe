"""Tables of the entries of a registry: models, partitions, rules."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.table import Table

from steelyard.cli._console import Console, escape, show
from steelyard.core.registry import Entry

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
