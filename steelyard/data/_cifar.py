"""Read CIFAR's files: the binary versions, and the Python versions without unpickling them.

A pickle is a program, and loading one from a file runs it. This module only lists its opcodes and
takes two things from the list: the one long string, which is the images, and the numbers after the
key of the labels.
"""

from __future__ import annotations

import pickletools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steelyard.core._errors import SteelyardError
from steelyard.data._formats import reading

Bytes = NDArray[np.uint8]
Part = tuple[Bytes, Bytes]

PIXELS = 3 * 32 * 32
BATCH = 10_000  # records per file of the binary version, which has no header
_STRINGS = {
    "SHORT_BINSTRING",
    "BINSTRING",
    "SHORT_BINBYTES",
    "BINBYTES",
    "SHORT_BINUNICODE",
    "BINUNICODE",
}
_NUMBERS = {"BININT1", "BININT2", "BININT", "LONG1"}


@dataclass(frozen=True)
class Form:
    """The files of one CIFAR data set.

    Attributes:
        title: for error messages.
        python: the folder of the Python version.
        binary: the folder of the binary version.
        train: the names of the training files, without `.bin`.
        test: the name of the test file.
        word: the key of the labels in the Python version.
        marks: bytes before each image of the binary version; the last of them is the label.
        classes: the number of classes.
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
        """Return the training and the test part: images `[N, 3, 32, 32]` and labels of each."""
        parts = [self._file(folder, name) for name in (*self.train, self.test)]
        images = np.concatenate([images for images, _ in parts[:-1]])
        labels = np.concatenate([labels for _, labels in parts[:-1]])
        return (images, labels), parts[-1]

    def _file(self, folder: Path, name: str) -> Part:
        """Read one file of either version."""
        is_binary = folder.name == self.binary
        path = folder / (f"{name}.bin" if is_binary else name)
        if not path.is_file():
            raise SteelyardError(f"{self.title}: {path} is missing: unpack the archive again")
        images, labels = self._binary(path, name) if is_binary else self._python(path)
        low = min(labels)
        high = max(labels)
        if low < 0 or high >= self.classes:
            raise SteelyardError(
                f"{path} has labels in {low}..{high}, not 0..{self.classes - 1}: fetch it again"
            )
        return images.reshape(-1, 3, 32, 32), np.array(labels, dtype=np.uint8)

    def _binary(self, path: Path, name: str) -> tuple[Bytes, list[int]]:
        """Return images and labels of a file of the binary version."""
        records = BATCH * (5 if self.train == (name,) else 1)
        width = self.marks + PIXELS
        size = path.stat().st_size
        if size != records * width:
            raise SteelyardError(
                f"{path} has {size} bytes, not the {records * width} of {self.title}: fetch it "
                f"again"
            )
        rows = np.frombuffer(path.read_bytes(), dtype=np.uint8).reshape(records, width)
        return rows[:, self.marks :], rows[:, self.marks - 1].tolist()

    def _python(self, path: Path) -> tuple[Bytes, list[int]]:
        """Return images and labels of a file of the Python version."""
        with reading(path, f"batch of {self.title}'s Python version"):
            pixels, is_by_column, labels = _parse_pickle(path.read_bytes(), self.word)
        if not labels or len(pixels) != len(labels) * PIXELS:
            raise SteelyardError(
                f"{path} contains {len(pixels)} bytes of images and {len(labels)} labels, "
                f"not {PIXELS} bytes per label: fetch it again"
            )
        images = np.frombuffer(pixels, dtype=np.uint8)
        shape = (len(labels), PIXELS)
        return images.reshape(shape, order="F" if is_by_column else "C"), labels


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
HUNDRED = Form(
    "CIFAR-100", "cifar-100-python", "cifar-100-binary", ("train",), "test", b"fine_labels", 2, 100
)


def _parse_pickle(raw: bytes, word: bytes) -> tuple[bytes, bool, list[int]]:
    """Return the long string, whether it is in column-major order, and the numbers after `word`."""
    images = b""
    is_by_column = False
    labels = []
    last_text = b""
    last_opcode = ""
    for opcode, value, _ in pickletools.genops(raw):
        if opcode.name in _STRINGS:
            text = value if isinstance(value, bytes) else str(value).encode("latin-1")
            if len(text) < PIXELS:
                last_text = text
            elif last_opcode in ("NEWFALSE", "NEWTRUE"):  # numpy's flag for column-major order
                images = text
                is_by_column = last_opcode == "NEWTRUE"
            else:
                raise ValueError("its images do not follow numpy's flag for their order")
        elif opcode.name in _NUMBERS and last_text == word:
            labels.append(int(value or 0))
        last_opcode = opcode.name
    return images, is_by_column, labels
