"""The metrics that clients can report, in one table, and the checks of reported values.

`METRICS` describes each metric. To add one, add an entry here and the line that computes it to
`_compute_metrics` of `steelyard/sim/_group.py`.

A client with an invalid report is quarantined, the others continue.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard.core._errors import SteelyardError, shorten
from steelyard.core._state import ClientId
from steelyard.core._weighting import Weighting

Table = dict[str, dict[ClientId, Any]]

MOST = 1e15  # the largest valid number: sums and products of such numbers are finite


@dataclass(frozen=True)
class Metric:
    """What a client can report: a number, or a number for each class.

    Attributes:
        name: the name of the metric.
        meaning: what the value is.
        used_by: the rules that need it, for the documentation.
        typical: a typical range, from which tests draw values. If `is_integer`, the values of the
            first two of many clients instead.
        is_integer: whether it must be a whole number, at least 1.
        is_positive: whether zero is invalid.
        may_be_negative: whether a negative number is valid. The guard sets such a client aside.
        is_per_class: whether it is a list with a number for each class.
        is_size: whether it is the size of the data set. The guard limits sizes by `size_cap`, other
            metrics by `metric_cap`. Where clients are weighted by another number than their size,
            it need not be whole.
        is_divisor: whether rules divide by it. The guard then has a lower limit, too.
        bounds: the guard clips values to this range instead of a multiple of the median.
        evaluates: the models whose loss and accuracy on the local data it is computed from:
            `received`, `trained`, or `without`, the global model without the client.
        needs_accuracy: whether the task must have an accuracy.
        is_recorded: whether it changes from round to round and is part of the record of a round.
            Sizes and labels do not change, and would make every line longer.
        changes_training: whether measuring it changes the last bits of training, because other
            operations compute the steps.
    """

    name: str
    meaning: str
    used_by: str = ""
    typical: tuple[float, float] = (0.1, 1.0)
    is_integer: bool = False
    is_positive: bool = False
    may_be_negative: bool = False
    is_per_class: bool = False
    is_size: bool = False
    is_divisor: bool = False
    bounds: tuple[float, float] | None = None
    evaluates: tuple[Literal["received", "trained", "without"], ...] = ()
    needs_accuracy: bool = False
    is_recorded: bool = False
    changes_training: bool = False


_METRICS = (
    Metric(
        "num_examples",
        "size of the local data set",
        "most rules, as the initial weights",
        typical=(10, 17),
        is_integer=True,
        is_positive=True,
        is_size=True,
    ),
    Metric(
        "num_steps",
        "number of local optimizer steps",
        "`fednova:tau_eff=steps`",
        typical=(3, 4),
        is_integer=True,
        is_divisor=True,
    ),
    Metric(
        "normalizer",
        "FedNova's a_i: the number of steps for plain SGD",
        "`fednova`",
        typical=(2, 9),
        is_positive=True,
        is_divisor=True,
    ),
    Metric(
        "label_hist",
        "number of examples of each class",
        "`feddisco`",
        typical=(1, 50),
        is_per_class=True,
    ),
    Metric(
        "loss",
        "mean loss on the local data, after training",
        "`pa3fed:model=local`",
        typical=(0.5, 2.5),
        may_be_negative=True,
        evaluates=("trained",),
        is_recorded=True,
    ),
    Metric(
        "accuracy",
        "accuracy on the local data, after training",
        "`pa3fed:model=local,score=accuracy`",
        typical=(0.1, 0.9),
        may_be_negative=True,
        bounds=(0.0, 1.0),
        evaluates=("trained",),
        needs_accuracy=True,
        is_recorded=True,
    ),
    Metric(
        "grad_norm",
        "eta |g|^2, summed over the steps of an epoch",
        "`pa3fed`, `gate`",
        typical=(0.1, 1.0),
        may_be_negative=True,
        changes_training=True,
        is_recorded=True,
    ),
    Metric(
        "loss_before",
        "mean loss of the received model on the local data",
        "`pa3fed`",
        typical=(0.5, 2.5),
        may_be_negative=True,
        evaluates=("received",),
        is_recorded=True,
    ),
    Metric(
        "accuracy_before",
        "accuracy of the received model on the local data",
        "`pa3fed:score=accuracy`",
        typical=(0.1, 0.9),
        may_be_negative=True,
        bounds=(0.0, 1.0),
        evaluates=("received",),
        needs_accuracy=True,
        is_recorded=True,
    ),
    Metric(
        "error_without",
        "error of the global model without the client on its local data; 1 in its first round",
        "`fedce`",
        typical=(0.1, 0.9),
        bounds=(0.0, 1.0),
        evaluates=("without",),
        needs_accuracy=True,
        is_recorded=True,
    ),
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in _METRICS}
"""The metrics that simulated clients and our Flower client can report, by name."""

MEANING: dict[str, str] = {name: metric.meaning for name, metric in METRICS.items()}
"""The meaning of each metric of `METRICS`."""


def needs_evaluation(names: Collection[str], model: str) -> bool:
    """Return whether one of these metrics is computed from an evaluation of a model.

    Args:
        names: metrics of `METRICS`.
        model: `received`, `trained` or `without`.
    """
    return any(model in METRICS[name].evaluates for name in names)


def find_metric(name: str) -> Metric:
    """Return the metric of this name; one of the user's own is described by its name alone.

    A metric of the user is a weight, or may become one: it must not be negative, unless its name
    says that it is a loss or an accuracy.
    """
    metric = METRICS.get(name)
    if metric is not None:
        return metric
    may_be_negative = name.startswith(("loss", "accuracy"))
    return Metric(name, "a metric of your own", may_be_negative=may_be_negative)


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
    rule: Weighting, table: Table, ids: Sequence[ClientId], needs_whole_examples: bool = True
) -> dict[ClientId, str]:
    """Return the clients whose reports the rule cannot use, with the reasons.

    Args:
        rule: its needs say which metrics are checked.
        table: the metrics; valid values are replaced by plain numbers.
        ids: the clients.
        needs_whole_examples: whether `num_examples` must be a whole number. Otherwise it is a weight, and any
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
        values = _valid_column(name, column, ids, needs_whole_examples)
        for client in ids:
            if client not in column:
                reasons.setdefault(client, f"did not report {name!r}")
            elif client not in values:
                reasons.setdefault(client, f"invalid {name}={shorten(column[client], 40)}")
        column.update(values)
    return reasons


def are_valid_values(name: str, values: NDArray[np.float64]) -> bool:
    """Return whether all clients' values of a metric are valid, as `find_invalid_clients` checks.

    Args:
        name: name of the metric.
        values: one number, or one histogram, per client: `[K]` or `[K, C]`.
    """
    metric = find_metric(name)
    if metric.is_per_class != (values.ndim == 2) or not (abs(values) <= MOST).all():
        return False
    if metric.is_per_class:
        return bool((values >= 0).all() and (values.sum(axis=1) > 0).all())
    if metric.is_integer:
        return bool((values >= 1).all() and (values == np.floor(values)).all())
    if metric.is_positive:
        return bool((values >= 1 / MOST).all())
    return metric.may_be_negative or bool((values >= 0).all())


def drop_invalid(
    table: Table, ids: Sequence[ClientId], but: Collection[str], needs_whole_examples: bool = True
) -> None:
    """Remove invalid values of metrics that no rule needs from the table.

    Args:
        table: the metrics; it is changed.
        ids: the clients; values of other clients are removed, too.
        but: names of metrics that have been checked.
        needs_whole_examples: whether a number of examples must be a whole number.
    """
    for name in table.keys() - set(but):
        table[name] = _valid_column(name, table[name], ids, needs_whole_examples)


def _valid_column(
    name: str, column: Mapping[ClientId, Any], ids: Sequence[ClientId], needs_whole_examples: bool
) -> dict[ClientId, Any]:
    """Return the valid values of these clients for a metric, as plain numbers."""
    is_per_class = find_metric(name).is_per_class
    length = _common_length(column, ids) if is_per_class else 0
    values: dict[ClientId, Any] = {}
    for client in ids:
        if client not in column:
            continue
        value: Any
        if is_per_class:
            value = _histogram(column[client], length)
        else:
            value = valid_number(name, column[client], needs_whole_examples)
        if value is not None:
            values[client] = value
    return values


def valid_number(name: str, value: Any, needs_whole_examples: bool) -> float | None:
    """Return a reported number as a float; None if it is not valid.

    Args:
        name: name of the metric.
        value: the value that a client reported.
        needs_whole_examples: whether a number of examples must be a whole number.
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
    metric = find_metric(name)
    if metric.is_integer and (needs_whole_examples or not metric.is_size):
        return number if number >= 1 and number == int(number) else None
    if metric.is_positive:
        return number if number >= 1 / MOST else None
    return number if metric.may_be_negative or number >= 0 else None


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
