"""Saves and loads state: one safetensors file, no pickle.

Tensors are stored as tensors, everything else as JSON in the file's metadata. Numbers are restored
bit for bit.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from steelyard.core.client_state import State
from steelyard.core.errors import SteelyardError

_KEY = "steelyard.state"


def save_state(path: str | os.PathLike[str], state: State) -> None:
    """Write a state atomically: after a crash, either the old or the new file is complete.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_state(Path(folder) / "state", {"fedadp": {"angles": {"a": 0.5}}})
        ...     load_state(Path(folder) / "state")
        {'fedadp': {'angles': {'a': 0.5}}}
    """
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps(_encode(state, tensors), allow_nan=True)
    path = Path(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        save_file(tensors, temporary, metadata={_KEY: text})
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def sync(path: str | os.PathLike[str]) -> None:
    """Wait until a file, or the entries of a directory, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def load_state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a state that `save_state` wrote."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        if _KEY not in metadata:
            raise SteelyardError(f"{os.fspath(path)}: not a steelyard state file")
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    decoded: dict[str, Any] = _decode(json.loads(metadata[_KEY]), tensors)
    return decoded


def _encode(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """Return the value as JSON data; its tensors are added to `tensors`."""
    if isinstance(value, torch.Tensor):
        name = f"t{len(tensors)}"
        tensors[name] = value.detach().contiguous()
        return {"tensor": name}
    # Mappings become pairs: client ids may be numbers, and keys of JSON objects are text.
    if isinstance(value, Mapping):
        return {"map": [[key, _encode(item, tensors)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        return [_encode(item, tensors) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise SteelyardError(f"state holds a {type(value).__name__}: use only numbers, text, lists, dicts and tensors")


def _decode(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return the value that `_encode` encoded."""
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if isinstance(value, dict):
        if "tensor" in value:
            return tensors[value["tensor"]]
        return {key: _decode(item, tensors) for key, item in value["map"]}
    return value
