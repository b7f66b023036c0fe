"""The tensor loops over all parameters: inner products, norms, weighted sums and projections.

Bits do not depend on the chunk size, the store or the number of threads: work is divided at fixed
positions, each piece is computed by one thread with arithmetic of a fixed shape, and the results of
the pieces are added in order.

float32 rows are multiplied in float32 over short runs of coordinates and added in float64. Spans
that are too short for rounding errors to average out are multiplied in float64, and so are spans
whose squares leave the range of float32.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard import threads

BLOCK = 131072  # coordinates: the unit of reading and of the weighted sum
EXACT = 32768  # spans of at most this length are multiplied in float64, which costs little there
_RUN = 2048  # coordinates whose products are added in float32; the runs are added in float64
# Products of one BLAS call and its multiply-adds: few enough for OpenBLAS's kernels for small
# matrices, which neither copy their operands nor start threads of their own.
_TILE = 1200
_MULTIPLY = 1_000_000
_ALONE = 262144  # multiply-adds up to which every BLAS uses one thread, for all shapes
_SMALL = 1 << 21  # row elements below which threads cost more than they save
_TINY = 1e-24  # smaller squared norms have lost bits to underflow in float32

Span = tuple[int, int]
Part = tuple[int, torch.Tensor]  # the start of a part of a vector, and its values
Floats = NDArray[Any]
Result = TypeVar("Result")


class Rows(Protocol):
    """What the loops read: the coordinates of every row."""

    def scratch(self, length: int) -> torch.Tensor | None:
        """Return a buffer for `rows`; None if `rows` needs no copy."""

    def rows(self, start: int, stop: int, scratch: torch.Tensor | None) -> torch.Tensor:
        """Return the coordinates `start:stop`, `[R, stop - start]`."""


class Piece(NamedTuple):
    """Coordinates `start:stop`, part of the caller's span number `span`."""

    span: int
    start: int
    stop: int


Emit = Callable[[Piece, torch.Tensor], None]


def gram(
    store: Rows, count: int, spans: Sequence[Span], chunk: int | None = None
) -> NDArray[np.float64]:
    """Return the inner products of the rows over each span, float64 `[len(spans), count, count]`.

    Args:
        store: the rows.
        count: number of rows.
        spans: ranges of coordinates.
        chunk: number of coordinates per read; the result has the same bits for any value.
    """
    out = _gram(store, count, spans, chunk, wide=False)
    # Repeat spans in float64 whose squares leave the range of float32.
    repeated = [i for i, span in enumerate(spans) if _leaves_range(store, out[i], span)]
    if repeated:
        out[repeated] = _gram(store, count, [spans[i] for i in repeated], chunk, wide=True)
    return out


def _gram(
    store: Rows, count: int, spans: Sequence[Span], chunk: int | None, wide: bool
) -> NDArray[np.float64]:
    """Return the inner products; with `wide`, all of them in float64."""
    panel = 65536 if count <= 48 else 32768  # coordinates whose products are one term of the sum

    @np.errstate(over="ignore", invalid="ignore")  # overflows are repeated in float64
    def work(pieces: list[Piece], rows: torch.Tensor) -> list[tuple[int, NDArray[np.float64]]]:
        first = pieces[0].start
        terms = []
        for span, start, stop in pieces:
            is_exact = wide or spans[span][1] - spans[span][0] <= EXACT
            for low in range(start, stop, panel):
                part = rows[:, low - first : min(low + panel, stop) - first]
                if is_exact:
                    part = part.double()
                terms.append((span, _upper_products(part.numpy())))
        return terms

    # Add the terms in order, and mirror the upper triangle.
    out = np.zeros((len(spans), count, count))
    for terms in _run(store, spans, work, count, panel, chunk):
        for span, term in terms:
            out[span] += term
    upper = np.triu(out)
    return upper + np.triu(out, 1).transpose(0, 2, 1)


def norms(store: Rows, count: int, dim: int, chunk: int | None = None) -> NDArray[np.float64]:
    """Return the norms of the first `count` rows, float64 `[count]`, in one pass."""
    squares = _squares(store, count, dim, chunk, wide=False)
    # An overflow or underflow in float32, or a row of zeros.
    if not (np.isfinite(squares) & (squares >= _TINY)).all():
        squares = _squares(store, count, dim, chunk, wide=True)
    return np.sqrt(squares)


def _squares(
    store: Rows, count: int, dim: int, chunk: int | None, wide: bool
) -> NDArray[np.float64]:
    """Return the squared norms of the first `count` rows; with `wide`, in float64."""

    @np.errstate(over="ignore", invalid="ignore")
    def work(pieces: list[Piece], rows: torch.Tensor) -> list[NDArray[np.float64]]:
        panel = rows[:count].numpy()
        width = pieces[-1].stop - pieces[0].start
        terms = []
        for low in range(0, width, BLOCK):
            part = panel[:, low : min(low + BLOCK, width)]
            term = np.zeros(count)
            for runs in _runs(part, part.shape[1], _RUN):
                if wide:
                    runs = runs.astype(np.float64)
                squares = np.matmul(
                    runs[:, :, None], runs[..., None]
                )  # [runs, count, 1, 1], each a dot product
                term += squares[..., 0, 0].sum(axis=0, dtype=np.float64)
            terms.append(term)
        return terms

    out = np.zeros(count)
    for terms in _run(store, [(0, dim)], work, count + 1, BLOCK, chunk):
        for term in terms:
            out += term
    return out


def combine(
    store: Rows, count: int, spans: Sequence[Span], emit: Emit, chunk: int | None = None
) -> None:
    """Call `emit(block, rows)` for every block of every span.

    Blocks come in any order, possibly from several threads.

    Args:
        store: the rows.
        count: number of rows.
        spans: ranges of coordinates.
        emit: the function to call.
        chunk: number of coordinates per read.
    """

    def work(pieces: list[Piece], rows: torch.Tensor) -> None:
        first = pieces[0].start
        for span, start, stop in pieces:
            for low in range(start, stop, BLOCK):
                high = min(low + BLOCK, stop)
                emit(Piece(span, low, high), rows[:, low - first : high - first])

    for _ in _run(store, spans, work, count, BLOCK, chunk):
        pass


def project(
    store: Rows, count: int, parts: Sequence[Part], chunk: int | None = None
) -> NDArray[np.float64]:
    """Return the inner products of the rows with one vector, float64 `[count]`.

    Args:
        store: the rows.
        count: number of rows.
        parts: the vector, in parts.
        chunk: number of coordinates per read.
    """
    spans = [(start, start + values.numel()) for start, values in parts]

    @np.errstate(over="ignore", invalid="ignore")  # a product may overflow to infinity or NaN
    def work(pieces: list[Piece], rows: torch.Tensor) -> list[NDArray[np.float64]]:
        first = pieces[0].start
        terms = []
        for span, start, stop in pieces:
            origin = spans[span][0]
            values = parts[span][1].numpy()
            for low in range(start, stop, BLOCK):
                high = min(low + BLOCK, stop)
                panel = rows[:, low - first : high - first].numpy()
                terms.append(_products(panel, values[low - origin : high - origin]))
        return terms

    out = np.zeros(count)
    for terms in _run(store, spans, work, count, BLOCK, chunk):
        for term in terms:
            out += term
    return out


def _products(panel: Floats, vector: Floats) -> NDArray[np.float64]:
    """Return `panel @ vector` for `[R, n]`; short runs of coordinates are added in float64."""
    if vector.dtype == np.float64:
        return np.asarray(panel @ vector, dtype=np.float64)
    out = np.zeros(len(panel))
    full = len(vector) // _RUN * _RUN
    for low in range(0, full, _RUN):
        out += panel[:, low : low + _RUN] @ vector[low : low + _RUN]
    if full < len(vector):
        out = out + panel[:, full:] @ vector[full:]
    return out


def _upper_products(panel: Floats) -> NDArray[np.float64]:
    """Return the upper triangle of `panel @ panel.T` for `[R, n]`, in tiles and short runs."""
    # Small products, and a model without clients.
    count, n = panel.shape
    if n <= _RUN and count * count * n <= _ALONE:
        return np.asarray(panel @ panel.T, dtype=np.float64)
    if count == 1:
        return _products(panel, panel[0])[:, None]

    # Tile by tile.
    tiles, run = _tiles(count)
    out = np.zeros((count, count))
    for runs in _runs(panel, n, run):
        for low, high, left, right in tiles:
            products = np.matmul(runs[:, low:high], runs[:, left:right].transpose(0, 2, 1))
            out[low:high, left:right] += products.sum(axis=0, dtype=np.float64)
    return out


@cache
def _tiles(count: int) -> tuple[list[tuple[int, int, int, int]], int]:
    """Return tiles `(rows low:high, columns left:right)` of the upper triangle, and a run's length.

    No tile has the same rows on both sides: numpy would use BLAS's slower symmetric routine for it.
    """
    tiles = []
    groups = max(2, count // 8)
    for low, high in pairwise(count * i // groups for i in range(groups + 1)):
        first = low if high < count else low - 1
        parts = -(-(count - first) * (high - low) // _TILE)
        edges = [first + (count - first) * i // parts for i in range(parts + 1)]
        tiles += [(low, high, left, right) for left, right in pairwise(edges)]
    largest = max((high - low) * (right - left) for low, high, left, right in tiles)
    return tiles, min(_RUN, max(64, 1 << ((_MULTIPLY // largest).bit_length() - 1)))


def _runs(panel: Floats, n: int, run: int) -> Iterator[Floats]:
    """Yield the panel as runs of coordinates `[runs, R, run]`, and then the rest."""
    full = n // run * run
    if full:
        yield panel[:, :full].reshape(panel.shape[0], full // run, run).transpose(1, 0, 2)
    if full < n:
        yield panel[None, :, full:]


def _leaves_range(store: Rows, product: NDArray[np.float64], span: Span) -> bool:
    """Return whether squares overflowed or underflowed in float32 in this span."""
    # Overflow.
    if span[1] - span[0] <= EXACT:
        return False
    if not np.isfinite(product).all():
        return True

    # Underflow: a row with a very small square that is not zero.
    tiny_rows = [int(k) for k in np.flatnonzero(np.diagonal(product) < _TINY)]
    if not tiny_rows:
        return False
    scratch = store.scratch(BLOCK)
    for start in range(span[0], span[1], BLOCK):
        rows = store.rows(start, min(start + BLOCK, span[1]), scratch)
        if bool(rows[tiny_rows].any()):
            return True
    return False


def _run(
    store: Rows,
    spans: Sequence[Span],
    work: Callable[[list[Piece], torch.Tensor], Result],
    count: int,
    unit: int,
    chunk: int | None,
) -> Iterator[Result]:
    """Divide the spans into tasks, read each task's rows and yield the results of `work` in order.

    Args:
        store: the rows.
        spans: ranges of coordinates.
        work: computes the result of a task from its pieces and rows.
        count: number of rows.
        unit: tasks start at multiples of this number of coordinates within a span.
        chunk: number of coordinates per task; by default that of `task_length`.
    """
    # The length of a task, and a buffer for each thread.
    dim = sum(stop - start for start, stop in spans)
    workers = threads.count()
    length = task_length(count, dim, unit, chunk, streamed=store.scratch(1) is not None)
    buffers: dict[int, torch.Tensor | None] = {}

    def task(pieces: list[Piece]) -> Result:
        thread = threading.get_ident()
        if thread not in buffers:
            buffers[thread] = store.scratch(length)
        return work(pieces, store.rows(pieces[0].start, pieces[-1].stop, buffers[thread]))

    # Run the tasks, in threads if that is worthwhile.
    tasks = _tasks(spans, length)
    if min(workers, len(tasks)) <= 1 or dim * count < _SMALL:
        return map(task, tasks)
    return threads.pool(workers).map(task, tasks)


def task_length(count: int, dim: int, unit: int, chunk: int | None, streamed: bool) -> int:
    """Return the number of coordinates of one task: `chunk`, rounded up to a multiple of `unit`.

    By default there are enough tasks for all threads. If rows are copied into scratch buffers
    (`streamed`), a task also fits into a cache.
    """
    length = dim // (8 * threads.count())
    if streamed:
        length = min(length, (1 << 20) // count)
    length = chunk or length
    return max(1, -(-length // unit)) * unit


def _tasks(spans: Sequence[Span], length: int) -> list[list[Piece]]:
    """Return tasks of at most `length` coordinates: long spans are cut, short neighbours joined."""
    tasks: list[list[Piece]] = []
    for span, (start, stop) in enumerate(spans):
        for low in range(start, stop, length):
            piece = Piece(span, low, min(low + length, stop))
            is_neighbour = bool(tasks) and tasks[-1][-1].stop == piece.start
            if is_neighbour and piece.stop - tasks[-1][0].start <= length:
                tasks[-1].append(piece)
            else:
                tasks.append([piece])
    return tasks
