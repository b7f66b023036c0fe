"""The idx format of MNIST and its like: two zero bytes, a type, the number of dimensions, their sizes, the data."""

from __future__ import annotations

import gzip
import math
import struct
from pathlib import Path
from typing import IO, cast

import numpy as np
from numpy.typing import NDArray

from steelyard.core.errors import SteelyardError
from steelyard.data.damage import reading

LIMIT = 1 << 28  # bytes of data; MNIST has 47 million
_UNSIGNED_BYTES = 8


def read(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """The array in an idx file of unsigned bytes, packed by gzip or not."""
    packed = path.suffix == ".gz"
    with (
        reading(path, "gzip file" if packed else "idx file"),
        cast("IO[bytes]", gzip.open(path)) if packed else path.open("rb") as stream,
    ):
        head = stream.read(4)
        if head != bytes((0, 0, _UNSIGNED_BYTES, dimensions)):
            wanted = f"an idx file of bytes in {dimensions} dimensions"
            raise SteelyardError(f"{path} starts with {head.hex() or 'nothing'} and is not {wanted}: fetch it again")
        shape = struct.unpack(f">{dimensions}I", stream.read(4 * dimensions))
        size = math.prod(shape)
        if size > LIMIT:
            raise SteelyardError(f"{path} says it holds {size} bytes, more than the {LIMIT} allowed: fetch it again")
        data = stream.read(size + 1)
    if len(data) != size:
        found = f"more than {size}" if len(data) > size else str(len(data))
        raise SteelyardError(f"{path} holds {found} bytes of data where its header says {size}: fetch it again")
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)
