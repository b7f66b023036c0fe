"""Pictures of who holds what: clients x classes, for the screen and for print.

Up to 40 clients and 25 classes are drawn as bubbles whose area is the number of samples; more as a heat map. Both are
read without telling colours apart, in grey too. Above them are the clients' sizes, below them what is told in numbers.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from steelyard.core.errors import SteelyardError
from steelyard.data.dataset import Federation
from steelyard.report import panels
from steelyard.report.panels import Counts

if TYPE_CHECKING:  # an extra, and slow to load
    from matplotlib.figure import Figure

By = Literal["labels", "groups"]

SUFFIXES = (".png", ".svg", ".pdf")

_STYLE = {
    "font.size": 8.0,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib: the same picture everywhere
    "axes.linewidth": 0.6,
    "axes.edgecolor": "#555555",
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "svg.hashsalt": "steelyard",  # else ids in the file are drawn anew each time
    "svg.fonttype": "none",  # text stays text: small, searched, read aloud
    "pdf.fonttype": 42,  # TrueType: what journals take
}


@dataclass(frozen=True)
class Summary:
    """A partition in numbers.

    Attributes:
        samples: held by all clients together; one that clients share counts for each.
        smallest: samples of the client with fewest.
        median: of clients' sizes.
        largest: samples of the client with most.
        empty: clients without a sample.
        classes: mean number of classes a client holds samples of.
        distance: mean total variation distance between a client's labels and all clients' together: 0 if they are
            alike, near 1 if clients have little in common. Empty clients do not count in the last two.
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
        """From samples per client and class, `[K, C]`."""
        counts = _check_counts(counts)
        sizes = counts.sum(axis=1)
        held = counts[sizes > 0]
        whole = held.sum(axis=0) / max(1, held.sum())
        shares = held / held.sum(axis=1, keepdims=True)
        distance = 0.5 * np.abs(shares - whole).sum(axis=1)
        return cls(
            samples=int(sizes.sum()),
            smallest=int(sizes.min()),
            median=float(np.median(sizes)),
            largest=int(sizes.max()),
            empty=int((sizes == 0).sum()),
            classes=float((held > 0).sum(axis=1).mean()) if len(held) else 0.0,
            distance=float(distance.mean()) if len(held) else 0.0,
        )

    def __str__(self) -> str:
        empty = "none empty" if not self.empty else f"{self.empty} empty"
        return (
            f"{self.samples:,} samples; per client {self.smallest:,} to {self.largest:,}, median {self.median:,.5g}, "
            f"{empty}; {self.classes:.1f} classes per client; mean TV distance of labels {self.distance:.2f}"
        )


def draw(federation: Federation, path: str | Path, title: str = "", by: By = "labels") -> Path:
    """Writes a picture of a federation's clients x classes: PNG, SVG or PDF, by the path's suffix.

    The same federation gives the same bytes under one version of matplotlib.

    Args:
        federation: clients and their data.
        path: where to; what is there is replaced.
        title: above the picture; the data set's name if there is none.
        by: `groups` colours samples by the group they come from.
    """
    path = checked_path(path)
    if by not in ("labels", "groups"):
        raise SteelyardError(f"by={by!r}: use 'labels' or 'groups'")
    counts = federation.label_counts()
    groups = group_counts(federation) if by == "groups" else None
    return save(partition_figure(counts, title or federation.name, groups), path, counts)


def group_counts(federation: Federation) -> Counts:
    """Samples per client and group, `[K, G]`."""
    if federation.train.groups is None:
        raise SteelyardError("by='groups': the data has no groups: give Dataset(..., groups=...), or use by='labels'")
    return federation.group_counts()


def checked_path(path: str | Path) -> Path:
    """A path that a picture can be written to, judging by its name."""
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise SteelyardError(f"{path}: pictures are {', '.join(SUFFIXES)}: give it one of these endings")
    if not path.parent.is_dir():
        raise SteelyardError(f"{path}: there is no directory {path.parent}: make it first")
    return path


def save(figure: Figure, path: Path, counts: Counts) -> Path:
    """Writes a picture of these counts, which its metadata name."""
    return write(figure, path, f"counts {fingerprint(counts)}")


def write(figure: Figure, path: Path, stamp: str) -> Path:
    """Writes a figure without date or version of the day, so that the same picture is the same file."""
    about: dict[str, dict[str, Any]] = {
        ".png": {"Software": None, "Description": stamp},
        ".svg": {"Date": None, "Creator": None, "Description": stamp},
        ".pdf": {"CreationDate": None, "ModDate": None, "Subject": stamp},
    }
    suffix = path.suffix.lower()
    drawn = io.BytesIO()  # a picture that fails leaves the file as it was
    with style():
        figure.savefig(drawn, format=suffix[1:], metadata=about[suffix], dpi=200)
    try:
        path.write_bytes(drawn.getvalue())
    except OSError as error:
        raise SteelyardError(f"{path}: cannot be written: {error.strerror or error}") from None
    return path


def fingerprint(counts: Counts) -> str:
    """What a picture's metadata say it was made of: a SHA-256 of the counts."""
    return hashlib.sha256(np.ascontiguousarray(counts, dtype="<i8").tobytes()).hexdigest()


def partition_figure(counts: Counts, title: str = "", groups: Counts | None = None) -> Figure:
    """The picture as a matplotlib figure, about as wide as a page of print.

    Args:
        counts: samples per client and class, `[K, C]`; `federation.label_counts()`.
        title: above it.
        groups: samples per client and group, `[K, G]`, to colour by; eight groups at most.
    """
    counts = _check_counts(counts)
    if groups is not None and (groups.shape[0] != len(counts) or groups.shape[1] > len(panels.COLOURS)):
        found = f"groups are {list(groups.shape)} for {len(counts)} clients"
        raise SteelyardError(f"{found}: give one row per client, of {len(panels.COLOURS)} groups at most")
    with style():
        return _figure(counts, title, groups)


def _figure(counts: Counts, title: str, groups: Counts | None) -> Figure:
    from matplotlib.figure import Figure

    clients, classes = counts.shape
    bubbles = clients <= panels.MOST_BUBBLES[0] and classes <= panels.MOST_BUBBLES[1]
    body = min(3.6, max(1.4, (0.22 if bubbles else 0.16) * classes))  # inches
    width = min(7.0, max(4.6, 1.6 + 0.2 * clients)) if bubbles else 7.0
    heights = {"title": 0.48, "sizes": 0.6, "gap": 0.08, "body": body, "foot": 0.76}
    height = sum(heights.values())
    figure = Figure(figsize=(width, height), facecolor=panels.PAPER)
    left, right = 0.62 / width, 1 - 0.95 / width
    base = heights["foot"] / height
    main = figure.add_axes((left, base, right - left, heights["body"] / height))
    over = base + (heights["body"] + heights["gap"]) / height
    sizes = figure.add_axes((left, over, right - left, heights["sizes"] / height), sharex=main)
    side = figure.add_axes((right + 0.12 / width, base, 0.75 / width, heights["body"] / height))
    if bubbles:
        panels.bubbles(main, side, counts, groups)
    else:
        panels.heat(main, side, counts)
    panels.sizes(sizes, counts, groups)
    main.set_xlim(-0.5, clients - 0.5)
    main.set_ylim(-0.5, classes - 0.5)
    main.set_xticks(panels.ticks(clients, 20 if bubbles else 10))
    main.set_yticks(panels.ticks(classes, 25 if bubbles else 12))
    main.set_xlabel(main.get_xlabel() or "client", labelpad=2)
    main.set_ylabel("class", labelpad=2)
    _words(figure, title, Summary.of(counts))
    if groups is not None:
        panels.legend(sizes, groups)
    return figure


def _words(figure: Figure, title: str, summary: Summary) -> None:
    """The title, its first line bold and small enough to fit, and the numbers below the picture."""
    width, height = figure.get_size_inches()
    first, _, rest = title.partition("\n")
    fitting = 72 * (width - 0.2) / (0.72 * max(1, len(first)))  # bold letters are 0.72 of their size wide, at most
    left, grey = 0.1 / width, "#444444"
    figure.text(left, 1 - 0.08 / height, first, va="top", fontsize=min(9, fitting), weight="bold", parse_math=False)
    figure.text(left, 1 - 0.25 / height, rest, va="top", fontsize=7.5, color=grey, parse_math=False)
    parts = str(summary).split("; ")
    lines = ["; ".join(parts[:2]), "; ".join(parts[2:])]
    figure.text(left, 0.07 / height, "\n".join(lines), va="bottom", fontsize=7.5, color=grey)


def _check_counts(counts: Counts) -> Counts:
    if counts.ndim != 2 or 0 in counts.shape or counts.dtype.kind not in "iu" or counts.min() < 0:
        raise SteelyardError(f"counts are {counts.dtype} {list(counts.shape)}: give whole numbers [clients, classes]")
    return counts


def style() -> Any:
    """Matplotlib's settings for as long as a picture takes."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise SteelyardError('pictures need matplotlib: pip install "steelyard[plot]"') from None
    return matplotlib.rc_context(_STYLE)  # type: ignore[arg-type]
