"""The idx format of MNIST and its like: two zero bytes, a type, the number of dimensions, their sizes, the data."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steelyard.core.errors import SteelyardError

_UNSIGNED_BYTES = 8


def read(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """The array in an idx file of unsigned bytes, packed by gzip or not."""
    raw = _unpacked(path)
    start = 4 + 4 * dimensions
    if len(raw) < start or raw[:4] != bytes((0, 0, _UNSIGNED_BYTES, dimensions)):
        wanted = f"an idx file of bytes in {dimensions} dimensions"
        raise SteelyardError(f"{path} starts with {raw[:4].hex() or 'nothing'} and is not {wanted}: fetch it again")
    shape = struct.unpack(f">{dimensions}I", raw[4:start])
    if len(raw) - start != math.prod(shape):
        found = f"holds {len(raw) - start} bytes of data where its header says {math.prod(shape)}"
        raise SteelyardError(f"{path} {found}: fetch it again")
    return np.frombuffer(raw, dtype=np.uint8, offset=start).reshape(shape)


def _unpacked(path: Path) -> bytes:
    raw = path.read_bytes()
    if path.suffix != ".gz":
        return raw
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise SteelyardError(f"{path} is no complete gzip file ({error}): fetch it again") from error
