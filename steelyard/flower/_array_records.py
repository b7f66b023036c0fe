"""Convert Flower's `ArrayRecord`s to tensors and back; they are read without copies.

The data of an `Array` is what `numpy.save` writes. numpy does not have bfloat16, and Flower refuses
it. Here it is sent as raw bytes with its own serialisation type. Code that does not know this type
raises an error, instead of reading the bytes as integers.
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

from steelyard.core._errors import SteelyardError, describe_error

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


_NUMPY_DTYPES = {torch_dtype: numpy_dtype for numpy_dtype, torch_dtype in _DTYPES.items()}

# Limits for what a client sends.
_MAX_HEADER = 4096  # bytes of an array's header; numpy writes 128
_MAX_TEXT = 64  # characters of a dtype or a serialisation type
_MAX_DIMENSIONS = 64

# How many bytes contain the length of a header, by version of numpy's format.
_LENGTH_BYTES = {b"\x01\x00": 2, b"\x02\x00": 4, b"\x03\x00": 4}


class _Entry(NamedTuple):
    """An array of a record: shape, dtype, and its values as bytes, row by row."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    data: NDArray[np.uint8]


class RecordSource:
    """A `Source` that reads the model in an `ArrayRecord` without copying it.

    An array that is damaged or has an unknown format raises an error that names it.
    """

    def __init__(self, record: ArrayRecord) -> None:
        self.entries = {name: _parse_array(name, array) for name, array in record.items()}
        self._flat_arrays: dict[str, NDArray[Any]] = {}

    @property
    def shapes(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of every tensor."""
        return {name: (entry.shape, entry.dtype) for name, entry in self.entries.items()}

    def read(self, name: str, start: int, out: torch.Tensor) -> None:
        """Read elements of a tensor from position `start` on into `out`, cast to its dtype."""
        dtype = self.entries[name].dtype
        raw = out if out.dtype == dtype else torch.empty(out.numel(), dtype=dtype)
        if raw.numel():
            self.read_bytes(name, start * dtype.itemsize, raw.view(torch.uint8).numpy().data)
        if raw is not out:
            out.copy_(raw)

    def read_bytes(self, name: str, start: int, out: memoryview) -> None:
        """Read bytes of a tensor from byte `start` on into `out`."""
        out[:] = self.entries[name].data[start : start + len(out)].data

    def load(self, name: str) -> torch.Tensor:
        """Return one complete tensor in new memory."""
        entry = self.entries[name]
        out = torch.empty(math.prod(entry.shape), dtype=entry.dtype)
        self.read(name, 0, out)
        return out.view(entry.shape)

    def peek(self, name: str) -> NDArray[Any] | None:
        """Return the flat tensor; None if numpy does not have its dtype."""
        if name not in self._flat_arrays:
            entry = self.entries[name]
            if entry.dtype not in _NUMPY_DTYPES:
                return None
            self._flat_arrays[name] = entry.data.view(_NUMPY_DTYPES[entry.dtype])
        return self._flat_arrays[name]


def to_state_dict(record: ArrayRecord) -> dict[str, torch.Tensor]:
    """Return the tensors of a record in new memory, also bfloat16."""
    source = RecordSource(record)
    return {name: source.load(name) for name in source.entries}


def to_record(state: Mapping[str, torch.Tensor]) -> ArrayRecord:
    """Return a state dict as a record that Flower can send, also bfloat16."""
    return ArrayRecord(
        {name: _make_array(tensor.detach().cpu().contiguous()) for name, tensor in state.items()}
    )


def num_bytes(record: ArrayRecord) -> int:
    """Return the number of bytes of the arrays."""
    return sum(len(array.data) for array in record.values())


def _make_array(tensor: torch.Tensor) -> Array:
    shape = tuple(tensor.shape)
    if tensor.dtype == torch.bfloat16:
        raw = tensor.reshape(-1).view(torch.uint8).numpy().data
        return Array(dtype="bfloat16", shape=shape, stype=BF16, data=bytes(raw))
    values = tensor.numpy()
    # The bytes of numpy.save, which would copy them twice.
    header = io.BytesIO()
    npy.write_array_header_1_0(header, npy.header_data_from_array_1_0(values))
    data = b"".join([header.getvalue(), values.reshape(-1).view(np.uint8).data])
    return Array(dtype=str(values.dtype), shape=shape, stype=_NUMPY, data=data)


def _parse_array(name: str, array: Array) -> _Entry:
    """Parse one array of a record; raise an error that names it if it is not valid."""
    is_text_long = len(array.dtype) > _MAX_TEXT or len(array.stype) > _MAX_TEXT
    if is_text_long or len(array.shape) > _MAX_DIMENSIONS:
        raise SteelyardError(f"{name!r}: its dtype, serialisation type or shape is too long")
    data = np.frombuffer(array.data, dtype=np.uint8)
    if array.stype == BF16:
        entry = _Entry(tuple(array.shape), torch.bfloat16, data)
        _check_size(name, entry.shape, entry.dtype.itemsize, len(data))
        return entry
    if array.stype == _NUMPY:
        return _parse_numpy(name, data)
    raise SteelyardError(
        f"{name!r} is serialised as {array.stype!r}: send numpy arrays or torch tensors"
    )


def _check_size(name: str, shape: tuple[Any, ...], itemsize: int, size: int) -> None:
    """Check that a shape is valid, and that it fits the number of bytes."""
    is_valid = len(shape) <= _MAX_DIMENSIONS and all(
        type(length) is int and length >= 0 for length in shape
    )
    if not is_valid:
        raise SteelyardError(f"{name!r} has the shape {shape}: use integers from 0 on")
    if size != math.prod(shape) * itemsize:
        raise SteelyardError(f"{name!r} has shape {shape}, which does not fit its {size} bytes")


def _parse_numpy(name: str, raw: NDArray[np.uint8]) -> _Entry:
    """Parse the bytes that `numpy.save` wrote."""
    try:
        shape, is_fortran, dtype, start = _parse_header(_find_header(raw))
    except Exception as error:  # whatever numpy's parser of Python literals raises, MemoryError too
        raise SteelyardError(f"{name!r} is not a numpy array ({describe_error(error)})") from None
    if dtype not in _DTYPES:
        names = ", ".join(str(known_dtype) for known_dtype in _DTYPES)
        raise SteelyardError(f"{name!r} is {dtype}: send one of {names}")
    data = raw[start:]
    _check_size(name, shape, dtype.itemsize, len(data))
    if is_fortran and len(shape) > 1:
        columns = data.view(dtype).reshape(shape[::-1]).T
        data = np.ascontiguousarray(columns).reshape(-1).view(np.uint8)
    return _Entry(shape, _DTYPES[dtype], data)


def _find_header(data: NDArray[np.uint8]) -> bytes:
    """Return the header; in numpy's formats 1 to 3, the first bytes contain its length."""
    first = data[: len(npy.MAGIC_PREFIX) + 6].tobytes()
    version = first[6:8]
    if not first.startswith(npy.MAGIC_PREFIX) or version not in _LENGTH_BYTES:
        raise SteelyardError("it does not start like numpy's format 1, 2 or 3")
    start = 8 + _LENGTH_BYTES[version]
    length = int.from_bytes(first[8:start], "little")
    if length > _MAX_HEADER:
        raise SteelyardError(f"its header has {length} bytes, at most {_MAX_HEADER} are read")
    return data[: start + length].tobytes()


@lru_cache(maxsize=4096)
def _parse_header(data: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Return shape, Fortran order, dtype and length of a header.

    The headers of all clients are the same, and parsing is slow, so results are cached.
    """
    stream = io.BytesIO(data)
    if npy.read_magic(stream) == (1, 0):
        shape, is_fortran, dtype = npy.read_array_header_1_0(stream)
    else:
        shape, is_fortran, dtype = npy.read_array_header_2_0(stream)
    return shape, is_fortran, dtype, stream.tell()
