"""A checkpoint as it lies on disk: its names, its manifest, and how it is verified."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from steelyard.core.errors import SteelyardError
from steelyard.core.state import load_state
from steelyard.runs.files import read_bytes

SCHEMA = 1
MODEL, STATE, MANIFEST = "model.safetensors", "state.safetensors", "manifest.json"
LINKS = ("last", "best")
NAMES = re.compile(r"(round|best)-\d{6,18}")  # of checkpoints
_OTHERS = re.compile(r"\.(round|best)-\d{6,18}\.\w{8}|damaged-(round|best)-\d{6,18}(-\d+)?")  # half-written, damaged
_FILES = re.compile(r"model\.safetensors|state\.safetensors|manifest\.json|\.state\.safetensors\.\w{8}")


@dataclass(frozen=True)
class Snapshot:
    """A run between two rounds, in memory of its own; without a state, only its model.

    Attributes:
        round: the last round that is in it.
        model: the global model.
        state: everything else a run needs to go on; None for a best model.
        identity: of the run.
        log: SHA-256 of the log's lines up to this round; None in checkpoints from before it was stored.
    """

    round: int
    model: Mapping[str, torch.Tensor]
    state: Mapping[str, Any] | None
    identity: str
    log: str | None = None

    @property
    def name(self) -> str:
        """Of its directory."""
        return f"{'best' if self.state is None else 'round'}-{self.round:06d}"


def verified(path: Path) -> Snapshot:
    """Reads a checkpoint, checking size and SHA-256 of every file first."""
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
    """What a checkpoint says of itself, if that is as it was written."""
    try:
        manifest = json.loads(read_bytes(path / MANIFEST))
        expected_digest = manifest.pop("sha256")
        files = manifest["files"]
        sizes = [(files[name]["size"], files[name]["sha256"]) for name in files]
        is_sound = (
            expected_digest == seal(manifest)
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


def written_by_us(path: Path) -> bool:
    """Whether a name in a directory of checkpoints is one we make, and holds nothing but what we write."""
    if path.is_symlink():
        is_link = path.name in LINKS or path.name in {f".{link}.new" for link in LINKS}
        return is_link and NAMES.fullmatch(os.readlink(path)) is not None
    is_name = NAMES.fullmatch(path.name) or _OTHERS.fullmatch(path.name)
    is_copied_link = path.name in LINKS  # tools that copy directories may follow links
    if not path.is_dir() or not (is_name or is_copied_link):
        return False
    return all(_FILES.fullmatch(entry.name) and entry.is_file() for entry in path.iterdir())


def is_of_run(path: Path, identity: str) -> bool:
    """Whether a directory is a checkpoint of this run, and nothing else."""
    try:
        return written_by_us(path) and _read_manifest(path)["run"] == identity
    except (OSError, SteelyardError):
        return False


def round_of(path: Path) -> int:
    """The round in a checkpoint's name."""
    return int(path.name.rpartition("-")[2])


def seal(manifest: Mapping[str, Any]) -> str:
    """The hash of a manifest that is stored in it."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
