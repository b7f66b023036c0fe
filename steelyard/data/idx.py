"""Read the idx format of MNIST: two zero bytes, type, number of dimensions, sizes, data."""

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

LIMIT = 1 << 28  # maximum number of bytes; MNIST has 47 million
_UNSIGNED_BYTES = 8


def read(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Return the array in an idx file of unsigned bytes, compressed by gzip or not."""
    is_packed = path.suffix == ".gz"
    with (
        reading(path, "gzip file" if is_packed else "idx file"),
        cast("IO[bytes]", gzip.open(path)) if is_packed else path.open("rb") as stream,
    ):
        # The header: the type and the sizes.
        header = stream.read(4)
        if header != bytes((0, 0, _UNSIGNED_BYTES, dimensions)):
            raise SteelyardError(
                f"{path} starts with {header.hex() or 'nothing'} and is not an idx file of bytes "
                f"in {dimensions} dimensions: fetch it again"
            )
        shape = struct.unpack(f">{dimensions}I", stream.read(4 * dimensions))
        size = math.prod(shape)
        if size > LIMIT:
            raise SteelyardError(f"{path} has a header for {size} bytes, more than the {LIMIT} allowed: fetch it again")
        # The data: one byte more would show that the header is wrong.
        data = stream.read(size + 1)
    if len(data) != size:
        count = f"more than {size}" if len(data) > size else str(len(data))
        raise SteelyardError(f"{path} contains {count} bytes of data, not {size} as its header says: fetch it again")
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)
