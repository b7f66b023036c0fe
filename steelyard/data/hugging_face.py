"""Hugging Face data sets, column by column, without importing their library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard.core.errors import SteelyardError
from steelyard.data import adapters
from steelyard.data.text import Vocabulary, encode

INPUTS = ("image", "img", "pixel_values", "x", "text")
TARGETS = ("label", "labels", "fine_label", "target", "y")
"""Names of columns, the first that is there is taken."""

_ROWS = 1024  # at a time: images are decoded, so whole columns would be held twice


@dataclass(frozen=True)
class Columns:
    """Which columns to take, and how to read text; a name that is None is looked for."""

    inputs: str | None = None
    targets: str | None = None
    groups: str | None = None
    vocabulary: Vocabulary | None = None
    length: int = 64


@dataclass(frozen=True)
class Table:
    """What `Dataset` is made of."""

    inputs: torch.Tensor
    targets: torch.Tensor
    classes: int | None
    groups: torch.Tensor | None


def is_table(data: Any) -> bool:
    """Whether this is one of Hugging Face's, of any kind."""
    return hasattr(data, "column_names") and (hasattr(data, "features") or hasattr(data, "items"))


def read(data: Any, columns: Columns) -> Table:
    """The columns asked for, as tensors."""
    _check_kind(data)
    names = list(data[:1]) if _has_transform(data) else list(data.column_names)
    inputs = _choose_column("inputs", columns.inputs, INPUTS, names)
    targets = _choose_column("targets", columns.targets, TARGETS, names)
    labels = _labels(data, targets)
    groups = None
    if columns.groups is not None:
        groups = torch.from_numpy(_numbered(data, _choose_column("groups", columns.groups, (), names)))
    counted = getattr(_feature(data, targets), "num_classes", None)
    return Table(_inputs(data, inputs, columns), labels, counted or adapters.classes(labels), groups)


def _check_kind(data: Any) -> None:
    if hasattr(data, "items"):
        names = [repr(str(name)) for name in data]
        found = f"data is a {type(data).__name__} of {', '.join(names) or 'nothing'}"
        raise SteelyardError(f"{found}: pass one of them, as in data[{names[0] if names else 'name'}]")
    if not hasattr(data, "__len__") or not hasattr(data, "select_columns"):
        raise SteelyardError(
            f"data is a {type(data).__name__}, which is read as a stream: load it with streaming=False"
        )
    if len(data) == 0:
        raise SteelyardError("the Hugging Face data set is empty, so its shape is unknown: leave it out")


def _choose_column(role: str, given: str | None, usual: Sequence[str], names: Sequence[str]) -> str:
    wanted = usual if given is None else (given,)
    for name in wanted:
        if name in names:
            return name
    found = f"{role}={given!r}: there is no such column" if given is not None else f"no column of {', '.join(usual)}"
    raise SteelyardError(f"{found} in {', '.join(names)}: name one, e.g. Dataset.of(data, {role}={names[0]!r})")


def _inputs(data: Any, name: str, columns: Columns) -> torch.Tensor:
    parts = list(_parts(data, name))
    if parts[0].dtype.kind in "UO":
        if columns.vocabulary is None:
            cure = "give vocabulary=steelyard.data.text.Vocabulary.of(texts) and length="
            raise SteelyardError(f"column {name!r} holds text: {cure}, or encode it first")
        return encode((str(text) for part in parts for text in part), columns.vocabulary, columns.length)
    if _pictured(data, name):
        channels = max(part.shape[1] for part in parts)  # greyscale ones among others become RGB
        parts = [np.broadcast_to(part, (len(part), channels, *part.shape[2:])) for part in parts]
        return torch.from_numpy(_join_parts(name, parts).astype(np.float32)).div_(255)
    if _leaf(_feature(data, name)) == "uint8":  # the library has made int64 of it, as if these were tokens
        raise SteelyardError(f"column {name!r} is uint8: cast it to float32 for images in [0, 1], int64 for tokens")
    return adapters.as_inputs(adapters.tensor(name, _join_parts(name, parts)))


def _labels(data: Any, name: str) -> torch.Tensor:
    values = _join_parts(name, list(_parts(data, name)))
    if values.dtype.kind in "UO":
        raise SteelyardError(f"column {name!r} holds text: number it, data.class_encode_column({name!r})")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        row = int(np.argwhere(~np.isfinite(values))[0][0])
        raise SteelyardError(f"column {name!r} has no number in row {row}: leave such rows out with data.filter")
    return adapters.as_targets(adapters.tensor(name, values))


def _numbered(data: Any, name: str) -> NDArray[np.int64]:
    """Values of any kind as numbers from 0, in sorted order."""
    values = _join_parts(name, list(_parts(data, name)))
    if values.ndim != 1:
        raise SteelyardError(f"groups={name!r}: a value has shape {values.shape[1:]}, use a column of single values")
    return np.unique(values.astype(str) if values.dtype == object else values, return_inverse=True)[1].astype(np.int64)


def _parts(data: Any, name: str) -> Iterator[NDArray[Any]]:
    """A column's values, some rows at a time; images as uint8 `[n, channels, height, width]`."""
    view = data
    if not _has_transform(data):  # as numbers in one go, but images as they are, to see their kind
        view = data.select_columns([name]).with_format(None if _pictured(data, name) else "numpy")
    for start in range(0, len(data), _ROWS):
        values = view[start : start + _ROWS][name]
        if isinstance(values, torch.Tensor):
            yield values.detach().cpu().numpy()
        elif isinstance(values, np.ndarray) and values.dtype != object:
            yield values
        else:
            yield _stack_rows(name, start, values)


def _pictures(name: str, pictures: Sequence[Any]) -> NDArray[np.uint8]:
    sizes = {picture.size for picture in pictures}
    if len(sizes) > 1:
        raise SteelyardError(f"column {name!r} has images of sizes {sorted(sizes)[:3]}: resize them first")
    for picture in pictures:
        if picture.mode.startswith(("I", "F")):  # 16 bits or more, which conversion would cut off
            raise SteelyardError(f"column {name!r} has an image of mode {picture.mode}: turn it to 8 bits first")
    grey = all(picture.mode in ("L", "1") for picture in pictures)
    arrays = np.stack([np.asarray(picture.convert("L" if grey else "RGB")) for picture in pictures])
    return np.ascontiguousarray(arrays[:, None] if grey else arrays.transpose(0, 3, 1, 2))


def _stack_rows(name: str, start: int, values: Sequence[Any]) -> NDArray[Any]:
    for row, value in enumerate(values, start):
        if value is None:
            raise SteelyardError(f"column {name!r} has nothing in row {row}: leave such rows out with data.filter")
    if hasattr(values[0], "getbands"):
        return _pictures(name, values)
    try:
        return np.stack([np.asarray(value) for value in values])
    except ValueError:
        shapes = sorted({np.shape(value) for value in values})[:3]
        raise SteelyardError(f"column {name!r} has values of shapes {shapes}: make them alike") from None


def _join_parts(name: str, parts: list[NDArray[Any]]) -> NDArray[Any]:
    shapes = {part.shape[1:] for part in parts}
    if len(shapes) > 1:
        raise SteelyardError(f"column {name!r} has values of shapes {sorted(shapes)[:3]}: make them alike")
    return np.concatenate(parts)


def _has_transform(data: Any) -> bool:
    """Whether the user's own function makes the rows: they are then taken as it gives them."""
    return bool(data.format["type"] == "custom")


def _feature(data: Any, name: str) -> Any:
    return (data.features or {}).get(name)


def _pictured(data: Any, name: str) -> bool:
    """Whether a column holds images that are still to be decoded or turned to numbers."""
    if _has_transform(data):
        return hasattr(data[:1][name][0], "getbands")
    return type(_feature(data, name)).__name__ == "Image"


def _leaf(feature: Any) -> str:
    """The type of the numbers in a column, however they are nested."""
    while hasattr(feature, "feature"):
        feature = feature.feature
    return str(getattr(feature, "dtype", ""))
