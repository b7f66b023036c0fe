"""Who does the work: this process, or forked workers.

Tasks are the same, in the same groups, on any executor, and every task is done by one thread:
results have the same bits.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import traceback
import warnings
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, Protocol

from steelyard import threads
from steelyard.core.errors import SteelyardError
from steelyard.sim.buffers import Buffers
from steelyard.sim.group import train_group
from steelyard.sim.work import ClientSlot, SimulationContext

TRAIN, TEST, CLIENTS = range(3)
_STAGES = {
    TRAIN: "training",
    TEST: "evaluation on the test set",
    CLIENTS: "evaluation on clients' data",
}
_DEATHS = 3  # a task that has cost so many workers is not given to another


class Task(NamedTuple):
    """A stage, the round, and its numbers: (client, place, row) triples, a shard, or a range of clients."""

    stage: int
    round: int
    numbers: tuple[int, ...]

    def pack(self) -> bytes:
        """As bytes, for a pipe."""
        return array("q", (self.stage, self.round, *self.numbers)).tobytes()

    @staticmethod
    def unpack(data: bytes) -> Task:
        """From bytes."""
        stage, round, *numbers = array("q", data)
        return Task(stage, round, tuple(numbers))

    def do(self, work: SimulationContext, buffers: Buffers) -> None:
        """Does it, in this process."""
        if self.stage == TRAIN:
            n = self.numbers
            train_group(
                work,
                buffers,
                self.round,
                [ClientSlot(*seat) for seat in zip(n[::3], n[1::3], n[2::3], strict=True)],
            )
        elif self.stage == TEST:
            work.evaluate_test(buffers, self.numbers[0])
        else:
            work.evaluate_clients(buffers, *self.numbers)

    def where(self, work: SimulationContext) -> str:
        """For messages: stage, round and clients."""
        ids = work.federation.ids
        clients = (
            self.numbers[::3]
            if self.stage == TRAIN
            else range(*self.numbers)
            if self.stage == CLIENTS
            else ()
        )
        names = ", ".join(repr(ids[client]) for client in clients)
        return f"round {self.round}, {_STAGES[self.stage]}" + (f", client {names}" if names else "")


class TaskError(SteelyardError):
    """Code of a model, loss or data set failed; the message names stage, round and client."""


class Executor(Protocol):
    """Does tasks, in any order."""

    workers: int

    def run(self, tasks: Sequence[Task], done: Callable[[], None] | None = None) -> None:
        """Returns when all are done; calls `done` after each."""

    def close(self) -> None:
        """Lets go of processes."""


class _BlasLimit:
    """One thread for numpy's BLAS as long as anybody asks for it.

    The limit holds for the whole process.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.limits: Any = None

    def __enter__(self) -> None:
        try:
            from threadpoolctl import threadpool_limits
        except ModuleNotFoundError:
            raise SteelyardError(
                "the simulator needs threadpoolctl: pip install 'steelyard[sim]'"
            ) from None
        with self.lock:
            if not self.users:
                self.limits = threadpool_limits(1, user_api="blas")
            self.users += 1

    def __exit__(self, *error: object) -> None:
        with self.lock:
            self.users -= 1
            if not self.users:
                self.limits.restore_original_limits()


_blas_limit = _BlasLimit()
_hiring = (
    threading.Lock()
)  # a worker of another run that is forked meanwhile would keep the ends of our pipes open
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_blas_limit.lock.acquire,
        after_in_parent=_blas_limit.lock.release,
        after_in_child=_blas_limit.lock.release,
    )


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for torch and for numpy's BLAS, here and now.

    The arithmetic of a worker, in this process.
    """
    with threads.alone(), _blas_limit:
        yield


class Serial:
    """All work in this process, one task after another: slow, and pleasant in a debugger."""

    workers = 1

    def __init__(self, work: SimulationContext, buffers: Buffers) -> None:
        self.work, self.buffers = work, buffers

    def run(self, tasks: Sequence[Task], done: Callable[[], None] | None = None) -> None:
        """Stops at the first error, which names stage, round and client."""
        with one_thread():
            for task in tasks:
                try:
                    task.do(self.work, self.buffers)
                except Exception as error:
                    raise TaskError(
                        f"{task.where(self.work)}: {type(error).__name__}: {error}"
                    ) from error
                if done is not None:
                    done()

    def close(self) -> None:
        """Nothing to let go of."""


class _Worker(NamedTuple):
    process: BaseProcess
    pipe: Connection


class Forked:
    """Workers forked from this process.

    They share its data and its buffers, and are told what to do through pipes.

    A worker that dies is replaced and its task done again: a task only writes to places of its own.
    """

    def __init__(self, work: SimulationContext, buffers: Buffers, workers: int) -> None:
        self.work, self.buffers, self.workers = work, buffers, workers
        self.crew: list[_Worker] = []
        for _ in range(workers):
            self.crew.append(self._start_worker())

    def _start_worker(self) -> _Worker:
        with _hiring:
            return self._fork()

    def _fork(self) -> _Worker:
        parent_end, child_end = Pipe()
        # Pipes of colleagues are closed in the child, so that each worker sees the end of its own
        # when we are gone.
        inherited_pipes = [colleague.pipe for colleague in self.crew] + [parent_end]
        process = get_context("fork").Process(
            target=_run_worker,
            args=(self.work, self.buffers, child_end, inherited_pipes, os.getpid()),
            daemon=True,
        )
        with (
            warnings.catch_warnings()
        ):  # forking beside threads is safe here: a child only computes, on one thread
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        child_end.close()
        return _Worker(process, parent_end)

    def run(self, tasks: Sequence[Task], done: Callable[[], None] | None = None) -> None:
        """Hands tasks out as workers become free.

        Short ones two at a time, so that nobody waits to be told.
        """
        todo = deque((task, 0) for task in tasks)
        in_progress: list[deque[tuple[Task, int]]] = [deque() for _ in range(self.workers)]
        depth = 1 if self.work.dense is None else 2
        while todo or any(in_progress):
            while todo and min(map(len, in_progress)) < depth:
                number = min(range(self.workers), key=lambda one: len(in_progress[one]))
                in_progress[number].append(todo.popleft())
                try:
                    self.crew[number].pipe.send_bytes(in_progress[number][-1][0].pack())
                except OSError:  # it died while idle
                    self._replace(number, in_progress, todo)
            pipes = {
                self.crew[number].pipe: number
                for number in range(self.workers)
                if in_progress[number]
            }
            for pipe in wait(list(pipes)):
                number = pipes[pipe]  # type: ignore[index]
                try:
                    answer = self.crew[number].pipe.recv_bytes()
                except (EOFError, OSError):
                    self._replace(number, in_progress, todo)
                    continue
                task, _ = in_progress[number].popleft()
                if answer:
                    raise TaskError(f"{task.where(self.work)}: {answer.decode(errors='replace')}")
                if done is not None:
                    done()

    def _replace(
        self, number: int, in_progress: list[deque[tuple[Task, int]]], todo: deque[tuple[Task, int]]
    ) -> None:
        """Hires another worker in place of one that died.

        Its tasks go back to the front of the line.
        """
        process, pipe = self.crew[number]
        pipe.close()
        process.join()
        task, deaths = in_progress[
            number
        ].popleft()  # the one it died of; what it had not begun is as good as new
        if deaths + 1 >= _DEATHS:
            raise TaskError(
                f"{task.where(self.work)}: {_DEATHS} workers died here (exit code "
                f"{process.exitcode}); if memory ran "
                "out, use fewer workers; to see the error, use executor=serial"
            )
        self.crew[number] = self._start_worker()
        todo.extendleft(reversed([(task, deaths + 1), *in_progress[number]]))
        in_progress[number].clear()

    def close(self) -> None:
        """Ends the workers."""
        for process, pipe in self.crew:
            pipe.close()
            process.terminate()
        for process, _ in self.crew:
            process.join()
        self.crew = []


def _run_worker(
    work: SimulationContext,
    buffers: Buffers,
    pipe: Connection,
    inherited_pipes: Sequence[Connection],
    parent: int,
) -> None:
    """The life of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _die_with(parent)
    for inherited in inherited_pipes:
        inherited.close()
    _keep_memory()
    with one_thread():
        while True:
            try:
                data = pipe.recv_bytes()
            except (EOFError, OSError):
                return
            try:
                Task.unpack(data).do(work, buffers)
                answer = b""
            except Exception as error:
                last_frame = traceback.extract_tb(error.__traceback__)[-1]
                answer = f"{type(error).__name__}: {error} ({last_frame.filename}:{last_frame.lineno})".encode()
            pipe.send_bytes(answer)


def _die_with(parent: int) -> None:
    """Asks Linux to end this worker when its parent is gone, however that happened."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)


def _keep_memory() -> None:
    """Asks glibc to keep freed memory.

    A network's activations are freed and needed again at every step.

    Without this, large tensors are mapped and zeroed anew each time: up to 1.5 times slower for
    small CNNs.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return  # not glibc
    for option, value in (
        (-3, 1 << 30),
        (-1, (1 << 31) - 1),
        (-2, 64 << 20),
    ):  # M_MMAP_, M_TRIM_THRESHOLD, M_TOP_PAD
        mallopt(option, value)


def can_fork() -> bool:
    """Whether forked workers are sound here: on Linux.

    Elsewhere system libraries do not survive a fork.
    """
    return sys.platform == "linux"
