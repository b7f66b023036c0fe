"""One run in a process of its own: `python -m steelyard.experiments.worker`, started by `run_jobs`.

The run comes as a line of JSON on standard input, which stays open: its end means that the parent is gone. One short
line of JSON per round goes to standard output, and one sentence if the run fails.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import torch

from steelyard.core.errors import SteelyardError
from steelyard.sim.callbacks import Callback
from steelyard.sim.config import Config, validate_config
from steelyard.sim.executors import can_fork
from steelyard.sim.simulate import simulate

if TYPE_CHECKING:
    from steelyard.sim.simulator import Simulation

SHOWN = ("round", "accuracy", "loss")


class _Stream(Callback):
    def __init__(self, channel: IO[str]) -> None:
        self.channel = channel

    def round(self, simulation: Simulation, record: Mapping[str, Any]) -> None:
        say(self.channel, {name: record.get(name) for name in SHOWN})


def say(channel: IO[str], message: Mapping[str, Any]) -> None:
    """One line; a parent that is gone does not listen, and the watching thread will notice."""
    with contextlib.suppress(BrokenPipeError):
        channel.write(json.dumps(message) + "\n")
        channel.flush()


def main() -> int:
    """Reads the order, runs it, and says how it went."""
    order = json.loads(sys.stdin.buffer.readline())
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what models and libraries print must not come between our lines
    threading.Thread(target=_die_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    try:
        return perform(order, channel)
    except KeyboardInterrupt:
        return 130


def perform(order: Mapping[str, Any], channel: IO[str]) -> int:
    """Runs what is ordered; the exit code."""
    try:
        config = validate_config(order["config"], order["name"])
        simulate(
            **config.arguments() | {"executor": _executor(config), "workers": order["workers"]},
            out=Path(order["path"]),
            resume=not order["overwrite"],
            overwrite=order["overwrite"],
            config={"config": config.to_stored()},
            callbacks=[_Stream(channel)],
        )
    except (SteelyardError, OSError) as error:
        say(channel, {"error": str(error)})
        return 1
    except Exception as error:
        say(channel, {"error": f"{type(error).__name__}: {error}"})
        return 1
    return 0


def _executor(config: Config) -> str:
    """Forked workers where they can be had, even a single one: it keeps its memory, which is faster for CNNs."""
    on_cpu = config.device == "cpu" or (config.device == "auto" and not torch.cuda.is_available())
    return "process" if config.executor == "auto" and can_fork() and on_cpu else config.executor


def _die_with_parent() -> None:
    """Waits for the end of standard input. Unbuffered: a lock held here would be waited for when Python ends."""
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
