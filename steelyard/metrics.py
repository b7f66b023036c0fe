"""What clients report, brought into one form and checked one by one: a liar is quarantined, the round goes on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard.core.client_state import ClientId
from steelyard.core.errors import SteelyardError, shorten
from steelyard.core.weighting import Weighting

Table = dict[str, dict[ClientId, Any]]

MOST = 1e15  # no honest number is larger, and sums and products of such numbers stay finite

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


def find_invalid_clients(
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
        values = _valid_column(name, column, ids, whole)
        for client in ids:
            if client not in column:
                refused.setdefault(client, f"did not report {name!r}")
            elif client not in values:
                refused.setdefault(client, f"invalid {name}={shorten(column[client], 40)}")
        column.update(values)
    return refused


def drop_invalid(table: Table, ids: Sequence[ClientId], but: Collection[str], whole: bool = True) -> None:
    """Leave out of the table what clients reported without need, where it is not a number that can be right.

    Args:
        table: is changed.
        ids: the clients; reports of others are left out, too.
        but: names of metrics that have been checked.
        whole: whether a number of examples must be a whole number.
    """
    for name in table.keys() - set(but):
        table[name] = _valid_column(name, table[name], ids, whole)


def _valid_column(
    name: str, column: Mapping[ClientId, Any], ids: Sequence[ClientId], whole: bool
) -> dict[ClientId, Any]:
    """Return what these clients reported of a metric, as plain numbers, without what cannot be right."""
    length = _common_length(column, ids) if name == "label_hist" else 0
    values: dict[ClientId, Any] = {}
    for client in ids:
        if client in column:
            said = column[client]
            value = _histogram(said, length) if name == "label_hist" else valid_number(name, said, whole)
            if value is not None:
                values[client] = value
    return values


def valid_number(name: str, value: Any, whole: bool) -> float | None:
    """Return a reported number as a float, None if it cannot be right.

    Args:
        name: of the metric.
        value: what a client reported.
        whole: whether a number of examples must be a whole number.
    """
    if type(value) not in (int, float):
        if isinstance(value, (torch.Tensor, np.ndarray)) and value.ndim == 0:
            value = value.item()
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
            return None
    try:
        number = float(value)
    except OverflowError:
        return None
    if not abs(number) <= MOST:
        return None
    if name == "num_steps" or (name == "num_examples" and whole):
        return number if number >= 1 and number == int(number) else None
    if name in ("normalizer", "num_examples"):
        return number if number >= 1 / MOST else None
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
    if not ((counts >= 0) & (counts <= MOST)).all():
        return None
    return [float(count) for count in counts]


def _common_length(column: Mapping[ClientId, Any], ids: Sequence[ClientId]) -> int:
    """Most clients agree on the number of classes; ties go to the larger."""
    found = (_counts(column[client]) for client in ids if client in column)
    lengths = [len(counts) for counts in found if counts is not None and counts.ndim == 1]
    return max(set(lengths), key=lambda length: (lengths.count(length), length), default=0)
