"""The run directory: configuration, environment, clients, cohorts, log, checkpoints and lock."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch

from steelyard._version import __version__
from steelyard.core._errors import SteelyardError
from steelyard.core._processor import find_processor_name
from steelyard.runs._checkpoint import Checkpoints
from steelyard.runs._files import (
    CLIENTS,
    COHORTS,
    CONFIG,
    ENVIRONMENT,
    FILES,
    GRAMS,
    ROUNDS,
    is_file_of_run,
    parse_record,
    read_bytes,
    read_clients,
    read_cohorts,
    read_config,
    read_environment,
    read_log,
    read_subset,
)
from steelyard.runs._gram_log import GramLog
from steelyard.runs._lock import (
    LOCK,
    DirectoryHandle,
    close_private,
    is_present,
    is_same_file,
    lock,
    open_private,
    remove_lock,
)

__all__ = [
    "CLIENTS",
    "COHORTS",
    "CONFIG",
    "ENVIRONMENT",
    "ROUNDS",
    "RunDirectory",
    "describe_environment",
    "read_clients",
    "read_cohorts",
    "read_config",
    "read_environment",
    "read_log",
    "read_subset",
    "write_json",
    "write_text",
]


class RunDirectory:
    """An open run directory. Only one process has it open at a time."""

    def __init__(self, path: Path, keep: int = 2) -> None:
        self.path = path
        self.is_new = not path.exists()
        self.had_lock = (path / LOCK).exists()
        self.lock = lock(path, "run")
        self.handle = DirectoryHandle(path)
        self.checkpoints = Checkpoints(path / "checkpoints", keep)
        self.has_begun = False
        self.log: int | None = None
        self.log_hash = hashlib.sha256()  # of the log
        self.grams = GramLog(path / GRAMS)

    @property
    def has_run(self) -> bool:
        """Whether the directory holds a run; a `config.json` of another program raises an error."""
        if not is_present(self.path / CONFIG):
            return False
        if not is_file_of_run(self.path, CONFIG):
            raise SteelyardError(
                f"{self.path / CONFIG}: is in the way and is not the configuration of a run, or it "
                f"is damaged: move "
                "it away, or choose another directory (out, --out)"
            )
        return True

    def prepare(self, overwrite: bool = False) -> None:
        """Prepare the directory for a new run.

        The files of an earlier run are removed. Files of other programs raise an error.

        Args:
            overwrite: whether an earlier run may be removed; otherwise only the rest of one that
                had not begun.
        """
        # Look at everything before anything is removed.
        has_run = self.has_run
        is_own = (
            self.checkpoints.path == self.path / "checkpoints"
        )  # not a place that the user chose
        is_ours = has_run or is_file_of_run(self.path, ENVIRONMENT)
        present = [name for name in FILES if is_present(self.path / name)]
        foreign = [
            self.path / name
            for name in present
            if not (is_ours and is_file_of_run(self.path, name))
        ]
        foreign += self.checkpoints.find_obstacles(is_own, is_ours)
        if foreign:
            raise SteelyardError(
                f"{self.path}: cannot be a run directory: {', '.join(map(str, foreign[:5]))} would "
                f"be overwritten, and "
                "was not written by an earlier run here, or is damaged: move it away, or choose "
                "another directory "
                "(out, --out)"
            )
        # What is left of a run without its configuration is a run, too.
        if not overwrite and (has_run or ROUNDS in present or self.checkpoints.has_checkpoints):
            way = f"resume it (steelyard resume {shlex.quote(str(self.path))})"
            raise SteelyardError(
                f"{self.path}: holds a run: {way if has_run else f'restore its {CONFIG}'}, "
                f"choose another directory "
                "(out, --out), or start again (overwrite=True, --overwrite)"
            )
        for name in present:
            (self.path / name).unlink()
        if is_own:
            self.checkpoints.clear()

    def begin(
        self, config: Mapping[str, Any], cohorts: list[list[Any]], clients: Mapping[str, Any] | None
    ) -> None:
        """Write the description of the run, before its first round.

        Args:
            config: the configuration.
            cohorts: the clients of each round.
            clients: the clients, with their sizes and labels; None if they are not known yet.
        """
        if not self.has_run:
            self.prepare()
        self.check()
        write_json(self.path / ENVIRONMENT, describe_environment())
        if clients is not None:
            self.write_clients(clients)
        write_json(self.path / COHORTS, cohorts, compact=True)
        self.checkpoints.open()
        write_json(self.path / CONFIG, config)  # last: a directory with it is a run
        self.has_begun = True

    def write_clients(self, clients: Mapping[str, Any]) -> None:
        """Write the clients, with their sizes and labels."""
        self.check()
        write_json(self.path / CLIENTS, clients, compact=True)

    def check(self) -> None:
        """Raise an error if the directory, its log or its configuration was removed or replaced."""
        if not self.handle.is_unchanged():
            raise SteelyardError(
                f"{self.path}: the run directory was removed or replaced during the run: the run "
                f"stops, and what it "
                "did since its last checkpoint is lost. Restore the directory and resume, or "
                "start again"
            )
        if self.log is not None and not is_same_file(self.path / ROUNDS, self.log):
            raise SteelyardError(
                f"{self.path / ROUNDS}: the log was removed or replaced during the run: the run "
                "stops. Restore the file and resume, or start again (overwrite=True, --overwrite)"
            )
        if self.has_begun and not is_present(self.path / CONFIG):
            raise SteelyardError(
                f"{self.path / CONFIG}: was removed during the run: restore the file and resume"
            )

    @property
    def has_rounds(self) -> bool:
        """Whether the log has rounds."""
        path = self.path / ROUNDS
        return path.is_file() and path.stat().st_size > 0

    def open_log(self, rounds: int, digest: str | None = None) -> list[dict[str, Any]]:
        """Open the log for appending after the first `rounds` lines; later lines are removed.

        Args:
            rounds: the number of lines to keep.
            digest: the SHA-256 of these lines when they were written, if it is known.

        Returns:
            The records in these lines, with the keys of today.
        """
        path = self.path / ROUNDS
        try:
            lines = read_bytes(path).splitlines(keepends=True)[:rounds] if path.exists() else []
            records = [parse_record(line) for line in lines]
            complete = [record["round"] for record in records] == list(range(1, rounds + 1))
        except (OSError, ValueError, KeyError, TypeError):
            complete = False
        if not complete:
            raise SteelyardError(
                f"{path}: lines of rounds 1 to {rounds} are missing or damaged, the run cannot go "
                f"on: start again "
                "(overwrite=True, --overwrite)"
            )
        self.log_hash = hashlib.sha256(b"".join(lines))
        if digest is not None and digest != self.log_hash.hexdigest():
            raise SteelyardError(
                f"{path}: the lines of rounds 1 to {rounds} are not those that were written, the "
                f"run cannot go on: "
                "restore the file, or start again (overwrite=True, --overwrite)"
            )
        try:
            self.log = open_private(path, os.O_WRONLY | os.O_APPEND)
        except OSError as error:
            raise SteelyardError(f"{path}: cannot be written: {error.strerror}") from error
        os.ftruncate(self.log, sum(map(len, lines)))
        return records

    def append(self, record: Mapping[str, Any]) -> None:
        """Append the record of a round to the log."""
        assert self.log is not None
        self.check()
        data = json.dumps(record, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        self.log_hash.update(data)
        try:
            while data:  # the last bytes of a disk are taken without an error
                data = data[os.write(self.log, data) :]
        except OSError as error:
            raise SteelyardError(
                f"{self.path / ROUNDS}: {error.strerror}: make room, then resume"
            ) from error

    @property
    def logs(self) -> list[int]:
        """The handles of the open files to which every round appends."""
        return [handle for handle in (self.log, self.grams.file) if handle is not None]

    @property
    def digest(self) -> str:
        """The SHA-256 of the lines in the log."""
        return self.log_hash.hexdigest()

    def close(self) -> None:
        """Release the lock of the directory."""
        if self.log is not None:
            close_private(self.log)
            self.log = None
        self.grams.close()
        # Leave a directory in which no run began as it was before.
        if self.handle.is_unchanged() and not is_file_of_run(self.path, CONFIG):
            with contextlib.suppress(OSError):
                if self.is_new or not self.had_lock:
                    remove_lock(self.path, self.lock)
                if self.is_new:
                    self.path.rmdir()
        self.handle.close()
        self.checkpoints.close()
        close_private(self.lock)

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def write_json(path: Path, value: Any, compact: bool = False) -> None:
    """Write a JSON file atomically."""
    text = json.dumps(value, separators=(",", ":")) if compact else json.dumps(value, indent=1)
    write_text(path, text + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file atomically: at any time, either the old or the new one exists."""
    hidden = path.with_name(f".{path.name}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    try:
        with os.fdopen(os.open(hidden, flags, 0o644), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(hidden, path)
    except OSError as error:
        raise SteelyardError(f"{path}: cannot be written: {error.strerror or error}") from error


def describe_environment() -> dict[str, Any]:
    """Return what the bits of a run may depend on, besides its configuration."""
    return {
        "steelyard": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "platform": platform.platform(),
        "machine": platform.machine(),
        "processor": find_processor_name(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        # Which kernels numpy's BLAS was told to use.
        "openblas_coretype": os.environ.get("OPENBLAS_CORETYPE", "automatic"),
        "cores": os.cpu_count(),
        "command": [os.path.basename(sys.argv[0]), *sys.argv[1:]],
        "promise": "same machine, versions and configuration: same bits, on any number of workers, resumed or not",
    }
