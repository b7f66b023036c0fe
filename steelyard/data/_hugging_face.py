"""Read Hugging Face data sets column by column, without importing their library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard.core._errors import SteelyardError
from steelyard.data import _adapters as adapters
from steelyard.data._text import Vocabulary, encode

INPUTS = ("image", "img", "pixel_values", "x", "text")
TARGETS = ("label", "labels", "fine_label", "target", "y")
"""Usual names of columns; the first that exists is used."""

_ROWS = 1024  # per block: images are decoded, so a complete column would be in memory twice


@dataclass(frozen=True)
class Columns:
    """Which columns to read, and how to encode text; a usual name is used instead of None."""

    inputs: str | None = None
    targets: str | None = None
    groups: str | None = None
    vocabulary: Vocabulary | None = None
    length: int = 64


@dataclass(frozen=True)
class Table:
    """The tensors and the number of classes for a `Dataset`."""

    inputs: torch.Tensor
    targets: torch.Tensor
    classes: int | None
    groups: torch.Tensor | None


def is_table(data: Any) -> bool:
    """Return whether this is a Hugging Face data set of any kind."""
    return hasattr(data, "column_names") and (hasattr(data, "features") or hasattr(data, "items"))


def read(data: Any, columns: Columns) -> Table:
    """Return the columns as tensors."""
    _check_type(data)
    names = list(data[:1]) if _has_transform(data) else list(data.column_names)
    inputs = _choose_column("inputs", columns.inputs, INPUTS, names)
    targets = _choose_column("targets", columns.targets, TARGETS, names)
    labels = _labels(data, targets)
    groups = None
    if columns.groups is not None:
        group_column = _choose_column("groups", columns.groups, (), names)
        groups = torch.from_numpy(_number_values(data, group_column))
    classes = getattr(_feature(data, targets), "num_classes", None) or adapters.classes(labels)
    return Table(_inputs(data, inputs, columns), labels, classes, groups)


def _check_type(data: Any) -> None:
    """Raise an error for a dict of data sets, a stream, and an empty data set."""
    if hasattr(data, "items"):
        names = [repr(str(name)) for name in data]
        raise SteelyardError(
            f"data is a {type(data).__name__} of {', '.join(names) or 'nothing'}: "
            f"pass one of its data sets, as in data[{names[0] if names else 'name'}]"
        )
    if not hasattr(data, "__len__") or not hasattr(data, "select_columns"):
        raise SteelyardError(
            f"data is a {type(data).__name__}, which is read as a stream: load it with "
            f"streaming=False"
        )
    if len(data) == 0:
        raise SteelyardError(
            "the Hugging Face data set is empty, so its shape is unknown: leave it out"
        )


def _choose_column(
    role: str, column: str | None, usual: Sequence[str], names: Sequence[str]
) -> str:
    """Return the name of a column: `column`, or if it is None the first usual name that exists."""
    candidates = usual if column is None else (column,)
    for name in candidates:
        if name in names:
            return name
    if column is None:
        problem = f"no column of {', '.join(usual)}"
    else:
        problem = f"{role}={column!r}: there is no such column"
    raise SteelyardError(
        f"{problem} in {', '.join(names)}: name a column, e.g. Dataset.of(data, "
        f"{role}={names[0]!r})"
    )


def _inputs(data: Any, name: str, columns: Columns) -> torch.Tensor:
    """Return the inputs: tokens of text, images in [0, 1], or numbers as they are."""
    parts = list(_parts(data, name))
    # Text.
    if parts[0].dtype.kind in "UO":
        if columns.vocabulary is None:
            raise SteelyardError(
                f"column {name!r} contains text: "
                "give vocabulary=steelyard.data.Vocabulary.of(texts) and length=, or encode "
                "it first"
            )
        return encode(
            (str(text) for part in parts for text in part), columns.vocabulary, columns.length
        )
    # Images. Greyscale images among coloured ones become RGB.
    if _has_images(data, name):
        channels = max(part.shape[1] for part in parts)
        parts = [np.broadcast_to(part, (len(part), channels, *part.shape[2:])) for part in parts]
        return torch.from_numpy(_join_parts(name, parts).astype(np.float32)).div_(255)
    # Numbers. The library turns uint8 into int64, which would look like tokens.
    if _number_type(_feature(data, name)) == "uint8":
        raise SteelyardError(
            f"column {name!r} is uint8: cast it to float32 for images in [0, 1], int64 for tokens"
        )
    return adapters.as_inputs(adapters.tensor(name, _join_parts(name, parts)))


def _labels(data: Any, name: str) -> torch.Tensor:
    """Return the targets; raise an error for text and missing values."""
    values = _join_parts(name, list(_parts(data, name)))
    if values.dtype.kind in "UO":
        raise SteelyardError(
            f"column {name!r} contains text: number it, data.class_encode_column({name!r})"
        )
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        row = int(np.argwhere(~np.isfinite(values))[0][0])
        raise SteelyardError(
            f"column {name!r} has no number in row {row}: remove such rows with data.filter"
        )
    return adapters.as_targets(adapters.tensor(name, values))


def _number_values(data: Any, name: str) -> NDArray[np.int64]:
    """Return values of any type as numbers from 0, in sorted order."""
    values = _join_parts(name, list(_parts(data, name)))
    if values.ndim != 1:
        raise SteelyardError(
            f"groups={name!r}: a value has shape {values.shape[1:]}, use a column of single values"
        )
    if values.dtype == object:
        values = values.astype(str)
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def _parts(data: Any, name: str) -> Iterator[NDArray[Any]]:
    """Yield the values of a column in blocks of rows.

    Images as uint8 `[n, channels, height, width]`.
    """
    view = data
    if not _has_transform(data):  # as numpy arrays, but images undecoded, to see their mode
        view = data.select_columns([name]).with_format(None if _has_images(data, name) else "numpy")
    for start in range(0, len(data), _ROWS):
        values = view[start : start + _ROWS][name]
        if isinstance(values, torch.Tensor):
            yield values.detach().cpu().numpy()
        elif isinstance(values, np.ndarray) and values.dtype != object:
            yield values
        else:
            yield _stack_rows(name, start, values)


def _stack_images(name: str, images: Sequence[Any]) -> NDArray[np.uint8]:
    """Return Pillow images as one array `[n, channels, height, width]`."""
    sizes = {image.size for image in images}
    if len(sizes) > 1:
        raise SteelyardError(
            f"column {name!r} has images of sizes {sorted(sizes)[:3]}: resize them first"
        )
    for image in images:
        if image.mode.startswith(("I", "F")):  # 16 bits or more, which a conversion would cut off
            raise SteelyardError(
                f"column {name!r} has an image of mode {image.mode}: convert it to 8 bits first"
            )
    is_grey = all(image.mode in ("L", "1") for image in images)
    arrays = np.stack([np.asarray(image.convert("L" if is_grey else "RGB")) for image in images])
    return np.ascontiguousarray(arrays[:, None] if is_grey else arrays.transpose(0, 3, 1, 2))


def _stack_rows(name: str, start: int, values: Sequence[Any]) -> NDArray[Any]:
    """Return the values of some rows as one array.

    Raise an error if one is missing or of another shape.
    """
    for row, value in enumerate(values, start):
        if value is None:
            raise SteelyardError(
                f"column {name!r} has no value in row {row}: remove such rows with data.filter"
            )
    if hasattr(values[0], "getbands"):
        return _stack_images(name, values)
    try:
        return np.stack([np.asarray(value) for value in values])
    except ValueError:
        shapes = sorted({np.shape(value) for value in values})[:3]
        raise SteelyardError(
            f"column {name!r} has values of shapes {shapes}: use one shape"
        ) from None


def _join_parts(name: str, parts: list[NDArray[Any]]) -> NDArray[Any]:
    shapes = {part.shape[1:] for part in parts}
    if len(shapes) > 1:
        raise SteelyardError(
            f"column {name!r} has values of shapes {sorted(shapes)[:3]}: use one shape"
        )
    return np.concatenate(parts)


def _has_transform(data: Any) -> bool:
    """Return whether a function of the user makes the rows; they are then used as they are."""
    return bool(data.format["type"] == "custom")


def _feature(data: Any, name: str) -> Any:
    return (data.features or {}).get(name)


def _has_images(data: Any, name: str) -> bool:
    """Return whether a column contains images that are not yet decoded to numbers."""
    if _has_transform(data):
        return hasattr(data[:1][name][0], "getbands")
    return type(_feature(data, name)).__name__ == "Image"


def _number_type(feature: Any) -> str:
    """Return the type of the numbers in a column, also if they are nested lists."""
    while hasattr(feature, "feature"):
        feature = feature.feature
    return str(getattr(feature, "dtype", ""))
