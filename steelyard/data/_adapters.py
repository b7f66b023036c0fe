"""Turn the data of users into tensors: arrays, and the items of torch data sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, Subset, TensorDataset

from steelyard.core._errors import SteelyardError


def tensor(name: str, value: Any) -> torch.Tensor:
    """Return a tensor or an array of numbers as a tensor in CPU memory.

    `name` is for the error message.
    """
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, np.ndarray) and value.dtype.kind in "bifu":
        array = np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("="))
        if not array.flags.writeable:
            array = array.copy()
        return torch.from_numpy(array)
    kind = f"array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
    raise SteelyardError(f"{name}: {kind} is not supported, use a tensor or an array of numbers")


def as_inputs(values: torch.Tensor) -> torch.Tensor:
    """Return floating-point numbers and booleans as float32, integers (tokens) as int64."""
    if values.dtype == torch.uint8:
        raise SteelyardError(
            "inputs are uint8: use float32 for images (divide by 255), int64 for tokens"
        )
    is_real = values.is_floating_point() or values.dtype == torch.bool
    return values.to(torch.float32 if is_real else torch.int64)


def as_targets(values: torch.Tensor) -> torch.Tensor:
    """Return floating-point numbers as float32, labels as int64."""
    return values.to(torch.float32 if values.is_floating_point() else torch.int64)


def classes(targets: torch.Tensor) -> int | None:
    """Return the number of classes, the largest label plus 1.

    Return None if the targets are not labels.
    """
    if targets.dtype != torch.int64 or targets.ndim != 1 or len(targets) == 0:
        return None
    if int(targets.min()) < 0:
        return None
    return int(targets.max()) + 1


def is_empty(data: Any) -> bool:
    """Return whether a data set of any form has no samples."""
    if isinstance(data, (tuple, list)) and len(data) == 2:
        return all(is_empty(side) for side in data)
    if isinstance(data, (str, Mapping)):  # not a data set: reading it raises an error that says so
        return False
    try:
        return len(data) == 0
    except TypeError:  # a stream, a number or None: reading it raises an error as well
        return False


def read_torch_dataset(data: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the inputs and the targets of a map-style torch data set."""
    if isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
        raise SteelyardError(
            "the torch data set has no length (an iterable one?): use one with __getitem__ and "
            "__len__"
        )
    if len(data) == 0:
        raise SteelyardError(
            "the torch data set is empty, so its shape is unknown: give it a sample, or leave it "
            "out"
        )
    columns = _columns(data)
    if columns is not None:
        return columns
    items = [_item(data, position) for position in range(len(data))]
    inputs = _stack_values("inputs", [item[0] for item in items])
    targets = _stack_values("targets", [item[1] for item in items])
    return inputs, targets


def _item(data: Any, position: int) -> Any:
    """Return the pair (input, target) at a position.

    An error of the user's code names the position.
    """
    label = f"item {position} of the torch data set"
    try:
        item = data[position]
    except Exception as error:
        raise SteelyardError(f"{label}: {type(error).__name__}: {error}") from error
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise SteelyardError(f"{label} is a {type(item).__name__}: use pairs (input, target)")
    return item


def _columns(data: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the two tensors of a `TensorDataset`, or of a `Subset` of one, without reading items.

    Return None for other data sets.
    """
    if type(data) is Subset:
        columns = _columns(data.dataset)
        if columns is not None:
            positions = torch.as_tensor(data.indices)
            return columns[0][positions], columns[1][positions]
    if type(data) is TensorDataset and len(data.tensors) == 2:
        return tensor("inputs", data.tensors[0]), tensor("targets", data.tensors[1])
    return None


def _stack_values(name: str, values: list[Any]) -> torch.Tensor:
    """Return the values of one column as one tensor."""
    column = []
    for position, value in enumerate(values):
        if isinstance(value, (int, float, np.number)):
            column.append(torch.tensor(value))
        else:
            column.append(tensor(f"{name} of item {position}", value))
    shapes = {tuple(value.shape) for value in column}
    if len(shapes) > 1:
        raise SteelyardError(
            f"{name} of the torch data set have different shapes, {sorted(shapes)[:3]}: use one "
            f"shape"
        )
    return torch.stack(column)
