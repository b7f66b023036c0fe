"""What a user has, as tensors: arrays, and the items of torch data sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, Subset, TensorDataset

from steelyard.core.errors import SteelyardError


def tensor(name: str, value: Any) -> torch.Tensor:
    """A tensor or an array of numbers as a tensor in memory."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, np.ndarray) and value.dtype.kind in "bifu":
        native = np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("="))
        return torch.from_numpy(native if native.flags.writeable else native.copy())
    kind = f"array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
    raise SteelyardError(f"{name}: found {kind}, use a tensor or an array of numbers")


def as_inputs(values: torch.Tensor) -> torch.Tensor:
    """Numbers as float32, tokens as int64."""
    if values.dtype == torch.uint8:
        raise SteelyardError("inputs are uint8: use float32 for images (divide by 255), int64 for tokens")
    return values.to(torch.float32 if values.is_floating_point() or values.dtype == torch.bool else torch.int64)


def as_targets(values: torch.Tensor) -> torch.Tensor:
    """Numbers as float32, labels as int64."""
    return values.to(torch.float32 if values.is_floating_point() else torch.int64)


def classes(targets: torch.Tensor) -> int | None:
    """How many classes the labels show; None if these are no labels."""
    labels = targets.dtype == torch.int64 and targets.ndim == 1 and len(targets) > 0 and int(targets.min()) >= 0
    return int(targets.max()) + 1 if labels else None


def is_empty(data: Any) -> bool:
    """Return whether a data set of any form has no sample, whether or not it tells the shape of one."""
    if isinstance(data, (tuple, list)) and len(data) == 2:
        return all(is_empty(side) for side in data)
    if isinstance(data, (str, Mapping)):  # not a data set: reading it says so
        return False
    try:
        return len(data) == 0
    except TypeError:  # a stream, a number, None: likewise
        return False


def materialised(data: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of a map-style torch data set."""
    if isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
        raise SteelyardError(
            "the torch data set has no length (an iterable one?): use one with __getitem__ and __len__"
        )
    if len(data) == 0:
        raise SteelyardError("the torch data set is empty, so its shape is unknown: give it a sample, or leave it out")
    if (columns := _columns(data)) is not None:
        return columns
    items = [_item(data, at) for at in range(len(data))]
    inputs, targets = (
        _stack_values(name, [item[side] for item in items]) for side, name in enumerate(("inputs", "targets"))
    )
    return inputs, targets


def _item(data: Any, at: int) -> Any:
    """Return the pair (input, target) at a position; what goes wrong in the user's code names the position."""
    try:
        item = data[at]
    except Exception as error:
        raise SteelyardError(f"item {at} of the torch data set: {type(error).__name__}: {error}") from error
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise SteelyardError(f"item {at} of the torch data set is a {type(item).__name__}: use pairs (input, target)")
    return item


def _columns(data: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Of data sets that are two tensors, and parts of such, without looking at items."""
    if type(data) is Subset and (whole := _columns(data.dataset)) is not None:
        at = torch.as_tensor(data.indices)
        return whole[0][at], whole[1][at]
    if type(data) is TensorDataset and len(data.tensors) == 2:
        return tensor("inputs", data.tensors[0]), tensor("targets", data.tensors[1])
    return None


def _stack_values(name: str, values: list[Any]) -> torch.Tensor:
    column = [
        torch.tensor(value) if isinstance(value, (int, float, np.number)) else tensor(f"{name} of item {at}", value)
        for at, value in enumerate(values)
    ]
    shapes = {tuple(value.shape) for value in column}
    if len(shapes) > 1:
        raise SteelyardError(f"{name} of the torch data set have shapes {sorted(shapes)[:3]}: make them alike")
    return torch.stack(column)
