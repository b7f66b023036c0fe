"""The report's figures for print: PNG, SVG and PDF with matplotlib, as wide as a column or a page."""

from __future__ import annotations

import hashlib
import json
import re
import textwrap
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.core.errors import SteelyardError
from steelyard.experiments.tables import csv_lines
from steelyard.report import panels
from steelyard.report.figures import PALETTES, Figure, look
from steelyard.report.partition import checked_path, style, write

if TYPE_CHECKING:  # an extra, and slow to load
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

WIDTH = 6.3  # inches: the text of a page
_DASHES: dict[str, Any] = {
    "solid": "-",
    "dash": (0, (5, 2)),
    "dot": (0, (1.2, 1.6)),
    "dashdot": (0, (5, 1.8, 1.2, 1.8)),
    "longdash": (0, (8, 2.5)),
    "longdashdot": (0, (8, 2, 1.2, 2)),
}
_MARKERS = {"circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "x": "X", "triangle-down": "v"}
_HATCHES = ("", "///", "xxx", "---", "...", "\\\\\\", "|||")


def save(figure: Figure, path: str | Path) -> Path:
    """Writes a figure as PNG, SVG or PDF by the path's suffix; or its numbers, as CSV.

    The same figure gives the same bytes under one version of matplotlib.
    """
    path = Path(path)
    if path.suffix.lower() == ".csv":
        try:
            path.write_text(csv_lines([figure.table.heads, *figure.table.rows]), "utf-8", "replace")
        except OSError as error:
            raise SteelyardError(f"{path}: cannot be written: {error.strerror or error}") from None
        return path
    path = checked_path(path)
    stamp = hashlib.sha256(json.dumps(figure.to_dict(), sort_keys=True).encode()).hexdigest()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a name with signs the font lacks is drawn with boxes
        return write(drawing(figure), path, f"figure {figure.name} {stamp}")


def drawing(figure: Figure) -> Drawing:
    """The figure as matplotlib has it."""
    with style():
        from matplotlib.figure import Figure as Drawing

        heights = [min(2.6, max(0.6, 0.13 * len(heat.rows))) for heat in figure.heats]
        high = sum(heights) + 0.42 * len(heights) + 0.35 if heights else 2.7 + 0.16 * len(figure.series)
        if figure.stacked:
            high = 1.0 + 0.34 * len(figure.categories)
        made = Drawing(figsize=(WIDTH, high), facecolor=panels.PAPER, layout="constrained")
        if figure.heats:
            _heats(made, figure, heights)
            return made
        axes = made.add_subplot()
        for edge in ("top", "right"):
            axes.spines[edge].set_visible(False)
        (_lines if figure.lines else _bars)(axes, figure)
        if len(figure.series) > 1:
            handles, labels = axes.get_legend_handles_labels()
            options: dict[str, Any] = {"handlelength": 2.6, "columnspacing": 1.4, "labelspacing": 0.35}
            legend = made.legend(
                handles, labels, loc="outside upper center", ncols=_columns(labels), frameon=False, **options
            )
            for text in legend.get_texts():
                text.set_parse_math(False)  # a dollar in a name begins no formula
        return made


def _columns(labels: list[str], fitting: int = 96) -> int:
    """As many as fit beside one another, in letters; a column is as wide as its longest label."""
    lengths = [len(label) for label in labels]
    for count in range(min(4, len(labels)), 1, -1):
        if sum(column.max() + 8 for column in np.array_split(lengths, count)) <= fitting:
            return count
    return 1


def _lines(axes: Axes, figure: Figure) -> None:
    axes.grid(color="#eceff1", linewidth=0.5)
    axes.set_axisbelow(True)
    for span in figure.spans:
        axes.axvspan(span.start - 0.5, span.end + 0.5, color=look(span.style)[0], alpha=0.13, linewidth=0)
    for span in figure.spans[:1]:
        place: dict[str, Any] = {
            "xytext": (2, -2),
            "textcoords": "offset points",
            "va": "top",
            "fontsize": 6.5,
            "color": "#55626f",
        }
        axes.annotate("critical", (span.start - 0.5, 1.0), xycoords=axes.get_xaxis_transform(), **place)
    for line in figure.lines:
        ink, dash, marker = look(line.style)
        if line.high:
            axes.fill_between(line.x, line.low, line.high, color=ink, alpha=0.15, linewidth=0)
        every = max(1, len(line.x) // 8)
        axes.plot(
            line.x, line.y, color=ink, linestyle=_DASHES[dash], linewidth=1.3, marker=_MARKERS[marker], markersize=3.2,
            markevery=(line.style % every, every), label=_shorten_label(line.name),
        )  # fmt: skip
    for mark in figure.marks:
        axes.plot([mark.x], [mark.y], "o", markersize=8, markerfacecolor="none", color=look(mark.style)[0])
    axes.margins(x=0.02)
    axes.set_xlabel(_shorten_label(figure.x), parse_math=False)
    axes.set_ylabel(_shorten_label(figure.y), parse_math=False)


def _bars(axes: Axes, figure: Figure) -> None:
    places = np.arange(len(figure.categories))
    names = ["\n".join(textwrap.wrap(_shorten_label(name), 30)[:2]) for name in figure.categories]
    before = np.zeros(len(places))
    wide = 0.8 / max(1, len(figure.bars))
    for number, bars in enumerate(figure.bars):
        values = np.array([value or 0.0 for value in bars.values])
        options: dict[str, Any] = {
            "color": look(bars.style)[0], "hatch": _HATCHES[bars.style % len(_HATCHES)], "edgecolor": "#ffffff",
            "linewidth": 0.4, "label": _shorten_label(bars.name),
        }  # fmt: skip
        if figure.stacked:
            axes.barh(places, values, 0.62, left=before, **options)
            before = before + values
        else:
            axes.bar(places - 0.4 + wide * (number + 0.5), values, wide, **options)
    if figure.stacked:
        axes.set_yticks(places, names, parse_math=False)
        axes.invert_yaxis()
        axes.set_xlabel(_shorten_label(figure.y), parse_math=False)
        return
    axes.set_xticks(places, names, rotation=0 if len(names) < 9 else 90, parse_math=False)
    axes.set_xlabel(_shorten_label(figure.x), parse_math=False)
    axes.set_ylabel(_shorten_label(figure.y), parse_math=False)


def _heats(made: Drawing, figure: Figure, heights: list[float]) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    shades = LinearSegmentedColormap.from_list("ink", PALETTES[figure.palette]).with_extremes(bad=panels.PAPER)
    low, high = figure.limits
    axes = made.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    for one, heat in zip(axes, figure.heats, strict=True):
        cells = np.array([[np.nan if value is None else value for value in row] for row in heat.values], dtype=float)
        image = one.imshow(cells, cmap=shades, vmin=low, vmax=high, aspect="auto", interpolation="nearest")
        one.set_title(_shorten_label(heat.name, 90), loc="left", fontsize=8, pad=3, parse_math=False)
        one.set_ylabel(_shorten_label(figure.y), parse_math=False)
        rows, columns = panels.ticks(len(heat.rows), 10), _round_ticks(heat.columns)
        one.set_yticks(rows, [_shorten_label(heat.rows[row], 16) for row in rows], parse_math=False)
        one.set_xticks(columns, [_shorten_label(heat.columns[column], 10) for column in columns], parse_math=False)
    axes[-1].set_xlabel(_shorten_label(figure.x), parse_math=False)
    if figure.z:
        bar = made.colorbar(image, ax=list(axes), shrink=0.8, aspect=30, pad=0.01)
        bar.set_label(_shorten_label(figure.z), parse_math=False)


def _round_ticks(names: tuple[str, ...]) -> list[int]:
    """Places of round numbers, for names that count from one; else of every so many."""
    places = panels.ticks(len(names), 10)
    if names[:2] != ("1", "2") or places.step == 1:
        return list(places)
    return [0, *range(places.step - 1, len(names), places.step)]


def _shorten_label(text: str, most: int = 60) -> str:
    """Short, on one line, without signs of control."""
    plain = re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", " ", text)
    return plain if len(plain) <= most else f"{plain[: most - 1]}…"
