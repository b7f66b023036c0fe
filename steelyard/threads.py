"""Threads: how many the tensor loops may use, and the workers they run on."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_wanted: int | None = None


@contextmanager
def parallel(threads: int) -> Iterator[None]:
    """Lets the loops use so many threads, whatever torch uses: theirs do not spin when they have nothing to do."""
    global _wanted
    before, _wanted = _wanted, threads
    try:
        yield
    finally:
        _wanted = before


def count() -> int:
    """How many the loops may use."""
    return _wanted or torch.get_num_threads()


@contextmanager
def alone() -> Iterator[None]:
    """Keeps torch to one thread: how a matrix product is shared out is part of its bits."""
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


_pools: dict[int, ThreadPoolExecutor] = {}
_lock = threading.Lock()
os.register_at_fork(after_in_child=_pools.clear)


def pool(threads: int) -> ThreadPoolExecutor:
    """Workers in which torch keeps to one thread each."""
    with _lock:
        if threads not in _pools:
            caller = torch.get_num_threads()
            workers = ThreadPoolExecutor(threads, thread_name_prefix="steelyard")
            barrier = threading.Barrier(threads)  # so that every worker takes exactly one of these

            def begin() -> None:
                barrier.wait()
                torch.set_num_threads(1)  # holds for the calling thread only

            for future in [workers.submit(begin) for _ in range(threads)]:
                future.result()
            torch.set_num_threads(caller)  # threads yet to start inherit the last value set: restore the caller's
            _pools[threads] = workers
        return _pools[threads]
