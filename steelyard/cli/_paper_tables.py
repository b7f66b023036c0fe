"""Terminal output of `reproduce` for tables: lists, runs, and the paper's numbers beside ours."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table as RichTable

from steelyard.cli._console import Console, escape, show
from steelyard.cli.sweep import print_failures, run_with_board

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.experiments._jobs import Outcome
    from steelyard.experiments._paper_table import Cell, Table
    from steelyard.experiments._reproduce import Result


def run_table(
    table: Table,
    seeds: Sequence[int],
    out: Path,
    parallel: int | None,
    overwrite: bool,
    quiet: bool,
    console: Console,
    known: Path | None = None,
) -> tuple[list[Result], list[Outcome]]:
    """Run the cells of a table with every seed, and write table.md and table.csv.

    After Ctrl-C, the two files have the runs that are finished.

    Args:
        table: the table.
        seeds: the random seeds.
        out: the directory of the runs and of table.md and table.csv.
        parallel: number of simultaneous runs; None for one per core, or one if times are measured.
        overwrite: replace runs of another configuration.
        quiet: do not show progress.
        console: where to show it.
        known: a table.csv whose values need no runs; None for no such file.

    Returns:
        The result of each cell, and the outcome of each run.
    """
    from steelyard.experiments._jobs import read_finished
    from steelyard.experiments._reproduce import (
        compute_results,
        make_jobs,
        read_values,
        select_missing_jobs,
    )

    if parallel is None and table.measures_time:
        parallel = 1
    known_values = {} if known is None else read_values(known, table)
    jobs = select_missing_jobs(table, make_jobs(table, seeds), known_values)
    try:
        outcomes = run_with_board(jobs, out, "reproduction", parallel, overwrite, quiet, console)
    except KeyboardInterrupt:
        finished = read_finished(jobs, out)
        _write_table(table, compute_results(table, finished, known_values), out)
        raise
    results = compute_results(table, outcomes, known_values)
    _write_table(table, results, out)
    return results, outcomes


def _write_table(table: Table, results: Sequence[Result], out: Path) -> None:
    """Write table.md and table.csv."""
    from steelyard.experiments._reproduce import to_csv, to_markdown
    from steelyard.runs._directory import describe_environment, write_text

    command = ["steelyard", *sys.argv[1:]]
    out.mkdir(parents=True, exist_ok=True)  # without a missing run, nothing made it
    write_text(out / "table.md", to_markdown(table, results, command, describe_environment()))
    write_text(out / "table.csv", to_csv(table, results))


def print_table(
    table: Table,
    results: Sequence[Result],
    outcomes: Sequence[Outcome],
    out: Path,
    quiet: bool,
    console: Console,
) -> None:
    """Print the results of a table and its failed runs; exit with code 1 if there are any.

    Args:
        table: the table.
        results: the result of each cell.
        outcomes: the outcome of each run.
        out: the directory of table.md.
        quiet: print only errors.
        console: where to print.
    """
    if not quiet:
        _print_results(table, results, console)
        path = escape(str(out / "table.md"))
        console.print(f"table: {path}", highlight=False, soft_wrap=True)
    print_failures([outcome for outcome in outcomes if outcome.error is not None], len(outcomes))


def print_tables(console: Console) -> None:
    """Print the names of all tables with the estimated time of one seed."""
    from steelyard.experiments._cost import estimate_seconds, format_duration
    from steelyard.experiments._paper_table import tables

    grid = RichTable(title="Tables of the papers", title_justify="left")
    for column in ("name", "what it shows", "metric"):
        grid.add_column(column, justify="left", overflow="fold")
    for column in ("cells", "one seed here"):
        grid.add_column(column, justify="right", overflow="fold")
    for table in tables():
        costs = [estimate_seconds(run.config(table.seeds[0])) for run in table.runs]
        total = None if None in costs else sum(cost for cost in costs if cost is not None)
        grid.add_row(
            table.name,
            escape(table.title),
            _summarize_metrics(table),
            str(len(table.cells)),
            format_duration(total),
        )
    console.print(grid)
    console.print(
        "Costs are rough: number of operations divided by the speed of a matrix product on all "
        "cores, with complete data sets.",
        highlight=False,
    )


def _summarize_metrics(table: Table) -> str:
    """Return what the numbers of a table are; of more than two metrics only the first."""
    from steelyard.experiments._table_scores import find_table_score

    titles = [find_table_score(metric).title for metric in table.metrics]
    if len(titles) > 2:
        return f"{titles[0]}; and {len(titles) - 1} more"
    return "; ".join(titles)


def print_cells(table: Table, seeds: Sequence[int], console: Console) -> None:
    """Print the cells of a table with the estimated time of all seeds."""
    from steelyard.experiments._cost import estimate_seconds, format_duration

    # The first column is never folded: its names are copied to --cells.
    grid = RichTable(title=escape(f"{table.name}: {table.title}"), title_justify="left")
    longest_name = max(len(cell.name) for cell in table.cells)
    grid.add_column("cell", no_wrap=True, min_width=longest_name)
    for column in ("setting", "algorithm"):
        grid.add_column(column, justify="left", overflow="fold")
    for column in ("paper", f"{len(seeds)} seeds here"):
        grid.add_column(column, justify="right", overflow="fold")

    # The cost of each run: several cells may share one.
    costs = {}
    for run in table.runs:
        cost = estimate_seconds(run.config(seeds[0]))
        costs[run.name] = None if cost is None else len(seeds) * cost
    total = sum(cost for cost in costs.values() if cost is not None)

    # One row per cell.
    for cell in table.cells:
        fields = [cell.name, cell.column, cell.row, cell.paper_text]
        grid.add_row(*map(escape, fields), _describe_cost(cell, costs))
    show(grid, console)
    console.print(
        f"at most {format_duration(total)} in all: runs may stop early at a target, and the "
        f"estimate "
        "assumes complete data sets",
        highlight=False,
    )


def _describe_cost(cell: Cell, costs: dict[str, float | None]) -> str:
    """Return the time of a cell's run as text, or why it has none of its own.

    Args:
        cell: the cell.
        costs: the seconds of each run by name; None if they are not known.
    """
    from steelyard.experiments._cost import format_duration

    if cell.impossible is not None:
        return cell.impossible
    names = [run.name for run in cell.runs]
    if names != [cell.name]:
        return f"with {' and '.join(names)}"
    return format_duration(costs[cell.name])


def _print_results(table: Table, results: Sequence[Result], console: Console) -> None:
    """Print the paper's numbers beside ours; gaps beyond noise are yellow."""
    from steelyard.experiments._reproduce import (
        format_gap,
        format_mean,
        has_large_gap,
        is_reduced,
    )

    grid = RichTable(title=escape(f"{table.name}: {table.title}"), title_justify="left")
    for column in ("setting", "algorithm"):
        grid.add_column(column, justify="left")
    for column in ("paper", "ours", "gap"):
        grid.add_column(column, justify="right")
    for result in results:
        cell = result.cell
        gap_text = escape(result.remark or format_gap(result))
        if has_large_gap(result) and not is_reduced(result, table):
            gap_text = f"[yellow]{gap_text}[/]"
        fields = [cell.column, cell.row, cell.paper_text, format_mean(result)]
        grid.add_row(*map(escape, fields), gap_text)
    show(grid, console)

    # Say if a cell had fewer rounds than the paper.
    reduced = [result.rounds for result in results if is_reduced(result, table)]
    if reduced:
        console.print(
            f"[yellow]reduced:[/] {min(reduced)} rounds, {table.rounds_source} has {table.rounds}",
            highlight=False,
        )
