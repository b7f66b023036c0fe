"""A round as one line of JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from steelyard.core.gram import Array
from steelyard.core.table import ClientId

Record = dict[str, Any]


def plain(report: Mapping[str, Any], weights: Mapping[ClientId, float], by_layer: Array) -> Record:
    """A report as one line of JSON: text keys, and null where a number is not one."""
    record: Record = {"round": report["round"], "weights": weights}
    if by_layer.shape[0] > 1:
        record["layer_weights"] = dict(zip(report["layers"], by_layer.tolist(), strict=True))
    record |= {name: value for name, value in report.items() if name not in ("round", "layers", "clients")}
    cleaned: Record = _clean(record)
    return cleaned


def _clean(value: Any) -> Any:
    if isinstance(value, float):
        return finite(value)
    if isinstance(value, Mapping):
        return {str(key): _clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(item) for item in value]
    return value


def finite(value: float) -> float | None:
    """The number, or null where it is not one: JSON has no NaN."""
    return value if math.isfinite(value) else None
