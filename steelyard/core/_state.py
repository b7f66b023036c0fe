"""State that rules and clients keep between rounds: per client by id, and saved in one file.

Tensors are stored as tensors, everything else as JSON in the file's metadata. Numbers are restored
bit for bit.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import save_file

from steelyard.core._errors import SteelyardError
from steelyard.core._gram import Array

# Per-client state, keyed by client id: the cohort, and so every position, changes each round.
#
# A table is plain data: `{client id: number}` or `{client id: [one number per layer]}`.

ClientId = str | int
Table = Mapping[ClientId, float | list[float]]
State = Mapping[str, Any]


def client_id(client: Any) -> ClientId:
    """Return a client id as `str` or `int`; raise an error for any other type."""
    if isinstance(client, np.integer):
        return int(client)
    if isinstance(client, (str, int)) and not isinstance(client, bool):
        return client
    raise SteelyardError(f"ids: {client!r} is a {type(client).__name__}; use text or whole numbers")


def sort_key(client: ClientId) -> tuple[bool, int, str]:
    """Return a sort key for client ids: numbers first, by value, then text."""
    return (True, 0, client) if isinstance(client, str) else (False, client, "")


def has_rows(table: Table, ids: Sequence[ClientId]) -> NDArray[np.bool_]:
    """Return which of these clients have a row in the table, `[K]`."""
    return np.fromiter((client in table for client in ids), dtype=np.bool_, count=len(ids))


def gather(table: Table, ids: Sequence[ClientId], default: Array) -> Array:
    """Return the rows of these clients as `[g, K]`, with `default` (same shape) for new clients."""
    out = default.copy()
    for column, client in enumerate(ids):
        row = table.get(client)
        if row is not None:
            layers = len(row) if isinstance(row, list) else 1
            if layers != out.shape[0]:
                raise SteelyardError(
                    f"state of client {client!r} has {layers} layers, this round has "
                    f"{out.shape[0]}: "
                    "start from state=None after changing the layers"
                )
            out[:, column] = row
    return out


def scatter(
    table: Table, ids: Sequence[ClientId], rows: Array
) -> dict[ClientId, float | list[float]]:
    """Return a new table in which these clients have these rows, `[g, K]`."""
    values: list[Any] = rows[0].tolist() if rows.shape[0] == 1 else rows.T.tolist()
    return {**table, **dict(zip(ids, values, strict=True))}


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
    raise SteelyardError(
        f"state holds a {type(value).__name__}: use only numbers, text, lists, dicts and tensors"
    )


def _decode(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return the value that `_encode` encoded."""
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if isinstance(value, dict):
        if "tensor" in value:
            return tensors[value["tensor"]]
        return {key: _decode(item, tensors) for key, item in value["map"]}
    return value
