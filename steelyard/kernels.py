"""The tensor loops: the only code that walks over parameters.

Bits do not depend on the chunk size, the store or the number of threads: work is cut at fixed positions, each piece is
computed by one thread with arithmetic of a fixed shape, and the pieces' results are added in order.

float32 rows are multiplied in float32 over short runs of coordinates and added up in float64. Spans too short for
rounding errors to average out are multiplied in float64, and so is any span whose squares leave float32's range.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

BLOCK = 65536  # coordinates: the unit of reading and of the weighted sum
PANEL = 16384  # coordinates whose products are one term of the Gram's float64 sum
_MULTIPLY = 262144  # multiply-adds of one BLAS call: few enough that BLAS itself stays on one thread
_SMALL = 1 << 21  # row elements below which handing work to threads costs more than it saves
_TINY = 1e-24  # squared norms below this have lost bits to underflow in float32

Span = tuple[int, int]
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
    def work(pieces: list[Piece], rows: torch.Tensor) -> list[tuple[int, NDArray[np.float64]]]:
        first = pieces[0].start
        terms = []
        for span, start, stop in pieces:
            exact = wide or spans[span][1] - spans[span][0] <= PANEL
            for left in range(start, stop, PANEL):
                panel = rows[:, left - first : min(left + PANEL, stop) - first]
                terms.append((span, _products((panel.double() if exact else panel).numpy())))
        return terms

    out = np.zeros((len(spans), count, count))
    for terms in _run(store, spans, work, count, chunk):
        for span, term in terms:
            out[span] += term
    return out


def combine(store: Rows, count: int, spans: Sequence[Span], emit: Emit, chunk: int | None = None) -> None:
    """Calls `emit(block, rows)` for every block of every span, in any order, possibly from several threads."""

    def work(pieces: list[Piece], rows: torch.Tensor) -> None:
        first = pieces[0].start
        for span, start, stop in pieces:
            for left in range(start, stop, BLOCK):
                right = min(left + BLOCK, stop)
                emit(Piece(span, left, right), rows[:, left - first : right - first])

    for _ in _run(store, spans, work, count, chunk):
        pass


def _products(panel: Floats) -> NDArray[np.float64]:
    """`panel @ panel.T` for `[R, n]`, in short runs of coordinates, the upper triangle by groups of rows.

    Groups keep the two factors of different shape: equal ones would send numpy to BLAS's slower symmetric routine.
    """
    count, n = panel.shape
    group = min(10, (count + 1) // 2)
    run = max(64, 1 << ((_MULTIPLY // (group * count)).bit_length() - 1))
    out = np.zeros((count, count))
    for runs in _runs(panel, n, run):
        for low in range(0, count, group):
            high = min(low + group, count)
            start = low if high < count else max(0, low - 1)
            products = np.matmul(runs[:, low:high], runs[:, start:].transpose(0, 2, 1))
            out[low:high, start:] += products.sum(axis=0, dtype=np.float64)
    upper = np.triu(out, 1)
    return upper + upper.T + np.diag(np.diagonal(out))


def _runs(panel: Floats, n: int, run: int) -> Iterator[Floats]:
    full = n // run * run
    if full:
        yield panel[:, :full].reshape(panel.shape[0], full // run, run).transpose(1, 0, 2)
    if full < n:
        yield panel[None, :, full:]


def _left_range(store: Rows, product: NDArray[np.float64], span: Span) -> bool:
    """Whether squares over- or underflowed in float32 here, so that the span must be done again in float64."""
    if span[1] - span[0] <= PANEL:
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
    chunk: int | None,
) -> Iterator[Result]:
    """Cuts the spans into tasks, reads each task's rows and yields the results of `work` in order."""
    dim = sum(stop - start for start, stop in spans)
    threads = torch.get_num_threads()
    length = _task_length(count, dim, threads, chunk)
    buffers: dict[int, torch.Tensor | None] = {}

    def task(pieces: list[Piece]) -> Result:
        thread = threading.get_ident()
        if thread not in buffers:
            buffers[thread] = store.scratch(length)
        return work(pieces, store.rows(pieces[0].start, pieces[-1].stop, buffers[thread]))

    tasks = _tasks(spans, length)
    if min(threads, len(tasks)) <= 1 or dim * count < _SMALL:
        return map(task, tasks)
    return _pool(threads).map(task, tasks)


def _task_length(count: int, dim: int, threads: int, chunk: int | None) -> int:
    """Coordinates per task, in whole blocks: what the caller asked for, or enough tasks to share out evenly."""
    wanted = chunk or min(dim // (8 * threads), (1 << 23) // count)
    return max(1, -(-wanted // BLOCK)) * BLOCK


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


_pools: dict[int, ThreadPoolExecutor] = {}
_lock = threading.Lock()
os.register_at_fork(after_in_child=_pools.clear)


def _pool(threads: int) -> ThreadPoolExecutor:
    """Workers in which torch keeps to one thread each."""
    with _lock:
        if threads not in _pools:
            pool = ThreadPoolExecutor(threads, thread_name_prefix="steelyard")
            barrier = threading.Barrier(threads)  # so that every worker takes exactly one of these

            def alone() -> None:
                barrier.wait()
                torch.set_num_threads(1)  # holds for the calling thread only

            for future in [pool.submit(alone) for _ in range(threads)]:
                future.result()
            torch.set_num_threads(threads)  # threads yet to start inherit the last value set: restore the caller's
            _pools[threads] = pool
        return _pools[threads]
