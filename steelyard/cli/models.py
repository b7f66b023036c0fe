"""The command `models list`."""

from __future__ import annotations

from typing import Annotated

import typer

from steelyard.cli._console import fail
from steelyard.cli._tables import Json, describe_entry, print_rows
from steelyard.core.errors import SteelyardError, shorten
from steelyard.core.registry import Entry
from steelyard.models import MODELS, count_parameters

_HELP = "List the models that can be used by name."

app = typer.Typer(help=_HELP, no_args_is_help=True)


@app.callback(help=_HELP)
def _group() -> None:
    """Make `list` a subcommand: typer would otherwise turn the only command into the group."""


@app.command("list")
def list_models(
    shape: Annotated[
        str,
        typer.Option(help="The shape of one sample: channels,height,width, or the length of a text."),
    ] = "3,32,32",
    classes: Annotated[int, typer.Option(help="Number of classes.")] = 10,
    as_json: Json = False,
) -> None:
    """List every model: what it is, its paper, its options, and its size for samples of --shape."""
    try:
        sample_shape = _parse_shape(shape)
        if classes < 1:
            raise SteelyardError(f"--classes {shorten(classes)}: use at least 1")
        if classes > 10**9:
            raise SteelyardError(f"--classes {shorten(classes)}: use at most 10^9")
    except SteelyardError as error:
        fail(error)
    rows = []
    for entry in MODELS:
        parameters = _count_parameters(entry, sample_shape, classes)
        rows.append({**describe_entry(entry), "parameters": parameters})
    print_rows(f"Models, samples of {shape}, {classes} classes", rows, as_json)


def _parse_shape(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.replace("x", ",").split(",")]
    if not all(part.isdecimal() and len(part) < 10 and int(part) for part in parts):
        raise SteelyardError(f"--shape {shorten(text)}: write whole numbers below 10^9, e.g. 3,32,32")
    return tuple(int(part) for part in parts)


def _count_parameters(entry: Entry, shape: tuple[int, ...], classes: int) -> int | None:
    """Return the number of parameters, without allocating them.

    None if the network does not accept samples of this shape, or would not fit into memory.
    """
    try:
        return count_parameters(entry.make(), shape, classes)
    except SteelyardError:
        return None
    except Exception:  # a plugin's model that cannot be made without options
        if entry.is_builtin:
            raise
        return None
