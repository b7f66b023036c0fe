"""Read CIFAR's files: the binary versions, and the Python versions without unpickling them.

A pickle is a program, and loading one from a file runs it. This module only lists its opcodes and
takes two things from the list: the one long string, which is the images, and the numbers after the
key of the labels.
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steelyard.core._errors import SteelyardError
from steelyard.data import _archives as archives
from steelyard.data._formats import reading

Bytes = NDArray[np.uint8]
Part = tuple[Bytes, Bytes]

PIXELS = 3 * 32 * 32
_ARCHIVE_LIMIT = 1 << 29  # bytes of an archive after unpacking; CIFAR's have 190 million
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
        archive: the archive of that folder.
        binary: the folder of the binary version.
        train: the names of the training files, without `.bin`.
        test: the name of the test file.
        montages: the names of the training images as montages, without `.webp`.
        word: the key of the labels in the Python version.
        marks: bytes before each image of the binary version; the last of them is the label.
        classes: the number of classes.
    """

    title: str
    python: str
    archive: str
    binary: str
    train: tuple[str, ...]
    test: str
    montages: tuple[str, ...]
    word: bytes
    marks: int
    classes: int

    def read(self, source: Path) -> tuple[Part, Part]:
        """Return the training and the test part: images `[N, 3, 32, 32]` and labels of each.

        Args:
            source: the folder of either version, or the archive of the Python version.
        """
        files = self._read_folder(source) if source.is_dir() else self._read_archive(source)
        is_binary = source.name == self.binary
        parts = [self._parse_file(source / name, content, is_binary) for name, content in files]
        images = np.concatenate([images for images, _ in parts[:-1]])
        labels = np.concatenate([labels for _, labels in parts[:-1]])
        return (images, labels), parts[-1]

    def _read_folder(self, folder: Path) -> Iterator[tuple[str, bytes]]:
        """Yield name and content of each file, the test file last."""
        suffix = ".bin" if folder.name == self.binary else ""
        for name in (*self.train, self.test):
            path = folder / f"{name}{suffix}"
            if not path.is_file():
                raise SteelyardError(f"{self.title}: {path} is missing: unpack the archive again")
            yield path.name, path.read_bytes()

    def _read_archive(self, archive: Path) -> Iterator[tuple[str, bytes]]:
        """Yield name and content of each file of the Python version, the test file last."""
        names = (*self.train, self.test)
        contents: dict[str, bytes] = {}
        with reading(archive, f"archive of {self.title}'s Python version"):
            for name, _, stream in archives.members(archive, _ARCHIVE_LIMIT):
                folder, _, file = name.removeprefix("./").partition("/")
                if folder == self.python and file in names:
                    contents[file] = stream.read()
        for name in names:
            if name not in contents:
                raise SteelyardError(
                    f"{self.title}: {archive} has no {self.python}/{name}: fetch it again"
                )
            yield name, contents[name]

    def _parse_file(self, path: Path, content: bytes, is_binary: bool) -> Part:
        """Return images and labels of one file of either version; `path` is for messages."""
        if is_binary:
            images, labels = self._parse_binary(path, content)
        else:
            images, labels = self._parse_python(path, content)
        low = min(labels)
        high = max(labels)
        if low < 0 or high >= self.classes:
            raise SteelyardError(
                f"{path} has labels in {low}..{high}, not 0..{self.classes - 1}: fetch it again"
            )
        return images.reshape(-1, 3, 32, 32), np.array(labels, dtype=np.uint8)

    def _parse_binary(self, path: Path, content: bytes) -> tuple[Bytes, list[int]]:
        """Return images and labels of a file of the binary version."""
        records = BATCH * (5 if self.train == (path.stem,) else 1)
        width = self.marks + PIXELS
        if len(content) != records * width:
            raise SteelyardError(
                f"{path} has {len(content)} bytes, not the {records * width} of {self.title}: "
                f"fetch it again"
            )
        rows = np.frombuffer(content, dtype=np.uint8).reshape(records, width)
        return rows[:, self.marks :], rows[:, self.marks - 1].tolist()

    def _parse_python(self, path: Path, content: bytes) -> tuple[Bytes, list[int]]:
        """Return images and labels of a file of the Python version."""
        with reading(path, f"batch of {self.title}'s Python version"):
            pixels, is_by_column, labels = _parse_pickle(content, self.word)
        if not labels or len(pixels) != len(labels) * PIXELS:
            raise SteelyardError(
                f"{path} contains {len(pixels)} bytes of images and {len(labels)} labels, "
                f"not {PIXELS} bytes per label: fetch it again"
            )
        images = np.frombuffer(pixels, dtype=np.uint8)
        shape = (len(labels), PIXELS)
        return images.reshape(shape, order="F" if is_by_column else "C"), labels


_BATCHES = tuple(f"data_batch_{n}" for n in range(1, 6))

TEN = Form(
    title="CIFAR-10",
    python="cifar-10-batches-py",
    archive="cifar-10-python.tar.gz",
    binary="cifar-10-batches-bin",
    train=_BATCHES,
    test="test_batch",
    montages=_BATCHES,
    word=b"labels",
    marks=1,
    classes=10,
)
HUNDRED = Form(
    title="CIFAR-100",
    python="cifar-100-python",
    archive="cifar-100-python.tar.gz",
    binary="cifar-100-binary",
    train=("train",),
    test="test",
    montages=("train_1", "train_2"),
    word=b"fine_labels",
    marks=2,
    classes=100,
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
