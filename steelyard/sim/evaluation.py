"""What a run can measure of its task, and when: checked before the first round."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import torch

from steelyard.client.flat import count_right
from steelyard.client.losses import Loss, check_targets
from steelyard.core.client_state import ClientId
from steelyard.core.errors import SteelyardError, describe_unknown_name
from steelyard.data import Federation
from steelyard.runs.monitor import Monitor
from steelyard.runs.record import Record, finite_or_none


def check_task(federation: Federation, loss: Loss) -> None:
    """Refuse targets that the loss would make nonsense of; where only some clients have such, name the first."""
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


def choose_monitor(monitor: Monitor, has_accuracy: bool, own: Collection[str], has_callbacks: bool) -> Monitor:
    """Return the metric to monitor: the loss, where accuracy is asked for and the task has none.

    Args:
        monitor: what was asked for.
        has_accuracy: whether the task has an accuracy.
        own: names of the user's metrics.
        has_callbacks: whether there are callbacks, which may put any name on record.
    """
    metric_names = ("accuracy", "loss", *own)
    if monitor.metric not in metric_names and not has_callbacks:
        raise SteelyardError(
            f"{describe_unknown_name('metric', monitor.metric, metric_names)} (monitor={monitor.metric!r})"
        )
    if monitor.metric != "accuracy" or has_accuracy:
        return monitor
    if monitor.target is not None:
        alternatives = ", ".join(repr(name) for name in metric_names[1:])
        raise SteelyardError(
            f"target={monitor.target:g} is an accuracy, and this task has none (its targets are not classes): give "
            f"monitor={alternatives}, or add one to test_metrics"
        )
    return Monitor("loss", "min")


def can_count_right(outputs: torch.Tensor | None, targets: torch.Tensor) -> bool:
    """Return whether a task has an accuracy; where the network could not be tried, whether its targets are classes."""
    if outputs is None:
        return not targets.is_floating_point()
    return not math.isnan(count_right(outputs, targets[: len(outputs)].to(outputs.device)))


def keep_one_output(outputs: torch.Tensor | None, count: int) -> torch.Tensor:
    """Return the network's output of one sample, whose shape and type the test set's outputs will have."""
    if outputs is None or outputs.ndim == 0 or len(outputs) != count:
        shape = "not a tensor" if outputs is None else f"of shape {list(outputs.shape)}"
        raise SteelyardError(
            f"test_metrics: the network's outputs for {count} samples are {shape}: return one tensor with a row per "
            "sample"
        )
    return outputs[0].detach().cpu()


def is_due(number: int, every: int, last: bool) -> bool:
    """Return whether a round is to be evaluated: every so many, and the last; never, if `every` is 0."""
    return bool(every) and (last or number % every == 0)


def record_clients(record: Record, ids: Sequence[ClientId], results: torch.Tensor) -> None:
    """Put the accuracy on each client's own data on record, or the loss where the task has no accuracy."""
    rows = [(str(name), row) for name, row in zip(ids, results.tolist(), strict=True) if row[2]]
    accuracies = {name: finite_or_none(right / count) for name, (_, right, count) in rows}
    if any(value is not None for value in accuracies.values()):
        record["client_accuracy"] = accuracies
    else:
        record["client_loss"] = {name: finite_or_none(loss / count) for name, (loss, _, count) in rows}
