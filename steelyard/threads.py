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


class _Limit(threading.local):
    """How many threads the loops may use, where that is set: by thread, so that runs side by side do not meet."""

    threads: int | None = None


_limit = _Limit()


@contextmanager
def parallel(threads: int) -> Iterator[None]:
    """Lets the loops use so many threads, whatever torch uses: theirs do not spin when they have nothing to do."""
    before = _limit.threads
    _limit.threads = threads
    try:
        yield
    finally:
        _limit.threads = before


def count() -> int:
    """How many the loops may use."""
    return _limit.threads or torch.get_num_threads()


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


_generator = threading.RLock()  # of torch's own random generator, of which a process has one


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds torch's own generator for this thread to use alone; its state before comes back at the end."""
    with _generator, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


_pools: dict[int, ThreadPoolExecutor] = {}
_lock = threading.Lock()


def _start_in_child() -> None:
    """A forked process has none of the threads, and whatever they held is free."""
    _pools.clear()
    _lock.release()
    _generator.release()


def _release_locks() -> None:
    _lock.release()
    _generator.release()


def _acquire_locks() -> None:
    """Nobody draws random numbers during a fork: the child would find the generator taken for ever."""
    _generator.acquire()
    _lock.acquire()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_acquire_locks, after_in_parent=_release_locks, after_in_child=_start_in_child)


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
