"""The tensor loops: the only code that walks over parameters.

Bits do not depend on the chunk size, the store or the number of threads: work is cut at fixed positions, each piece is
computed by one thread with arithmetic of a fixed shape, and the pieces' results are added in order.

float32 rows are multiplied in float32 over short runs of coordinates and added up in float64. Spans too short for
rounding errors to average out are multiplied in float64, and so is any span whose squares leave float32's range.
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
EXACT = 32768  # spans of up to so many coordinates are multiplied in float64: it costs next to nothing there
_RUN = 2048  # coordinates multiplied in float32 before float64 takes over the sum
_TILE = 1200  # products of one BLAS call, and its multiply-adds: few enough for OpenBLAS's kernels for small matrices,
_MULTIPLY = 1_000_000  # which neither copy their operands nor start threads of their own
_ALONE = 262144  # multiply-adds up to which every BLAS stays on one thread whatever the shapes
_SMALL = 1 << 21  # row elements below which handing work to threads costs more than it saves
_TINY = 1e-24  # squared norms below this have lost bits to underflow in float32

Span = tuple[int, int]
Part = tuple[int, torch.Tensor]  # where a stretch of a vector begins, and its values
Floats = NDArray[Any]
Result = TypeVar("Result")


class Rows(Protocol):
    """What the loops read: coordinates of every row, possibly brought into a scratch buffer."""

    def scratch(self, length: int) -> torch.Tensor | None:
        """A buffer for `rows`, or None if they are served in place."""

    def rows(self, start: int, stop: int, scratch: torch.Tensor | None) -> torch.Tensor:
        """Coordinates `start:stop`, `[R, stop - start]`."""


class Piece(NamedTuple):
    """Coordinates `start:stop`, part of the caller's span number `span`."""

    span: int
    start: int
    stop: int


Emit = Callable[[Piece, torch.Tensor], None]


def gram(store: Rows, count: int, spans: Sequence[Span], chunk: int | None = None) -> NDArray[np.float64]:
    """Inner products of the `count` rows over each span, float64 `[len(spans), count, count]`."""
    out = _gram(store, count, spans, chunk, wide=False)
    again = [i for i, span in enumerate(spans) if _left_range(store, out[i], span)]
    if again:
        out[again] = _gram(store, count, [spans[i] for i in again], chunk, wide=True)
    return out


def _gram(store: Rows, count: int, spans: Sequence[Span], chunk: int | None, wide: bool) -> NDArray[np.float64]:
    panel = 65536 if count <= 48 else 32768  # coordinates whose products are one term of the sum

    @np.errstate(over="ignore", invalid="ignore")  # what leaves float32's range is done again in float64
    def work(pieces: list[Piece], rows: torch.Tensor) -> list[tuple[int, NDArray[np.float64]]]:
        first = pieces[0].start
        terms = []
        for span, start, stop in pieces:
            exact = wide or spans[span][1] - spans[span][0] <= EXACT
            for left in range(start, stop, panel):
                part = rows[:, left - first : min(left + panel, stop) - first]
                terms.append((span, _upper_products((part.double() if exact else part).numpy())))
        return terms

    out = np.zeros((len(spans), count, count))
    for terms in _run(store, spans, work, count, panel, chunk):
        for span, term in terms:
            out[span] += term
    upper = np.triu(out)
    return upper + np.triu(out, 1).transpose(0, 2, 1)


def norms(store: Rows, count: int, dim: int, chunk: int | None = None) -> NDArray[np.float64]:
    """Lengths of the first `count` rows, float64 `[count]`: one pass, at the speed of reading."""
    squares = _squares(store, count, dim, chunk, wide=False)
    if not (np.isfinite(squares) & (squares >= _TINY)).all():  # over- or underflowed in float32, or really zero
        squares = _squares(store, count, dim, chunk, wide=True)
    return np.sqrt(squares)


def _squares(store: Rows, count: int, dim: int, chunk: int | None, wide: bool) -> NDArray[np.float64]:
    @np.errstate(over="ignore", invalid="ignore")
    def work(pieces: list[Piece], rows: torch.Tensor) -> list[NDArray[np.float64]]:
        panel, width = rows[:count].numpy(), pieces[-1].stop - pieces[0].start
        terms = []
        for left in range(0, width, BLOCK):
            part = panel[:, left : min(left + BLOCK, width)]
            term = np.zeros(count)
            for runs in _runs(part, part.shape[1], _RUN):
                runs = runs.astype(np.float64) if wide else runs
                squares = np.matmul(runs[:, :, None], runs[..., None])  # [runs, count, 1, 1], each a dot product
                term += squares[..., 0, 0].sum(axis=0, dtype=np.float64)
            terms.append(term)
        return terms

    out = np.zeros(count)
    for terms in _run(store, [(0, dim)], work, count + 1, BLOCK, chunk):
        for term in terms:
            out += term
    return out


def combine(store: Rows, count: int, spans: Sequence[Span], emit: Emit, chunk: int | None = None) -> None:
    """Calls `emit(block, rows)` for every block of every span, in any order, possibly from several threads."""

    def work(pieces: list[Piece], rows: torch.Tensor) -> None:
        first = pieces[0].start
        for span, start, stop in pieces:
            for left in range(start, stop, BLOCK):
                right = min(left + BLOCK, stop)
                emit(Piece(span, left, right), rows[:, left - first : right - first])

    for _ in _run(store, spans, work, count, BLOCK, chunk):
        pass


def project(store: Rows, count: int, parts: Sequence[Part], chunk: int | None = None) -> NDArray[np.float64]:
    """Inner products of the `count` rows with one vector given in parts, float64 `[count]`."""
    spans = [(start, start + values.numel()) for start, values in parts]

    @np.errstate(over="ignore", invalid="ignore")  # a product that leaves float32's range is infinite, or NaN
    def work(pieces: list[Piece], rows: torch.Tensor) -> list[NDArray[np.float64]]:
        first, terms = pieces[0].start, []
        for span, start, stop in pieces:
            origin, values = spans[span][0], parts[span][1].numpy()
            for left in range(start, stop, BLOCK):
                right = min(left + BLOCK, stop)
                terms.append(
                    _products(rows[:, left - first : right - first].numpy(), values[left - origin : right - origin])
                )
        return terms

    out = np.zeros(count)
    for terms in _run(store, spans, work, count, BLOCK, chunk):
        for term in terms:
            out += term
    return out


def _products(panel: Floats, vector: Floats) -> NDArray[np.float64]:
    """`panel @ vector` for `[R, n]`, added up in float64 over short runs of coordinates."""
    if vector.dtype == np.float64:
        return np.asarray(panel @ vector, dtype=np.float64)
    out = np.zeros(len(panel))
    full = len(vector) // _RUN * _RUN
    for low in range(0, full, _RUN):
        out += panel[:, low : low + _RUN] @ vector[low : low + _RUN]
    return out + panel[:, full:] @ vector[full:] if full < len(vector) else out


def _upper_products(panel: Floats) -> NDArray[np.float64]:
    """The upper triangle of `panel @ panel.T` for `[R, n]`, tile by tile, in short runs of coordinates."""
    count, n = panel.shape
    if n <= _RUN and count * count * n <= _ALONE:
        return np.asarray(panel @ panel.T, dtype=np.float64)
    if count == 1:  # a model without clients: there is nothing to tile
        return _products(panel, panel[0])[:, None]
    tiles, run = _tiles(count)
    out = np.zeros((count, count))
    for runs in _runs(panel, n, run):
        for low, high, left, right in tiles:
            products = np.matmul(runs[:, low:high], runs[:, left:right].transpose(0, 2, 1))
            out[low:high, left:right] += products.sum(axis=0, dtype=np.float64)
    return out


@cache
def _tiles(count: int) -> tuple[list[tuple[int, int, int, int]], int]:
    """Tiles `(rows low:high, columns left:right)` that cover the upper triangle, and the length of a run.

    No tile has the same rows on both sides: numpy would send that one to BLAS's slower symmetric routine.
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
    full = n // run * run
    if full:
        yield panel[:, :full].reshape(panel.shape[0], full // run, run).transpose(1, 0, 2)
    if full < n:
        yield panel[None, :, full:]


def _left_range(store: Rows, product: NDArray[np.float64], span: Span) -> bool:
    """Whether squares over- or underflowed in float32 here, so that the span must be done again in float64."""
    if span[1] - span[0] <= EXACT:
        return False
    if not np.isfinite(product).all():
        return True
    faint = [int(k) for k in np.flatnonzero(np.diagonal(product) < _TINY)]
    scratch = store.scratch(BLOCK) if faint else None
    return any(
        bool(store.rows(start, min(start + BLOCK, span[1]), scratch)[faint].any())
        for start in range(span[0], span[1] if faint else span[0], BLOCK)
    )


def _run(
    store: Rows,
    spans: Sequence[Span],
    work: Callable[[list[Piece], torch.Tensor], Result],
    count: int,
    unit: int,
    chunk: int | None,
) -> Iterator[Result]:
    """Cuts the spans into tasks, reads each task's rows and yields the results of `work` in order."""
    dim = sum(stop - start for start, stop in spans)
    workers = threads.count()
    length = task_length(count, dim, unit, chunk, streamed=store.scratch(1) is not None)
    buffers: dict[int, torch.Tensor | None] = {}

    def task(pieces: list[Piece]) -> Result:
        thread = threading.get_ident()
        if thread not in buffers:
            buffers[thread] = store.scratch(length)
        return work(pieces, store.rows(pieces[0].start, pieces[-1].stop, buffers[thread]))

    tasks = _tasks(spans, length)
    if min(workers, len(tasks)) <= 1 or dim * count < _SMALL:
        return map(task, tasks)
    return threads.pool(workers).map(task, tasks)


def task_length(count: int, dim: int, unit: int, chunk: int | None, streamed: bool) -> int:
    """Coordinates of one task: `chunk`, rounded up to whole units.

    By default, enough tasks to share out evenly; where rows come into scratch buffers, little enough for a cache.
    """
    share = dim // (8 * threads.count())
    wanted = chunk or (min(share, (1 << 20) // count) if streamed else share)
    return max(1, -(-wanted // unit)) * unit


def _tasks(spans: Sequence[Span], length: int) -> list[list[Piece]]:
    """Long spans cut, short neighbours gathered, into tasks of at most `length` coordinates."""
    tasks: list[list[Piece]] = []
    for span, (start, stop) in enumerate(spans):
        for left in range(start, stop, length):
            piece = Piece(span, left, min(left + length, stop))
            if tasks and tasks[-1][-1].stop == piece.start and piece.stop - tasks[-1][0].start <= length:
                tasks[-1].append(piece)
            else:
                tasks.append([piece])
    return tasks
