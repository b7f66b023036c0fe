"""Per-client state, keyed by client id: the cohort, and so every position, changes each round.

A table is plain data: `{client id: number}` or `{client id: [one number per layer]}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.core.errors import SteelyardError
from steelyard.core.gram import Array

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
                    f"state of client {client!r} has {layers} layers, this round has {out.shape[0]}: "
                    "start from state=None after changing the layers"
                )
            out[:, column] = row
    return out


def scatter(table: Table, ids: Sequence[ClientId], rows: Array) -> dict[ClientId, float | list[float]]:
    """Return a new table in which these clients have these rows, `[g, K]`."""
    values: list[Any] = rows[0].tolist() if rows.shape[0] == 1 else rows.T.tolist()
    return {**table, **dict(zip(ids, values, strict=True))}
