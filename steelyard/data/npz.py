"""Read arrays from numpy's .npz files, zip archives of arrays.

Only plain arrays of bytes are read.
"""

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

LIMIT = 1 << 28  # maximum number of bytes of one array


def read(path: Path, *names: str, dtype: str = "uint8") -> list[NDArray[np.uint8]]:
    """Return the arrays of these names; each must have this dtype and be in row-major order."""
    with reading(path, "npz file"), zipfile.ZipFile(path) as archive:
        entries = {info.filename: info for info in archive.infolist()}
        arrays = []
        for name in names:
            if f"{name}.npy" not in entries:
                available = ", ".join(sorted(entries)[:6]) or "nothing"
                raise SteelyardError(f"{path} has no array {name!r} (it has {available}): fetch it again")
            with archive.open(entries[f"{name}.npy"]) as stream:
                arrays.append(_array(path, name, stream, np.dtype(dtype)))
        return arrays


def _array(path: Path, name: str, stream: IO[bytes], dtype: np.dtype[np.uint8]) -> NDArray[np.uint8]:
    """Return the array in a .npy stream; `path` and `name` are for error messages."""
    version = npy.read_magic(stream)
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, is_by_column, file_dtype = read_header(stream)
    label = f"{path}: array {name!r}"
    if file_dtype != dtype or is_by_column:
        order = " in column-major order" if is_by_column else ""
        raise SteelyardError(f"{label} is of {file_dtype}{order}, not of {dtype}: fetch it again")
    size = math.prod(shape) * dtype.itemsize
    if size > LIMIT:
        raise SteelyardError(f"{label} has a header for {size} bytes, more than {LIMIT}: fetch it again")
    data = stream.read(size + 1)
    if len(data) != size:
        raise SteelyardError(f"{label} does not have the {size} bytes of its header: fetch it again")
    return np.frombuffer(data, dtype=dtype).reshape(shape)
