"""Figures as data: what is drawn, what to look for, and the table of its numbers.

The page draws them with plotly, `steelyard plot` with matplotlib. Neither reads a run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from steelyard.report.panels import COLOURS

Value = float | int | str | None
Row = tuple[Value, ...]
Section = Literal["Results", "Weights", "Geometry of the updates", "What the rule learned", "Clients and data", "Cost"]

INKS = tuple(colour for colour in COLOURS if colour != "#f0e442")  # a line in yellow is not seen on white
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "triangle-down")
PALETTES = {
    "sequential": ("#eef3f8", "#9cc3e0", "#3f83b8", "#14507f", "#0b2545"),
    "diverging": ("#8c3a00", "#e5a46a", "#f5f5f2", "#7fb2d9", "#0b3c6f"),  # orange and blue: told apart by all
}


@dataclass(frozen=True)
class Line:
    """A curve, with a band around it if it is a mean over seeds.

    Attributes:
        name: of the series.
        style: number of its colour, dash and marker: a series keeps it in every figure.
        x: rounds.
        y: values.
        low: lower edge of the band.
        high: upper edge of the band.
    """

    name: str
    style: int
    x: tuple[int, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True)
class Bars:
    """One bar per category; of several, one beside or above the other. None is no bar."""

    name: str
    style: int
    values: tuple[float | None, ...]


@dataclass(frozen=True)
class Heat:
    """A panel of cells, `values[row][column]`; None is no cell."""

    name: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True)
class Span:
    """Rounds from `start` to `end` of a series, shaded."""

    name: str
    style: int
    start: int
    end: int


@dataclass(frozen=True)
class Mark:
    """A point of a series with a word to it."""

    name: str
    style: int
    x: int
    y: float
    text: str


@dataclass(frozen=True)
class Table:
    """Numbers under heads; `digits` are decimals by column, None for as many as are worth showing."""

    heads: tuple[str, ...]
    rows: tuple[Row, ...]
    digits: tuple[int | None, ...] = ()

    def texts(self) -> list[list[str]]:
        """The rows as text."""
        digits = self.digits or (None,) * len(self.heads)
        return [[_text(value, places) for value, places in zip(row, digits, strict=True)] for row in self.rows]


@dataclass(frozen=True)
class Figure:
    """What is drawn. Lines, bars or heat maps, never two of these.

    Attributes:
        name: as in `steelyard plot DIR name`.
        title: above it.
        caption: one sentence: what to look for.
        section: of the page.
        x: label of the axis.
        y: label of the axis; of a heat map, what its rows are.
        z: of a heat map, what its colour means; nothing to say, no scale.
        table: its numbers; of a heat map, a summary by row, and the cells are in the download.
        categories: of bars.
        stacked: bars are parts of a whole.
        palette: of a heat map; a diverging one is centred at zero.
        zero: the colours of a heat map begin at zero.
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

    @property
    def series(self) -> dict[str, int]:
        """Names and styles of what a legend shows."""
        return {line.name: line.style for line in self.lines} | {bars.name: bars.style for bars in self.bars}

    @property
    def limits(self) -> tuple[float, float]:
        """Least and greatest of a heat map's colours, common to its panels."""
        found = [value for heat in self.heats for row in heat.values for value in row if value is not None]
        low, high = min(found, default=0.0), max(found, default=1.0)
        if self.palette == "diverging":
            most = max(abs(low), abs(high)) or 1.0
            return -most, most
        low = min(low, 0.0) if self.zero else low
        return low, high if high > low else low + 1.0

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it; numbers to six digits, those of heat maps to four."""
        curves = ("y", "low", "high")
        return {
            **vars(self),
            "limits": self.limits,
            "lines": [
                {**vars(line), **{part: [shortened(value) for value in getattr(line, part)] for part in curves}}
                for line in self.lines
            ],
            "heats": [
                {**vars(heat), "values": [[shortened(value, 4) for value in row] for row in heat.values]}
                for heat in self.heats
            ],
            **{part: [vars(one) for one in getattr(self, part)] for part in ("bars", "spans", "marks")},
            "table": table_to_dict(self.table),
        }


@dataclass(frozen=True)
class Report:
    """Everything a page shows.

    Attributes:
        title: what was run, in a line.
        facts: data, clients, rounds, seeds: names and values.
        notes: what a reader should know first: unfinished runs, void rounds.
        summary: a row per series.
        figures: in the order they are shown.
        configuration: of each series: its name and the text of its configuration.
        environment: of the runs: names and values.
        command: makes this page again.
        going: how many runs have not had all their rounds.
    """

    title: str
    facts: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    summary: Table
    figures: tuple[Figure, ...]
    configuration: tuple[tuple[str, str], ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    command: str = ""
    going: int = 0
    styles: dict[str, Any] = field(
        default_factory=lambda: {"inks": INKS, "dashes": DASHES, "markers": MARKERS, "palettes": PALETTES}
    )

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        parts = ("title", "facts", "notes", "configuration", "environment", "command", "going", "styles")
        made: dict[str, Any] = {name: getattr(self, name) for name in parts}
        made["summary"] = table_to_dict(self.summary)
        made["figures"] = [figure.to_dict() for figure in self.figures]
        return made


def table_to_dict(table: Table) -> dict[str, Any]:
    """A table as JSON has it."""
    rows = [[shortened(value) if isinstance(value, float) else value for value in row] for row in table.rows]
    return {"heads": table.heads, "rows": rows, "digits": table.digits or [None] * len(table.heads)}


def _text(value: Value, digits: int | None) -> str:
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    return f"{value:.{digits}f}" if digits is not None else f"{value:.4g}" if isinstance(value, float) else str(value)


def shortened(value: float | None, digits: int = 6) -> float | None:
    """To so many significant digits; what is no number is None."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


def look(style: int) -> tuple[str, str, str]:
    """Colour, dash and marker of a series: no two of the first 42 share colour and dash."""
    return INKS[style % len(INKS)], DASHES[style % len(DASHES)], MARKERS[style % len(MARKERS)]


def shorten_name(name: str, most: int = 32) -> str:
    """A name short enough to stand in a sentence: without its options if it is long."""
    if len(name) <= most:
        return name
    head = name.partition(":")[0]
    return head if len(head) < most else f"{head[: most - 1]}…"


def by_round(lines: Sequence[Line], deviation: str = "±") -> Table:
    """The table of curves: a row per round, a column per series, and one for half of the band where there is one."""
    heads = ["round"]
    columns: list[dict[int, float]] = []
    for line in lines:
        heads.append(line.name)
        columns.append(dict(zip(line.x, line.y, strict=True)))
        if line.high:
            heads.append(f"{deviation} {line.name}")
            halves = [(high - low) / 2 for low, high in zip(line.low, line.high, strict=True)]
            columns.append(dict(zip(line.x, halves, strict=True)))
    rounds = sorted({x for line in lines for x in line.x})
    return Table(tuple(heads), tuple((x, *(column.get(x) for column in columns)) for x in rounds))
