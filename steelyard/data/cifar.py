"""CIFAR-10's files: the binary version, and the Python version without unpickling it.

A pickle is a program; running one from a file is running the file. Here its opcodes are only listed, and two things
taken from the list: the one long string, which is the images, and the numbers that follow the word "labels".
"""

from __future__ import annotations

import pickletools
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steelyard.core.errors import SteelyardError

Bytes = NDArray[np.uint8]

PIXELS = 3 * 32 * 32
BATCH = 10_000  # records per binary file, which has no header to say so
_STRINGS = {"SHORT_BINSTRING", "BINSTRING", "SHORT_BINBYTES", "BINBYTES", "SHORT_BINUNICODE", "BINUNICODE"}
_NUMBERS = {"BININT1", "BININT2", "BININT", "LONG1"}


def read_binary(path: Path) -> tuple[Bytes, Bytes]:
    """Images `[N, 3, 32, 32]` and labels of a file of `cifar-10-batches-bin`."""
    raw = np.frombuffer(path.read_bytes(), dtype=np.uint8)
    expected = BATCH * (1 + PIXELS)
    if len(raw) != expected:
        raise SteelyardError(f"{path} has {len(raw)} bytes where CIFAR-10's have {expected}: fetch it again")
    records = raw.reshape(BATCH, 1 + PIXELS)
    return _checked(path, records[:, 1:], records[:, 0])


def read_python(path: Path) -> tuple[Bytes, Bytes]:
    """Images `[N, 3, 32, 32]` and labels of a file of `cifar-10-batches-py`."""
    try:
        images, labels = _parts(path.read_bytes())
    except (ValueError, IndexError, struct.error) as error:
        raise SteelyardError(f"{path} is no batch of CIFAR-10's Python version ({error}): fetch it again") from error
    if not labels or len(images) != len(labels) * PIXELS:
        found = f"{len(images)} bytes of images and {len(labels)} labels"
        raise SteelyardError(f"{path} holds {found}, not {PIXELS} bytes per label: fetch it again")
    return _checked(path, np.frombuffer(images, dtype=np.uint8), np.array(labels))


def _parts(raw: bytes) -> tuple[bytes, list[int]]:
    """The long string and the numbers after "labels", from the opcodes."""
    images, labels = b"", []
    word, before = b"", ""
    for opcode, value, _ in pickletools.genops(raw):
        if opcode.name in _STRINGS:
            text = value if isinstance(value, bytes) else str(value).encode("latin-1")
            if len(text) < PIXELS:
                word = text
            elif before == "NEWFALSE":  # numpy's flag for column-major order
                images = text
            else:
                raise ValueError("its images are not in row-major order")
        elif opcode.name in _NUMBERS and word == b"labels":
            labels.append(int(value or 0))
        before = opcode.name
    return images, labels


def _checked(path: Path, images: Bytes, labels: NDArray[np.integer]) -> tuple[Bytes, Bytes]:
    if labels.min() < 0 or labels.max() > 9:
        raise SteelyardError(f"{path} has labels in {labels.min()}..{labels.max()}, not 0..9: fetch it again")
    return images.reshape(-1, 3, 32, 32), labels.astype(np.uint8)
