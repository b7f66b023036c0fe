"""Starts and stops the processes of jobs."""

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

PATIENCE = 5.0  # seconds between asking a process to stop and killing it


class Child:
    """A process of `steelyard.experiments.worker`.

    Args:
        order: what to run, as `worker.perform` expects it.
    """

    def __init__(self, order: Mapping[str, Any]) -> None:
        self.name = str(order["name"])
        self.workers = int(order["workers"])
        self.error: str | None = None
        # A file, because a pipe that is not read would fill up. It is closed by wait().
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            # -P: a file in the current directory must not be imported instead of a module
            [sys.executable, "-P", "-m", "steelyard.experiments.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=_environment(),
            process_group=0,  # only the parent handles Ctrl-C
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # the process has failed: wait() says why
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            self.process.stdin.flush()
        self.output = self.process.stdout.fileno()
        self.unfinished_line = b""

    def read_records(self) -> list[dict[str, Any]] | None:
        """Return the new records of rounds, without waiting for more; None at the end."""
        data = os.read(self.output, 1 << 16)
        if not data:
            return None
        *lines, self.unfinished_line = (self.unfinished_line + data).split(b"\n")
        records = [json.loads(line) for line in lines]
        for record in records:
            self.error = record.get("error", self.error)
        return [record for record in records if "error" not in record]

    def wait(self) -> str | None:
        """Wait for the end of the process. Return why it failed; None if it did not."""
        code = self.process.wait()
        self.errors.seek(0)
        error_lines = self.errors.read().decode(errors="replace").strip().splitlines()
        self._close()
        if code == 0:
            return None
        if self.error is not None:
            return self.error
        if code == -signal.SIGKILL:
            return "its process was killed (out of memory? use fewer at a time, --parallel)"
        cause = f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
        message = f"its process was ended {cause}"
        return f"{message}: {error_lines[-1]}" if error_lines else message

    def _close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout, self.errors):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def stop_children(children: Iterable[Child]) -> None:
    """Ask processes to stop, as Ctrl-C does; kill them after a while, or at a second Ctrl-C."""
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
            child.wait()


def _environment() -> dict[str, str]:
    """Return our environment, with the path of this package and one thread per process."""
    path = str(Path(steelyard.__file__).parent.parent)
    if os.environ.get("PYTHONPATH"):
        path += os.pathsep + os.environ["PYTHONPATH"]
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
