"""The command `models list`."""

from __future__ import annotations

from typing import Annotated

import typer

from steelyard.cli._console import fail
from steelyard.cli._tables import Json, about, print_rows
from steelyard.core.errors import SteelyardError, shorten
from steelyard.core.registry import Entry
from steelyard.models import MODELS, count_parameters

app = typer.Typer(help="Models: networks by name.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Models: networks by name."""


@app.command("list")
def list_models(
    shape: Annotated[
        str, typer.Option(help="Of one sample: channels,height,width; or the length of a text.")
    ] = "3,32,32",
    classes: Annotated[int, typer.Option(help="Number of classes.")] = 10,
    as_json: Json = False,
) -> None:
    """List every model: what it is, whose it is, its options, and its parameters for samples of this shape."""
    try:
        sample = _shape(shape)
        if classes < 1:
            raise SteelyardError(f"--classes {shorten(classes)}: use at least 1")
        if classes > 10**9:
            raise SteelyardError(f"--classes {shorten(classes)}: use at most 10^9")
    except SteelyardError as error:
        fail(error)
    rows = [{**about(entry), "parameters": _parameters(entry, sample, classes)} for entry in MODELS]
    print_rows(f"Models, samples of {shape}, {classes} classes", rows, as_json)


def _shape(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.replace("x", ",").split(",")]
    if not all(part.isdecimal() and len(part) < 10 and int(part) for part in parts):
        raise SteelyardError(f"--shape {shorten(text)}: write whole numbers below 10^9, e.g. 3,32,32")
    return tuple(int(part) for part in parts)


def _parameters(entry: Entry, shape: tuple[int, ...], classes: int) -> int | None:
    """How many, without making any; None if the network does not take such samples, or memory cannot hold it."""
    try:
        return count_parameters(entry.make(), shape, classes)
    except SteelyardError:
        return None
    except Exception:  # a plugin's model that cannot be made without options
        if entry.is_builtin:
            raise
        return None
