"""Tables of what a registry holds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.table import Table

from steelyard.cli._console import Console, escape, show
from steelyard.core.registry import Entry

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def about(entry: Entry) -> dict[str, Any]:
    """Name, purpose, paper and options of an entry."""
    return {
        "name": entry.name,
        "title": entry.info.title,
        "paper": entry.info.paper,
        "options": {name: default(entry, name) for name in entry.options},
    }


def default(entry: Entry, name: str) -> str:
    """An option's default; `?` where there is none."""
    value = entry.options[name].default
    return "?" if value is entry.options[name].empty else str(value)


def print_rows(title: str, rows: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """Rows of equal keys as a table, or as JSON."""
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    table = Table(title=title, title_justify="left")
    for column in rows[0]:
        table.add_column("what it does" if column == "title" else column, overflow="fold", no_wrap=column == "name")
    for row in rows:
        table.add_row(*(escape(_cell(value)) for value in row.values()))
    show(table, Console())


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={item}" for name, item in value.items())
    return f"{value:,}" if isinstance(value, int) else "-" if value is None else str(value)
