"""The run directory: configuration, environment, clients, cohorts, a line of JSON per round, checkpoints, a lock."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch

from steelyard._version import __version__
from steelyard.core.errors import SteelyardError
from steelyard.sim.checkpoint import Checkpoints
from steelyard.sim.lock import LOCK, lock

CONFIG, ENVIRONMENT, COHORTS, ROUNDS = "config.json", "environment.json", "cohorts.json", "rounds.jsonl"
CLIENTS = "clients.json"
_OWN = (CONFIG, ENVIRONMENT, CLIENTS, COHORTS, ROUNDS)
_RESOLVED = {"algorithm", "seed", "rounds", "data", "model"}  # what a configuration says of any run


class RunDirectory:
    """An open run directory. Only one process has it open at a time."""

    def __init__(self, path: Path, keep: int = 2) -> None:
        self.path, self.ours = path, not path.exists()
        self.lock = lock(path, "run")
        self.checkpoints = Checkpoints(path / "checkpoints", keep)
        self.log: int | None = None

    @property
    def used(self) -> bool:
        """Whether there is a run in it already."""
        return (self.path / CONFIG).exists()

    def clear(self) -> None:
        """Removes the run in it; files of others stay."""
        for name in _OWN:
            (self.path / name).unlink(missing_ok=True)
        shutil.rmtree(self.checkpoints.path, ignore_errors=True)

    def begin(self, config: Mapping[str, Any], cohorts: list[list[Any]], clients: Mapping[str, Any] | None) -> None:
        """Writes down what the run is, before its first round; who holds what may only be known later."""
        write_json(self.path / ENVIRONMENT, environment())
        if clients is not None:
            self.write_clients(clients)
        write_json(self.path / COHORTS, cohorts, compact=True)
        write_json(self.path / CONFIG, config)  # last: a directory with it is a run

    def write_clients(self, clients: Mapping[str, Any]) -> None:
        """Who holds what."""
        write_json(self.path / CLIENTS, clients, compact=True)

    def open_log(self, rounds: int) -> list[dict[str, Any]]:
        """Opens the log for appending after the first `rounds` lines; later ones, half lines too, are cut off."""
        path = self.path / ROUNDS
        lines = path.read_bytes().splitlines(keepends=True)[:rounds] if path.exists() else []
        try:
            records = [json.loads(line) for line in lines]
            complete = [record["round"] for record in records] == list(range(1, rounds + 1))
        except (ValueError, KeyError, TypeError):
            complete = False
        if not complete:
            raise SteelyardError(
                f"{path}: lines of rounds 1 to {rounds} are missing or damaged, the run cannot go on: start afresh "
                "(overwrite=True, --overwrite)"
            )
        self.log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        os.ftruncate(self.log, sum(map(len, lines)))
        return records

    def append(self, record: Mapping[str, Any]) -> None:
        """One line for one round."""
        assert self.log is not None
        data = json.dumps(record, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        try:
            while data:  # the last bytes of a disk are taken without an error
                data = data[os.write(self.log, data) :]
        except OSError as error:
            raise SteelyardError(f"{self.path / ROUNDS}: {error.strerror}: make room, then resume") from error

    def close(self) -> None:
        """Gives the directory free."""
        if self.log is not None:
            os.close(self.log)
            self.log = None
        if self.ours and not self.used:  # nothing came of it
            with contextlib.suppress(OSError):
                (self.path / LOCK).unlink()
                self.path.rmdir()
        os.close(self.lock)

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_config(path: Path) -> dict[str, Any]:
    """What `begin` wrote into a run directory."""
    if not (path / CONFIG).exists():
        raise SteelyardError(f"{path}: holds no run (no {CONFIG})")
    try:
        config: dict[str, Any] = json.loads((path / CONFIG).read_bytes())
    except ValueError as error:
        raise SteelyardError(f"{path / CONFIG}: not JSON: {error}: leave this directory out, or remove it") from None
    known = isinstance(config, dict) and isinstance(config.get("resolved"), dict) and config["resolved"].keys()
    if not known or not known >= _RESOLVED:
        raise SteelyardError(f"{path / CONFIG}: does not say what was run: leave this directory out, or remove it")
    return config


def read_clients(path: Path) -> dict[str, Any] | None:
    """Who holds what in a run; None for a run from before this was written down."""
    try:
        clients = json.loads((path / CLIENTS).read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise SteelyardError(f"{path / CLIENTS}: not JSON: {error}: resume the run to write it anew") from None
    if not isinstance(clients, dict) or not isinstance(clients.get("ids"), list):
        raise SteelyardError(f"{path / CLIENTS}: names no clients: resume the run to write it anew")
    return clients


def read_cohorts(path: Path) -> list[Any] | None:
    """Whom each round asked; None if that cannot be read."""
    try:
        cohorts = json.loads((path / COHORTS).read_bytes())
    except (OSError, ValueError):
        return None
    return cohorts if isinstance(cohorts, list) else None


def read_log(path: Path) -> list[dict[str, Any]]:
    """The rounds on record; a half line at the end, of a run that was killed, is left out."""
    data = (path / ROUNDS).read_bytes() if (path / ROUNDS).exists() else b""
    records = []
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        try:
            record, why = json.loads(line), "not the record of a round"
        except ValueError as error:
            record, why = None, f"not JSON: {error}"
        if not isinstance(record, dict) or not isinstance(record.get("round"), int):
            raise SteelyardError(
                f"{path / ROUNDS}, line {number}: {why}: leave this directory out, or resume the run if its last "
                "checkpoint is from before"
            )
        records.append(record)
    return records


def write_json(path: Path, value: Any, compact: bool = False) -> None:
    """Writes JSON atomically."""
    text = json.dumps(value, separators=(",", ":")) if compact else json.dumps(value, indent=1)
    write_text(path, text + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes a file atomically: the old one or the new one is there, whatever happens."""
    hidden = path.with_name(f".{path.name}.new")
    with open(hidden, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(hidden, path)


def environment() -> dict[str, Any]:
    """What a run's bits may depend on, beside its configuration."""
    return {
        "steelyard": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "command": [os.path.basename(sys.argv[0]), *sys.argv[1:]],
        "promise": "same machine, versions and configuration: same bits, on any number of workers, resumed or not",
    }
