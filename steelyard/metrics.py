"""What clients report, brought into one form and checked one by one: a liar is quarantined, the round goes on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard.core.errors import SteelyardError, shorten
from steelyard.core.table import ClientId
from steelyard.core.weighting import Weighting

Table = dict[str, dict[ClientId, Any]]

_MOST = 1e15  # no honest number is larger, and sums and products of such numbers stay finite

MEANING = {
    "num_examples": "size of the local data set",
    "num_steps": "number of local optimizer steps",
    "normalizer": "FedNova's a_i: the number of steps for plain SGD",
    "label_hist": "number of examples of each class",
    "loss": "mean loss on the local data, after training",
    "accuracy": "accuracy on the local data, after training",
    "loss_before": "mean loss of the received model on the local data",
    "accuracy_before": "accuracy of the received model on the local data",
    "grad_norm": "eta |g|^2, summed over the steps of an epoch",
}


def metric_table(metrics: Any, given: Sequence[ClientId]) -> Table:
    """Any accepted form as `{name: {client id: value}}`; values are not looked at yet."""
    if metrics is None:
        return {}
    if not isinstance(metrics, Iterable):
        raise SteelyardError(f"metrics={shorten(metrics)}: pass a dict by name, or one dict for each client")
    if not isinstance(metrics, Mapping):
        rows = list(metrics)
        if len(rows) != len(given) or not all(isinstance(row, Mapping) for row in rows):
            raise SteelyardError(f"metrics: a list must hold one dict for each of the {len(given)} clients")
        names = {name for row in rows for name in row}
        return {name: {c: row[name] for c, row in zip(given, rows, strict=True) if name in row} for name in names}
    table: Table = {}
    for name, values in metrics.items():
        if isinstance(values, Mapping):
            table[name] = dict(values)
        elif not isinstance(values, Collection | torch.Tensor):
            raise SteelyardError(f"metrics[{shorten(name)}] is {shorten(values)}: pass a list, or a dict by client id")
        else:
            if len(values) != len(given):
                raise SteelyardError(f"metrics[{shorten(name)}] has {len(values)} values for {len(given)} clients")
            table[name] = dict(zip(given, values, strict=True))
    return table


def refused_by_metrics(
    rule: Weighting, table: Table, ids: Sequence[ClientId], whole: bool = True
) -> dict[ClientId, str]:
    """Clients whose reports the rule cannot use, with the reason; valid reports become plain numbers in `table`.

    Unless `whole`, `num_examples` is a weight by another name, and any positive number will do.
    """
    refused: dict[ClientId, str] = {}
    for name in sorted(rule.needs.metrics):
        if name not in table:
            cure = ' (or start the chain with "uniform|")' if name == "num_examples" else ""
            meaning = f", the {MEANING[name]}" if name in MEANING else ""
            raise SteelyardError(f"the rule needs {name!r}{meaning}: pass metrics={{{name!r}: [...]}}{cure}")
        column = table[name]
        length = _common_length(column, ids) if name == "label_hist" else 0
        for client in ids:
            if client not in column:
                refused.setdefault(client, f"did not report {name!r}")
                continue
            said = column[client]
            value = _histogram(said, length) if name == "label_hist" else _number(name, said, whole)
            if value is None:
                refused.setdefault(client, f"invalid {name}={shorten(column[client], 40)}")
            else:
                column[client] = value
    return refused


def _number(name: str, value: Any, whole: bool) -> float | None:
    if type(value) not in (int, float):
        if isinstance(value, (torch.Tensor, np.ndarray)) and value.ndim == 0:
            value = value.item()
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
            return None
    try:
        number = float(value)
    except OverflowError:
        return None
    if not abs(number) <= _MOST:
        return None
    if name == "num_steps" or (name == "num_examples" and whole):
        return number if number >= 1 and number == int(number) else None
    if name in ("normalizer", "num_examples"):
        return number if number >= 1 / _MOST else None
    signed = (
        name.startswith(("loss", "accuracy")) or name == "grad_norm"
    )  # anything else is a weight, or may become one
    return number if signed or number >= 0 else None


def _counts(value: Any) -> NDArray[np.float64] | None:
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError, MemoryError):
        return None


def _histogram(value: Any, length: int) -> list[float] | None:
    counts = _counts(value)
    if counts is None or counts.shape != (length,) or counts.sum() <= 0:
        return None
    if not ((counts >= 0) & (counts <= _MOST)).all():
        return None
    return [float(count) for count in counts]


def _common_length(column: Mapping[ClientId, Any], ids: Sequence[ClientId]) -> int:
    """Most clients agree on the number of classes; ties go to the larger."""
    found = (_counts(column[client]) for client in ids if client in column)
    lengths = [len(counts) for counts in found if counts is not None and counts.ndim == 1]
    return max(set(lengths), key=lambda length: (lengths.count(length), length), default=0)
