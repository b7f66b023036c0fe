"""The panels of a picture of a partition: bubbles or a heat map, sizes above, a legend.

Colours are those that colour-blind readers tell apart, and nothing hangs on colour alone but groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # an extra, and slow to load
    from matplotlib.axes import Axes

Counts = NDArray[np.int64]

MOST_BUBBLES = (40, 25)  # clients, classes: beyond these circles would be dots
MOST_COLUMNS = 1000  # of a heat map: about one per pixel
INK, PAPER, FAINT = "#1f3b57", "#ffffff", "#d9dee3"
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#4d4d4d")
"""Okabe and Ito's, which colour-blind readers tell apart; no black, which is for text."""


def bubbles(main: Axes, side: Axes, counts: Counts, groups: Counts | None) -> None:
    """A circle per client and class, its area the number of samples; on the side three circles to compare with."""
    from matplotlib.path import Path

    clients, classes = counts.shape
    box = main.get_window_extent().transformed(main.get_figure().dpi_scale_trans.inverted())  # type: ignore[union-attr]
    cell = min(72 * box.width / clients, 72 * box.height / classes, 18.0)  # points
    scale = (0.98 * cell) ** 2 / max(1, counts.max())
    main.set_axisbelow(True)
    main.grid(color="#eceff1", linewidth=0.5)
    ink = np.array([INK]) if groups is None else np.array(COLOURS)[groups.argmax(axis=1)]
    dots: dict[str, Any] = {"marker": Path.arc(0, 360, 4), "linestyle": "", "markeredgewidth": 0, "clip_on": False}
    widths = np.maximum(_width(scale, counts), 1.0)  # a single sample is seen
    inks = np.broadcast_to(ink[:, None], counts.shape)
    for width, colour in sorted({(widths[at], str(inks[at])) for at in zip(*np.nonzero(counts), strict=True)}):
        client, label = np.nonzero((counts > 0) & (widths == width) & (inks == colour))
        main.plot(client, label, markersize=width, color=colour, **dots)
    side.set_axis_off()
    side.set_xlim(0, 1)
    side.set_ylim(0, 1)
    marks = _marks(int(counts.max()))
    step = min(0.2, 1.6 * cell / 72 / box.height + 0.03)
    for place, mark in enumerate(marks):
        height = 0.5 + step * (1 - place)
        side.plot([0.2], [height], markersize=_width(scale, mark), color=INK, **dots)
        side.text(0.42, height, f"{mark:,}", va="center", fontsize=7)
    side.text(0.02, 0.5 + step * 2, "samples", va="center", fontsize=7)


def _width(scale: float, counts: Any) -> Any:
    """A circle's width in points, in halves of them: circles of one width are one shape in the file."""
    return np.round(2 * np.sqrt(scale * counts)) / 2


def heat(main: Axes, side: Axes, counts: Counts) -> None:
    """A cell per client and class, the darker the more samples; white is none."""
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm

    inks = ["#dbe9f6", "#7fb2d9", "#2f72ad", "#0b2545"]
    shades = LinearSegmentedColormap.from_list("ink", inks).with_extremes(bad=PAPER)
    clients, classes = counts.shape
    few = -(-clients // MOST_COLUMNS)
    means = np.add.reduceat(counts, np.arange(0, clients, few)) / few  # [columns, classes]
    if few > 1:
        main.set_xlabel(f"client (a column is the mean of {few})")
    norm = PowerNorm(0.5, vmin=1, vmax=max(2.0, means.max()))  # small counts are most of them: tell them apart
    image = main.imshow(
        np.ma.masked_equal(means.T, 0),
        cmap=shades,
        norm=norm,
        aspect="auto",
        origin="lower",
        interpolation="nearest",
        extent=(-0.5, len(means) * few - 0.5, -0.5, classes - 0.5),
    )
    side.set_axis_off()
    bar = side.inset_axes((0.0, 0.1, 0.14, 0.75))
    side.figure.colorbar(image, cax=bar, ticks=[1, *_marks(int(means.max()))], format="{x:,.0f}")
    bar.tick_params(labelsize=7)
    bar.set_title("samples", fontsize=7, loc="left", pad=4)


def sizes(axes: Axes, counts: Counts, groups: Counts | None) -> None:
    """Samples per client, as bars; stacked by group if there are groups."""
    from matplotlib.ticker import MaxNLocator

    clients = len(counts)
    parts = counts.sum(axis=1, keepdims=True) if groups is None else groups
    gap = 0.3 if clients <= 100 else 0.0
    sides = np.add.outer(np.arange(clients), [gap / 2 - 0.5, 0.5 - gap / 2]).reshape(-1)  # left, right, left, right
    tops = np.cumsum(np.insert(parts, 0, 0, axis=1), axis=1)  # [K, parts + 1]
    bars = np.insert(tops, range(1, clients), 0, axis=0)  # zeros between clients: all bars are one path
    for number in range(parts.shape[1]):
        colour = INK if groups is None else COLOURS[number]
        axes.stairs(bars[:, number + 1], sides, baseline=bars[:, number], fill=True, color=colour, linewidth=0)
    axes.set_ylim(0, 1.05 * max(1, int(tops.max())))
    axes.yaxis.set_major_locator(MaxNLocator(2, integer=True))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.tick_params(labelbottom=False, bottom=False, labelsize=7)
    axes.set_ylabel("samples", fontsize=7, labelpad=2)
    for edge in ("top", "right"):
        axes.spines[edge].set_visible(False)


def legend(axes: Axes, groups: Counts) -> None:
    """Which colour is which group."""
    from matplotlib.patches import Patch

    marks = [Patch(color=COLOURS[number], label=str(number)) for number in range(groups.shape[1])]
    options: dict[str, Any] = {"ncols": 2, "handlelength": 0.8, "handleheight": 0.8, "columnspacing": 0.8}
    axes.legend(
        handles=marks,
        title="group",
        loc="upper left",
        bbox_to_anchor=(1.01, 1.35),
        frameon=False,
        fontsize=7,
        title_fontsize=7,
        borderpad=0,
        labelspacing=0.25,
        **options,
    )


def ticks(count: int, most: int) -> range:
    """0, 1, ... in steps of 1, 2 or 5 times a power of ten, no more than `most` of them."""
    steps = (factor * 10**power for power in range(len(str(count)) + 1) for factor in (1, 2, 5))
    return range(0, count, next(step for step in steps if -(-count // step) <= most))


def _marks(most: int) -> list[int]:
    """Up to three round numbers to compare with, the largest first: 1, 2 or 5 times a power of ten."""
    if most < 1:
        return []
    found = [factor * 10**power for power in range(len(str(most))) for factor in (1, 2, 5)]
    fitting = [number for number in found if number <= most]
    return fitting[::-1][:6:2]
