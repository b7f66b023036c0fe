"""Number of threads of the tensor loops, their worker threads, and torch's random generator."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Limit(threading.local):
    """The number of threads of the loops, if it is set.

    Per thread, for runs in parallel threads.
    """

    threads: int | None = None


_limit = _Limit()


@contextmanager
def parallel(threads: int) -> Iterator[None]:
    """Set the number of threads of the loops within the context.

    It is independent of torch's own number: unlike torch's, these threads do not spin when idle.
    """
    before = _limit.threads
    _limit.threads = threads
    try:
        yield
    finally:
        _limit.threads = before


def count() -> int:
    """Return the number of threads that the loops may use."""
    return _limit.threads or torch.get_num_threads()


@contextmanager
def alone() -> Iterator[None]:
    """Limit torch to one thread: the bits of a matrix product depend on how it is divided."""
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


_generator = threading.RLock()  # the lock of torch's random generator, one per process


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's generator, for this thread only; its state is restored at the end."""
    with _generator, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


_pools: dict[int, ThreadPoolExecutor] = {}
_lock = threading.Lock()


def _start_in_child() -> None:
    """Reset a forked process: it has none of the worker threads, and no lock is held."""
    _pools.clear()
    _lock.release()
    _generator.release()


def _release_locks() -> None:
    """Release the locks in the parent after a fork."""
    _lock.release()
    _generator.release()


def _acquire_locks() -> None:
    """Acquire the locks before a fork.

    In the child, a lock of another thread would never be released.
    """
    _generator.acquire()
    _lock.acquire()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_acquire_locks, after_in_parent=_release_locks, after_in_child=_start_in_child
    )


def pool(threads: int) -> ThreadPoolExecutor:
    """Return a pool of worker threads, in each of which torch uses one thread."""
    with _lock:
        if threads not in _pools:
            caller = torch.get_num_threads()
            workers = ThreadPoolExecutor(threads, thread_name_prefix="steelyard")
            barrier = threading.Barrier(threads)  # so that every worker runs `begin` exactly once

            def begin() -> None:
                barrier.wait()
                torch.set_num_threads(1)  # holds for the calling thread only

            for future in [workers.submit(begin) for _ in range(threads)]:
                future.result()
            # New threads inherit the last value that was set: restore that of the caller.
            torch.set_num_threads(caller)
            _pools[threads] = workers
        return _pools[threads]
