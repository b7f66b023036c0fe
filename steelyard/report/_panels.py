"""Draws the panels of a picture of a partition: bubbles or a heat map, client sizes, a legend.

Colour-blind readers can distinguish the colours, and only groups are shown by colour alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # optional, and slow to import
    from matplotlib.axes import Axes

Counts = NDArray[np.int64]

MAX_BUBBLES = (40, 25)  # clients, classes: with more, circles would be too small
MAX_COLUMNS = 1000  # of a heat map: about one per pixel
INK = "#1f3b57"
PAPER = "#ffffff"
FAINT = "#d9dee3"
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#4d4d4d")
"""The colours of Okabe and Ito, which colour-blind readers can distinguish, without black."""


def draw_bubbles(main: Axes, side: Axes, counts: Counts, groups: Counts | None) -> None:
    """Draw a circle per client and class whose area is the number of samples.

    Args:
        main: where to draw the circles.
        side: where to draw three circles of known size, as a legend.
        counts: samples, clients x classes.
        groups: samples, clients x groups, to colour a client by its largest group; or None.
    """
    from matplotlib.path import Path

    # The largest circle fills a cell.
    clients, classes = counts.shape
    box = main.get_window_extent().transformed(main.get_figure().dpi_scale_trans.inverted())  # type: ignore[union-attr]
    cell_size = min(72 * box.width / clients, 72 * box.height / classes, 18.0)  # points
    scale = (0.98 * cell_size) ** 2 / max(1, counts.max())
    main.set_axisbelow(True)
    main.grid(color="#eceff1", linewidth=0.5)

    # Draw all circles of the same width and colour at once: the file is smaller.
    client_inks = np.array([INK])
    if groups is not None:
        client_inks = np.array(COLOURS)[groups.argmax(axis=1)]
    inks = np.broadcast_to(client_inks[:, None], counts.shape)
    widths = np.maximum(_circle_width(scale, counts), 1.0)  # a single sample is visible
    dots: dict[str, Any] = {
        "marker": Path.arc(0, 360, 4),
        "linestyle": "",
        "markeredgewidth": 0,
        "clip_on": False,
    }
    cells = zip(*np.nonzero(counts), strict=True)
    for width, colour in sorted({(widths[cell], str(inks[cell])) for cell in cells}):
        client, label = np.nonzero((counts > 0) & (widths == width) & (inks == colour))
        main.plot(client, label, markersize=width, color=colour, **dots)

    # The legend of sizes.
    side.set_axis_off()
    side.set_xlim(0, 1)
    side.set_ylim(0, 1)
    step = min(0.2, 1.6 * cell_size / 72 / box.height + 0.03)
    for position, mark in enumerate(_legend_counts(int(counts.max()))):
        height = 0.5 + step * (1 - position)
        side.plot([0.2], [height], markersize=_circle_width(scale, mark), color=INK, **dots)
        side.text(0.42, height, f"{mark:,}", va="center", fontsize=7)
    side.text(0.02, 0.5 + step * 2, "samples", va="center", fontsize=7)


def _circle_width(scale: float, counts: Any) -> Any:
    """Return the width of circles in points, rounded to halves so that few widths differ."""
    return np.round(2 * np.sqrt(scale * counts)) / 2


def draw_heat(main: Axes, side: Axes, counts: Counts) -> None:
    """Draw a cell per client and class, darker for more samples, white for none.

    Args:
        main: where to draw the cells.
        side: where to draw the colour scale.
        counts: samples, clients x classes.
    """
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm

    # With many clients, a column is the mean of neighbours.
    inks = ["#dbe9f6", "#7fb2d9", "#2f72ad", "#0b2545"]
    shades = LinearSegmentedColormap.from_list("ink", inks).with_extremes(bad=PAPER)
    clients, classes = counts.shape
    block_size = -(-clients // MAX_COLUMNS)
    means = np.add.reduceat(counts, np.arange(0, clients, block_size)) / block_size
    if block_size > 1:
        main.set_xlabel(f"client (a column is the mean of {block_size})")

    # The square root makes small counts, which are frequent, easier to distinguish.
    norm = PowerNorm(0.5, vmin=1, vmax=max(2.0, means.max()))
    image = main.imshow(
        np.ma.masked_equal(means.T, 0),
        cmap=shades,
        norm=norm,
        aspect="auto",
        origin="lower",
        interpolation="nearest",
        extent=(-0.5, len(means) * block_size - 0.5, -0.5, classes - 0.5),
    )

    # The colour scale.
    side.set_axis_off()
    bar = side.inset_axes((0.0, 0.1, 0.14, 0.75))
    marks = [1, *_legend_counts(int(means.max()))]
    side.figure.colorbar(image, cax=bar, ticks=marks, format="{x:,.0f}")
    bar.tick_params(labelsize=7)
    bar.set_title("samples", fontsize=7, loc="left", pad=4)


def draw_sizes(axes: Axes, counts: Counts, groups: Counts | None) -> None:
    """Draw the samples per client as bars, stacked by group if there are groups.

    Args:
        axes: where to draw.
        counts: samples, clients x classes.
        groups: samples, clients x groups; or None.
    """
    from matplotlib.ticker import MaxNLocator

    # All bars are one path, with zeros between clients.
    clients = len(counts)
    parts = counts.sum(axis=1, keepdims=True) if groups is None else groups
    gap = 0.3 if clients <= 100 else 0.0
    edges = np.add.outer(np.arange(clients), [gap / 2 - 0.5, 0.5 - gap / 2])  # left and right
    tops = np.cumsum(np.insert(parts, 0, 0, axis=1), axis=1)  # clients x (parts + 1)
    bars = np.insert(tops, range(1, clients), 0, axis=0)
    for number in range(parts.shape[1]):
        axes.stairs(
            bars[:, number + 1],
            edges.reshape(-1),
            baseline=bars[:, number],
            fill=True,
            color=INK if groups is None else COLOURS[number],
            linewidth=0,
        )

    # The axis.
    axes.set_ylim(0, 1.05 * max(1, int(tops.max())))
    axes.yaxis.set_major_locator(MaxNLocator(2, integer=True))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.tick_params(labelbottom=False, bottom=False, labelsize=7)
    axes.set_ylabel("samples", fontsize=7, labelpad=2)
    for edge in ("top", "right"):
        axes.spines[edge].set_visible(False)


def draw_legend(axes: Axes, groups: Counts) -> None:
    """Draw the legend of the colours of groups."""
    from matplotlib.patches import Patch

    patches = [Patch(color=COLOURS[number], label=str(number)) for number in range(groups.shape[1])]
    axes.legend(
        handles=patches,
        title="group",
        loc="upper left",
        bbox_to_anchor=(1.01, 1.35),
        frameon=False,
        fontsize=7,
        title_fontsize=7,
        borderpad=0,
        labelspacing=0.25,
        ncols=2,
        handlelength=0.8,
        handleheight=0.8,
        columnspacing=0.8,
    )


def choose_ticks(count: int, limit: int) -> range:
    """Return positions from 0 to `count`, at most `limit` of them.

    The step is 1, 2 or 5 times a power of ten.
    """
    steps = (factor * 10**power for power in range(len(str(count)) + 1) for factor in (1, 2, 5))
    step = next(step for step in steps if -(-count // step) <= limit)
    return range(0, count, step)


def _legend_counts(largest: int) -> list[int]:
    """Return up to three round numbers for a legend, the largest first.

    They are 1, 2 or 5 times a power of ten.
    """
    if largest < 1:
        return []
    numbers = [factor * 10**power for power in range(len(str(largest))) for factor in (1, 2, 5)]
    fitting = [number for number in numbers if number <= largest]
    return fitting[::-1][:6:2]
