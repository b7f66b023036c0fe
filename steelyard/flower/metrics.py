"""Means of what clients report, by Flower's function or one of the user's own."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import ERROR
from typing import Any

from flwr.app import MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

from steelyard.core.errors import SteelyardError, describe_error, escape_text
from steelyard.core.state import ClientId, sort_key
from steelyard.flower.handler import call_or_refuse
from steelyard.metrics import MOST, valid_number

Aggregate = Callable[[list[RecordDict], str], MetricRecord]
Row = dict[str, Any]


@dataclass(frozen=True)
class MetricMeans:
    """What the clients of a round report, taken together.

    Attributes:
        metrics: means by name; None if there are none.
        medians: over clients, of the metrics that are single numbers. One client cannot move them
            far.
        refused: clients whose report cannot be right, with the reason.
    """

    metrics: MetricRecord | None
    medians: dict[str, float] = field(default_factory=dict)
    refused: dict[ClientId, str] = field(default_factory=dict)


def mean(
    contents: Mapping[ClientId, RecordDict],
    fold: Aggregate,
    weight: str,
    id_key: str,
    cap: float = math.inf,
) -> MetricMeans:
    """Return what the user's own function makes of the replies; else Flower's means of the metrics.

    The user's function gets the replies as they came. For Flower's means, a reply with a value that
    cannot be right is refused, a value that is NaN is left out, and a metric counts if more than
    half of the clients report it.

    Args:
        contents: the replies, by client.
        fold: the function, Flower's `aggregate_metricrecords` by default.
        weight: the name of the metric to weigh by.
        id_key: the name of the clients' id, of which there is no mean.
        cap: a weight counts as at most so many medians of the weights.
    """
    if not contents:
        return MetricMeans(None)
    ordered = {client: contents[client] for client in sorted(contents, key=sort_key)}
    if fold is not aggregate_metricrecords:
        return MetricMeans(_call_users_function(fold, list(ordered.values()), weight))
    # Reports that can be right, by client.
    rows: dict[ClientId, Row] = {}
    reasons: dict[ClientId, str] = {}
    for client, content in ordered.items():
        row, reason = call_or_refuse(_read_metrics, content, weight)
        if row is None:
            reasons[client] = reason
        else:
            rows[client] = row
    # Accuracies are shares, or percentages where most clients report those.
    ceiling = _find_accuracy_ceiling(rows.values())
    for client, row in list(rows.items()):
        if not _is_accuracy_valid(row.get("accuracy", 0.0), ceiling):
            value = escape_text(repr(row["accuracy"]), 40)
            reasons[client] = f"invalid accuracy={value}: report a number from 0 to {ceiling:g}"
            del rows[client]
    if not rows:
        return MetricMeans(None, {}, reasons)
    # No client counts for more than a few others.
    largest_weight = cap * statistics.median_low(row[weight] for row in rows.values())
    for row in rows.values():
        row[weight] = min(row[weight], largest_weight)
    # Metrics that most report, in the form in which most report them.
    metrics, medians = MetricRecord(), {}
    counts = Counter(name for row in rows.values() for name in row)
    for name in sorted(
        name
        for name, count in counts.items()
        if 2 * count > len(rows) and name not in (id_key, weight)
    ):
        sound = [row for row in rows.values() if name in row and _is_finite(row[name])]
        lengths = Counter(_length(row[name]) for row in sound)
        length, count = max(
            lengths.items(), key=lambda item: (item[1], item[0]), default=(_NUMBER, 0)
        )
        if 2 * count <= len(sound):
            continue
        same = [row for row in sound if _length(row[name]) == length]
        pairs = [MetricRecord({name: row[name], weight: row[weight]}) for row in same]
        metrics[name] = aggregate_metricrecords(
            [RecordDict({"metrics": pair}) for pair in pairs], weight
        )[name]
        if length == _NUMBER:
            medians[name] = float(statistics.median(row[name] for row in same))
    return MetricMeans(metrics, medians, reasons)


_NUMBER = -1  # in place of a list's length


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list) else _NUMBER


def _read_metrics(content: RecordDict, weight: str) -> Row:
    """Return all metrics of a reply; raise an error if one of them cannot be right."""
    row: Row = {
        name: value for record in content.metric_records.values() for name, value in record.items()
    }
    if weight not in row:
        raise SteelyardError(f"did not report {weight!r}")
    is_size = weight.replace("-", "_") == "num_examples"
    if valid_number("num_examples", row[weight], whole=is_size) is None:
        raise SteelyardError(f"invalid {weight}={escape_text(repr(row[weight]), 40)}")
    for name, value in row.items():
        numbers = value if isinstance(value, list) else [value]
        if not all(_is_plausible(number) for number in numbers):
            raise SteelyardError(f"invalid {name}={escape_text(repr(value), 40)}")
    return row


def _find_accuracy_ceiling(rows: Iterable[Row]) -> float:
    """Return 100 if most clients report their accuracy in percent, else 1."""
    accuracies = [row["accuracy"] for row in rows if isinstance(row.get("accuracy"), (int, float))]
    finite = [accuracy for accuracy in accuracies if math.isfinite(accuracy)]
    return 100.0 if finite and statistics.median_low(finite) > 1 else 1.0


def _is_accuracy_valid(value: Any, ceiling: float) -> bool:
    """Return whether an accuracy, or a list of them, is in range.

    Means leave out NaN and infinity.
    """
    numbers = value if isinstance(value, list) else [value]
    return all(0 <= number <= ceiling for number in numbers if math.isfinite(number))


def _is_plausible(value: Any) -> bool:
    """Return whether a client can mean this number.

    It can mean infinity and NaN: then its training diverged.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    if isinstance(value, float) and not math.isfinite(value):
        return True
    return abs(value) <= MOST


def _is_finite(value: Any) -> bool:
    return (
        all(math.isfinite(number) for number in value)
        if isinstance(value, list)
        else math.isfinite(value)
    )


def _call_users_function(
    fold: Aggregate, contents: Sequence[RecordDict], weight: str
) -> MetricRecord | None:
    """Call the user's function; an error costs the round's metrics, and not the run."""
    try:
        return fold(list(contents), weight)
    except Exception as error:  # replies are others', and so may be the error
        name = getattr(fold, "__name__", type(fold).__name__)
        log(
            ERROR,
            "%s raised an error, so this round has no means of metrics: %s",
            name,
            describe_error(error),
        )
        return None
