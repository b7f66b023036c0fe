"""The command `reproduce`: a paper's table, run here, the paper's numbers beside ours."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table as Shown

from steelyard.cli._console import Console, escape, fail, show
from steelyard.cli.run import Quiet
from steelyard.cli.sweep import print_failures, read_seeds, run_with_board
from steelyard.core.errors import SteelyardError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.experiments.paper_table import Table
    from steelyard.experiments.reproduce import Result


def reproduce(
    name: Annotated[str | None, typer.Argument(metavar="TABLE", help="E.g. fedadp-table1.", show_default=False)] = None,
    listing: Annotated[
        bool, typer.Option("--list", help="List the tables (or the cells of TABLE) with their cost here, and exit.")
    ] = False,
    cells: Annotated[
        list[str] | None,
        typer.Option(help="Only cells that match, e.g. 'mnist-1class-*/fedavg'; repeat it.", show_default=False),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, help="Fewer rounds than the paper; the result is marked so.", show_default=False),
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="E.g. 1,2,3 instead of the table's.", show_default=False)] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", help="key=value on top of every cell, e.g. model=resnet20.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where runs and table go; by default runs/TABLE.", show_default=False)
    ] = None,
    parallel: Annotated[int | None, typer.Option(help="Runs at a time; one per core by default.")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start afresh where --out holds a run of another configuration.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Run a table of a paper, and print the paper's numbers beside ours.

    steelyard reproduce --list

    steelyard reproduce fedadp-table1 --list

    steelyard reproduce fedadp-table1 --cells 'mnist-1class-5iid/*' --seeds 1,2

    steelyard reproduce fedlaw-table1 --cells 'alpha-1/*' --rounds 20

    Data is looked for in $STEELYARD_DATA, or --set data.dir=DIR. Start it again after Ctrl-C: finished runs are kept,
    others go on. In --out: table.md and table.csv, and one run directory per cell and seed.
    """
    console = Console()
    try:
        from steelyard.experiments.paper_table import read

        if name is None:
            if not listing:
                fail("name a table, or list them: steelyard reproduce --list")
            _print_tables(console)
            return
        table = (
            read(name)
            .select_cells(cells or [])
            .apply_settings([*(settings or []), *([f"rounds={rounds}"] if rounds else [])])
        )
        chosen = read_seeds(seeds) if seeds is not None else table.seeds
        if listing:
            _print_cells(table, chosen, console)
            return
        _go(table, chosen, out or Path("runs") / table.name, parallel, overwrite, quiet, console)
    except KeyboardInterrupt:
        fail("interrupted; finished runs are kept: start the same command again to go on", 130)
    except (SteelyardError, OSError) as error:
        fail(error)


def _go(
    table: Table,
    seeds: Sequence[int],
    out: Path,
    parallel: int | None,
    overwrite: bool,
    quiet: bool,
    console: Console,
) -> None:
    from steelyard.experiments.reproduce import comma_separated, jobs, markdown, results
    from steelyard.runs.directory import environment, write_text

    outcomes = run_with_board(jobs(table, seeds), out, "reproduction", parallel, overwrite, quiet, console)
    found = results(table, outcomes)
    command = ["steelyard", *sys.argv[1:]]
    write_text(out / "table.md", markdown(table, found, command, environment()))
    write_text(out / "table.csv", comma_separated(found))
    if not quiet:
        _print_results(table, found, console)
        console.print(f"table: {escape(str(out / 'table.md'))}", highlight=False, soft_wrap=True)
    print_failures([outcome for outcome in outcomes if outcome.error is not None], len(outcomes))


def _print_tables(console: Console) -> None:
    from steelyard.experiments.cost import duration, seconds
    from steelyard.experiments.paper_table import METRICS, tables

    shown = Shown(title="Tables of the papers", title_justify="left")
    for column in ("name", "what it shows", "metric", "cells", "one seed here"):
        shown.add_column(column, justify="right" if column in ("cells", "one seed here") else "left", overflow="fold")
    for table in tables():
        costs = [seconds(cell.config(table.seeds[0])) for cell in table.cells]
        shown.add_row(
            table.name,
            escape(table.title),
            METRICS[table.metric],
            str(len(table.cells)),
            duration(None if None in costs else sum(cost for cost in costs if cost is not None)),
        )
    console.print(shown)
    console.print(
        "Costs are rough: counted operations over the speed of a matrix product, all cores, data sets whole.",
        highlight=False,
    )


def _print_cells(table: Table, seeds: Sequence[int], console: Console) -> None:
    from steelyard.experiments.cost import duration, seconds

    shown = Shown(title=escape(f"{table.name}: {table.title}"), title_justify="left")
    longest = max(len(cell.name) for cell in table.cells)
    shown.add_column("cell", no_wrap=True, min_width=longest)  # --cells wants it whole
    for column in ("setting", "algorithm", "paper", f"{len(seeds)} seeds here"):
        right = column in ("paper", f"{len(seeds)} seeds here")
        shown.add_column(column, justify="right" if right else "left", overflow="fold")
    total = 0.0
    for cell in table.cells:
        cost = seconds(cell.config(seeds[0]))
        total += len(seeds) * (cost or 0.0)
        fields = [cell.name, cell.column, cell.row, cell.paper_text]
        shown.add_row(*map(escape, fields), duration(None if cost is None else len(seeds) * cost))
    show(shown, console)
    console.print(
        f"about {duration(total)} in all, at most: runs end at a target, and data sets are taken as whole",
        highlight=False,
    )


def _print_results(table: Table, found: Sequence[Result], console: Console) -> None:
    from steelyard.experiments.reproduce import beyond, gap, ours

    shown = Shown(title=escape(f"{table.name}: {table.title}"), title_justify="left")
    for column in ("setting", "algorithm", "paper", "ours", "gap"):
        shown.add_column(column, justify="left" if column in ("setting", "algorithm") else "right")
    for result in found:
        cell = result.cell
        style = "yellow" if beyond(result) and result.rounds >= table.rounds else ""
        fields = [cell.column, cell.row, cell.paper_text, ours(result)]
        last = escape(result.remark or gap(result))
        shown.add_row(*map(escape, fields), f"[{style}]{last}[/]" if style else last)
    show(shown, console)
    short = sorted({result.rounds for result in found if result.rounds < table.rounds})
    if short:
        console.print(
            f"[yellow]reduced:[/] {short[0]} rounds, {table.rounds_source} has {table.rounds}", highlight=False
        )
