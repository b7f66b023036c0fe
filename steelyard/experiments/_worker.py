"""Does runs, one after another, in a process of its own: `python -m steelyard.experiments._worker`.

`run_jobs` starts it. The process reads its orders from standard input, one line of JSON each. If
the input closes, it exits: the parent has ended, or has no more orders. The process writes one line
of JSON per round to standard output, one with an error message if a run fails, and one with the
exit code at the end of a run.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import torch

from steelyard.core._errors import SteelyardError
from steelyard.sim._callbacks import Callback
from steelyard.sim._executors import can_fork
from steelyard.sim._experiment import Execution, Experiment
from steelyard.sim._simulate import simulate

if TYPE_CHECKING:
    from steelyard.sim._simulator import Simulation

REPORTED = ("round", "accuracy", "loss")


class _Reporter(Callback):
    """Sends a short record of every round to the parent."""

    def __init__(self, channel: IO[str]) -> None:
        self.channel = channel

    def round(self, simulation: Simulation, record: Mapping[str, Any]) -> None:
        send(self.channel, {name: record.get(name) for name in REPORTED})


def send(channel: IO[str], message: Mapping[str, Any]) -> None:
    """Write a message as one line.

    If the parent has ended, nothing is written; the thread of `_Orders` ends the process.
    """
    with contextlib.suppress(BrokenPipeError):
        channel.write(json.dumps(message) + "\n")
        channel.flush()


def main() -> int:
    """Perform all orders; return the exit code of the last."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # Texts that models and libraries print go to standard error: our lines are for the parent only.
    os.dup2(2, 1)
    torch.set_num_threads(1)
    orders = _Orders()
    code = 0
    try:
        while (order := orders.wait()) is not None:
            code = perform(order, channel)
            orders.is_busy = False
            send(channel, {"end": code})
    except KeyboardInterrupt:
        return 130
    return code


class _Orders:
    """The orders of the parent, read in a thread that notices if the parent ends.

    Attributes:
        is_busy: whether an order is being performed. If the input closes meanwhile, the process
            exits at once.
    """

    def __init__(self) -> None:
        self.is_busy = False
        self._queue: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def wait(self) -> dict[str, Any] | None:
        """Return the next order; None if there are no more."""
        order = self._queue.get()
        self.is_busy = order is not None
        return order

    def _read(self) -> None:
        """Read orders until standard input closes.

        The input is read without a buffer: Python would wait for the lock of a buffer when it
        exits.
        """
        text = b""
        while data := os.read(0, 1 << 16):
            *lines, text = (text + data).split(b"\n")
            for line in lines:
                self._queue.put(json.loads(line))
        if self.is_busy or not self._queue.empty():
            os._exit(1)
        self._queue.put(None)


def perform(order: Mapping[str, Any], channel: IO[str]) -> int:
    """Do a run and return the exit code.

    Args:
        order: `name`, `path`, `config`, `workers` and `overwrite` of the run.
        channel: where to report rounds and errors.
    """
    try:
        experiment = Experiment.from_dict(order["config"], order["name"])
        executor = _choose_executor(experiment.execution)
        execution = replace(experiment.execution, executor=executor, workers=order["workers"])
        simulate(
            replace(experiment, execution=execution),
            out=Path(order["path"]),
            resume=not order["overwrite"],
            overwrite=order["overwrite"],
            callbacks=[_Reporter(channel)],
        )
    except (SteelyardError, OSError) as error:
        send(channel, {"error": str(error)})
        return 1
    except Exception as error:
        send(channel, {"error": f"{type(error).__name__}: {error}"})
        return 1
    return 0


def _choose_executor(execution: Execution) -> str:
    """Return `process` for `auto` where possible.

    Even a single forked worker is faster for CNNs, because it keeps its memory.
    """
    on_cpu = execution.device == "cpu" or (
        execution.device == "auto" and not torch.cuda.is_available()
    )
    if execution.executor == "auto" and on_cpu and can_fork():
        return "process"
    return execution.executor


if __name__ == "__main__":
    sys.exit(main())
