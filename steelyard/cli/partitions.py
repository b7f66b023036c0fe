"""The commands `partitions list` and `partitions show`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from steelyard.cli._console import Console, fail
from steelyard.cli._tables import Json, describe_entry, print_rows
from steelyard.cli._typer_compat import DocumentedCommand
from steelyard.core.errors import SteelyardError
from steelyard.core.spec import parse
from steelyard.data import PARTITIONS, Federation, corrupt, load
from steelyard.report.panels import Counts
from steelyard.report.partition import Summary, check_path, draw, group_counts

app = typer.Typer(help="List and show partitions: how a data set is divided among clients.", no_args_is_help=True)

_MAX_ROWS = 40  # clients printed on a screen
_SHADES = " ·░▒▓█"
_CELL_STYLES = (
    "",
    "#000000 on #dbe9f6",
    "#000000 on #a9cbe6",
    "#000000 on #6fa6d3",
    "#ffffff on #2f72ad",
    "#ffffff on #0b2545",
)


@app.command("list")
def list_partitions(as_json: Json = False) -> None:
    """List every partition: what it does, its paper, its options."""
    print_rows("Partitions", [describe_entry(entry) for entry in PARTITIONS], as_json)


@app.command(cls=DocumentedCommand)
def show(
    partition: Annotated[str, typer.Argument(help="A partition with its options, e.g. 'dirichlet:alpha=0.1'.")],
    data: Annotated[str, typer.Option(help="Name of a data set; `steelyard data list` lists them.")] = "digits",
    clients: Annotated[int, typer.Option(help="Number of clients.")] = 10,
    seed: Annotated[
        int,
        typer.Option(help="Random seed. `steelyard run` with the same seed has the same clients."),
    ] = 0,
    data_dir: Annotated[Path | None, typer.Option(help="The data directory. Default: $STEELYARD_DATA.")] = None,
    corrupted: Annotated[
        str | None,
        typer.Option("--corrupt", help="Corrupt the labels of a share of the clients: 0.5:swap, 0.25:flip."),
    ] = None,
    by: Annotated[
        str,
        typer.Option(help="'labels', or 'groups' to show the groups of samples as well."),
    ] = "labels",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Write a picture to this file (.png, .svg or .pdf) instead of printing a table.",
        ),
    ] = None,
) -> None:
    """Show how many samples of each class every client has, as a table or as a picture.

    Example: steelyard partitions show shards:per_client=2 --data mnist --clients 100 -o shards.pdf
    """
    try:
        # Check the options before the data is read.
        if out is not None:
            check_path(out)
        if by not in ("labels", "groups"):
            raise SteelyardError(f"--by {by}: use labels or groups")
        parse(partition, PARTITIONS)

        # Divide the data set.
        train, _ = load(data, data_dir)
        federation = Federation.partitioned(train, None, partition, clients, seed)
        if corrupted is not None:
            federation = _corrupt_clients(federation, corrupted, seed)
        corruption = "" if corrupted is None else f", corrupted {corrupted}"
        count = "1 client" if clients == 1 else f"{clients:,} clients"
        title = f"{partition}\n{count} of {data}, seed {seed}{corruption}"

        # Draw a picture, or count the samples for the table.
        if out is not None:
            draw(federation, out, title, "groups" if by == "groups" else "labels")
            Console().print(str(out), highlight=False, markup=False, soft_wrap=True)
            return
        counts = federation.label_counts()
        groups = group_counts(federation) if by == "groups" else None
    except (SteelyardError, OSError) as error:
        fail(error)
    _print_counts(Console(), title, counts, groups)


def _corrupt_clients(federation: Federation, text: str, seed: int) -> Federation:
    """Corrupt clients as `--corrupt SHARE:KIND` says."""
    share, _, kind = text.partition(":")
    try:
        number = float(share)
    except ValueError:
        raise SteelyardError(f"--corrupt {text!r}: write a share and a kind, e.g. 0.5:swap") from None
    return corrupt(federation, number, kind or "swap", seed=seed)


def _print_counts(console: Console, title: str, counts: Counts, groups: Counts | None) -> None:
    """Print a table of counts on shaded cells.

    Args:
        console: where to print. If the numbers do not fit its width, every class is one shaded
            character.
        title: printed above the table.
        counts: samples, clients x classes.
        groups: samples, clients x groups; None for no column of groups.
    """
    clients, classes = counts.shape
    largest = int(counts.max())
    cell_width = len(f"{largest:,}")
    group_width = 0 if groups is None else 8
    numbers_fit = 24 + classes * (cell_width + 1) + group_width <= console.width

    # The heading.
    table = Table(box=None, padding=(0, 0, 0, 1), pad_edge=False)
    columns = ["client", "samples"]
    if groups is not None:
        columns.append("group")
    if numbers_fit:
        columns += [str(label) for label in range(classes)]
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    if not numbers_fit:
        table.add_column(f"classes 0 to {classes - 1}", justify="left", no_wrap=True)

    # One row per client.
    for client in range(min(clients, _MAX_ROWS)):
        row: list[str | Text] = [str(client), f"{counts[client].sum():,}"]
        if groups is not None:
            row.append(str(groups[client].argmax()))
        if numbers_fit:
            row += [_shade_cell(int(count), largest, cell_width) for count in counts[client]]
        else:
            levels = [_level(int(count), largest, len(_SHADES) - 1) for count in counts[client]]
            row.append("".join(_SHADES[level] for level in levels))
        table.add_row(*row)

    # Print.
    console.print(title, highlight=False, markup=False, soft_wrap=True)
    console.print(table, highlight=False)
    if clients > _MAX_ROWS:
        console.print(f"... and {clients - _MAX_ROWS:,} more clients: -o draws them all", highlight=False)
    console.print(str(Summary.of(counts)), highlight=False)


def _shade_cell(count: int, largest: int, width: int) -> Text:
    """Return a count on a background that is darker for more samples; empty for zero."""
    text = f"{count:,}".rjust(width) if count else ""
    return Text(text, style=_CELL_STYLES[_level(count, largest, 5)])


def _level(count: int, largest: int, levels: int) -> int:
    """Return 0 for no samples, else 1 to `levels`.

    Levels grow with the square root, because most counts are small.
    """
    if count == 0:
        return 0
    level: int = round(levels * (count / largest) ** 0.5)
    return max(1, level)
