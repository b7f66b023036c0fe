"""Flower's records as tensors and back, without copies on the way in.

An `Array` holds what `numpy.save` wrote. numpy knows no bfloat16, and Flower refuses it; here it
travels as raw bytes under a serialisation type of its own, so that code that does not know it says
so instead of seeing whole numbers.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.lib import format as npy
from numpy.typing import NDArray

from steelyard.core.errors import SteelyardError, describe_error

BF16 = "steelyard.bfloat16"  # the serialisation type
_NUMPY = "numpy.ndarray"
_DTYPES = {
    np.dtype(name): getattr(torch, name)
    for name in (
        "float64",
        "float32",
        "float16",
        "int64",
        "int32",
        "int16",
        "int8",
        "uint8",
        "bool",
    )
}


_MOST_HEAD = 4096  # bytes of a header; those of numpy have 128
_MOST_TEXT = 64  # characters of a dtype or a serialisation type
_MOST_DIMENSIONS = 64
_LENGTH_BYTES = {
    b"\x01\x00": 2,
    b"\x02\x00": 4,
    b"\x03\x00": 4,
}  # of a header, by version of the format
_NUMPY_DTYPES = {there: here for here, there in _DTYPES.items()}


class _Entry(NamedTuple):
    shape: tuple[int, ...]
    dtype: torch.dtype
    data: NDArray[np.uint8]  # the values alone, row by row


class RecordSource:
    """The model in an `ArrayRecord`, read in place.

    Damaged or foreign arrays raise an error that names them.
    """

    def __init__(self, record: ArrayRecord) -> None:
        self.entries = {name: _entry(name, array) for name, array in record.items()}
        self.flat: dict[str, NDArray[Any]] = {}

    @property
    def shapes(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of every tensor."""
        return {name: (entry.shape, entry.dtype) for name, entry in self.entries.items()}

    def read(self, name: str, start: int, out: torch.Tensor) -> None:
        """Elements of a tensor from position `start` on into `out`, cast to its dtype."""
        dtype = self.entries[name].dtype
        raw = out if out.dtype == dtype else torch.empty(out.numel(), dtype=dtype)
        if raw.numel():
            self.read_bytes(name, start * dtype.itemsize, raw.view(torch.uint8).numpy().data)
        if raw is not out:
            out.copy_(raw)

    def read_bytes(self, name: str, start: int, out: memoryview) -> None:
        """Bytes of a tensor from byte `start` on into `out`."""
        out[:] = self.entries[name].data[start : start + len(out)].data

    def load(self, name: str) -> torch.Tensor:
        """One whole tensor, in memory of its own."""
        entry = self.entries[name]
        out = torch.empty(math.prod(entry.shape), dtype=entry.dtype)
        self.read(name, 0, out)
        return out.view(entry.shape)

    def peek(self, name: str) -> NDArray[Any] | None:
        """The tensor, flat, unless numpy does not know its dtype."""
        if name not in self.flat:
            entry = self.entries[name]
            if entry.dtype not in _NUMPY_DTYPES:
                return None
            self.flat[name] = entry.data.view(_NUMPY_DTYPES[entry.dtype])
        return self.flat[name]


def to_state_dict(record: ArrayRecord) -> dict[str, torch.Tensor]:
    """The tensors of a record, in memory of their own; bfloat16 too."""
    source = RecordSource(record)
    return {name: source.load(name) for name in source.entries}


def to_record(state: Mapping[str, torch.Tensor]) -> ArrayRecord:
    """A state dict as Flower sends it; bfloat16 too."""
    return ArrayRecord(
        {name: _array(tensor.detach().cpu().contiguous()) for name, tensor in state.items()}
    )


def num_bytes(record: ArrayRecord) -> int:
    """What the arrays take up."""
    return sum(len(array.data) for array in record.values())


def _array(tensor: torch.Tensor) -> Array:
    shape = tuple(tensor.shape)
    if tensor.dtype == torch.bfloat16:
        raw = tensor.reshape(-1).view(torch.uint8).numpy().data
        return Array(dtype="bfloat16", shape=shape, stype=BF16, data=bytes(raw))
    values = tensor.numpy()
    head = io.BytesIO()
    npy.write_array_header_1_0(head, npy.header_data_from_array_1_0(values))
    data = b"".join(
        [head.getvalue(), values.reshape(-1).view(np.uint8).data]
    )  # numpy.save would copy twice
    return Array(dtype=str(values.dtype), shape=shape, stype=_NUMPY, data=data)


def _entry(name: str, array: Array) -> _Entry:
    """Parse one array of a record.

    Anything about it that cannot be right raises an error that names it.
    """
    if (
        len(array.dtype) > _MOST_TEXT
        or len(array.stype) > _MOST_TEXT
        or len(array.shape) > _MOST_DIMENSIONS
    ):
        raise SteelyardError(f"{name!r}: its dtype, serialisation type or shape is too long")
    data = np.frombuffer(array.data, dtype=np.uint8)
    if array.stype == BF16:
        entry = _Entry(tuple(array.shape), torch.bfloat16, data)
        _check_size(name, entry.shape, entry.dtype.itemsize, len(data))
        return entry
    if array.stype == _NUMPY:
        return _numpy_entry(name, data)
    raise SteelyardError(
        f"{name!r} is serialised as {array.stype!r}: send numpy arrays or torch tensors"
    )


def _check_size(name: str, shape: tuple[Any, ...], itemsize: int, size: int) -> None:
    """Check that a shape consists of numbers that a shape may hold, and fits the bytes that came with it."""
    valid = len(shape) <= _MOST_DIMENSIONS and all(
        type(length) is int and length >= 0 for length in shape
    )
    if not valid:
        raise SteelyardError(f"{name!r} has the shape {shape}: use whole numbers from 0 on")
    if size != math.prod(shape) * itemsize:
        raise SteelyardError(f"{name!r} has shape {shape}, which does not fit its {size} bytes")


def _numpy_entry(name: str, raw: NDArray[np.uint8]) -> _Entry:
    """Parse what `numpy.save` wrote."""
    try:
        shape, fortran, dtype, start = _head(_head_bytes(raw))
    except Exception as error:  # whatever numpy's parser of Python literals raises, MemoryError too
        raise SteelyardError(f"{name!r} is no numpy array ({describe_error(error)})") from None
    if dtype not in _DTYPES:
        raise SteelyardError(
            f"{name!r} is {dtype}: send one of "
            f"{', '.join(str(dtype_name) for dtype_name in _DTYPES)}"
        )
    data = raw[start:]
    _check_size(name, shape, dtype.itemsize, len(data))
    if fortran and len(shape) > 1:
        columns = data.view(dtype).reshape(shape[::-1]).T
        data = np.ascontiguousarray(columns).reshape(-1).view(np.uint8)
    return _Entry(shape, _DTYPES[dtype], data)


def _head_bytes(data: NDArray[np.uint8]) -> bytes:
    """Return the header alone: numpy's formats 1 to 3 say how long it is in their first bytes."""
    first = data[: len(npy.MAGIC_PREFIX) + 6].tobytes()
    version = first[6:8]
    if not first.startswith(npy.MAGIC_PREFIX) or version not in _LENGTH_BYTES:
        raise SteelyardError("it does not begin as numpy's format 1, 2 or 3 does")
    start = 8 + _LENGTH_BYTES[version]
    length = int.from_bytes(first[8:start], "little")
    if length > _MOST_HEAD:
        raise SteelyardError(f"its header has {length} bytes, at most {_MOST_HEAD} are read")
    return data[: start + length].tobytes()


@lru_cache(maxsize=4096)
def _head(data: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """A header's shape, order, dtype and length.

    The same ones come from every client, and parsing is slow.
    """
    stream = io.BytesIO(data)
    read = (
        npy.read_array_header_1_0 if npy.read_magic(stream) == (1, 0) else npy.read_array_header_2_0
    )
    return (*read(stream), stream.tell())
