"""Draws the figures of a report with matplotlib, for print: PNG, SVG and PDF."""

from __future__ import annotations

import hashlib
import json
import re
import textwrap
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.core._errors import SteelyardError
from steelyard.experiments._tables import csv_lines
from steelyard.report import _panels as panels
from steelyard.report._figures import PALETTES, Figure, choose_style
from steelyard.report._partition import check_path, style, write

if TYPE_CHECKING:  # optional, and slow to import
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

WIDTH = 6.3  # inches: the width of the text on a page
_DASHES: dict[str, Any] = {
    "solid": "-",
    "dash": (0, (5, 2)),
    "dot": (0, (1.2, 1.6)),
    "dashdot": (0, (5, 1.8, 1.2, 1.8)),
    "longdash": (0, (8, 2.5)),
    "longdashdot": (0, (8, 2, 1.2, 2)),
}
_MARKERS = {
    "circle": "o",
    "square": "s",
    "diamond": "D",
    "triangle-up": "^",
    "x": "X",
    "triangle-down": "v",
}
_HATCHES = ("", "///", "xxx", "---", "...", "\\\\\\", "|||")


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write a figure as PNG, SVG or PDF, or its numbers as CSV.

    The same figure gives the same bytes with the same version of matplotlib.

    Args:
        figure: the figure.
        path: the file; its suffix chooses the format.
    """
    # The numbers only.
    path = Path(path)
    if path.suffix.lower() == ".csv":
        try:
            path.write_text(csv_lines([figure.table.heads, *figure.table.rows]), "utf-8", "replace")
        except OSError as error:
            raise SteelyardError(f"{path}: cannot be written: {error.strerror or error}") from None
        return path

    # The picture; its metadata have a hash of the figure.
    path = check_path(path)
    stamp = hashlib.sha256(json.dumps(figure.to_dict(), sort_keys=True).encode()).hexdigest()
    with warnings.catch_warnings():
        # Characters that the font does not have are drawn as boxes.
        warnings.filterwarnings("ignore", "Glyph .* missing")
        return write(draw_figure(figure), path, f"figure {figure.name} {stamp}")


def draw_figure(figure: Figure) -> Drawing:
    """Return the figure as a matplotlib figure."""
    with style():
        from matplotlib.figure import Figure as Drawing

        # The height depends on what is drawn.
        panel_heights = [min(2.6, max(0.6, 0.13 * len(heat.rows))) for heat in figure.heats]
        if figure.stacked:
            height = 1.0 + 0.34 * len(figure.categories)
        elif figure.heats:
            height = sum(panel_heights) + 0.42 * len(panel_heights) + 0.35
        else:
            height = 2.7 + 0.16 * len(figure.series)
        canvas = Drawing(figsize=(WIDTH, height), facecolor=panels.PAPER, layout="constrained")

        # Draw heat maps, lines or bars.
        if figure.heats:
            _draw_heats(canvas, figure, panel_heights)
            return canvas
        axes = canvas.add_subplot()
        for edge in ("top", "right"):
            axes.spines[edge].set_visible(False)
        if figure.lines:
            _draw_lines(axes, figure)
        else:
            _draw_bars(axes, figure)

        # Add a legend.
        if len(figure.series) > 1:
            handles, labels = axes.get_legend_handles_labels()
            legend = canvas.legend(
                handles,
                labels,
                loc="outside upper center",
                ncols=_count_columns(labels),
                frameon=False,
                handlelength=2.6,
                columnspacing=1.4,
                labelspacing=0.35,
            )
            for text in legend.get_texts():
                text.set_parse_math(False)  # a dollar sign in a name does not start a formula
        return canvas


def _count_columns(labels: list[str], limit: int = 96) -> int:
    """Return how many columns of a legend fit side by side.

    Args:
        labels: the labels; a column is as wide as its longest one.
        limit: the width of the legend in letters.
    """
    lengths = [len(label) for label in labels]
    for count in range(min(4, len(labels)), 1, -1):
        if sum(column.max() + 8 for column in np.array_split(lengths, count)) <= limit:
            return count
    return 1


def _draw_lines(axes: Axes, figure: Figure) -> None:
    # The grid and the critical periods are behind the lines.
    axes.grid(color="#eceff1", linewidth=0.5)
    axes.set_axisbelow(True)
    for span in figure.spans:
        ink = choose_style(span.style)[0]
        axes.axvspan(span.start - 0.5, span.end + 0.5, color=ink, alpha=0.13, linewidth=0)
    if figure.spans:
        axes.annotate(
            "critical",
            (figure.spans[0].start - 0.5, 1.0),
            xycoords=axes.get_xaxis_transform(),
            xytext=(2, -2),
            textcoords="offset points",
            va="top",
            fontsize=6.5,
            color="#55626f",
        )

    # Lines with bands; about eight markers per line, at different rounds for different lines.
    for line in figure.lines:
        ink, dash, marker = choose_style(line.style)
        if line.high:
            axes.fill_between(line.x, line.low, line.high, color=ink, alpha=0.15, linewidth=0)
        every = max(1, len(line.x) // 8)
        axes.plot(
            line.x,
            line.y,
            color=ink,
            linestyle=_DASHES[dash],
            linewidth=1.3,
            marker=_MARKERS[marker],
            markersize=3.2,
            markevery=(line.style % every, every),
            label=_shorten_label(line.name),
        )

    # Rings around marked points.
    for mark in figure.marks:
        ink = choose_style(mark.style)[0]
        axes.plot([mark.x], [mark.y], "o", markersize=8, markerfacecolor="none", color=ink)
    axes.margins(x=0.02)
    axes.set_xlabel(_shorten_label(figure.x), parse_math=False)
    axes.set_ylabel(_shorten_label(figure.y), parse_math=False)


def _draw_bars(axes: Axes, figure: Figure) -> None:
    # Bars of a category are side by side, or stacked and horizontal.
    positions = np.arange(len(figure.categories))
    names = ["\n".join(textwrap.wrap(_shorten_label(name), 30)[:2]) for name in figure.categories]
    stack_ends = np.zeros(len(positions))
    width = 0.8 / max(1, len(figure.bars))
    for number, bars in enumerate(figure.bars):
        values = np.array([value or 0.0 for value in bars.values])
        options: dict[str, Any] = {
            "color": choose_style(bars.style)[0],
            "hatch": _HATCHES[bars.style % len(_HATCHES)],
            "edgecolor": "#ffffff",
            "linewidth": 0.4,
            "label": _shorten_label(bars.name),
        }
        if figure.stacked:
            axes.barh(positions, values, 0.62, left=stack_ends, **options)
            stack_ends = stack_ends + values
        else:
            axes.bar(positions - 0.4 + width * (number + 0.5), values, width, **options)

    # Labels.
    if figure.stacked:
        axes.set_yticks(positions, names, parse_math=False)
        axes.invert_yaxis()
        axes.set_xlabel(_shorten_label(figure.y), parse_math=False)
        return
    axes.set_xticks(positions, names, rotation=0 if len(names) < 9 else 90, parse_math=False)
    axes.set_xlabel(_shorten_label(figure.x), parse_math=False)
    axes.set_ylabel(_shorten_label(figure.y), parse_math=False)


def _draw_heats(canvas: Drawing, figure: Figure, heights: list[float]) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    # All panels have the same colours; empty cells are white.
    colours = LinearSegmentedColormap.from_list("ink", PALETTES[figure.palette])
    shades = colours.with_extremes(bad=panels.PAPER)
    low, high = figure.limits

    # One panel per heat map.
    all_axes = canvas.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, heat in zip(all_axes, figure.heats, strict=True):
        cells = np.array(heat.values, dtype=float)  # None becomes NaN
        image = axes.imshow(
            cells, cmap=shades, vmin=low, vmax=high, aspect="auto", interpolation="nearest"
        )
        title = _shorten_label(heat.name, 90)
        axes.set_title(title, loc="left", fontsize=8, pad=3, parse_math=False)
        axes.set_ylabel(_shorten_label(figure.y), parse_math=False)
        rows = panels.choose_ticks(len(heat.rows), 10)
        row_names = [_shorten_label(heat.rows[row], 16) for row in rows]
        axes.set_yticks(rows, row_names, parse_math=False)
        columns = _round_ticks(heat.columns)
        column_names = [_shorten_label(heat.columns[column], 10) for column in columns]
        axes.set_xticks(columns, column_names, parse_math=False)
    all_axes[-1].set_xlabel(_shorten_label(figure.x), parse_math=False)

    # The colour scale.
    if figure.z:
        bar = canvas.colorbar(image, ax=list(all_axes), shrink=0.8, aspect=30, pad=0.01)
        bar.set_label(_shorten_label(figure.z), parse_math=False)


def _round_ticks(names: tuple[str, ...]) -> list[int]:
    """Return the positions of at most about ten names, at equal distances.

    If the names count from 1, these are the positions of round numbers.
    """
    positions = panels.choose_ticks(len(names), 10)
    if names[:2] != ("1", "2") or positions.step == 1:
        return list(positions)
    return [0, *range(positions.step - 1, len(names), positions.step)]


def _shorten_label(text: str, limit: int = 60) -> str:
    """Return a text in one line of at most `limit` characters, without control characters."""
    line = re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", " ", text)
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
