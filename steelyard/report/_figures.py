"""Figures as data: lines, bars and heat maps, with a caption and a table of the numbers.

The page draws them with plotly, `steelyard plot` with matplotlib. Neither of them reads runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from steelyard.core._round_record import Section
from steelyard.report._panels import COLOURS

Value = float | int | str | None
Row = tuple[Value, ...]

INKS = tuple(colour for colour in COLOURS if colour != "#f0e442")  # yellow is invisible on white
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "triangle-down")
PALETTES = {
    "sequential": ("#eef3f8", "#9cc3e0", "#3f83b8", "#14507f", "#0b2545"),
    # Orange and blue, which colour-blind readers can distinguish.
    "diverging": ("#8c3a00", "#e5a46a", "#f5f5f2", "#7fb2d9", "#0b3c6f"),
}


@dataclass(frozen=True)
class Line:
    """A curve, with a band around it if it is a mean over seeds.

    Attributes:
        name: the name of the series.
        style: the number of its colour, dash and marker; a series has the same in every figure.
        x: the rounds.
        y: the values.
        low: the lower edge of the band; empty if there is none.
        high: the upper edge of the band.
    """

    name: str
    style: int
    x: tuple[int, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True)
class Bars:
    """One bar per category; None for no bar.

    Several are drawn side by side, or stacked.
    """

    name: str
    style: int
    values: tuple[float | None, ...]


@dataclass(frozen=True)
class Heat:
    """A panel of a heat map with the cells `values[row][column]`; None for an empty cell."""

    name: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True)
class Span:
    """A shaded range of rounds of a series, from `start` to `end`."""

    name: str
    style: int
    start: int
    end: int


@dataclass(frozen=True)
class Mark:
    """A point of a series with a text."""

    name: str
    style: int
    x: int
    y: float
    text: str


@dataclass(frozen=True)
class Table:
    """A table of numbers.

    Attributes:
        heads: the heads of the columns.
        rows: the rows.
        digits: the number of decimals of each column; None for four significant digits. Empty means
            None for all.
    """

    heads: tuple[str, ...]
    rows: tuple[Row, ...]
    digits: tuple[int | None, ...] = ()

    def texts(self) -> list[list[str]]:
        """Return the rows as text."""
        digits = self.digits or (None,) * len(self.heads)
        texts = []
        for row in self.rows:
            cells = zip(row, digits, strict=True)
            texts.append([_format_value(value, decimals) for value, decimals in cells])
        return texts


@dataclass(frozen=True)
class Figure:
    """A figure of lines, bars or heat maps: only one of these kinds.

    Attributes:
        name: the name in `steelyard plot DIR NAME`.
        title: the title.
        caption: what to look for.
        section: the section of the page.
        x: the label of the x axis.
        y: the label of the y axis; for a heat map, what a row is.
        z: for a heat map, what the colour means. If empty, no colour scale is drawn.
        table: the numbers; for a heat map, a summary by row (the download has all cells).
        lines: the lines.
        bars: the bars.
        categories: the names of the bars' positions.
        stacked: whether bars are stacked.
        heats: the panels of a heat map.
        spans: shaded ranges of rounds, for lines.
        marks: marked points, for lines.
        palette: the colours of a heat map; a diverging palette is centred at zero.
        zero: whether the colours of a heat map begin at zero.
        selectable: whether the page shows one panel of a heat map at a time, which the reader
            chooses, with a colour scale of its own.
    """

    name: str
    title: str
    caption: str
    section: Section
    x: str
    y: str
    table: Table
    z: str = ""
    lines: tuple[Line, ...] = ()
    bars: tuple[Bars, ...] = ()
    categories: tuple[str, ...] = ()
    stacked: bool = False
    heats: tuple[Heat, ...] = ()
    spans: tuple[Span, ...] = ()
    marks: tuple[Mark, ...] = ()
    palette: Literal["sequential", "diverging"] = "sequential"
    zero: bool = True
    selectable: bool = False

    @property
    def series(self) -> dict[str, int]:
        """The names and styles of the entries of the legend."""
        lines = {line.name: line.style for line in self.lines}
        return lines | {bars.name: bars.style for bars in self.bars}

    @property
    def limits(self) -> tuple[float, float]:
        """The lowest and highest value of the colour scale, which all panels share."""
        return self._find_limits(self.heats)

    def _find_limits(self, heats: Sequence[Heat]) -> tuple[float, float]:
        """Return the lowest and highest value of the colour scale of some panels."""
        numbers: list[float] = []
        for heat in heats:
            for row in heat.values:
                numbers += [value for value in row if value is not None]
        low = min(numbers, default=0.0)
        high = max(numbers, default=1.0)
        if self.palette == "diverging":
            largest = max(abs(low), abs(high)) or 1.0
            return -largest, largest
        if self.zero:
            low = min(low, 0.0)
        if high <= low:
            high = low + 1.0
        return low, high

    def to_dict(self) -> dict[str, Any]:
        """Return the figure as JSON data: numbers with six digits, those of heat maps with four."""
        lines = []
        for line in self.lines:
            curves = {
                name: [round_number(value) for value in values]
                for name, values in (("y", line.y), ("low", line.low), ("high", line.high))
            }
            lines.append({**vars(line), **curves})
        heats = []
        for heat in self.heats:
            values = [[round_number(value, 4) for value in row] for row in heat.values]
            limits = self._find_limits([heat])
            heats.append({**vars(heat), "values": values, "limits": limits})
        return {
            **vars(self),
            "limits": self.limits,
            "lines": lines,
            "heats": heats,
            "bars": [vars(item) for item in self.bars],
            "spans": [vars(item) for item in self.spans],
            "marks": [vars(item) for item in self.marks],
            "table": table_to_dict(self.table),
        }


@dataclass(frozen=True)
class Report:
    """Everything that a page shows.

    Attributes:
        title: what was run, in one line.
        facts: data, clients, rounds, seeds: names and values.
        notes: what a reader should know first: unfinished runs, void rounds.
        summary: a table with a row per series.
        figures: the figures in the order of the page.
        configuration: titles and texts that the reader can open, such as the configuration of each
            series.
        environment: the environment of the runs: names and values.
        command: the command that writes this page again.
        unfinished_runs: the number of unfinished runs.
        hint: explains the summary table; if empty, that of a report of runs.
        styles: the colours, dashes, markers and palettes.
    """

    title: str
    facts: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    summary: Table
    figures: tuple[Figure, ...]
    configuration: tuple[tuple[str, str], ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    command: str = ""
    unfinished_runs: int = 0
    hint: str = ""
    styles: dict[str, Any] = field(
        default_factory=lambda: {
            "inks": INKS,
            "dashes": DASHES,
            "markers": MARKERS,
            "palettes": PALETTES,
        }
    )

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        return {
            "title": self.title,
            "facts": self.facts,
            "notes": self.notes,
            "configuration": self.configuration,
            "environment": self.environment,
            "command": self.command,
            "unfinished_runs": self.unfinished_runs,
            "styles": self.styles,
            "summary": table_to_dict(self.summary),
            "figures": [figure.to_dict() for figure in self.figures],
        }


def table_to_dict(table: Table) -> dict[str, Any]:
    """Return a table as JSON data; numbers have six digits."""
    rows = []
    for row in table.rows:
        rows.append([round_number(value) if isinstance(value, float) else value for value in row])
    digits = table.digits or [None] * len(table.heads)
    return {"heads": table.heads, "rows": rows, "digits": digits}


def _format_value(value: Value, digits: int | None) -> str:
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if digits is not None:
        return f"{value:.{digits}f}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def round_number(value: float | None, digits: int = 6) -> float | None:
    """Return a number rounded to significant digits; None if it is not finite."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


def choose_style(style: int) -> tuple[str, str, str]:
    """Return the colour, dash and marker of a series.

    The first 42 styles have different pairs of colour and dash.
    """
    colour = INKS[style % len(INKS)]
    dash = DASHES[style % len(DASHES)]
    marker = MARKERS[style % len(MARKERS)]
    return colour, dash, marker


def shorten_name(name: str, limit: int = 32) -> str:
    """Return a name short enough for a sentence; a long name loses its options.

    Args:
        name: the name of a series.
        limit: the maximal number of characters.
    """
    if len(name) <= limit:
        return name
    head = name.partition(":")[0]
    return head if len(head) < limit else f"{head[: limit - 1]}…"


def make_round_table(lines: Sequence[Line], deviation: str = "±") -> Table:
    """Return the table of curves: a row per round, a column per series.

    A line with a band has a second column: half of the width of the band.
    """
    # The columns: values by round.
    heads = ["round"]
    columns: list[dict[int, float]] = []
    for line in lines:
        heads.append(line.name)
        columns.append(dict(zip(line.x, line.y, strict=True)))
        if line.high:
            heads.append(f"{deviation} {line.name}")
            halves = [(high - low) / 2 for low, high in zip(line.low, line.high, strict=True)]
            columns.append(dict(zip(line.x, halves, strict=True)))

    # The rows.
    rounds = sorted({x for line in lines for x in line.x})
    rows = tuple((x, *(column.get(x) for column in columns)) for x in rounds)
    return Table(tuple(heads), rows)
