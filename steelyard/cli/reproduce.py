"""The command `reproduce`: runs a table or a figure of a paper, and compares it with the paper's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from steelyard.cli._console import Console, fail
from steelyard.cli._paper_figures import print_figure, print_figures, print_runs, run_paper_figure
from steelyard.cli._paper_tables import print_cells, print_table, print_tables, run_table
from steelyard.cli._quick import run_all
from steelyard.cli.run import Quiet
from steelyard.cli.sweep import read_seeds
from steelyard.core._errors import SteelyardError, describe_unknown_name

if TYPE_CHECKING:
    from steelyard.experiments._paper_table import Table
    from steelyard.figures import Plan


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="A table or a figure, e.g. fedadp-table1 or fedlaw-figure5; --list shows all names.",
            show_default=False,
        ),
    ] = None,
    listing: Annotated[
        bool,
        typer.Option(
            "--list",
            help="List the tables and figures, or the runs of NAME, with their estimated time, and exit.",
        ),
    ] = False,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Run the first cell of a table for two rounds, or the small version of a figure.",
        ),
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="With --quick: run all tables and figures.")
    ] = False,
    cells: Annotated[
        list[str] | None,
        typer.Option(
            help="Run only cells that match a pattern, e.g. 'mnist-1class-*/fedavg'. Repeat the option for more.",
            show_default=False,
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Run fewer rounds than the paper. The result is marked as reduced.",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            help="Random seeds, e.g. 1,2,3. Default: the seeds of the table.", show_default=False
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            "-s",
            help="A setting for every run, KEY=VALUE, e.g. model=resnet20. Repeat the option for more.",
            show_default=False,
        ),
    ] = None,
    known: Annotated[
        Path | None,
        typer.Option(
            "--results",
            help="table.csv of earlier runs, e.g. on another machine: these are not repeated.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The directory of the runs and results. Default: runs/TABLE or runs/figures; runs/quick with --quick.",
            show_default=False,
        ),
    ] = None,
    parallel: Annotated[
        int | None, typer.Option(help="Number of simultaneous runs. Default: one per core.")
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace runs in --out that have another configuration."),
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Run a table or a figure of a paper, and compare it with the paper's.

    steelyard reproduce --list

    steelyard reproduce fedadp-table1 --cells 'mnist-1class-5iid/*' --seeds 1,2

    steelyard reproduce fedlaw-table1 --cells 'alpha-1/*' --rounds 20

    steelyard reproduce fedlaw-figure5 --quick

    steelyard reproduce --quick --all

    Data is read from $STEELYARD_DATA, or from DIR with --set data.dir=DIR. After Ctrl-C, start the
    same command again: finished runs are kept and others are resumed. The directory of a table
    contains table.md, table.csv, and one run directory per cell and seed; after Ctrl-C the tables
    have the runs that are finished. That of a figure contains figure.md, figure.png, figure.svg and
    figure.csv.
    """
    console = Console()
    changes = list(settings or [])
    if rounds is not None:
        changes.append(f"rounds={rounds}")
    try:
        # All of them, or the list of all.
        if everything or name is None:
            others = [name, cells, seeds, changes, known]
            _handle_all(everything, quick, listing, any(others), out, parallel, overwrite, quiet)
            return

        # A table.
        seed_list = None if seeds is None else read_seeds(seeds)
        if _is_table(name):
            table, table_seeds = _plan_table(name, quick, cells, changes, seed_list)
            if listing:
                print_cells(table, table_seeds, console)
                return
            directory = out or Path("runs", "quick" if quick else "", table.name)
            results, outcomes = run_table(
                table, table_seeds, directory, parallel, overwrite, quiet, console, known
            )
            print_table(table, results, outcomes, directory, quiet, console)
            return

        # A figure.
        if known is not None:
            raise SteelyardError(f"--results: {name} is a figure: only tables have such a file")
        plan = _plan_figure(name, quick, cells, changes, seed_list)
        if listing:
            print_runs(plan, console)
            return
        directory = out or Path("runs", "quick" if quick else "", "figures")
        reproduction = run_paper_figure(plan, directory, parallel, overwrite, quiet, console)
        print_figure(reproduction, quiet, console)
    except KeyboardInterrupt:
        fail("interrupted; finished runs are kept: start the same command again to resume", 130)
    except (SteelyardError, OSError) as error:
        fail(error)


def _handle_all(
    everything: bool,
    quick: bool,
    listing: bool,
    has_others: bool,
    out: Path | None,
    parallel: int | None,
    overwrite: bool,
    quiet: bool,
) -> None:
    """List all tables and figures, or run all of them with --quick.

    Args:
        everything: whether --all is given.
        quick: whether --quick is given.
        listing: whether --list is given.
        has_others: whether a name, cells, seeds or settings are given.
        out: the directory of the results; None for the default.
        parallel: number of simultaneous runs; None for one per core.
        overwrite: replace runs of another configuration.
        quiet: print only errors.
    """
    console = Console()
    if listing:
        print_tables(console)
        print_figures(console)
    elif not everything:
        fail("name a table or a figure, or list them: steelyard reproduce --list")
    elif not quick:
        fail("--all: all tables take years: use --quick --all, or name one")
    elif has_others:
        fail(
            "--all: runs everything as it is: leave NAME, --cells, --rounds, --seeds, --set, --results out"
        )
    else:
        run_all(out or Path("runs", "quick"), parallel, overwrite, quiet, console)


def _is_table(name: str) -> bool:
    """Return whether a name is that of a table, not of a figure; refuse other names."""
    from steelyard.experiments._paper_table import names as table_names
    from steelyard.figures import names as figure_names

    if name in table_names():
        return True
    if name not in figure_names():
        all_names = [*table_names(), *figure_names()]
        raise SteelyardError(describe_unknown_name("table or figure", name, all_names))
    return False


def _plan_table(
    name: str,
    quick: bool,
    cells: list[str] | None,
    changes: list[str],
    seeds: tuple[int, ...] | None,
) -> tuple[Table, tuple[int, ...]]:
    """Return a table with the chosen cells and settings, and the seeds of its runs.

    Args:
        name: the name of the table.
        quick: take only the first of the chosen cells, for two rounds, with the first seed.
        cells: patterns of cells; none for all.
        changes: settings of every run, as `key=value`.
        seeds: the seeds; None for those of the table.
    """
    from steelyard.experiments._paper_table import read_table

    table = read_table(name).select_cells(cells or [])
    if quick:
        table = table.make_quick()
    chosen_seeds = seeds or (table.seeds[:1] if quick else table.seeds)
    return table.apply_settings(changes), chosen_seeds


def _plan_figure(
    name: str,
    quick: bool,
    cells: list[str] | None,
    changes: list[str],
    seeds: tuple[int, ...] | None,
) -> Plan:
    """Return the runs of a figure; the arguments are those of `_plan_table`."""
    from steelyard.figures import plan_figure, read_figure

    if cells:
        raise SteelyardError(f"--cells: {name} is a figure and has no cells: leave --cells out")
    return plan_figure(read_figure(name), quick, seeds=seeds, settings=changes)
