"""Draws pictures of partitions: samples by client and class, for the screen and for print.

Up to 40 clients and 25 classes are drawn as bubbles whose area is the number of samples; more as a
heat map. Both can be read without colours. Client sizes are above, a summary in numbers below.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from steelyard.core._errors import SteelyardError
from steelyard.data._dataset import Federation
from steelyard.report import _panels as panels
from steelyard.report._panels import Counts

if TYPE_CHECKING:  # optional, and slow to import
    from matplotlib.figure import Figure

By = Literal["labels", "groups"]

SUFFIXES = (".png", ".svg", ".pdf")

_STYLE = {
    "font.size": 8.0,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # part of matplotlib: the same picture everywhere
    "axes.linewidth": 0.6,
    "axes.edgecolor": "#555555",
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "svg.hashsalt": "steelyard",  # otherwise ids in the file are random
    "svg.fonttype": "none",  # text stays text: small, searchable, readable aloud
    "pdf.fonttype": 42,  # TrueType, as journals require
}


@dataclass(frozen=True)
class Summary:
    """A partition in numbers.

    Attributes:
        samples: the number of samples of all clients; a sample that clients share counts for each.
        smallest: the number of samples of the smallest client.
        median: the median number of samples.
        largest: the number of samples of the largest client.
        empty: the number of clients without a sample.
        classes: the mean number of classes of a client, without empty clients.
        distance: the mean total variation distance between the labels of a client and those of all
            clients, without empty clients: 0 if they are equal, near 1 if clients have little in
            common.
    """

    samples: int
    smallest: int
    median: float
    largest: int
    empty: int
    classes: float
    distance: float

    @classmethod
    def of(cls, counts: Counts) -> Summary:
        """Return the summary of samples per client and class, `[K, C]`."""
        counts = _check_counts(counts)
        sizes = counts.sum(axis=1)
        nonempty = counts[sizes > 0]
        global_shares = nonempty.sum(axis=0) / max(1, nonempty.sum())
        shares = nonempty / nonempty.sum(axis=1, keepdims=True)
        distance = 0.5 * np.abs(shares - global_shares).sum(axis=1)
        return cls(
            samples=int(sizes.sum()),
            smallest=int(sizes.min()),
            median=float(np.median(sizes)),
            largest=int(sizes.max()),
            empty=int((sizes == 0).sum()),
            classes=float((nonempty > 0).sum(axis=1).mean()) if len(nonempty) else 0.0,
            distance=float(distance.mean()) if len(nonempty) else 0.0,
        )

    def __str__(self) -> str:
        empty = f"{self.empty} empty" if self.empty else "none empty"
        return (
            f"{self.samples:,} samples; "
            f"per client {self.smallest:,} to {self.largest:,}, median {self.median:,.5g}, "
            f"{empty}; "
            f"{self.classes:.1f} classes per client; "
            f"mean TV distance of labels {self.distance:.2f}"
        )


def draw_partition(
    federation: Federation, path: str | Path, title: str = "", by: By = "labels"
) -> Path:
    """Write a picture of the samples by client and class as PNG, SVG or PDF.

    The same federation gives the same bytes with the same version of matplotlib.

    Args:
        federation: the clients and their data.
        path: the file; its suffix chooses the format. An existing file is replaced.
        title: the title; by default the name of the data set.
        by: `groups` colours samples by their group.

    Returns:
        The path.
    """
    path = check_path(path)
    if by not in ("labels", "groups"):
        raise SteelyardError(f"by={by!r}: use 'labels' or 'groups'")
    counts = federation.label_counts()
    groups = group_counts(federation) if by == "groups" else None
    return save(partition_figure(counts, title or federation.name, groups), path, counts)


def group_counts(federation: Federation) -> Counts:
    """Return the samples per client and group, `[K, G]`."""
    if federation.train.groups is None:
        raise SteelyardError(
            "by='groups': the data has no groups: pass Dataset(..., groups=...), or use by='labels'"
        )
    return federation.group_counts()


def check_path(path: str | Path) -> Path:
    """Return the path of a picture; raise an error for another suffix or a missing directory."""
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        suffixes = ", ".join(SUFFIXES)
        raise SteelyardError(f"{path}: pictures are {suffixes}: use one of these suffixes")
    if not path.parent.is_dir():
        raise SteelyardError(f"{path}: there is no directory {path.parent}: make it first")
    return path


def save(figure: Figure, path: Path, counts: Counts) -> Path:
    """Write a picture, with the fingerprint of the counts in its metadata."""
    return write(figure, path, f"counts {fingerprint(counts)}")


def write(figure: Figure, path: Path, stamp: str) -> Path:
    """Write a figure without date and version, so that the same picture gives the same file.

    Args:
        figure: the figure.
        path: the file.
        stamp: a text for the metadata of the file.
    """
    metadata: dict[str, dict[str, Any]] = {
        ".png": {"Software": None, "Description": stamp},
        ".svg": {"Date": None, "Creator": None, "Description": stamp},
        ".pdf": {"CreationDate": None, "ModDate": None, "Subject": stamp},
    }
    suffix = path.suffix.lower()
    picture = io.BytesIO()  # if drawing fails, the file is unchanged
    with style():
        figure.savefig(picture, format=suffix[1:], metadata=metadata[suffix], dpi=200)
    try:
        path.write_bytes(picture.getvalue())
    except OSError as error:
        raise SteelyardError(f"{path}: cannot be written: {error.strerror or error}") from None
    return path


def fingerprint(counts: Counts) -> str:
    """Return the SHA-256 of the counts, for the metadata of a picture."""
    return hashlib.sha256(np.ascontiguousarray(counts, dtype="<i8").tobytes()).hexdigest()


def partition_figure(counts: Counts, title: str = "", groups: Counts | None = None) -> Figure:
    """Return the picture as a matplotlib figure, at most as wide as a printed page.

    Args:
        counts: samples per client and class, `[K, C]`; `federation.label_counts()`.
        title: the title; its first line is bold.
        groups: samples per client and group, `[K, G]`, to colour by; at most eight groups.
    """
    counts = _check_counts(counts)
    if groups is not None:
        limit = len(panels.COLOURS)
        if groups.shape[0] != len(counts) or groups.shape[1] > limit:
            raise SteelyardError(
                f"groups are {list(groups.shape)} for {len(counts)} clients: "
                f"give one row per client, with at most {limit} groups"
            )
    with style():
        return _draw_figure(counts, title, groups)


def _draw_figure(counts: Counts, title: str, groups: Counts | None) -> Figure:
    from matplotlib.figure import Figure

    # The size, in inches.
    clients, classes = counts.shape
    max_clients, max_classes = panels.MAX_BUBBLES
    has_bubbles = clients <= max_clients and classes <= max_classes
    width = min(7.0, max(4.6, 1.6 + 0.2 * clients)) if has_bubbles else 7.0
    row_height = 0.22 if has_bubbles else 0.16
    body_height = min(3.6, max(1.4, row_height * classes))
    heights = {"title": 0.48, "sizes": 0.6, "gap": 0.08, "body": body_height, "foot": 0.76}
    height = sum(heights.values())
    figure = Figure(figsize=(width, height), facecolor=panels.PAPER)

    # The panels: the cells, the sizes of clients above, the legend beside.
    left = 0.62 / width
    right = 1 - 0.95 / width
    base = heights["foot"] / height
    main = figure.add_axes((left, base, right - left, heights["body"] / height))
    sizes_base = base + (heights["body"] + heights["gap"]) / height
    sizes = figure.add_axes(
        (left, sizes_base, right - left, heights["sizes"] / height), sharex=main
    )
    side = figure.add_axes((right + 0.12 / width, base, 0.75 / width, heights["body"] / height))
    if has_bubbles:
        panels.draw_bubbles(main, side, counts, groups)
    else:
        panels.draw_heat(main, side, counts)
    panels.draw_sizes(sizes, counts, groups)

    # Axes, title and summary.
    main.set_xlim(-0.5, clients - 0.5)
    main.set_ylim(-0.5, classes - 0.5)
    main.set_xticks(panels.choose_ticks(clients, 20 if has_bubbles else 10))
    main.set_yticks(panels.choose_ticks(classes, 25 if has_bubbles else 12))
    main.set_xlabel(main.get_xlabel() or "client", labelpad=2)
    main.set_ylabel("class", labelpad=2)
    _add_texts(figure, title, Summary.of(counts))
    if groups is not None:
        panels.draw_legend(sizes, groups)
    return figure


def _add_texts(figure: Figure, title: str, summary: Summary) -> None:
    """Add the title above and the summary below the picture.

    The first line of the title is bold, and small enough to fit.
    """
    width, height = figure.get_size_inches()
    left = 0.1 / width
    grey = "#444444"
    first_line, _, rest = title.partition("\n")
    # A bold letter is at most 0.72 times as wide as the font size.
    fitting_size = 72 * (width - 0.2) / (0.72 * max(1, len(first_line)))
    figure.text(
        left,
        1 - 0.08 / height,
        first_line,
        va="top",
        fontsize=min(9, fitting_size),
        weight="bold",
        parse_math=False,
    )
    figure.text(left, 1 - 0.25 / height, rest, va="top", fontsize=7.5, color=grey, parse_math=False)
    parts = str(summary).split("; ")
    lines = ["; ".join(parts[:2]), "; ".join(parts[2:])]
    figure.text(left, 0.07 / height, "\n".join(lines), va="bottom", fontsize=7.5, color=grey)


def _check_counts(counts: Counts) -> Counts:
    if counts.ndim != 2 or 0 in counts.shape or counts.dtype.kind not in "iu" or counts.min() < 0:
        raise SteelyardError(
            f"counts are {counts.dtype} {list(counts.shape)}: pass whole numbers [clients, classes]"
        )
    return counts


def style() -> Any:
    """Return a context manager with the settings of matplotlib for our pictures."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise SteelyardError('pictures need matplotlib: pip install "steelyard[plot]"') from None
    return matplotlib.rc_context(_STYLE)  # type: ignore[arg-type]
