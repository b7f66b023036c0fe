"""A cache on disk for data sets that take long to build: text is tokenised once.

The cache is in `$STEELYARD_CACHE`, else `$XDG_CACHE_HOME/steelyard`, else `~/.cache/steelyard`.
Each data set is one safetensors file, which you may delete at any time. Its name contains a hash of
the content of the source files, the options and the version of this library. A damaged or foreign
file is ignored and written again; if the cache cannot be written, the data set is built each time.
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
from steelyard.core._state import load_state, save_state
from steelyard.data._dataset import Dataset

Split = tuple[Dataset, Dataset]

VARIABLE = "STEELYARD_CACHE"
_TENSORS = ("inputs", "targets", "groups")


def directory() -> Path | None:
    """Return the directory of the cache; None if there is none."""
    if os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE])
    try:
        parent = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # the user has no home directory
        return None
    return parent / "steelyard"


def load_cached(
    name: str, options: Mapping[str, Any], files: Sequence[Path], make: Callable[[], Split]
) -> Split:
    """Return the data set from the cache, or call `make` and write its result to the cache.

    Args:
        name: of the data set.
        options: of the data set; different options have different entries.
        files: the source files, whose content is part of the key.
        make: builds the data set from these files with these options.
    """
    folder = directory()
    try:
        key = _key(name, options, files)
    except OSError:
        return make()  # which raises an error that names the unreadable file
    if folder is None:
        return make()
    path = folder / f"{name}-{key[:32]}.safetensors"
    split = _read(path, key)
    if split is None:
        split = make()
        _write(path, key, split)
    return split


def _key(name: str, options: Mapping[str, Any], files: Sequence[Path]) -> str:
    """Return the hash of everything that the data set depends on."""
    contents = []
    for path in files:
        with path.open("rb") as file:
            contents.append(hashlib.file_digest(file, "sha256").hexdigest())
    inputs = {"steelyard": __version__, "name": name, "options": dict(options), "files": contents}
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def _read(path: Path, key: str) -> Split | None:
    """Return the data set in a cache file.

    Return None if the file is missing, damaged or of another key.
    """
    try:
        state = load_state(path)
        if state["key"] != key or state["seal"] != _seal(state["parts"]):
            return None
        train, test = (_restore(part) for part in state["parts"])
    except (
        OSError,
        SafetensorError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
    ):
        return None
    return train, test


def _restore(part: Mapping[str, Any]) -> Dataset:
    """Return a data set from its state; numbers get their usual type back."""
    groups = part["groups"]
    return Dataset(
        part["inputs"].long(),
        part["targets"].long(),
        part["classes"],
        part["name"],
        None if groups is None else groups.long(),
    )


def _write(path: Path, key: str, split: Split) -> None:
    """Write a data set to the cache; do nothing if the directory cannot be written."""
    parts = []
    for part in split:
        tensors = {name: _narrow(getattr(part, name)) for name in _TENSORS}
        parts.append(tensors | {"classes": part.classes, "name": part.name})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_state(path, {"key": key, "seal": _seal(parts), "parts": parts})
    except (OSError, SafetensorError):
        return  # a full disk or a read-only home directory must not stop the run


def _narrow(numbers: torch.Tensor | None) -> torch.Tensor | None:
    """Return integers in the smallest type that can represent them."""
    if numbers is None or len(numbers) == 0:
        return numbers
    low, high = int(numbers.min()), int(numbers.max())
    for kind in (torch.uint8, torch.int16, torch.int32):
        if torch.iinfo(kind).min <= low and high <= torch.iinfo(kind).max:
            return numbers.to(kind)
    return numbers


def _seal(parts: Sequence[Mapping[str, Any]]) -> str:
    """Return a hash of the content: safetensors detects a short file, but not a changed byte."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(json.dumps([part["classes"], part["name"]]).encode())
        for name in _TENSORS:
            tensor = part[name]
            if tensor is not None:
                digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
                digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()
