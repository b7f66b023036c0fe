"""Colours, panels, curves with intervals, and the files of a drawing.

matplotlib is optional and is imported when a figure is drawn.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.diagnostics import series
from steelyard.experiments._statistics import import_scipy_stats
from steelyard.report._panels import COLOURS, FAINT
from steelyard.report._partition import style
from steelyard.runs._history import History

if TYPE_CHECKING:  # optional, and slow to import
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

Array = NDArray[np.float64]

BLUE, ORANGE, GREEN, PINK, SKY, RED, YELLOW, GREY = COLOURS
CYCLE = (BLUE, RED, GREEN, ORANGE, SKY, PINK, GREY, YELLOW)
"""Colours of series without one of their own, in order."""
SOLID = "-"
DASHED = (0, (5, 2))
DOTTED = (0, (1, 1.2))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
WIDTH = 7.0  # inches
DPI = 150
PALETTE_SIZE = 64  # colours of a PNG

_RULES = {
    "axes.titlesize": 8,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.4,
    "legend.frameon": False,
    "legend.fontsize": 7,
}
_INTERVAL = "_interval of "  # matplotlib hides labels with an underscore from legends


class use_style:  # noqa: N801 - used like a function, in `with`
    """A context with the settings of matplotlib for our figures."""

    def __enter__(self) -> None:
        self._context = style()
        self._context.__enter__()
        import matplotlib

        matplotlib.rcParams.update(_RULES)  # type: ignore[arg-type]

    def __exit__(self, *error: object) -> None:
        self._context.__exit__(*error)


def make_panels(
    columns: int, rows: int = 1, height: float = 2.4, width: float = WIDTH
) -> tuple[Drawing, list[Axes]]:
    """Return an empty figure and its panels, row by row.

    Args:
        columns: the number of panels in a row.
        rows: the number of rows.
        height: the height of a row in inches.
        width: the width of the figure in inches.
    """
    from matplotlib.figure import Figure as Drawing

    drawing = Drawing(figsize=(width, rows * height), layout="constrained")
    panels = drawing.subplots(rows, columns, squeeze=False)
    return drawing, list(panels.flat)


def label_rounds(*panels: Axes) -> None:
    """Label the horizontal axis of panels as rounds."""
    from matplotlib.ticker import MaxNLocator

    for axes in panels:
        axes.set_xlabel("round")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def limit_percent(axes: Axes) -> None:
    """Keep the vertical axis of percentages within 0 and 100, which intervals may leave."""
    low, high = axes.get_ylim()
    axes.set_ylim(max(0.0, low), min(100.0, high))


def add_legend(drawing: Drawing, axes: Axes, columns: int = 4) -> None:
    """Write the legend of one panel below all panels."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        drawing.legend(handles, labels, loc="outside lower center", ncols=columns)


def compute_half_widths(rows: Any) -> Array | None:
    """Return half of the 95 % interval of the mean of rows, one per seed.

    None for fewer than three seeds: the interval of two is so wide that it hides the curves.
    """
    table = np.asarray(rows, dtype=np.float64)
    count = len(table)
    if count < 3:
        return None
    quantile = float(import_scipy_stats().t.ppf(0.975, count - 1))
    half_widths: Array = quantile * table.std(axis=0, ddof=1) / np.sqrt(count)
    return half_widths


def plot_mean(
    axes: Axes,
    x: Any,
    rows: Any,
    *,
    color: str,
    label: str,
    has_bars: bool = False,
    has_interval: bool = True,
    **options: Any,
) -> None:
    """Plot the mean of rows, one per seed, with its 95 % interval.

    Args:
        axes: the panel.
        x: the horizontal positions.
        rows: the values, `[seeds, positions]`.
        color: the colour.
        label: the name of the series.
        has_bars: show the interval as bars, for categories; otherwise as a shade.
        has_interval: show the interval; not in panels with many curves.
        options: further options of matplotlib's `plot`.
    """
    table = np.asarray(rows, dtype=np.float64)
    mean = table.mean(axis=0)
    axes.plot(x, mean, color=color, label=label, **options)
    half_widths = compute_half_widths(table)
    if half_widths is None or not has_interval:
        return
    low = mean - half_widths
    high = mean + half_widths
    name = f"{_INTERVAL}{label}"
    if has_bars:
        axes.vlines(x, low, high, color=color, linewidth=1, label=name)
    else:
        axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0, label=name)


def plot_series(
    axes: Axes,
    histories: Sequence[History],
    name: str,
    *,
    color: str,
    label: str,
    factor: float = 1.0,
    **options: Any,
) -> None:
    """Plot a series of the record by round, as the mean over seeds with its interval.

    Rounds that a seed does not have (it was void, or reached a target) are left out for all.

    Args:
        axes: the panel.
        histories: the runs, one per seed.
        name: the series, as `diagnostics.series` knows it.
        color: the colour.
        label: the name of the series in the legend.
        factor: a factor for all values, 100 for percent.
        options: further options of `plot_mean` and of matplotlib's `plot`.
    """
    rounds, rows = align_series(histories, name)
    plot_mean(axes, rounds, factor * rows, color=color, label=label, **options)


def align_series(histories: Sequence[History], name: str) -> tuple[NDArray[np.int64], Array]:
    """Return a series of several runs in the rounds that all of them have.

    Args:
        histories: the runs, one per seed.
        name: the series.

    Returns:
        The rounds, and the values `[seeds, rounds]`.
    """
    all_series = [series(history, name) for history in histories]
    rounds = all_series[0].rounds
    for item in all_series[1:]:
        rounds = np.intersect1d(rounds, item.rounds)
    rows = [item.values[np.isin(item.rounds, rounds)] for item in all_series]
    return rounds, np.array(rows)


def plot_bars(
    axes: Axes, groups: Sequence[str], heights: Any, labels: Sequence[str], colors: Sequence[str]
) -> None:
    """Draw groups of bars, one bar per series, with the 95 % interval of the mean over seeds.

    Args:
        axes: the panel.
        groups: the names of the groups.
        heights: the values, `[series, seeds, groups]`.
        labels: the names of the series.
        colors: the colours of the series.
    """
    table = np.asarray(heights, dtype=np.float64)
    width = 0.8 / len(labels)
    positions = np.arange(len(groups))
    for number, (label, color) in enumerate(zip(labels, colors, strict=True)):
        x = positions + (number - (len(labels) - 1) / 2) * width
        half_widths = compute_half_widths(table[number])
        axes.bar(
            x,
            table[number].mean(axis=0),
            width,
            yerr=half_widths,
            color=color,
            label=label,
            error_kw={"linewidth": 0.8, "ecolor": GREY},
        )
    axes.set_xticks(positions, groups)
    axes.grid(visible=False, axis="x")
    axes.set_axisbelow(True)  # the grid is behind the bars


def make_twin(axes: Axes, label: str) -> Axes:
    """Return a second vertical axis of a panel, on its right, in blue."""
    twin = axes.twinx()
    twin.set_ylabel(label, color=BLUE)
    twin.spines.right.set_visible(True)
    twin.grid(visible=False)
    return twin


def draw_line(axes: Axes, height: float) -> None:
    """Draw a thin horizontal line."""
    axes.axhline(height, color=GREY, linewidth=0.8)


def draw_zero(axes: Axes) -> None:
    """Draw a thin horizontal line at 0."""
    draw_line(axes, 0.0)


def draw_matrix(axes: Axes, matrix: Any, title: str, *, label: str = "client") -> None:
    """Draw a square matrix of distances or similarities; its diagonal is left out.

    Args:
        axes: the panel.
        matrix: the values, `[K, K]`.
        title: the title of the panel.
        label: what rows and columns are.
    """
    values = np.ma.masked_array(np.asarray(matrix, dtype=np.float64), np.eye(len(matrix)) > 0)
    count = len(values)
    image = axes.imshow(values, cmap="Blues", extent=(0.5, count + 0.5, count + 0.5, 0.5))
    axes.figure.colorbar(image, ax=axes, shrink=0.8, format="%.2g").ax.tick_params(labelsize=6)
    axes.set_title(title)
    axes.set_xlabel(label)
    axes.grid(visible=False)


def collect_numbers(drawing: Drawing) -> list[list[str | float | None]]:
    """Return the numbers of a drawing as rows of a table.

    Lines, points, bars and images are collected. Lines without a label only guide the eye.

    Returns:
        A row of heads, and rows of panel, series, x, y, the ends of the interval, and the value of
        a cell of an image.
    """
    rows: list[list[str | float | None]] = [["panel", "series", "x", "y", "low", "high", "value"]]
    for position, axes in enumerate(drawing.axes, 1):
        panel = axes.get_title(loc="left") or axes.get_title() or axes.get_ylabel()
        panel = f"{position} {' '.join(panel.split())}".strip()
        rows += [[panel, *row] for row in _collect_panel(axes)]
    return rows


def _collect_panel(axes: Axes) -> Iterable[list[str | float | None]]:
    """Yield series, x, y, low, high and value for everything that a panel shows."""
    from matplotlib.collections import PathCollection

    intervals = _collect_intervals(axes)
    # Lines.
    for line in axes.lines:
        label = str(line.get_label())
        if label.startswith("_"):
            continue
        for x, y in zip(_to_floats(line.get_xdata()), _to_floats(line.get_ydata()), strict=True):
            low, high = intervals.get((label, x), (None, None))
            yield [label, x, y, low, high, None]
    # Bars.
    for bars in axes.containers:
        label = str(bars.get_label())
        for bar in getattr(bars, "patches", ()):
            x = float(bar.get_x() + bar.get_width() / 2)
            yield [label, x, float(bar.get_height()), None, None, None]
    # Points.
    for points in axes.collections:
        label = str(points.get_label())
        if isinstance(points, PathCollection) and not label.startswith("_"):
            offsets = np.asarray(points.get_offsets(), dtype=np.float64)
            colours = points.get_array()
            point_values: list[float | None] = [None] * len(offsets)
            if colours is not None:
                point_values = [*_to_floats(colours)]
            for (x, y), point_value in zip(offsets, point_values, strict=True):
                yield [label, float(x), float(y), None, None, point_value]
    # Images.
    for image in axes.images:
        values = np.ma.filled(np.ma.asarray(image.get_array(), dtype=np.float64), np.nan)
        for (row, column), value in np.ndenumerate(values):
            if np.isfinite(value):
                yield ["image", column + 1.0, row + 1.0, None, None, float(value)]


def _collect_intervals(axes: Axes) -> dict[tuple[str, float], tuple[float, float]]:
    """Return the ends of the intervals that `plot_mean` drew, by series and x."""
    ends: dict[tuple[str, float], tuple[float, float]] = {}
    for collection in axes.collections:
        name = str(collection.get_label())
        if not name.startswith(_INTERVAL):
            continue
        label = name.removeprefix(_INTERVAL)
        for path in collection.get_paths():
            vertices = np.asarray(path.vertices, dtype=np.float64)
            for x in np.unique(vertices[:, 0]):
                heights = vertices[vertices[:, 0] == x, 1]
                ends[label, float(x)] = (float(heights.min()), float(heights.max()))
    return ends


def _to_floats(values: Any) -> list[float]:
    return [float(value) for value in np.asarray(values, dtype=np.float64)]


def save_drawing(drawing: Drawing, path: Path) -> Path:
    """Write a drawing as PNG or SVG, without a date, so that the same drawing gives the same bytes.

    Args:
        drawing: the drawing.
        path: the file; its suffix chooses the format.
    """
    suffix = path.suffix.lower()
    buffer = io.BytesIO()  # if drawing fails, the file is unchanged
    metadata: dict[str, Any] = {"Software": None}
    if suffix == ".svg":
        metadata = {"Date": None, "Creator": None}
    drawing.savefig(buffer, format=suffix[1:], dpi=DPI, metadata=metadata)
    content = buffer.getvalue()
    if suffix == ".png":
        content = _reduce_colours(content)
    path.write_bytes(content)
    return path


def _reduce_colours(content: bytes) -> bytes:
    """Return a PNG with few colours, which is a third of the size; unchanged without Pillow."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        return content
    buffer = io.BytesIO()
    with Image.open(io.BytesIO(content)) as picture:
        picture.convert("RGB").quantize(PALETTE_SIZE).save(buffer, "png", optimize=True)
    return buffer.getvalue()
