"""Checks what clients report.

A client with an invalid report is quarantined, the others continue.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard.core.errors import SteelyardError, shorten
from steelyard.core.state import ClientId
from steelyard.core.weighting import Weighting

Table = dict[str, dict[ClientId, Any]]

MOST = 1e15  # the largest valid number: sums and products of such numbers are finite

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


def metric_table(metrics: Any, ids: Sequence[ClientId]) -> Table:
    """Return metrics of any accepted form as `{name: {client id: value}}`; values are not checked.

    Args:
        metrics: a dict by name of lists or of dicts by id, one dict per client, or None.
        ids: all clients, in the caller's order.
    """
    if metrics is None:
        return {}
    if not isinstance(metrics, Iterable):
        raise SteelyardError(
            f"metrics={shorten(metrics)}: pass a dict by name, or one dict for each client"
        )

    # One dict per client.
    table: Table = {}
    if not isinstance(metrics, Mapping):
        rows = list(metrics)
        if len(rows) != len(ids) or not all(isinstance(row, Mapping) for row in rows):
            raise SteelyardError(
                f"metrics: a list must hold one dict for each of the {len(ids)} clients"
            )
        for client, row in zip(ids, rows, strict=True):
            for name in row:
                table.setdefault(name, {})[client] = row[name]
        return table

    # A dict by name.
    for name, values in metrics.items():
        if isinstance(values, Mapping):
            table[name] = dict(values)
        elif not isinstance(values, Collection | torch.Tensor):
            raise SteelyardError(
                f"metrics[{shorten(name)}] is {shorten(values)}: pass a list, or a dict by client "
                f"id"
            )
        else:
            if len(values) != len(ids):
                raise SteelyardError(
                    f"metrics[{shorten(name)}] has {len(values)} values for {len(ids)} clients: "
                    "pass one value per client"
                )
            table[name] = dict(zip(ids, values, strict=True))
    return table


def find_invalid_clients(
    rule: Weighting, table: Table, ids: Sequence[ClientId], whole: bool = True
) -> dict[ClientId, str]:
    """Return the clients whose reports the rule cannot use, with the reasons.

    Args:
        rule: its needs say which metrics are checked.
        table: the metrics; valid values are replaced by plain numbers.
        ids: the clients.
        whole: whether `num_examples` must be a whole number. Otherwise it is a weight, and any
            positive number is valid.
    """
    reasons: dict[ClientId, str] = {}
    for name in sorted(rule.needs.metrics):
        # Nobody reported it.
        if name not in table:
            hint = ' (or start the chain with "uniform|")' if name == "num_examples" else ""
            meaning = f", the {MEANING[name]}" if name in MEANING else ""
            raise SteelyardError(
                f"the rule needs {name!r}{meaning}: pass metrics={{{name!r}: [...]}}{hint}"
            )

        # Check every client.
        column = table[name]
        values = _valid_column(name, column, ids, whole)
        for client in ids:
            if client not in column:
                reasons.setdefault(client, f"did not report {name!r}")
            elif client not in values:
                reasons.setdefault(client, f"invalid {name}={shorten(column[client], 40)}")
        column.update(values)
    return reasons


def drop_invalid(
    table: Table, ids: Sequence[ClientId], but: Collection[str], whole: bool = True
) -> None:
    """Remove invalid values of metrics that no rule needs from the table.

    Args:
        table: the metrics; it is changed.
        ids: the clients; values of other clients are removed, too.
        but: names of metrics that have been checked.
        whole: whether a number of examples must be a whole number.
    """
    for name in table.keys() - set(but):
        table[name] = _valid_column(name, table[name], ids, whole)


def _valid_column(
    name: str, column: Mapping[ClientId, Any], ids: Sequence[ClientId], whole: bool
) -> dict[ClientId, Any]:
    """Return the valid values of these clients for a metric, as plain numbers."""
    length = _common_length(column, ids) if name == "label_hist" else 0
    values: dict[ClientId, Any] = {}
    for client in ids:
        if client not in column:
            continue
        value: Any
        if name == "label_hist":
            value = _histogram(column[client], length)
        else:
            value = valid_number(name, column[client], whole)
        if value is not None:
            values[client] = value
    return values


def valid_number(name: str, value: Any, whole: bool) -> float | None:
    """Return a reported number as a float; None if it is not valid.

    Args:
        name: name of the metric.
        value: the value that a client reported.
        whole: whether a number of examples must be a whole number.
    """
    # Numbers of any library.
    if type(value) not in (int, float):
        if isinstance(value, (torch.Tensor, np.ndarray)) and value.ndim == 0:
            value = value.item()
        if isinstance(value, (bool, np.bool_)) or not isinstance(
            value, (int, float, np.integer, np.floating)
        ):
            return None
    try:
        number = float(value)
    except OverflowError:
        return None
    if not abs(number) <= MOST:
        return None

    # The range of the metric.
    if name == "num_steps" or (name == "num_examples" and whole):
        return number if number >= 1 and number == int(number) else None
    if name in ("normalizer", "num_examples"):
        return number if number >= 1 / MOST else None
    # Any other metric is a weight, or may become one: it must not be negative.
    may_be_negative = name.startswith(("loss", "accuracy")) or name == "grad_norm"
    return number if may_be_negative or number >= 0 else None


def _counts(value: Any) -> NDArray[np.float64] | None:
    """Return a value as an array; None if it cannot be converted."""
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError, MemoryError):
        return None


def _histogram(value: Any, length: int) -> list[float] | None:
    """Return a histogram of this length as numbers; None if it is not valid."""
    counts = _counts(value)
    if counts is None or counts.shape != (length,) or counts.sum() <= 0:
        return None
    if not ((counts >= 0) & (counts <= MOST)).all():
        return None
    return [float(count) for count in counts]


def _common_length(column: Mapping[ClientId, Any], ids: Sequence[ClientId]) -> int:
    """Return the most frequent number of classes.

    The largest of those that are equally frequent.
    """
    lengths = []
    for client in ids:
        counts = _counts(column[client]) if client in column else None
        if counts is not None and counts.ndim == 1:
            lengths.append(len(counts))
    return max(set(lengths), key=lambda length: (lengths.count(length), length), default=0)
