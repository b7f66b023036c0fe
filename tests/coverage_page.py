"""The coverage page: `python -m tests.coverage_page > docs/results/coverage.md`.

It lists every table and figure of the papers with its command, its state and its source. The state
is read from the results in `docs/results` and the pictures in `docs/gallery`.
"""

import csv
import sys
from pathlib import Path

from steelyard.experiments._paper_table import names as table_names
from steelyard.experiments._paper_table import read_table
from steelyard.figures import names as figure_names
from steelyard.figures import read_figure

DOCS = Path(__file__).parents[1] / "docs"

PAPERS = {
    "fedlaw": "FedLAW",
    "fedawa": "FedAWA",
    "fedcos": "FedCos",
    "pa3fed": "PA3Fed",
    "fedadp": "FedAdp",
}

# The figures that have data. FedLAW 13 shows the partition of Figure 5; FedAWA 1 and 4, FedCos 1, 2
# and 5 and PA3Fed 2 are drawings.
FIGURES = {
    "fedlaw": [*range(1, 13), *range(14, 18)],
    "fedawa": [2, 3, 5, 6, 7, 8],
    "fedcos": [3, 4, *range(6, 14)],
    "pa3fed": [1, *range(3, 9)],
    "fedadp": [*range(1, 8)],
}

HEAD = """# Coverage of the papers

All tables and figures of the five papers, with the command that runs each and what has been run so
far. This page is generated: `python -m tests.coverage_page > docs/results/coverage.md`.

* **in full**: every cell with the paper's rounds and all seeds ([results](index.md))
* **in part**: some cells, or fewer rounds or seeds; with another network where a page says so
* **quick**: `--quick` only: two rounds of one cell, or the small version of a figure. It shows that
  the command works; for a table, its number means nothing
* **not run**: no result is stored here

*Numbers* counts the paper's numbers in a table's file; some have several rows of ours, one for each
reading of the paper. *Lines* are the lines of the paper as plain
text that hold them. With the texts in `$STEELYARD_PAPERS`, `tests/experiments/test_paper_sources.py`
compares every number with its line.
"""


def list_figures():
    """Return the names of the papers' figures that have data."""
    return [f"{paper}-figure{number}" for paper, numbers in FIGURES.items() for number in numbers]


def write_page():
    """Return the page."""
    parts = [HEAD, write_summary()]
    for paper, title in PAPERS.items():
        parts.append(f"## {title}\n")
        parts.append(write_tables([name for name in table_names() if name.startswith(paper)]))
        parts.append(write_figures([name for name in list_figures() if name.startswith(paper)]))
    return "\n".join(parts)


def write_summary():
    """Return a table with the number of tables and figures in each state, by paper."""
    kinds = ("in full", "in part", "quick", "not run")
    lines = [
        "| paper | tables | figures | " + " | ".join(kinds) + " |",
        "|---|---|---|---|---|---|---|",
    ]
    for paper, title in PAPERS.items():
        tables = [name for name in table_names() if name.startswith(paper)]
        figures = [name for name in list_figures() if name.startswith(paper)]
        states = [describe_table(name) for name in tables]
        states += [describe_figure(name) for name in figures]
        counts = [str(sum(state.startswith(kind) for state in states)) for kind in kinds]
        lines.append(f"| {title} | {len(tables)} | {len(figures)} | {' | '.join(counts)} |")
    return "\n".join(lines) + "\n"


def write_tables(names):
    """Return the rows of tables."""
    lines = ["| table | numbers | command | state | source |", "|---|---|---|---|---|"]
    for name in names:
        table = read_table(name)
        numbers = count_numbers(table)
        rows = sorted({line for row in table.lines.values() for line in row})
        source = f"{table.source}; lines {join_lines(rows)}"
        command = f"`steelyard reproduce {name}`"
        lines.append(
            f"| {table.title} | {numbers} | {command} | {describe_table(name)} | {source} |"
        )
    return "\n".join(lines) + "\n"


def count_numbers(table):
    """Return how many numbers of the paper a table has; readings of one number count once."""
    rows = {}
    for cell in table.cells:
        column, _, row = cell.name.partition("/")
        if not cell.is_control:
            rows.setdefault(row, []).append((column, str(cell.number)))
    distinct = {(table.lines[name], *row): len(row) for name, row in rows.items()}
    return sum(distinct.values())


def write_figures(names):
    """Return the rows of figures."""
    lines = ["| figure | command | state | source |", "|---|---|---|---|"]
    for name in names:
        if name not in figure_names():
            lines.append(f"| {name} | | {describe_figure(name)} | |")
            continue
        figure = read_figure(name)
        place = f"{figure.source.figure}, {figure.source.place}; lines {figure.source.lines}"
        command = f"`steelyard reproduce {name}`"
        lines.append(f"| {figure.title} | {command} | {describe_figure(name)} | {place} |")
    return "\n".join(lines) + "\n"


def describe_table(name):
    """Return what has been run of a table."""
    # The rounds and seeds of each cell on the page of results.
    table = read_table(name)
    cells = {cell.name for cell in table.cells if not cell.is_control and not cell.impossible}
    full_seeds = {cell: set() for cell in cells}
    any_seeds = {cell: set() for cell in cells}
    for row in read_rows(DOCS / "results" / f"{name}.csv"):
        if row["cell"] in cells:
            any_seeds[row["cell"]].add(row["seed"])
            if int(row["rounds_planned"]) >= table.rounds and not row.get("remark"):
                full_seeds[row["cell"]].add(row["seed"])

    # Which cells are complete, and which have any result.
    full_count = sum(len(seeds) >= len(table.seeds) for seeds in full_seeds.values())
    any_count = sum(bool(seeds) for seeds in any_seeds.values())
    if full_count == len(cells):
        return f"in full ([page]({name}.md))"
    if full_count:
        return f"in part: {full_count} of {len(cells)} cells in full ([page]({name}.md))"
    if any_count:
        return f"in part: {any_count} of {len(cells)} cells, reduced ([page]({name}.md))"
    return "quick" if name in read_quick() else "not run"


def describe_figure(name):
    """Return what has been run of a figure."""
    has_picture = (DOCS / "gallery" / f"{name}.png").is_file()
    if has_picture:
        return f"quick ([picture](../gallery/{name}.png))"
    return "quick" if name in read_quick() else "not run"


def read_quick():
    """Return what ran with `steelyard reproduce --quick --all`."""
    rows = read_rows(DOCS / "results" / "quick.csv")
    return {row["name"] for row in rows if row["state"] == "ran"}


def read_rows(path):
    """Return the rows of a csv file as dicts; none if there is no such file."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def join_lines(numbers):
    """Return line numbers as text, such as `381, 383-384`."""
    parts = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)


if __name__ == "__main__":
    sys.stdout.write(write_page())
