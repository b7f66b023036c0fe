"""Read LIBSVM's text files in bzip2: `label 1:value 2:value ...`, with all values present."""

from __future__ import annotations

import bz2
import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steelyard.core.errors import SteelyardError
from steelyard.data.damage import read_bounded, reading

LIMIT = 1 << 27  # maximum number of bytes of text; USPS has 25 million


def read(path: Path, width: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return values `[N, width]` and labels `[N]`."""
    with reading(path, "bzip2 file of LIBSVM's text"), bz2.open(path) as stream:
        text = read_bounded(stream, LIMIT, path)
        lines = len(text.split(b"\n")) - (not text or text.endswith(b"\n"))
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # numpy only warns about text that is not a number
            numbers = np.fromstring(text.replace(b":", b" ").decode("ascii"), sep=" ")
        if not lines or len(numbers) != lines * (1 + 2 * width):
            raise SteelyardError(
                f"{path} contains {len(numbers)} numbers in {lines} lines, "
                f"not a label and {width} pairs in each line: fetch it again"
            )
    rows = numbers.reshape(lines, 1 + 2 * width)
    if not (rows[:, 1::2] == np.arange(1, width + 1)).all():
        raise SteelyardError(f"{path}: its values are not numbered 1 to {width} in each line: fetch it again")
    return rows[:, 2::2], rows[:, 0]
