"""Arrays of bytes from numpy's .npz files: a zip of arrays, of which only plain ones are read."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from steelyard.core.errors import SteelyardError
from steelyard.data.damage import reading

LIMIT = 1 << 28  # bytes of one array


def read(path: Path, *names: str, dtype: str = "uint8") -> list[NDArray[np.uint8]]:
    """The arrays of these names; each must be of `dtype` and in row-major order."""
    with reading(path, "npz file"), zipfile.ZipFile(path) as archive:
        known = {info.filename: info for info in archive.infolist()}
        out = []
        for name in names:
            if f"{name}.npy" not in known:
                found = ", ".join(sorted(known)[:6]) or "nothing"
                raise SteelyardError(f"{path} holds no array {name!r} (it holds {found}): fetch it again")
            with archive.open(known[f"{name}.npy"]) as stream:
                out.append(_array(path, name, stream, np.dtype(dtype)))
        return out


def _array(path: Path, name: str, stream: IO[bytes], dtype: np.dtype[np.uint8]) -> NDArray[np.uint8]:
    version = npy.read_magic(stream)
    header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, by_column, found = header(stream)
    if found != dtype or by_column:
        order = " in column-major order" if by_column else ""
        raise SteelyardError(f"{path}: array {name!r} is of {found}{order}, not of {dtype}: fetch it again")
    size = math.prod(shape) * dtype.itemsize
    if size > LIMIT:
        raise SteelyardError(f"{path}: array {name!r} says it has {size} bytes, more than {LIMIT}: fetch it again")
    data = stream.read(size + 1)
    if len(data) != size:
        raise SteelyardError(f"{path}: array {name!r} holds other than the {size} bytes of its header: fetch it again")
    return np.frombuffer(data, dtype=dtype).reshape(shape)
