"""The commands `partitions list` and `partitions show`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from steelyard.cli._console import Console, fail
from steelyard.cli._tables import Json, about, print_rows
from steelyard.cli._typer_compat import Taught
from steelyard.core.errors import SteelyardError
from steelyard.core.spec import parse
from steelyard.data import PARTITIONS, Federation, corrupt, load
from steelyard.report.panels import Counts
from steelyard.report.partition import Summary, checked_path, draw, group_counts

app = typer.Typer(help="Partitions: how a data set is spread over clients.", no_args_is_help=True)

_MOST_ROWS = 40  # clients on a screen
_SHADES = " ·░▒▓█"


@app.command("list")
def list_partitions(as_json: Json = False) -> None:
    """List every partition: what it does, whose it is, its options."""
    print_rows("Partitions", [about(entry) for entry in PARTITIONS], as_json)


@app.command(cls=Taught)
def show(
    partition: Annotated[str, typer.Argument(help="A partition as text, e.g. 'dirichlet:alpha=0.1'.")],
    data: Annotated[str, typer.Option(help="A data set by name.")] = "digits",
    clients: Annotated[int, typer.Option(help="Number of clients.")] = 10,
    seed: Annotated[int, typer.Option(help="The seed of the run: the same clients as `steelyard run` makes.")] = 0,
    data_dir: Annotated[Path | None, typer.Option(help="Where the data is; else $STEELYARD_DATA.")] = None,
    corrupted: Annotated[
        str | None, typer.Option("--corrupt", help="Corrupt a share of the clients: 0.5:swap, 0.25:flip.")
    ] = None,
    by: Annotated[str, typer.Option(help="labels, or groups: also tell the groups of samples apart.")] = "labels",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A picture: .png, .svg or .pdf. Without one, a table here.")
    ] = None,
) -> None:
    """Show who holds what: clients x classes, as a table here or as a picture for a paper.

    Example: steelyard partitions show shards:per_client=2 --data mnist --clients 100 -o shards.pdf
    """
    try:
        if out is not None:
            checked_path(out)
        if by not in ("labels", "groups"):
            raise SteelyardError(f"--by {by}: use labels or groups")
        parse(partition, PARTITIONS)  # a bad name is refused before the data is read
        train, _ = load(data, data_dir)
        federation = Federation.partitioned(train, None, partition, clients, seed)
        if corrupted is not None:
            federation = _corrupted(federation, corrupted, seed)
        extra = "" if corrupted is None else f", corrupted {corrupted}"
        title = f"{partition}\n{clients:,} client{'s' * (clients > 1)} of {data}, seed {seed}{extra}"
        if out is not None:
            draw(federation, out, title, "groups" if by == "groups" else "labels")
            Console().print(str(out), highlight=False, markup=False, soft_wrap=True)
            return
        counts = federation.label_counts()
        groups = group_counts(federation) if by == "groups" else None
    except (SteelyardError, OSError) as error:
        fail(error)
    _print(Console(), title, counts, groups)


def _corrupted(federation: Federation, text: str, seed: int) -> Federation:
    share, _, kind = text.partition(":")
    try:
        number = float(share)
    except ValueError:
        raise SteelyardError(f"--corrupt {text!r}: write a share and a kind, e.g. 0.5:swap") from None
    return corrupt(federation, number, kind or "swap", seed=seed)


def _print(console: Console, title: str, counts: Counts, groups: Counts | None) -> None:
    """A table of numbers on shaded cells; where classes do not fit, one shaded character per class."""
    clients, classes = counts.shape
    most = int(counts.max())
    cell = len(f"{most:,}")
    numbers = 24 + classes * (cell + 1) + (0 if groups is None else 8) <= console.width
    table = Table(box=None, padding=(0, 0, 0, 1), pad_edge=False)
    columns = ["client", "samples", *([] if groups is None else ["group"])]
    columns += [str(label) for label in range(classes)] if numbers else [f"classes 0 to {classes - 1}"]
    for column in columns:
        table.add_column(column, justify="left" if column.startswith("classes") else "right", no_wrap=True)
    for client in range(min(clients, _MOST_ROWS)):
        row: list[str | Text] = [str(client), f"{counts[client].sum():,}"]
        if groups is not None:
            row.append(str(groups[client].argmax()))
        if numbers:
            row += [_shaded(int(count), most, cell) for count in counts[client]]
        else:
            row.append("".join(_SHADES[_level(int(count), most, len(_SHADES) - 1)] for count in counts[client]))
        table.add_row(*row)
    console.print(title, highlight=False, markup=False, soft_wrap=True)
    console.print(table, highlight=False)
    if clients > _MOST_ROWS:
        console.print(f"... and {clients - _MOST_ROWS:,} more clients: -o draws them all", highlight=False)
    console.print(str(Summary.of(counts)), highlight=False)


def _shaded(count: int, most: int, width: int) -> Text:
    """A number on a ground the darker the more samples; nothing for none."""
    level = _level(count, most, 5)
    grounds = ("", "on #dbe9f6", "on #a9cbe6", "on #6fa6d3", "on #2f72ad", "on #0b2545")
    ink = "" if level == 0 else "#000000 " if level < 4 else "#ffffff "
    return Text(f"{count:,}".rjust(width) if count else "", style=ink + grounds[level])


def _level(count: int, most: int, levels: int) -> int:
    """0 for none, else 1 to `levels`, by the square root: small counts are most of them."""
    return 0 if count == 0 else max(1, round(levels * (count / most) ** 0.5))
