"""Data sets that take long to make, kept on disk: text is tokenised once.

They are under `$STEELYARD_CACHE`, else `$XDG_CACHE_HOME/steelyard`, else `~/.cache/steelyard`, one safetensors file
each, which may be deleted at any time. The name holds a hash of the files' content, the options and the version of
this library. A file that is damaged or not ours is made anew; where none can be written, all goes on without.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from steelyard._version import __version__
from steelyard.core.state import load_state, save_state
from steelyard.data.dataset import Dataset

Split = tuple[Dataset, Dataset]

VARIABLE = "STEELYARD_CACHE"
_TENSORS = ("inputs", "targets", "groups")


def directory() -> Path | None:
    """Where things are kept, if anywhere."""
    if os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE])
    try:
        above = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # a user without a home
        return None
    return above / "steelyard"


def load_cached(name: str, options: Mapping[str, Any], files: Sequence[Path], make: Callable[[], Split]) -> Split:
    """The data set made by `make` from these files with these options, or the same from an earlier time."""
    folder = directory()
    try:
        key = _key(name, options, files)
    except OSError:
        return make()  # which says in its own words that a file cannot be read
    if folder is None:
        return make()
    path = folder / f"{name}-{key[:32]}.safetensors"
    kept = _read(path, key)
    if kept is None:
        kept = make()
        _write(path, key, kept)
    return kept


def _key(name: str, options: Mapping[str, Any], files: Sequence[Path]) -> str:
    contents = []
    for path in files:
        with path.open("rb") as file:
            contents.append(hashlib.file_digest(file, "sha256").hexdigest())
    described = {"steelyard": __version__, "name": name, "options": dict(options), "files": contents}
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


def _read(path: Path, key: str) -> Split | None:
    try:
        state = load_state(path)
        if state["key"] != key or state["seal"] != _seal(state["parts"]):
            return None
        train, test = (
            Dataset(
                part["inputs"].long(),
                part["targets"].long(),
                part["classes"],
                part["name"],
                None if part["groups"] is None else part["groups"].long(),
            )
            for part in state["parts"]
        )
    except (OSError, SafetensorError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None  # ours or not, it is of no use
    return train, test


def _write(path: Path, key: str, split: Split) -> None:
    parts = [
        {name: _narrow(getattr(part, name)) for name in _TENSORS} | {"classes": part.classes, "name": part.name}
        for part in split
    ]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_state(path, {"key": key, "seal": _seal(parts), "parts": parts})
    except (OSError, SafetensorError):
        return  # a full disk or a read-only home is no reason to stop


def _narrow(numbers: torch.Tensor | None) -> torch.Tensor | None:
    """Whole numbers in the smallest type that holds them."""
    if numbers is None or len(numbers) == 0:
        return numbers
    low, high = int(numbers.min()), int(numbers.max())
    for kind in (torch.uint8, torch.int16, torch.int32):
        if torch.iinfo(kind).min <= low and high <= torch.iinfo(kind).max:
            return numbers.to(kind)
    return numbers


def _seal(parts: Sequence[Mapping[str, Any]]) -> str:
    """A hash of all that is kept: the format notices a short file, but not a changed byte."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(json.dumps([part["classes"], part["name"]]).encode())
        for name in _TENSORS:
            tensor = part[name]
            if tensor is not None:
                digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
                digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()
