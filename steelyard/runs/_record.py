"""Records of rounds in a form that JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
import torch

from steelyard.core._gram import Array
from steelyard.core._state import ClientId

Record = dict[str, Any]


def make_record(
    report: Mapping[str, Any], weights: Mapping[ClientId, float], by_layer: Array
) -> Record:
    """Return the record of a round: keys are text, and numbers that are not finite are None.

    Args:
        report: the report of the round.
        weights: the weights of the clients.
        by_layer: the weights of the clients in each layer, `[g, K]`.
    """
    record: Record = {"round": report["round"], "weights": weights}
    if by_layer.shape[0] > 1:
        record["layer_weights"] = dict(zip(report["layers"], by_layer.tolist(), strict=True))
    record |= {
        name: value for name, value in report.items() if name not in ("round", "layers", "clients")
    }
    cleaned: Record = _replace_non_finite(record)
    return cleaned


def _replace_non_finite(value: Any) -> Any:
    """Return a value with text keys, and None in place of numbers that are not finite."""
    if isinstance(value, float):
        return finite_or_none(value)
    if isinstance(value, Mapping):
        return {str(key): _replace_non_finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replace_non_finite(item) for item in value]
    return value


def to_json_record(record: Record) -> tuple[Record, dict[str, str]]:
    """Convert the values of a record, which callbacks may have changed, to those of JSON, in place.

    Numbers and arrays of numpy and torch become numbers and lists, numbers that are not finite
    become None, and keys become text.

    Returns:
        The record to write, and the reasons by key why other values cannot be written.
    """
    plain_record: Record = {}
    problems: dict[str, str] = {}
    for name, value in record.items():
        try:
            record[name] = _make_json_safe(value)
            plain_record[str(name)] = record[name]
        except (TypeError, RecursionError) as error:
            problems[str(name)] = str(error)
    return plain_record, problems


def _make_json_safe(value: Any) -> Any:
    """Return a value as plain data; raises TypeError if it cannot be converted."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    elif isinstance(value, torch.Tensor):
        value = value.detach().cpu().tolist()
    if isinstance(value, float):
        return finite_or_none(float(value))
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str | PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _make_json_safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_make_json_safe(item) for item in value]
    if isinstance(value, set | frozenset):
        return [_make_json_safe(item) for item in sorted(value, key=repr)]
    raise TypeError(f"JSON cannot hold a {type(value).__name__}")


def finite_or_none(value: float) -> float | None:
    """Return the number, or None if it is not finite: JSON cannot hold NaN."""
    return value if math.isfinite(value) else None
