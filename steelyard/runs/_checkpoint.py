"""Checkpoints: they are written completely or not at all, and verified before they are used.

    checkpoints/round-000012/model.safetensors   the global model, for anyone to load
                             state.safetensors   everything else that a run needs to resume
                             manifest.json       round, identity of the run, size and SHA-256 of the files
    checkpoints/best-000010/                     the best model so far, without the state
    checkpoints/last, checkpoints/best           links to these

A checkpoint is written to a hidden directory, synced, and renamed. A run resumes from the newest
directory whose manifest is valid. The links are for users.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from steelyard.core._errors import SteelyardError
from steelyard.core._state import load_state, save_state, sync
from steelyard.runs._files import read_bytes
from steelyard.runs._lock import DirectoryHandle, is_present

# The files of a checkpoint: names, manifest, verification.

SCHEMA = 1
MODEL, STATE, MANIFEST = "model.safetensors", "state.safetensors", "manifest.json"
LINKS = ("last", "best")
NAMES = re.compile(r"(round|best)-\d{6,18}")  # of checkpoints
_OTHERS = re.compile(
    r"\.(round|best)-\d{6,18}\.\w{8}|damaged-(round|best)-\d{6,18}(-\d+)?"
)  # half-written, damaged
_FILES = re.compile(
    r"model\.safetensors|state\.safetensors|manifest\.json|\.state\.safetensors\.\w{8}"
)


@dataclass(frozen=True)
class Snapshot:
    """A copy of a run between two rounds; without a state, only of its model.

    Attributes:
        round: the last round that it contains.
        model: the global model.
        state: everything else that a run needs to resume; None for a best model.
        identity: the identity of the run.
        log: the SHA-256 of the lines of the log up to this round; None in old checkpoints.
    """

    round: int
    model: Mapping[str, torch.Tensor]
    state: Mapping[str, Any] | None
    identity: str
    log: str | None = None

    @property
    def name(self) -> str:
        """The name of its directory."""
        return f"{'best' if self.state is None else 'round'}-{self.round:06d}"


def read_verified(path: Path) -> Snapshot:
    """Return a checkpoint, after checking size and SHA-256 of every file."""
    manifest = _read_manifest(path)
    if manifest["schema"] != SCHEMA:
        raise SteelyardError(f"written in format {manifest['schema']}, this version reads {SCHEMA}")
    for name, expected in manifest["files"].items():
        data = read_bytes(path / name)
        if len(data) != expected["size"] or hashlib.sha256(data).hexdigest() != expected["sha256"]:
            raise SteelyardError(f"{name} is damaged")
    try:
        state = load_state(path / STATE) if STATE in manifest["files"] else None
        model = load_file(path / MODEL)
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise SteelyardError(f"its tensors cannot be read: {error}") from None
    return Snapshot(manifest["round"], model, state, manifest["run"], manifest.get("log"))


def _read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint; raises an error if it is damaged."""
    try:
        manifest = json.loads(read_bytes(path / MANIFEST))
        expected_digest = manifest.pop("sha256")
        files = manifest["files"]
        sizes = [(files[name]["size"], files[name]["sha256"]) for name in files]
        is_sound = (
            expected_digest == hash_manifest(manifest)
            and {MODEL} <= files.keys() <= {MODEL, STATE}
            and all(isinstance(size, int) and isinstance(digest, str) for size, digest in sizes)
            and type(manifest["round"]) is int
            and isinstance(manifest["run"], str)
            and isinstance(manifest.get("log"), (str, type(None)))
            and "schema" in manifest
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        is_sound = False
    if not is_sound:
        raise SteelyardError("its manifest is damaged")
    checked: dict[str, Any] = manifest
    return checked


def is_own_entry(path: Path) -> bool:
    """Return whether an entry of the directory has a name and contents that this module writes."""
    if path.is_symlink():
        is_link = path.name in LINKS or path.name in {f".{link}.new" for link in LINKS}
        return is_link and NAMES.fullmatch(os.readlink(path)) is not None
    is_name = NAMES.fullmatch(path.name) or _OTHERS.fullmatch(path.name)
    is_copied_link = path.name in LINKS  # tools that copy directories may follow links
    if not path.is_dir() or not (is_name or is_copied_link):
        return False
    return all(_FILES.fullmatch(entry.name) and entry.is_file() for entry in path.iterdir())


def belongs_to_run(path: Path, identity: str) -> bool:
    """Return whether a directory is a checkpoint of this run and contains nothing else."""
    try:
        return is_own_entry(path) and _read_manifest(path)["run"] == identity
    except (OSError, SteelyardError):
        return False


def parse_round_number(path: Path) -> int:
    """Return the round in the name of a checkpoint."""
    return int(path.name.rpartition("-")[2])


def hash_manifest(manifest: Mapping[str, Any]) -> str:
    """Return the hash that is stored in a manifest."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


class CheckpointError(SteelyardError):
    """A checkpoint could not be written; the ones before it are intact."""


class Checkpoints:
    """The directory of a run's checkpoints.

    It may contain files of other programs: only entries with names of this class are read, renamed
    or removed, and a directory is removed only if its manifest says that it belongs to the run.
    """

    def __init__(self, path: Path, keep: int = 2) -> None:
        self.path, self.keep = path, keep
        self.handle: DirectoryHandle | None = None  # the directory, once it is in use

    def open(self) -> None:
        """Create the directory, or check that it is still the one that was used before."""
        if self.handle is None:
            self.path.mkdir(parents=True, exist_ok=True)
            self.handle = DirectoryHandle(self.path)
        elif not self.handle.is_unchanged():
            raise CheckpointError(
                f"{self.path}: the directory was removed or replaced during the run: the run "
                f"stops, and rounds since "
                "its last checkpoint are lost. Restore the directory and resume, or start again"
            )

    def close(self) -> None:
        """Release the directory."""
        if self.handle is not None:
            self.handle.close()
            self.handle = None

    def save(self, snapshot: Snapshot, logs: Sequence[int] = ()) -> None:
        """Write a checkpoint, set the link to it and remove old ones.

        Args:
            snapshot: the checkpoint.
            logs: the handles of the run's logs, which are synced first.
        """
        name = snapshot.name
        try:
            self.open()
            hidden = Path(tempfile.mkdtemp(dir=self.path, prefix=f".{name}."))
            try:
                self.open()  # it may have been replaced by a link to another place just before
                self._write_files(hidden, snapshot)
                # The rounds up to here are on record before the checkpoint that says so.
                for log in logs:
                    os.fsync(log)
                self._publish(hidden, name)
            finally:
                shutil.rmtree(hidden, ignore_errors=True)
            self._link("best" if snapshot.state is None else "last", name)
            self._prune(snapshot.identity)
        except (OSError, SafetensorError) as error:
            self.open()  # where the directory itself is gone, that is the error to tell of
            raise CheckpointError(
                f"checkpoint of round {snapshot.round} in {self.path}: "
                f"{getattr(error, 'strerror', None) or error}; "
                "earlier checkpoints are intact: make room, then resume"
            ) from error

    def _write_files(self, directory: Path, snapshot: Snapshot) -> None:
        """Write and sync the files of a checkpoint."""
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
        manifest = {
            "schema": SCHEMA,
            "round": snapshot.round,
            "run": snapshot.identity,
            "files": files,
        }
        if snapshot.log is not None:
            manifest["log"] = snapshot.log
        manifest["sha256"] = hash_manifest(manifest)
        (directory / MANIFEST).write_text(json.dumps(manifest, indent=1))
        for name in [*files, MANIFEST]:
            sync(directory / name)
        sync(directory)

    def _publish(self, hidden: Path, name: str) -> None:
        """Rename a hidden directory to the name of its checkpoint."""
        final = self.path / name
        if is_present(final):  # a resumed run passes through rounds it has been in before
            if not is_own_entry(final):
                raise CheckpointError(
                    f"{final}: is in the way and is not a checkpoint of this run: move it away"
                )
            self._remove(final)
        os.chmod(hidden, 0o755)
        os.rename(hidden, final)
        sync(self.path)

    def _link(self, link: str, name: str) -> None:
        """Set a link to a checkpoint."""
        final, hidden = self.path / link, self.path / f".{link}.new"
        if is_present(final) and not is_own_entry(final):
            raise CheckpointError(
                f"{final}: is in the way and is not a link to a checkpoint: move it away"
            )
        if is_own_entry(hidden):
            hidden.unlink()
        if final.is_dir() and not final.is_symlink():
            shutil.rmtree(final)  # a copied run has a directory in place of the link
        hidden.symlink_to(name)
        os.replace(hidden, final)

    def _prune(self, identity: str) -> None:
        """Remove older checkpoints of the run, and best models other than the linked one."""
        best = self.path / "best"
        best_name = os.readlink(best) if best.is_symlink() else None
        rounds = [
            path for path in self._list_directories("round") if belongs_to_run(path, identity)
        ]
        models = [
            path
            for path in self._list_directories("best")
            if path.name != best_name and belongs_to_run(path, identity)
        ]
        for path in [*rounds[self.keep :], *models]:
            self._remove(path)

    def _remove(self, path: Path) -> None:
        """Remove a checkpoint.

        A process that is killed meanwhile leaves a hidden directory, not an incomplete checkpoint.
        """
        hidden = tempfile.mkdtemp(dir=self.path, prefix=f".{path.name}.")
        os.rename(path, hidden)  # replaces the empty directory
        shutil.rmtree(hidden)

    def _list_directories(self, kind: str) -> list[Path]:
        """Return the directories named `round-` or `best-` and a number, newest first."""
        candidates = [
            path
            for path in self._list_entries()
            if NAMES.fullmatch(path.name) and path.name.startswith(f"{kind}-")
        ]
        real = [path for path in candidates if path.is_dir() and not path.is_symlink()]
        return sorted(real, key=parse_round_number, reverse=True)

    def _list_entries(self) -> list[Path]:
        return sorted(self.path.iterdir()) if self.path.is_dir() else []

    def find_obstacles(self, is_own: bool, is_ours: bool) -> list[Path]:
        """Return the entries that a new run would overwrite, or could mistake for its own.

        Args:
            is_own: whether the directory belongs to the run alone; otherwise the user chose it, and
                only names that the run will use are returned.
            is_ours: whether an earlier run of ours used the directory alone.
        """
        if is_present(self.path) and not self.path.is_dir():
            return [self.path]
        if not is_own:
            return [
                path
                for path in self._list_entries()
                if NAMES.fullmatch(path.name) or path.name in LINKS
            ]
        return [path for path in self._list_entries() if not (is_ours and is_own_entry(path))]

    @property
    def has_checkpoints(self) -> bool:
        """Whether the directory contains a checkpoint."""
        return any(NAMES.fullmatch(path.name) for path in self._list_entries())

    def clear(self) -> None:
        """Remove the entries of our runs, and the directory if it is then empty."""
        for path in self._list_entries():
            if is_own_entry(path):
                path.unlink() if path.is_symlink() else shutil.rmtree(path)
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def read_newest(self, identity: str | None) -> tuple[Snapshot | None, list[str]]:
        """Return the newest valid checkpoint, and the problems of newer ones.

        Damaged checkpoints are renamed, incomplete ones are removed.

        Args:
            identity: the identity that the run must have; None for any.
        """
        problems = []
        for leftover in self._list_entries():
            if leftover.name.startswith(".") and is_own_entry(leftover):
                leftover.unlink() if leftover.is_symlink() else shutil.rmtree(leftover)
        for path in self._list_directories("round"):
            if not is_own_entry(path) and not (path / MANIFEST).is_file():
                continue  # a directory of somebody else
            try:
                snapshot = read_verified(path)
            except (OSError, SteelyardError) as error:
                problems.append(f"{path.name}: {error}")
                self._set_aside(path)
                continue
            if identity is not None and snapshot.identity != identity:
                raise SteelyardError(
                    f"{path}: belongs to another run (configuration, data or model differ): "
                    "resume with the configuration in the run's config.json"
                )
            return snapshot, problems
        return None, problems

    def verify_best(self, snapshot: Snapshot, number: int | None) -> str | None:
        """Verify the best model of a run that resumes from a checkpoint.

        A damaged model is renamed, and written again if the checkpoint of the same round exists.

        Args:
            snapshot: the checkpoint.
            number: the best round up to the checkpoint; None if it is not known.

        Returns:
            The problem with the model; None if it is valid.
        """
        # Without a round to look for, the link says which model is the best.
        link = self.path / "best"
        if number is None and not link.is_symlink():
            return None
        name = os.readlink(link) if number is None else f"best-{number:06d}"
        problem = self._find_problem(name, snapshot.identity)
        if problem is None:
            return None
        # Better rounds after the checkpoint replaced the model, and will be gone through again.
        later = [
            path.name
            for path in self._list_directories("best")
            if parse_round_number(path) > snapshot.round
        ]
        if is_present(self.path / name) is False and any(
            self._find_problem(later_name, snapshot.identity) is None for later_name in later
        ):
            return None
        # Set the damaged model aside; the link may not lead to it, nor to nothing.
        if is_own_entry(self.path / name):
            self._set_aside(self.path / name)
        if is_own_entry(link) and os.readlink(link) == name:
            link.unlink()
        # The checkpoint of the same round holds the same model.
        try:
            twin = read_verified(self.path / name.replace("best", "round"))
            self.save(Snapshot(twin.round, twin.model, None, twin.identity))
        except (OSError, SteelyardError):
            return f"{name}: {problem}: the best model is lost, unless a later round is better"
        return f"{name}: {problem}: written again from the checkpoint of that round"

    def _find_problem(self, name: str, identity: str) -> str | None:
        """Return why a best model cannot be used; None if it can."""
        try:
            snapshot = read_verified(self.path / name)
        except FileNotFoundError:
            return "it is missing"
        except (OSError, SteelyardError) as error:
            return str(error)
        return None if snapshot.identity == identity else "it belongs to another run"

    def _set_aside(self, path: Path) -> None:
        """Rename a damaged checkpoint, unless it contains files of other programs."""
        if not is_own_entry(path):
            return
        aside = path.with_name(f"damaged-{path.name}")
        count = 1
        while is_present(aside):
            count += 1
            aside = path.with_name(f"damaged-{path.name}-{count}")
        os.rename(path, aside)


# Writing checkpoints during training.


class Writer:
    """Writes checkpoints in a thread, so that rounds do not wait for the disk.

    A snapshot is due when the last one is on disk and writing takes at most the share `pace` of the
    time: checkpoints do not slow down a run of short rounds. With a pace of 1, every snapshot is
    due, and the run waits for the one before it. The next call raises the error of a
    write that failed.
    """

    def __init__(self, checkpoints: Checkpoints, logs: Sequence[int], pace: float) -> None:
        self.checkpoints = checkpoints
        self.logs = logs
        self.pace = pace
        self.rest_until = 0.0
        self.pending: list[Snapshot] = []
        self.error: Exception | None = None
        self.is_busy = False
        self.is_closed = False
        self.condition = threading.Condition()
        self.thread = threading.Thread(
            target=self._write_pending, name="steelyard-checkpoints", daemon=True
        )
        self.thread.start()

    def is_due(self) -> bool:
        """Return whether a snapshot should be taken now."""
        if self.pace == 1.0:
            self.flush()
        with self.condition:
            self._raise_error()
            return not (self.is_busy or self.pending) and time.monotonic() >= self.rest_until

    def offer(self, *snapshots: Snapshot) -> None:
        """Add snapshots to write, in this order."""
        with self.condition:
            self._raise_error()
            self.pending += snapshots
            self.condition.notify_all()

    def flush(self) -> None:
        """Wait until all snapshots are on disk."""
        with self.condition:
            self.condition.wait_for(
                lambda: self.error is not None or not (self.pending or self.is_busy)
            )
            self._raise_error()

    def close(self) -> None:
        """Stop the thread after the snapshot that it is writing."""
        with self.condition:
            self.is_closed = True
            self.condition.notify_all()
        self.thread.join()

    def _raise_error(self) -> None:
        """Raise the error of a write that failed, if one did."""
        if self.error is not None:
            raise self.error

    def _write_pending(self) -> None:
        """Write snapshots until the writer is closed or a write fails."""
        while True:
            with self.condition:
                self.condition.wait_for(lambda: self.pending or self.is_closed)
                if not self.pending:
                    return
                snapshot = self.pending.pop(0)
                self.is_busy = True
            began = time.monotonic()
            try:
                self.checkpoints.save(snapshot, self.logs)
            except Exception as error:
                with self.condition:
                    self.error, self.is_busy, self.is_closed = error, False, True
                    self.pending.clear()
                    self.condition.notify_all()
                return
            ended = time.monotonic()
            with self.condition:
                self.is_busy = False
                self.rest_until = ended + (ended - began) * (1 / self.pace - 1)
                self.condition.notify_all()
