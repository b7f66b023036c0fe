"""`reproduce --quick --all`: every table and every figure, as small as it can be run."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table as RichTable

from steelyard.cli._console import Console, escape, fail
from steelyard.cli._paper_figures import run_paper_figure
from steelyard.cli._paper_tables import run_table
from steelyard.core._errors import SteelyardError


@dataclass(frozen=True)
class QuickResult:
    """What became of a table or a figure.

    Attributes:
        name: the name of the table or the figure.
        state: `ran`, `skipped` or `failed`.
        text: what was found, or why it was skipped or failed.
        seconds: how long it took.
    """

    name: str
    state: str
    text: str
    seconds: float = 0.0


def run_all(
    out: Path, parallel: int | None, overwrite: bool, quiet: bool, console: Console
) -> None:
    """Run all tables and figures, one after the other; exit with code 1 if one failed.

    Args:
        out: the directory of quick.csv; a table has a folder of its own, and figures have a common
            one.
        parallel: number of simultaneous runs; None for one per core.
        overwrite: replace runs of another configuration.
        quiet: print only the names of what failed.
        console: where to print.
    """
    from steelyard.experiments._paper_table import names as table_names
    from steelyard.figures import names as figure_names
    from steelyard.runs._directory import write_text

    # Run them, one after the other.
    out.mkdir(parents=True, exist_ok=True)
    results = []
    for name in [*table_names(), *figure_names()]:
        run = run_quick_table if name in table_names() else run_quick_figure
        start = time.monotonic()
        try:
            state, text = run(name, out, parallel, overwrite)
        except (SteelyardError, OSError) as error:
            state, text = "failed", str(error)
        result = QuickResult(name, state, text, time.monotonic() - start)
        results.append(result)
        if not quiet:
            line = escape(f"{result.state}  {name}, {result.seconds:.0f} s: {text}")
            console.print(line, highlight=False, soft_wrap=True)

        write_text(out / "quick.csv", to_csv(results))

    # Print the counts.
    if not quiet:
        _print_counts(results, console)
    failed = [result.name for result in results if result.state == "failed"]
    if failed:
        fail(f"{len(failed)} of {len(results)} failed: {', '.join(failed)}", 1)


def run_quick_table(name: str, out: Path, parallel: int | None, overwrite: bool) -> tuple[str, str]:
    """Run the first cell of a table for two rounds; return the state and what was found."""
    from steelyard.experiments._paper_table import read_table
    from steelyard.experiments._reproduce import find_missing_data, format_mean

    table = read_table(name).make_quick()
    cell = table.cells[0]
    missing = find_missing_data(run.config(table.seeds[0]) for run in table.runs)
    if missing is not None:
        return "skipped", f"{cell.name}: {missing}"
    results, outcomes = run_table(
        table, table.seeds[:1], out / name, parallel, overwrite, quiet=True, console=Console()
    )
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    if errors:
        return "failed", f"{cell.name}: {errors[0]}"
    return "ran", f"{cell.name}: {format_mean(results[0])} (paper: {cell.paper_text})"


def run_quick_figure(
    name: str, out: Path, parallel: int | None, overwrite: bool
) -> tuple[str, str]:
    """Draw the small version of a figure; return the state and the verdict."""
    from steelyard.experiments._reproduce import find_missing_data
    from steelyard.figures import plan_figure, read_figure

    plan = plan_figure(read_figure(name), is_quick=True)
    missing = find_missing_data(job.config for job in plan.jobs)
    if missing is not None:
        return "skipped", missing
    reproduction = run_paper_figure(
        plan, out / "figures", parallel, overwrite, quiet=True, console=Console()
    )
    if reproduction.verdict is None:
        outcome = reproduction.failed[0]
        return "failed", f"{outcome.job.name}: {outcome.error}"
    return "ran", str(reproduction.verdict)


def to_csv(results: list[QuickResult]) -> str:
    """Return the file quick.csv: one line per table or figure."""
    from steelyard.experiments._tables import csv_lines

    rows: list[list[str | float | None]] = [["name", "state", "result", "seconds"]]
    for result in results:
        rows.append([result.name, result.state, result.text, round(result.seconds)])
    return csv_lines(rows)


def _print_counts(results: list[QuickResult], console: Console) -> None:
    """Print how many tables and figures ran, were skipped or failed."""
    grid = RichTable()
    states = ("ran", "skipped", "failed")
    for column in ("", *states):
        grid.add_column(column, justify="right" if column else "left")
    for kind in ("table", "figure"):
        chosen = [result.state for result in results if f"-{kind}" in result.name]
        grid.add_row(f"{kind}s", *(str(chosen.count(state)) for state in states))
    console.print(grid)
