"""CIFAR's files: the binary versions, and the Python versions without unpickling them.

A pickle is a program; running one from a file is running the file. Here its opcodes are only listed, and two things
taken from the list: the one long string, which is the images, and the numbers that follow the word for the labels.
"""

from __future__ import annotations

import pickletools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steelyard.core.errors import SteelyardError
from steelyard.data.damage import reading

Bytes = NDArray[np.uint8]
Part = tuple[Bytes, Bytes]

PIXELS = 3 * 32 * 32
BATCH = 10_000  # records per test file: the binary version has no header to say so
_STRINGS = {"SHORT_BINSTRING", "BINSTRING", "SHORT_BINBYTES", "BINBYTES", "SHORT_BINUNICODE", "BINUNICODE"}
_NUMBERS = {"BININT1", "BININT2", "BININT", "LONG1"}


@dataclass(frozen=True)
class Form:
    """Which files a CIFAR has.

    Attributes:
        title: what messages call it.
        python: the folder of the Python version.
        binary: the folder of the binary version.
        train: its training files, without `.bin`.
        test: its test file.
        word: what the labels are called in the Python version.
        marks: bytes before each image of the binary version; the last is the label.
        classes: how many.
    """

    title: str
    python: str
    binary: str
    train: tuple[str, ...]
    test: str
    word: bytes
    marks: int
    classes: int

    def read(self, folder: Path) -> tuple[Part, Part]:
        """Images `[N, 3, 32, 32]` and labels, to train on and to test on, of the files in a folder."""
        parts = [self._file(folder, name) for name in (*self.train, self.test)]
        images, labels = (np.concatenate(side) for side in zip(*parts[:-1], strict=True))
        return (images, labels), parts[-1]

    def _file(self, folder: Path, name: str) -> Part:
        binary = folder.name == self.binary
        path = folder / (f"{name}.bin" if binary else name)
        if not path.is_file():
            raise SteelyardError(f"{self.title}: there is no {path}: unpack the archive again")
        images, labels = self._binary(path, name) if binary else self._python(path)
        if min(labels) < 0 or max(labels) >= self.classes:
            found = f"{min(labels)}..{max(labels)}"
            raise SteelyardError(f"{path} has labels in {found}, not 0..{self.classes - 1}: fetch it again")
        return images.reshape(-1, 3, 32, 32), np.array(labels, dtype=np.uint8)

    def _binary(self, path: Path, name: str) -> tuple[Bytes, list[int]]:
        records = BATCH * (5 if self.train == (name,) else 1)
        width = self.marks + PIXELS
        size = path.stat().st_size
        if size != records * width:
            raise SteelyardError(f"{path} has {size} bytes where {self.title}'s have {records * width}: fetch it again")
        rows = np.frombuffer(path.read_bytes(), dtype=np.uint8).reshape(records, width)
        return rows[:, self.marks :], rows[:, self.marks - 1].tolist()

    def _python(self, path: Path) -> tuple[Bytes, list[int]]:
        with reading(path, f"batch of {self.title}'s Python version"):
            text, by_column, labels = _parts(path.read_bytes(), self.word)
        if not labels or len(text) != len(labels) * PIXELS:
            found = f"{len(text)} bytes of images and {len(labels)} labels"
            raise SteelyardError(f"{path} holds {found}, not {PIXELS} bytes per label: fetch it again")
        images = np.frombuffer(text, dtype=np.uint8)
        shape = len(labels), PIXELS
        return images.reshape(shape, order="F" if by_column else "C"), labels


TEN = Form(
    "CIFAR-10",
    "cifar-10-batches-py",
    "cifar-10-batches-bin",
    tuple(f"data_batch_{n}" for n in range(1, 6)),
    "test_batch",
    b"labels",
    1,
    10,
)
HUNDRED = Form("CIFAR-100", "cifar-100-python", "cifar-100-binary", ("train",), "test", b"fine_labels", 2, 100)


def _parts(raw: bytes, word: bytes) -> tuple[bytes, bool, list[int]]:
    """The long string, whether it is in column-major order, and the numbers after the word."""
    images, by_column, labels = b"", False, []
    last, before = b"", ""
    for opcode, value, _ in pickletools.genops(raw):
        if opcode.name in _STRINGS:
            text = value if isinstance(value, bytes) else str(value).encode("latin-1")
            if len(text) < PIXELS:
                last = text
            elif before in ("NEWFALSE", "NEWTRUE"):  # numpy's flag for column-major order
                images, by_column = text, before == "NEWTRUE"
            else:
                raise ValueError("its images do not follow numpy's flag for their order")
        elif opcode.name in _NUMBERS and last == word:
            labels.append(int(value or 0))
        before = opcode.name
    return images, by_column, labels
