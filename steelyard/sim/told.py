"""What a round's record keeps of the clients' reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from steelyard.core.client_state import ClientId
from steelyard.rules.detectors import gradient_norm

CHANGING = ("accuracy", "accuracy_before", "grad_norm", "loss", "loss_before")
"""What differs from round to round; sizes and labels do not, and would make every line longer."""


def report_metrics(table: Mapping[str, Mapping[ClientId, Any]], ids: Sequence[ClientId]) -> dict[str, Any]:
    """`reported` by metric and client, to six digits, and FGN where clients report `grad_norm`.

    `fgn` is PA3Fed's Eq. (5), weighted by sizes, where clients report those too; `fgn_mean` is CriticalFL's plain mean.
    """
    reported = {
        name: {client: float(f"{table[name][client]:.6g}") for client in ids if client in table[name]}
        for name in CHANGING
        if table.get(name)
    }
    record: dict[str, Any] = {"reported": reported} if reported else {}
    if _is_complete(table, "grad_norm", ids):
        norms = _column(table, "grad_norm", ids)
        if _is_complete(table, "num_examples", ids):
            record["fgn"] = gradient_norm(norms, "weighted", _column(table, "num_examples", ids))
        record["fgn_mean"] = gradient_norm(norms, "mean")
    return record


def _is_complete(table: Mapping[str, Mapping[ClientId, Any]], name: str, ids: Sequence[ClientId]) -> bool:
    """Return whether every client reported this metric."""
    return name in table and all(client in table[name] for client in ids)


def _column(table: Mapping[str, Mapping[ClientId, Any]], name: str, ids: Sequence[ClientId]) -> Any:
    return np.array([table[name][client] for client in ids], dtype=np.float64)
