"""The evaluations of a run, and their checks before the first round."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard.client._flat import count_right
from steelyard.client._losses import Loss, check_targets
from steelyard.core._errors import SteelyardError, describe_unknown_name
from steelyard.core._round_record import OLD_NAMES, ROUND_RECORD
from steelyard.core._round_report import heterogeneity_coherence
from steelyard.core._state import ClientId
from steelyard.data import Dataset, Federation
from steelyard.metrics import METRICS
from steelyard.rules._detectors import gradient_norm
from steelyard.runs._monitor import Monitor
from steelyard.runs._record import Record, finite_or_none


def check_task(federation: Federation, loss: Loss) -> None:
    """Raise an error if the loss cannot use the targets.

    If only some clients have such targets, the error names the first of them.
    """
    reasons: dict[ClientId, SteelyardError] = {}
    for client, index in zip(federation.ids, federation.index, strict=True):
        if len(index):
            try:
                check_targets(loss, federation.train.targets[torch.from_numpy(index)])
            except SteelyardError as error:
                reasons[client] = error
    if reasons:
        client, reason = next(iter(reasons.items()))
        prefix = "" if len(reasons) == int((federation.sizes > 0).sum()) else f"client {client!r}: "
        raise SteelyardError(f"{prefix}{reason}")
    if federation.test is not None:
        try:
            check_targets(loss, federation.test.targets)
        except SteelyardError as error:
            raise SteelyardError(f"test: {error}") from None


def choose_monitor(
    monitor: Monitor, has_accuracy: bool, own: Collection[str], has_callbacks: bool
) -> Monitor:
    """Return the metric to monitor: the loss, if the task has no accuracy.

    Args:
        monitor: the monitor of the options.
        has_accuracy: whether the task has an accuracy.
        own: the names of the user's metrics.
        has_callbacks: whether there are callbacks, which may record any name.
    """
    metric_names = ("accuracy", "loss", *own)
    if monitor.metric not in metric_names and not has_callbacks:
        raise SteelyardError(
            f"{describe_unknown_name('metric', monitor.metric, metric_names)} "
            f"(monitor={monitor.metric!r})"
        )
    if monitor.metric != "accuracy" or has_accuracy:
        return monitor
    if monitor.target is not None:
        alternatives = ", ".join(repr(name) for name in metric_names[1:])
        raise SteelyardError(
            f"target={monitor.target:g} is an accuracy, and this task has none (its targets are "
            f"not classes): pass "
            f"monitor={alternatives}, or add one to test_metrics"
        )
    return Monitor("loss", "min")


def can_count_right(outputs: torch.Tensor | None, targets: torch.Tensor) -> bool:
    """Return whether a task has an accuracy.

    If there are no outputs of the network, return whether the targets are classes.
    """
    if outputs is None:
        return not targets.is_floating_point()
    return not math.isnan(count_right(outputs, targets[: len(outputs)].to(outputs.device)))


def keep_one_output(outputs: torch.Tensor | None, count: int) -> torch.Tensor:
    """Return the output for one sample: outputs of the test set have its shape and type."""
    if outputs is None or outputs.ndim == 0 or len(outputs) != count:
        shape = "not a tensor" if outputs is None else f"of shape {list(outputs.shape)}"
        raise SteelyardError(
            f"test_metrics: the network's outputs for {count} samples are {shape}: return one "
            f"tensor with a row per "
            "sample"
        )
    return outputs[0].detach().cpu()


def is_due(number: int, every: int, last: bool) -> bool:
    """Return whether a round is evaluated: every `every` rounds, and the last; never if it is 0."""
    return bool(every) and (last or number % every == 0)


def record_clients(record: Record, ids: Sequence[ClientId], results: torch.Tensor) -> None:
    """Record the loss on each client's data, and the accuracy if the task has one."""
    rows = [(str(name), row) for name, row in zip(ids, results.tolist(), strict=True) if row[2]]
    accuracies = {name: finite_or_none(right / count) for name, (_, right, count) in rows}
    if any(value is not None for value in accuracies.values()):
        record["client_accuracy"] = accuracies
    record["client_loss"] = {name: finite_or_none(loss / count) for name, (loss, _, count) in rows}


def has_group_accuracy(test: Dataset | None, has_accuracy: bool) -> bool:
    """Return whether the accuracy on groups of the test set can be recorded."""
    return has_accuracy and test is not None and bool(test.group_names) and test.targets.ndim == 1


def record_groups(record: Record, test: Dataset, is_right: torch.Tensor) -> None:
    """Record the accuracy on the test samples of each group that has any.

    Args:
        record: the record of the round.
        test: the test set, with groups and their names.
        is_right: whether the predicted class of each test sample is right.
    """
    assert test.groups is not None
    accuracies = {}
    for number, name in enumerate(test.group_names):
        answers = is_right[test.groups == number]
        if len(answers):
            accuracies[name] = int(answers.sum()) / len(answers)
    record["group_accuracy"] = accuracies


def record_training(record: Record, results: torch.Tensor) -> None:
    """Record loss and accuracy on the training samples of all clients together."""
    loss, right, count = results.sum(dim=0).tolist()
    record["train_loss"] = finite_or_none(loss / count)
    record["train_accuracy"] = finite_or_none(right / count)


def compute_heterogeneity_coherence(
    counts: NDArray[np.int64], positions: Sequence[int], weights: Sequence[float]
) -> float | None:
    """Return how similar the labels of a cohort and of all clients are (FedLAW, Def. 5.2).

    Args:
        counts: samples of each class at each client, `[n, C]`.
        positions: the clients of the round.
        weights: their weights. None is returned if one of them is negative or all are 0.
    """
    shares = np.asarray(weights, dtype=np.float64)
    if not len(shares) or shares.min() < 0 or not shares.sum() > 0:
        return None
    return heterogeneity_coherence(counts, positions, shares / shares.sum())


# Metrics of the user, computed on the whole test set.

TestMetric = Callable[[torch.Tensor, torch.Tensor], float]

_MEASURES = {
    *("last10", "best", "best10", "final", "rounds", "seconds"),
    *("worst_client", "client_q10", "server_seconds", "void_rounds"),
    *("deviation", "moving", "absolute", "range", "change"),
}  # what `compare --metric` calls something else
_ALWAYS_RECORDED = {
    entry.key for entry in ROUND_RECORD.values() if not {"rule", "Flower"}.issuperset(entry.sources)
}
_RESERVED = {*_ALWAYS_RECORDED, *OLD_NAMES, *_MEASURES}


def resolve_test_metrics(
    metrics: TestMetric | Mapping[str, TestMetric] | None,
) -> dict[str, TestMetric]:
    """Return metrics by name, from a function or a dict of functions `metric(outputs, targets) -> float`."""
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping):
        name = getattr(metrics, "__name__", "")
        if not callable(metrics) or not name or name == "<lambda>":
            raise SteelyardError(
                f"test_metrics={metrics!r}: pass a dict of functions by name, such as "
                f"{{'mae': mae}}, or one function "
                "that has a name"
            )
        metrics = {name: metrics}
    for name, function in metrics.items():
        if not isinstance(name, str) or not re.fullmatch(r"\w[\w @%+-]{0,63}", name):
            raise SteelyardError(
                f"test_metrics: {name!r}: use a name of letters, digits, _, -, @, % and +, at most "
                f"64"
            )
        if name in _RESERVED:
            raise SteelyardError(
                f"test_metrics: {name!r} means something else in a record: choose another name"
            )
        if not callable(function):
            raise SteelyardError(
                f"test_metrics: {name!r} is {function!r}: pass a function of (outputs, targets)"
            )
    return dict(metrics)


def add_test_metrics(
    record: Record, metrics: Mapping[str, TestMetric], outputs: torch.Tensor, targets: torch.Tensor
) -> None:
    """Compute every metric on all test samples and record it; None if it is not finite.

    Args:
        record: the record of the round.
        metrics: the metrics by name.
        outputs: the outputs of the network for all test samples, `[n, ...]`.
        targets: the targets of all test samples.
    """
    for name, metric in metrics.items():
        prefix = f"round {record['round']}, test metric {name!r}"
        if name in record:
            raise SteelyardError(
                f"{prefix}: the record has another value of this name: choose another name"
            )
        try:
            # each has tensors of its own: one that works in place must not change what the next one
            # sees
            value: Any = metric(outputs.clone(), targets.clone())
            if isinstance(value, str):
                raise TypeError(f"it returned the text {value!r}, not a number")
            record[name] = finite_or_none(float(value))
        except Exception as error:
            raise SteelyardError(f"{prefix}: {type(error).__name__}: {error}") from error


# The part of a record that clients report.

_RECORDED_METRICS = sorted(name for name, metric in METRICS.items() if metric.is_recorded)


def report_metrics(
    table: Mapping[str, Mapping[ClientId, Any]], ids: Sequence[ClientId]
) -> dict[str, Any]:
    """Return the entries of a record about what clients reported.

    These are `reported` by metric and client, to six digits, and, if all clients report
    `grad_norm`, `fgn_mean` (CriticalFL's plain mean) and `fgn` (PA3Fed's Eq. (5), weighted by
    sizes, if clients report those, too).

    Args:
        table: the reports by metric and client.
        ids: the clients of the round.
    """
    reported = {
        name: {
            client: float(f"{table[name][client]:.6g}") for client in ids if client in table[name]
        }
        for name in _RECORDED_METRICS
        if table.get(name)
    }
    record: dict[str, Any] = {"reported": reported} if reported else {}
    if _is_complete(table, "grad_norm", ids):
        norms = _column(table, "grad_norm", ids)
        if _is_complete(table, "num_examples", ids):
            record["fgn"] = gradient_norm(norms, "weighted", _column(table, "num_examples", ids))
        record["fgn_mean"] = gradient_norm(norms, "mean")
    return record


def _is_complete(
    table: Mapping[str, Mapping[ClientId, Any]], name: str, ids: Sequence[ClientId]
) -> bool:
    """Return whether every client reported this metric."""
    return name in table and all(client in table[name] for client in ids)


def _column(table: Mapping[str, Mapping[ClientId, Any]], name: str, ids: Sequence[ClientId]) -> Any:
    return np.array([table[name][client] for client in ids], dtype=np.float64)
