"""Means of what clients report, by Flower's function or one of the user's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from flwr.app import MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

Aggregate = Callable[[list[RecordDict], str], MetricRecord]


def mean(contents: Sequence[RecordDict], fold: Aggregate, weight: str, but: str) -> MetricRecord | None:
    """What the user's own function makes of the replies as they are; else Flower's mean of metrics that all report.

    In the latter, who sends no weight is left out, who sends NaN of a metric is left out of that one, and so is the id.
    """
    if fold is not aggregate_metricrecords:
        return fold(list(contents), weight) if contents else None
    rows: list[dict[str, Any]] = [
        {name: value for record in one.metric_records.values() for name, value in record.items()} for one in contents
    ]
    rows = [row for row in rows if _number(row.get(weight)) and row[weight] > 0]
    shared = set.intersection(*(set(row) for row in rows)) if rows else set()
    made = MetricRecord()
    for name in sorted(shared - {but, weight}):
        sound = [row for row in rows if _finite(row[name])]
        if len({len(row[name]) if isinstance(row[name], list) else -1 for row in sound}) == 1:
            pairs = [MetricRecord({name: row[name], weight: row[weight]}) for row in sound]
            made[name] = aggregate_metricrecords([RecordDict({"metrics": pair}) for pair in pairs], weight)[name]
    return made if rows else None


def _finite(value: Any) -> bool:
    return all(_number(one) for one in value) if isinstance(value, list) else _number(value)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)
