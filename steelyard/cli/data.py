"""The commands `data`, `models` and `partitions`: what there is to train, and how to divide it."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table
from rich.text import Text

from steelyard.cli._console import (
    Console,
    DocumentedCommand,
    Json,
    describe_entry,
    escape,
    fail,
    print_rows,
    show,
)
from steelyard.core._errors import SteelyardError, locate_errors, shorten
from steelyard.core._registry import Entry
from steelyard.core._spec import parse
from steelyard.data import PARTITIONS, Federation, corrupt, load
from steelyard.data._download import DOWNLOADS, File, check_fetchable, fetch_dataset
from steelyard.data._sources import SOURCES, VARIABLE, Source, data_directory
from steelyard.models import MODELS, count_parameters
from steelyard.report._panels import Counts
from steelyard.report._partition import Summary, check_path, draw_partition, group_counts

data_app = typer.Typer(help="List data sets, and download them.", no_args_is_help=True)

Directory = Annotated[
    Path | None,
    typer.Option("--dir", help=f"The data directory. Default: ${VARIABLE}.", show_default=False),
]


@data_app.command("list")
def list_sets(directory: Directory = None) -> None:
    """List every data set: what it is, its download size, and its path if it is on this machine."""
    table = Table(title_justify="left")
    table.add_column("name", overflow="fold")
    table.add_column("what", overflow="fold")
    table.add_column("to fetch", overflow="fold", justify="right")
    table.add_column("here", overflow="fold")
    data_path = data_directory(directory)
    titles = {entry.name: entry.info.title for entry in SOURCES}
    for name in sorted({*titles, *DOWNLOADS}):
        title = escape(titles.get(name, ""))
        table.add_row(name, title, _format_size(name), escape(_find_path(name, data_path)))
    show(table, Console())


@data_app.command(cls=DocumentedCommand)
def fetch(
    names: Annotated[
        list[str], typer.Argument(help="Names of data sets, as `steelyard data list` shows them.")
    ],
    directory: Directory = None,
) -> None:
    """Download data sets from their public sources, verify them and unpack them.

    An interrupted download is resumed by the same command.

    Example: steelyard data fetch fashion-mnist cifar10 --dir ~/data
    """
    console = Console()
    if directory is None and os.environ.get(VARIABLE):
        directory = Path(os.environ[VARIABLE])
    try:
        if directory is None:
            raise SteelyardError(
                f"there is no data directory: name one with --dir, or set {VARIABLE}"
            )
        # Refuse unknown names before anything is downloaded.
        for name in names:
            check_fetchable(name)
        with _create_bar(console) as bar:
            for name in names:
                fetch_dataset(name, directory, lambda file: _FileProgress(bar, file))
    except SteelyardError as error:
        fail(error)
    except KeyboardInterrupt:
        command = shlex.join(["steelyard", "data", "fetch", *names, "--dir", str(directory)])
        fail(f"interrupted; resume with: {command}", 130)
    for name in names:
        console.print(escape(f"{name} is in {directory}"), highlight=False, soft_wrap=True)


class _FileProgress:
    """The line of one file in the progress bar."""

    def __init__(self, bar: Progress, file: File) -> None:
        self.bar = bar
        self.task = bar.add_task(Path(file.path).name, total=file.size)

    def __call__(self, completed: int, total: int | None) -> None:
        self.bar.update(self.task, completed=completed, total=total)


def _create_bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def _format_size(name: str) -> str:
    """Return the download size; `?` if it is unknown, `-` if there is nothing to download."""
    sizes = [file.size for file in DOWNLOADS.get(name, ())]
    if not sizes:
        return "-"
    if not any(sizes):
        return "?"
    at_least = "" if all(sizes) else "> "
    megabytes = sum(size or 0 for size in sizes) / 1e6
    return f"{at_least}{megabytes:,.0f} MB"


def _find_path(name: str, directory: Path | None) -> str:
    """Return the path of a data set; empty if it is not on this machine."""
    if name not in SOURCES:
        return ""
    entry = SOURCES[name]
    try:
        source = entry.make()
        return str(source.locate(directory)) if isinstance(source, Source) else ""
    except SteelyardError:
        return ""
    except Exception:  # a plugin's data set that cannot be made without options
        if entry.is_builtin:
            raise
        return ""


# The command `models list`.

_HELP = "List the models that can be used by name."

models_app = typer.Typer(help=_HELP, no_args_is_help=True)


@models_app.callback(help=_HELP)
def _group() -> None:
    """Make `list` a subcommand: typer would otherwise turn the only command into the group."""


@models_app.command("list")
def list_models(
    shape: Annotated[
        str,
        typer.Option(
            help="The shape of one sample: channels,height,width, or the length of a text."
        ),
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
        raise SteelyardError(
            f"--shape {shorten(text)}: write whole numbers below 10^9, e.g. 3,32,32"
        )
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


# The commands `partitions list` and `partitions show`.

partitions_app = typer.Typer(
    help="List and show partitions: how a data set is divided among clients.", no_args_is_help=True
)

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


@partitions_app.command("list")
def list_partitions(as_json: Json = False) -> None:
    """List every partition: what it does, its paper, its options."""
    print_rows("Partitions", [describe_entry(entry) for entry in PARTITIONS], as_json)


@partitions_app.command("show", cls=DocumentedCommand)
def show_partition(
    partition: Annotated[
        str, typer.Argument(help="A partition with its options, e.g. 'dirichlet:alpha=0.1'.")
    ],
    data: Annotated[
        str, typer.Option(help="Name of a data set; `steelyard data list` lists them.")
    ] = "digits",
    clients: Annotated[int, typer.Option(help="Number of clients.")] = 10,
    seed: Annotated[
        int,
        typer.Option(help="Random seed. `steelyard run` with the same seed has the same clients."),
    ] = 0,
    data_dir: Annotated[
        Path | None, typer.Option(help="The data directory. Default: $STEELYARD_DATA.")
    ] = None,
    corrupted: Annotated[
        str | None,
        typer.Option(
            "--corrupt",
            help="Corrupt the labels of a share of the clients, as data.corrupt of a run does: "
            "swap:share=0.5, flip:share=0.25; or in short 0.5:swap.",
        ),
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
            draw_partition(federation, out, title, "groups" if by == "groups" else "labels")
            Console().print(str(out), highlight=False, markup=False, soft_wrap=True)
            return
        counts = federation.label_counts()
        groups = group_counts(federation) if by == "groups" else None
    except (SteelyardError, OSError) as error:
        fail(error)
    _print_counts(Console(), title, counts, groups)


def _corrupt_clients(federation: Federation, text: str, seed: int) -> Federation:
    """Corrupt clients as `--corrupt swap:share=0.5`, or in short `--corrupt 0.5:swap`, says."""
    head, _, rest = text.partition(":")
    with locate_errors(f"--corrupt {text!r}"):
        try:
            share = float(head)
        except ValueError:
            return corrupt(federation, kind=text, seed=seed)
        return corrupt(federation, share, rest or "swap", seed=seed)


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
        console.print(
            f"... and {clients - _MAX_ROWS:,} more clients: -o draws them all", highlight=False
        )
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
