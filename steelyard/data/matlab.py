"""Read arrays from MATLAB's version 5 files: a header of 128 bytes, then tagged elements.

SVHN is published in this format.

This module does not use a library, because libraries trust the sizes in the tags. Here each size is
compared with the number of bytes before it is used, and only plain arrays of numbers are read.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.core.errors import SteelyardError
from steelyard.data.damage import reading

LIMIT = 1 << 29  # maximum number of bytes of an array, unpacked; SVHN's largest has 225 million
_MATRIX = 14
_PACKED = 15
_TYPES = {1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8"}


def read(path: Path, *names: str) -> list[NDArray[Any]]:
    """Return the arrays of these names, in MATLAB's order of dimensions."""
    with reading(path, "MATLAB file"):
        # The header.
        raw = memoryview(path.read_bytes())
        if len(raw) < 128 or bytes(raw[124:128]) != b"\x00\x01IM":
            raise ValueError("it is not of version 5, little-endian")
        # All arrays, unpacked if necessary.
        arrays: dict[str, NDArray[Any]] = {}
        for kind, data in _elements(raw[128:]):
            if kind == _PACKED:
                data = memoryview(_decompress(path, data))
                kind, data = next(_elements(data), (0, data))
            if kind == _MATRIX:
                name, array = _matrix(data)
                arrays[name] = array
        # Those asked for.
        for name in names:
            if name not in arrays:
                raise SteelyardError(f"{path} has no array {name!r} (it has {sorted(arrays)}): fetch it again")
        return [arrays[name] for name in names]


def _elements(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield type and content of each element."""
    position = 0
    while position + 8 <= len(data):
        kind, size = struct.unpack_from("<II", data, position)
        if kind >> 16:  # a small element: size, type and four bytes of content share the tag
            size = kind >> 16
            kind = kind & 0xFFFF
            start = position + 4
            if size > 4:
                raise ValueError(f"a small element of {size} bytes")
            position += 8
        else:
            start = position + 8
            padding = 0 if kind == _PACKED else -size % 8
            position = start + size + padding
        if start + size > len(data):
            raise ValueError(f"an element of {size} bytes where {len(data) - start} remain")
        yield kind, data[start : start + size]


def _decompress(path: Path, data: memoryview) -> bytes:
    """Return a packed element, unpacked."""
    unpacker = zlib.decompressobj()
    out = unpacker.decompress(data, LIMIT + 1024)
    if unpacker.unconsumed_tail:
        raise SteelyardError(f"{path} unpacks to more than {LIMIT} bytes, which cannot be right: fetch it again")
    if not unpacker.eof:
        raise ValueError("a packed element ends early")
    return out


def _matrix(data: memoryview) -> tuple[str, NDArray[Any]]:
    """Return name and content of an array; its parts are flags, dimensions, name and numbers."""
    parts = list(_elements(data))
    if len(parts) < 4:
        raise ValueError("an array without its four parts")
    shape = np.frombuffer(parts[1][1], dtype="<i4").tolist()
    name = bytes(parts[2][1]).decode("ascii")
    kind, numbers = parts[3]
    if kind not in _TYPES:
        raise ValueError(f"array {name[:20]!r} is of type {kind}")
    array = np.frombuffer(numbers, dtype=_TYPES[kind])
    if min(shape, default=-1) < 0 or math.prod(shape) != len(array):
        raise ValueError(f"array {name[:20]!r} has {len(array)} numbers for dimensions {shape[:6]}")
    return name, array.reshape(shape, order="F")
