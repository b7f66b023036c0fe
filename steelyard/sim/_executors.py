"""Executors: tasks run in this process, or in forked workers.

Every executor runs the same tasks, in the same groups, and each task on one thread. The results
have the same bits.
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, Protocol

from steelyard import threads
from steelyard.core._errors import SteelyardError
from steelyard.sim._buffers import Buffers
from steelyard.sim._group import train_group
from steelyard.sim._work import ClientSlot, SimulationContext

TRAIN, TEST, CLIENTS, TRAINED = range(4)
_STAGES = {
    TRAIN: "training",
    TEST: "evaluation on the test set",
    CLIENTS: "evaluation on clients' data",
    TRAINED: "evaluation on clients' training samples",
}
_MAX_DEATHS = 3  # a task that ended this many workers is not given to another one


class Task(NamedTuple):
    """One piece of work of a round.

    Attributes:
        stage: `TRAIN`, `TEST`, `CLIENTS` or `TRAINED`.
        round: the round.
        numbers: the fields of every `ClientSlot` in a row; the number of a shard of the test set;
            or the first client and the one after the last.
    """

    stage: int
    round: int
    numbers: tuple[int, ...]

    def pack(self) -> bytes:
        """Return the task as bytes, for a pipe."""
        return array("q", (self.stage, self.round, *self.numbers)).tobytes()

    @staticmethod
    def unpack(data: bytes) -> Task:
        """Return the task that `pack` made these bytes of."""
        stage, round, *numbers = array("q", data)
        return Task(stage, round, tuple(numbers))

    def run(self, work: SimulationContext, buffers: Buffers) -> None:
        """Run the task in this process."""
        if self.stage == TRAIN:
            numbers = iter(self.numbers)
            slots = [ClientSlot(*triple) for triple in zip(numbers, numbers, numbers, strict=True)]
            train_group(work, buffers, self.round, slots)
        elif self.stage == TEST:
            work.evaluate_test(buffers, self.numbers[0])
        elif self.stage == CLIENTS:
            work.evaluate_clients(buffers, *self.numbers)
        else:
            work.evaluate_training(buffers, *self.numbers)

    def describe(self, work: SimulationContext) -> str:
        """Return the round, the stage and the clients, for messages."""
        description = f"round {self.round}, {_STAGES[self.stage]}"
        clients: Iterable[int] = ()
        if self.stage == TRAIN:
            clients = self.numbers[::3]
        elif self.stage in (CLIENTS, TRAINED):
            clients = range(*self.numbers)
        names = ", ".join(repr(work.federation.ids[client]) for client in clients)
        return f"{description}, client {names}" if names else description


class TaskError(SteelyardError):
    """Code of a model, loss or data set failed; the message names stage, round and client."""


class Executor(Protocol):
    """Runs tasks, in any order."""

    workers: int

    def run(self, tasks: Sequence[Task], on_done: Callable[[], None] | None = None) -> None:
        """Run all tasks; call `on_done` after each."""

    def close(self) -> None:
        """End the processes, if there are any."""


class _BlasLimit:
    """Limits numpy's BLAS to one thread while at least one user is inside.

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
# A worker of another run that is forked at the same time would keep the ends of our pipes open.
_fork_lock = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_blas_limit.lock.acquire,
        after_in_parent=_blas_limit.lock.release,
        after_in_child=_blas_limit.lock.release,
    )


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch and numpy's BLAS to one thread, as in a worker."""
    with threads.alone(), _blas_limit:
        yield


class Serial:
    """Runs all tasks in this process, one after another: slow, but easy to debug."""

    workers = 1

    def __init__(self, work: SimulationContext, buffers: Buffers) -> None:
        self.work = work
        self.buffers = buffers

    def run(self, tasks: Sequence[Task], on_done: Callable[[], None] | None = None) -> None:
        """Run all tasks; raise the first error with its stage, round and client."""
        with one_thread():
            for task in tasks:
                try:
                    task.run(self.work, self.buffers)
                except Exception as error:
                    raise TaskError(
                        f"{task.describe(self.work)}: {type(error).__name__}: {error}"
                    ) from error
                if on_done is not None:
                    on_done()

    def close(self) -> None:
        """Do nothing: there are no processes."""


class _Worker(NamedTuple):
    process: BaseProcess
    pipe: Connection


class Forked:
    """Workers forked from this process.

    They share its data and its buffers, and receive tasks through pipes. A worker that dies is
    replaced and its task runs again, which is safe because a task only writes to its own rows.
    """

    def __init__(self, work: SimulationContext, buffers: Buffers, workers: int) -> None:
        self.work = work
        self.buffers = buffers
        self.workers = workers
        self.all_workers: list[_Worker] = []
        for _ in range(workers):
            self.all_workers.append(self._start_worker())

    def _start_worker(self) -> _Worker:
        with _fork_lock:
            return self._fork()

    def _fork(self) -> _Worker:
        parent_end, child_end = Pipe()
        # The child closes the pipes of other workers, so that each worker notices when this process
        # ends.
        inherited_pipes = [worker.pipe for worker in self.all_workers] + [parent_end]
        process = get_context("fork").Process(
            target=_run_worker,
            args=(self.work, self.buffers, child_end, inherited_pipes, os.getpid()),
            daemon=True,
        )
        # Forking beside threads is safe here: a child only computes, on one thread.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        child_end.close()
        return _Worker(process, parent_end)

    def run(self, tasks: Sequence[Task], on_done: Callable[[], None] | None = None) -> None:
        """Give tasks to workers as they become free.

        A worker of short tasks has two of them, so that it does not wait for the next.
        """
        todo = deque((task, 0) for task in tasks)
        in_progress: list[deque[tuple[Task, int]]] = [deque() for _ in range(self.workers)]
        depth = 1 if self.work.dense is None else 2
        while todo or any(in_progress):
            # Give tasks to the workers with the fewest.
            while todo and min(map(len, in_progress)) < depth:
                number = min(range(self.workers), key=lambda worker: len(in_progress[worker]))
                in_progress[number].append(todo.popleft())
                try:
                    self.all_workers[number].pipe.send_bytes(in_progress[number][-1][0].pack())
                except OSError:  # it died while idle
                    self._replace_worker(number, in_progress, todo)
            # Wait for answers.
            pipes = {
                self.all_workers[number].pipe: number
                for number in range(self.workers)
                if in_progress[number]
            }
            for pipe in wait(list(pipes)):
                number = pipes[pipe]  # type: ignore[index]
                try:
                    answer = self.all_workers[number].pipe.recv_bytes()
                except (EOFError, OSError):
                    self._replace_worker(number, in_progress, todo)
                    continue
                task, _ = in_progress[number].popleft()
                if answer:
                    raise TaskError(
                        f"{task.describe(self.work)}: {answer.decode(errors='replace')}"
                    )
                if on_done is not None:
                    on_done()

    def _replace_worker(
        self, number: int, in_progress: list[deque[tuple[Task, int]]], todo: deque[tuple[Task, int]]
    ) -> None:
        """Start another worker for one that died; its tasks are the next to be given out."""
        process, pipe = self.all_workers[number]
        pipe.close()
        process.join()
        task, deaths = in_progress[
            number
        ].popleft()  # the one it died of; what it had not begun is as good as new
        if deaths + 1 >= _MAX_DEATHS:
            raise TaskError(
                f"{task.describe(self.work)}: {_MAX_DEATHS} workers died here (exit code "
                f"{process.exitcode}): use fewer workers if memory ran out, or executor=serial to see "
                "the error"
            )
        self.all_workers[number] = self._start_worker()
        todo.extendleft(reversed([(task, deaths + 1), *in_progress[number]]))
        in_progress[number].clear()

    def close(self) -> None:
        """End the workers."""
        for process, pipe in self.all_workers:
            pipe.close()
            process.terminate()
        for process, _ in self.all_workers:
            process.join()
        self.all_workers = []


def _run_worker(
    work: SimulationContext,
    buffers: Buffers,
    pipe: Connection,
    inherited_pipes: Sequence[Connection],
    parent: int,
) -> None:
    """Run tasks from the pipe until it closes; this is all that a worker process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _exit_with_parent(parent)
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
                Task.unpack(data).run(work, buffers)
                answer = b""
            except Exception as error:
                last_frame = traceback.extract_tb(error.__traceback__)[-1]
                source = f"{last_frame.filename}:{last_frame.lineno}"
                answer = f"{type(error).__name__}: {error} ({source})".encode()
            pipe.send_bytes(answer)


def _exit_with_parent(parent: int) -> None:
    """Ask Linux to end this worker when its parent ends, for whatever reason."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)


def _keep_memory() -> None:
    """Ask glibc to keep freed memory, because every step needs the same activations again.

    Otherwise large tensors are mapped and zeroed at every step, which makes small CNNs up to 1.5
    times slower.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return  # not glibc
    mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
    mallopt(-1, (1 << 31) - 1)  # M_TRIM_THRESHOLD
    mallopt(-2, 64 << 20)  # M_TOP_PAD


def can_fork() -> bool:
    """Return whether workers can be forked: only on Linux do system libraries survive a fork."""
    return sys.platform == "linux"
