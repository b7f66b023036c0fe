"""Figures by client: recorded values, the partition, quarantined clients; and timings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.core._round_record import ROUND_RECORD, FigureText, Section
from steelyard.experiments._statistics import mean
from steelyard.report._figures import Bars, Figure, Heat, Row, Table
from steelyard.report._series import Series, as_number
from steelyard.runs._directory import read_clients

MAX_ROWS = 300  # of a heat map: about one per two pixels
MAX_CELLS = 80_000  # of a panel; with more, a column is the mean of several rounds
MAX_PANELS = 8
MAX_BARS = 40  # clients in a bar chart
STAGES = ("train", "aggregate", "evaluate")


_SECTION_OF_UNKNOWN: Section = "What the rule learned"


def make_heat_maps(all_series: Sequence[Series], sections: Sequence[Section]) -> list[Figure]:
    """Return a heat map for every value that rounds record by client, in these sections."""
    figures = []
    for name in _find_names(all_series):
        entry = ROUND_RECORD.get(name)
        text = entry.figure if entry is not None else None
        if text is None:
            title = name.replace("_", " ")
            text = FigureText(title, name, "As the rule records it.", _SECTION_OF_UNKNOWN)
        if text.section in sections:
            figures.append(make_heat_map(all_series, name, text))
    return figures


def make_heat_map(all_series: Sequence[Series], name: str, text: FigureText) -> Figure:
    """Return a heat map of clients x rounds with a panel per series.

    A panel shows the first seed only: a client of another seed has other data.
    """
    # One panel per series that has the value.
    recorded = [series for series in all_series if _has_value(series, name)]
    heats: list[Heat] = []
    rows: list[Row] = []
    sentences = [text.caption]
    for series in recorded[:MAX_PANELS]:
        heat, panel_rows, notes = _make_panel(series, name)
        heats.append(heat)
        rows += panel_rows
        sentences += [note for note in notes if note not in sentences]

    # Tell what is not shown.
    if any(len(series.runs) > 1 for series in recorded):
        sentences.append("The first seed is shown.")
    if len(recorded) > MAX_PANELS:
        sentences.append(f"The first {MAX_PANELS} of {len(recorded)} series are shown.")
    heads = ("series", "client", "mean", "least", "most", "rounds")
    return Figure(
        name,
        text.title,
        " ".join(sentences),
        text.section,
        "round",
        "client",
        Table(heads, tuple(rows)),
        z=text.axis,
        heats=tuple(heats),
        palette=text.palette,
        zero=text.starts_at_zero,
    )


def _has_value(series: Series, name: str) -> bool:
    """Return whether the first run records the value by client."""
    return any(isinstance(record.get(name), Mapping) for record in series.first.history)


def _make_panel(series: Series, name: str) -> tuple[Heat, list[Row], list[str]]:
    """Return a panel of a heat map, its rows of the table, and notes for the caption."""
    # List the clients. A client that never took part has a row, too, unless there are too many.
    records = series.first.history.records
    tables = []
    for record in records:
        values = record.get(name)
        tables.append(values if isinstance(values, Mapping) else {})
    ids = list(dict.fromkeys(str(client) for table in tables for client in table))
    clients = read_clients(series.first.path)
    if clients is not None and len(clients["ids"]) <= MAX_ROWS:
        ids = list(dict.fromkeys([*map(str, clients["ids"]), *ids]))

    # Fill the cells, clients x rounds.
    row_of = {client: row for row, client in enumerate(ids)}
    cells = np.full((len(ids), len(records)), np.nan)
    for column, table in enumerate(tables):
        for client, value in table.items():
            number = as_number(value)
            if number is not None:
                cells[row_of[str(client)], column] = number

    # Summarize every client that is shown.
    visible, notes = _choose_clients((~np.isnan(cells)).sum(axis=1))
    rows: list[Row] = []
    for row in visible:
        numbers = cells[row][~np.isnan(cells[row])]
        summary: tuple[float | None, ...] = (None, None, None)
        if len(numbers):
            summary = (float(numbers.mean()), float(numbers.min()), float(numbers.max()))
        rows.append((series.name, ids[row], *summary, len(numbers)))

    # Average neighbouring rounds if there are too many cells.
    block_size = max(1, -(-len(visible) * len(records) // MAX_CELLS))
    columns = [str(record["round"]) for record in records][::block_size]
    if block_size > 1:
        notes.append(f"A column is the mean of {block_size} rounds.")
    visible_ids = tuple(ids[row] for row in visible)
    values = average_blocks(cells[visible], block_size)
    return Heat(series.name, visible_ids, tuple(columns), values), rows, notes


def _choose_clients(rounds: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[str]]:
    """Return the rows of the clients to show, and a note if they are not all.

    Args:
        rounds: by client, the number of rounds in which it took part.
    """
    if len(rounds) <= MAX_ROWS:
        return np.arange(len(rounds)), []
    most_frequent = np.argsort(-rounds, kind="stable")[:MAX_ROWS]
    note = f"{MAX_ROWS} of {len(rounds):,} clients are shown, those that took part most often."
    return np.sort(most_frequent), [note]


def average_blocks(
    cells: NDArray[np.float64], block_size: int
) -> tuple[tuple[float | None, ...], ...]:
    """Return the means over blocks of columns; None for a block without a value."""
    has_value = ~np.isnan(cells)
    starts = np.arange(0, cells.shape[1], block_size)
    counts = np.add.reduceat(has_value, starts, axis=1, dtype=np.int64)
    sums = np.add.reduceat(np.where(has_value, cells, 0.0), starts, axis=1)
    means = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
    rows = []
    for row in means.tolist():
        rows.append(tuple(None if math.isnan(value) else value for value in row))
    return tuple(rows)


def _find_names(all_series: Sequence[Series]) -> list[str]:
    """Return the names of the values by client to draw, first those of the table, in its order."""
    names: set[str] = set()
    for series in all_series:
        for record in series.first.history:
            names.update(name for name, value in record.items() if _is_by_client(value))
    listed = []
    for key, entry in ROUND_RECORD.items():
        if key in names and entry.figure is not None and not entry.figure.is_special:
            listed.append(key)
    return listed + sorted(names.difference(ROUND_RECORD))


def _is_by_client(value: Any) -> bool:
    """Return whether a recorded value has a number for at least one client."""
    if not isinstance(value, Mapping):
        return False
    return any(as_number(item) is not None for item in value.values())


def _special_text(key: str) -> FigureText:
    """Return the texts of a figure that has code of its own."""
    text = ROUND_RECORD[key].figure
    assert text is not None
    return text


def make_periods_figure(all_series: Sequence[Series]) -> Figure | None:
    """Return a figure of the rounds that each run considers critical; None if no rule does."""
    # By run: 1.0 for each critical round, else 0.0.
    names = []
    runs: list[dict[int, float]] = []
    for series in all_series:
        for run in series.runs:
            values = {}
            for record in run.history:
                if isinstance(record.get("critical"), bool):
                    values[record["round"]] = float(record["critical"])
            if values:
                names.append(f"seed {run.seed}: {series.name}")
                runs.append(values)
    if not runs:
        return None

    # Runs x rounds.
    rounds = sorted({number for values in runs for number in values})
    cells = tuple(tuple(values.get(number) for number in rounds) for values in runs)
    heat = Heat("", tuple(names), tuple(map(str, rounds)), cells)
    rows: list[Row] = []
    for name, values in zip(names, runs, strict=True):
        rows.append((name, int(sum(values.values())), len(values)))
    text = _special_text("critical")
    return Figure(
        "critical",
        text.title,
        text.caption,
        text.section,
        "round",
        text.axis,
        Table(("run", "critical rounds", "rounds"), tuple(rows)),
        heats=(heat,),
    )


def make_partition_figure(all_series: Sequence[Series]) -> Figure | None:
    """Return a heat map of clients x classes, with a panel for every different partition.

    Only the first seed of each series is considered. None if no partition is recorded.
    """
    panels: dict[str, Heat] = {}
    rows: list[Row] = []
    sentences = [
        "Samples of each class that clients have: empty cells are classes that a client never "
        "sees.",
        "The seed determines the partition.",
    ]
    for series in all_series:
        # Skip a partition that is shown already.
        clients = read_clients(series.first.path)
        if clients is None or not clients.get("counts") or repr(clients) in panels:
            continue

        # Choose the clients that took part most often.
        participation: Counter[str] = Counter()
        for record in series.first.history:
            participation.update(str(client) for client in record.get("weights") or ())
        rounds = np.array([participation[str(client)] for client in clients["ids"]])
        visible, notes = _choose_clients(rounds)
        sentences += [note for note in notes if note not in sentences]

        # Add the panel and its rows of the table.
        counts = [clients["counts"][row] for row in visible]
        ids = tuple(str(clients["ids"][row]) for row in visible)
        name = f"seed {series.first.seed}"
        if panels:
            name = f"partition of {series.name}, {name}"
        class_names = tuple(map(str, range(len(counts[0]))))
        values = tuple(tuple(count or None for count in row) for row in counts)
        panels[repr(clients)] = Heat(name, ids, class_names, values)
        rows += [(name, client, sum(row), *row) for client, row in zip(ids, counts, strict=True)]
        if len(panels) == MAX_PANELS:
            break
    if not panels:
        return None

    # Partitions may have different numbers of classes: make all rows equally long.
    class_names = max((heat.columns for heat in panels.values()), key=len)
    padded_rows = tuple(row + (None,) * (3 + len(class_names) - len(row)) for row in rows)
    heads = ("partition", "client", "samples", *(f"class {name}" for name in class_names))
    return Figure(
        "partition",
        "The partition",
        " ".join(sentences),
        "Clients and data",
        "class",
        "client",
        Table(heads, padded_rows),
        z="samples",
        heats=tuple(panels.values()),
    )


def make_quarantine_figure(all_series: Sequence[Series]) -> Figure | None:
    """Return a figure of how often each client was left out, and why; None if no client was."""
    # Count the reasons by series and client.
    reasons: dict[tuple[int, str], Counter[str]] = {}
    for number, series in enumerate(all_series):
        for run in series.runs:
            for record in run.history:
                for client, reason in (record.get("quarantined") or {}).items():
                    reasons.setdefault((number, str(client)), Counter())[str(reason)] += 1

    # Choose the clients that were left out most often.
    totals: Counter[str] = Counter()
    for (_, client), counts in reasons.items():
        totals[client] += counts.total()
    clients = tuple(client for client, _ in totals.most_common(MAX_BARS))
    if not clients:
        return None
    text = _special_text("quarantined")
    caption = text.caption
    if len(totals) > MAX_BARS:
        caption += f" {MAX_BARS} of {len(totals):,} clients are shown, those left out most often; the table has all."

    # The table and the bars.
    rows: list[Row] = []
    for (number, client), counts in reasons.items():
        texts = [f"{reason} ({count}x)" for reason, count in counts.most_common(3)]
        rows.append((all_series[number].name, client, counts.total(), "; ".join(texts)))
    bars = []
    for number, series in enumerate(all_series):
        if any(owner == number for owner, _ in reasons):
            values = []
            for client in clients:
                counts = reasons.get((number, client), Counter())
                values.append(float(counts.total()) or None)
            bars.append(Bars(series.name, series.style, tuple(values)))
    return Figure(
        "quarantined",
        text.title,
        caption,
        text.section,
        "client",
        text.axis,
        Table(("series", "client", "rounds", "reasons"), tuple(rows)),
        bars=tuple(bars),
        categories=clients,
    )


def make_timings_figure(all_series: Sequence[Series]) -> Figure | None:
    """Return a figure of the mean seconds of a round by stage, with a bar per series."""
    # Mean seconds by series and stage.
    seconds: list[dict[str, float]] = []
    for series in all_series:
        timings = [record.get("timings", {}) for run in series.runs for record in run.history]
        means = {}
        for stage in (*STAGES, "total"):
            values = [timing[stage] for timing in timings if stage in timing]
            if values:
                means[stage] = mean(values)
        seconds.append(means)
    if not any(seconds):
        return None

    # A bar per stage, a row per series.
    bars = []
    for number, stage in enumerate(STAGES):
        bars.append(Bars(stage, number, tuple(means.get(stage) for means in seconds)))
    rows: list[Row] = []
    for series, means in zip(all_series, seconds, strict=True):
        rounds = sum(len(run.history) for run in series.runs)
        total = means.get("total")
        hours = None if total is None else total * rounds / 3600
        rows.append((series.name, *(means.get(stage) for stage in STAGES), total, rounds, hours))
    text = _special_text("timings")
    return Figure(
        "timings",
        text.title,
        text.caption,
        text.section,
        "",
        text.axis,
        Table(("series", *STAGES, "total", "rounds", "hours in all"), tuple(rows)),
        bars=tuple(bars),
        categories=tuple(series.name for series in all_series),
        stacked=True,
    )
