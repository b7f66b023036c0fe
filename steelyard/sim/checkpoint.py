"""Checkpoints: complete or not there at all, verified before they are believed.

    checkpoints/round-000012/model.safetensors   the global model, for anyone to load
                             state.safetensors   everything else a run needs to go on
                             manifest.json       round, identity of the run, size and SHA-256 of the files
    checkpoints/best-000010/                     the best model so far, without the state
    checkpoints/last, checkpoints/best           links to these

A checkpoint is written to a hidden directory, synced, and renamed. The truth is the newest directory whose manifest
verifies; the links are for people.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from steelyard.core.errors import SteelyardError
from steelyard.core.state import load_state, save_state

SCHEMA = 1
MODEL, STATE, MANIFEST = "model.safetensors", "state.safetensors", "manifest.json"


class CheckpointError(SteelyardError):
    """A checkpoint could not be written; the ones before it are intact."""


@dataclass(frozen=True)
class Snapshot:
    """A run between two rounds, in memory of its own; without a state, only its model."""

    round: int
    model: Mapping[str, torch.Tensor]
    state: Mapping[str, Any] | None
    identity: str

    @property
    def name(self) -> str:
        """Of its directory."""
        return f"{'best' if self.state is None else 'round'}-{self.round:06d}"


class Checkpoints:
    """The directory of a run's checkpoints."""

    def __init__(self, path: Path, keep: int = 2) -> None:
        self.path, self.keep = path, keep

    def save(self, snapshot: Snapshot, log: int | None = None) -> None:
        """Writes a checkpoint, points a link to it and removes those nobody needs; syncs the handle `log` first."""
        name = snapshot.name
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            hidden = Path(tempfile.mkdtemp(dir=self.path, prefix=f".{name}."))
            try:
                self._fill(hidden, snapshot)
                if log is not None:
                    os.fsync(log)  # the rounds up to here are on record before the checkpoint that says so
                self._publish(hidden, name)
            finally:
                shutil.rmtree(hidden, ignore_errors=True)
            self._link("best" if snapshot.state is None else "last", name)
            self._prune()
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"checkpoint of round {snapshot.round} in {self.path}: {getattr(error, 'strerror', None) or error}; "
                "earlier checkpoints are intact: make room, then resume"
            ) from error

    def _fill(self, directory: Path, snapshot: Snapshot) -> None:
        tied = {id(tensor): tensor for tensor in snapshot.model.values()}
        shared = len(tied) < len(snapshot.model)  # the format refuses shared memory: store copies
        model = {n: t.clone() if shared else t for n, t in snapshot.model.items()}
        # One entry only: safetensors writes several in an order that differs from run to run.
        save_file(model, directory / MODEL, metadata={"format": "pt"})
        if snapshot.state is not None:
            save_state(directory / STATE, snapshot.state)
        files = {}
        for name in [MODEL] if snapshot.state is None else [MODEL, STATE]:
            data = (directory / name).read_bytes()
            files[name] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
        manifest = {"schema": SCHEMA, "round": snapshot.round, "run": snapshot.identity, "files": files}
        manifest["sha256"] = _seal(manifest)
        (directory / MANIFEST).write_text(json.dumps(manifest, indent=1))
        for name in [*files, MANIFEST]:
            _sync(directory / name)
        _sync(directory)

    def _publish(self, hidden: Path, name: str) -> None:
        final = self.path / name
        if final.exists():  # a resumed run passes through rounds it has been in before
            shutil.rmtree(final)
        os.chmod(hidden, 0o755)
        os.rename(hidden, final)
        _sync(self.path)

    def _link(self, link: str, name: str) -> None:
        hidden = self.path / f".{link}.new"
        with contextlib.suppress(FileNotFoundError):
            hidden.unlink()
        hidden.symlink_to(name)
        os.replace(hidden, self.path / link)

    def _prune(self) -> None:
        best = self.path / "best"
        chosen = os.readlink(best) if best.is_symlink() else None
        for path in [*self._all()[self.keep :], *(path for path in self.path.glob("best-*") if path.name != chosen)]:
            shutil.rmtree(path)

    def _all(self) -> list[Path]:
        """All checkpoints, newest first."""
        return sorted(self.path.glob("round-*"), reverse=True)

    def newest(self, identity: str | None) -> tuple[Snapshot | None, list[str]]:
        """The newest checkpoint that verifies, and why newer ones do not.

        Damaged ones are set aside under another name, half-written ones removed.
        """
        refused = []
        for leftover in self.path.glob(".*"):
            shutil.rmtree(leftover, ignore_errors=True) if leftover.is_dir() else leftover.unlink()
        for path in self._all():
            try:
                snapshot = verified(path)
            except (OSError, SteelyardError) as error:
                refused.append(f"{path.name}: {error}")
                aside = path.with_name(f"damaged-{path.name}")
                shutil.rmtree(aside, ignore_errors=True)
                os.rename(path, aside)
                continue
            if identity is not None and snapshot.identity != identity:
                raise SteelyardError(
                    f"{path}: belongs to another run (configuration, data or model differ): "
                    "resume with the configuration in the run's config.json"
                )
            return snapshot, refused
        return None, refused


def verified(path: Path) -> Snapshot:
    """Reads a checkpoint, checking size and SHA-256 of every file first."""
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        seal = manifest.pop("sha256")
        files = manifest["files"]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise SteelyardError("its manifest is damaged") from None
    if seal != _seal(manifest):
        raise SteelyardError("its manifest is damaged")
    if manifest["schema"] != SCHEMA:
        raise SteelyardError(f"written in format {manifest['schema']}, this version reads {SCHEMA}")
    for name, wanted in files.items():
        data = (path / name).read_bytes()
        if len(data) != wanted["size"] or hashlib.sha256(data).hexdigest() != wanted["sha256"]:
            raise SteelyardError(f"{name} is damaged")
    state = load_state(path / STATE) if STATE in files else None
    return Snapshot(manifest["round"], load_file(path / MODEL), state, manifest["run"])


def _seal(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Writer:
    """Writes checkpoints beside the training, in a thread: rounds do not wait for the disk.

    A snapshot is wanted when the last one is on disk and writing takes up no more than `pace` of the time: a run of
    short rounds is not slowed down by its checkpoints. An error comes out of the next call.
    """

    def __init__(self, checkpoints: Checkpoints, log: int, pace: float) -> None:
        self.checkpoints, self.log, self.pace = checkpoints, log, pace
        self.rest_until = 0.0
        self.pending: list[Snapshot] = []
        self.error: Exception | None = None
        self.busy = False
        self.closed = False
        self.changed = threading.Condition()
        self.thread = threading.Thread(target=self._work, name="steelyard-checkpoints", daemon=True)
        self.thread.start()

    def wanted(self) -> bool:
        """Whether a snapshot should be taken now."""
        with self.changed:
            self._raise()
            return not (self.busy or self.pending) and time.monotonic() >= self.rest_until

    def offer(self, *snapshots: Snapshot) -> None:
        """Takes snapshots to write, in this order."""
        with self.changed:
            self._raise()
            self.pending += snapshots
            self.changed.notify_all()

    def flush(self) -> None:
        """Returns when everything taken is on disk."""
        with self.changed:
            self.changed.wait_for(lambda: self.error is not None or not (self.pending or self.busy))
            self._raise()

    def close(self) -> None:
        """Ends the thread after what it is writing."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()
        self.thread.join()

    def _raise(self) -> None:
        if self.error is not None:
            raise self.error

    def _work(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.pending or self.closed)
                if not self.pending:
                    return
                snapshot = self.pending.pop(0)
                self.busy = True
            began = time.monotonic()
            try:
                self.checkpoints.save(snapshot, self.log)
            except Exception as error:
                with self.changed:
                    self.error, self.busy, self.closed = error, False, True
                    self.pending.clear()
                    self.changed.notify_all()
                return
            ended = time.monotonic()
            with self.changed:
                self.busy = False
                self.rest_until = ended + (ended - began) * (1 / self.pace - 1)
                self.changed.notify_all()
