"""Arrays from MATLAB's version 5 files, as SVHN is published: a header of 128 bytes, then tagged elements.

Read here rather than by a library that trusts what the tags say: each size is held against the bytes there are before
it is used, and nothing but plain arrays of numbers is looked at.
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

LIMIT = 1 << 29  # bytes of one array, unpacked; SVHN's largest has 225 million
_MATRIX, _PACKED = 14, 15
_TYPES = {1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8"}


def read(path: Path, *names: str) -> list[NDArray[Any]]:
    """The arrays of these names, in MATLAB's order of dimensions."""
    with reading(path, "MATLAB file"):
        raw = memoryview(path.read_bytes())
        if len(raw) < 128 or bytes(raw[124:128]) != b"\x00\x01IM":
            raise ValueError("it is not of version 5, little-endian")
        found: dict[str, NDArray[Any]] = {}
        for kind, data in _elements(raw[128:]):
            if kind == _PACKED:
                data = memoryview(_decompress(path, data))
                kind, data = next(_elements(data), (0, data))
            if kind == _MATRIX:
                name, array = _matrix(data)
                found[name] = array
        for name in names:
            if name not in found:
                raise SteelyardError(f"{path} holds no array {name!r} (it holds {sorted(found)}): fetch it again")
        return [found[name] for name in names]


def _elements(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Type and bytes of each element."""
    at = 0
    while at + 8 <= len(data):
        kind, size = struct.unpack_from("<II", data, at)
        start = at + 8
        if kind >> 16:  # a small one: its size, its type and its four bytes share the tag
            kind, size, start = kind & 0xFFFF, kind >> 16, at + 4
            if size > 4:
                raise ValueError(f"a small element of {size} bytes")
            at += 8
        else:
            at = start + size + (0 if kind == _PACKED else -size % 8)
        if start + size > len(data):
            raise ValueError(f"an element of {size} bytes where {len(data) - start} are left")
        yield kind, data[start : start + size]


def _decompress(path: Path, data: memoryview) -> bytes:
    unpacker = zlib.decompressobj()
    out = unpacker.decompress(data, LIMIT + 1024)
    if unpacker.unconsumed_tail:
        raise SteelyardError(f"{path} unpacks to more than {LIMIT} bytes, far beyond its kind: fetch it again")
    if not unpacker.eof:
        raise ValueError("a packed element ends early")
    return out


def _matrix(data: memoryview) -> tuple[str, NDArray[Any]]:
    """Name and numbers of an array; its parts are flags, dimensions, name, numbers."""
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
