"""A run in a process of its own, seen from the parent."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import steelyard

PATIENCE = 5.0  # seconds between asking a child to end and ending it


class Child:
    """A started `steelyard.experiments.worker`; `lines()` holds what it has said since the last call."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        self.name, self.workers = str(order["name"]), int(order["workers"])
        self.error: str | None = None
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed at its end; a pipe nobody reads would fill up
        self.process = subprocess.Popen(
            # -P: a file of the user's, here, must not pass for a module of ours
            [sys.executable, "-P", "-m", "steelyard.experiments.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=_environment(),
            process_group=0,  # Ctrl-C is the parent's to handle
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it died at once: its end tells
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            self.process.stdin.flush()
        self.output = self.process.stdout.fileno()
        self.half = b""

    def lines(self) -> list[dict[str, Any]] | None:
        """What it says, without waiting for more than there is; None at the end."""
        data = os.read(self.output, 1 << 16)
        if not data:
            return None
        *whole, self.half = (self.half + data).split(b"\n")
        records = [json.loads(line) for line in whole]
        for record in records:
            self.error = record.get("error", self.error)
        return [record for record in records if "error" not in record]

    def ended(self) -> str | None:
        """Waits for its end; why it failed, or None if it did not."""
        code = self.process.wait()
        self.errors.seek(0)
        last = self.errors.read().decode(errors="replace").strip().splitlines()[-1:]
        self._close()
        if code == 0:
            return None
        if self.error is not None:
            return self.error
        if code == -signal.SIGKILL:
            return "its process was killed (out of memory? use fewer at a time, --parallel)"
        cause = f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
        return f"its process was ended {cause}" + "".join(f": {line}" for line in last)

    def _close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout, self.errors):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def end(children: Iterable[Child]) -> None:
    """Asks all to end, as Ctrl-C would; after a while, or at a second Ctrl-C, makes them."""
    running = list(children)
    for child in running:
        child.process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + PATIENCE
    try:
        for child in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(max(0.0, deadline - time.monotonic()))
    finally:
        for child in running:
            child.process.kill()
            child.ended()


def _environment() -> dict[str, str]:
    """Ours, with this very package, and one thread for every library that asks."""
    home = str(Path(steelyard.__file__).parent.parent)
    path = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
