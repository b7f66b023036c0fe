"""Metrics of the user's own, computed on the whole test set."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from steelyard.core.errors import SteelyardError
from steelyard.core.round_report import GEOMETRY
from steelyard.runs.record import Record, finite_or_none

TestMetric = Callable[[torch.Tensor, torch.Tensor], float]

RECORDED = {
    *("round", "weights", "layer_weights", "quarantined", "void", "dropped", "late", "lr", "simulated_duration"),
    *("loss", "accuracy", "client_accuracy", "reported", "timings", "effective_clients"),
}
_MEASURES = {
    *("last10", "best", "best10", "final", "rounds", "seconds"),
    *("worst_client", "client_q10", "server_seconds", "void_rounds"),
    *("deviation", "moving", "absolute", "range", "change"),
}  # what `compare --metric` calls something else
_RESERVED = {*RECORDED, *GEOMETRY, *_MEASURES}


def resolve_test_metrics(metrics: TestMetric | Mapping[str, TestMetric] | None) -> dict[str, TestMetric]:
    """Return metrics by name, from a function or a dict of functions `metric(outputs, targets) -> float`."""
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping):
        name = getattr(metrics, "__name__", "")
        if not callable(metrics) or not name or name == "<lambda>":
            raise SteelyardError(
                f"test_metrics={metrics!r}: give a dict of functions by name, such as {{'mae': mae}}, or one function "
                "that has a name"
            )
        metrics = {name: metrics}
    for name, function in metrics.items():
        if not isinstance(name, str) or not re.fullmatch(r"\w[\w @%+-]{0,63}", name):
            raise SteelyardError(f"test_metrics: {name!r}: use a name of letters, digits, _, -, @, % and +, at most 64")
        if name in _RESERVED:
            raise SteelyardError(f"test_metrics: {name!r} means something else in a record: choose another name")
        if not callable(function):
            raise SteelyardError(f"test_metrics: {name!r} is {function!r}: give a function of (outputs, targets)")
    return dict(metrics)


def add_test_metrics(
    record: Record, metrics: Mapping[str, TestMetric], outputs: torch.Tensor, targets: torch.Tensor
) -> None:
    """Compute every metric on all test samples, and put it on record; null where it is not a number.

    Args:
        record: of the round.
        metrics: by name.
        outputs: the network's, of all test samples, `[n, ...]`.
        targets: of all test samples.
    """
    for name, metric in metrics.items():
        prefix = f"round {record['round']}, test metric {name!r}"
        if name in record:
            raise SteelyardError(f"{prefix}: the record has another value of this name: choose another name")
        try:
            # each has tensors of its own: one that works in place must not change what the next one sees
            value: Any = metric(outputs.clone(), targets.clone())
            if isinstance(value, str):
                raise TypeError(f"it returned the text {value!r}, not a number")
            record[name] = finite_or_none(float(value))
        except Exception as error:
            raise SteelyardError(f"{prefix}: {type(error).__name__}: {error}") from error
