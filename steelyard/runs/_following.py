"""Reads files to which another process appends, only the new part of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from steelyard.core._errors import SteelyardError
from steelyard.core._round_gram import RoundGram
from steelyard.runs._files import ROUNDS, parse_record
from steelyard.runs._gram_log import FRAME_SIZE, decode, split_entries

_TAIL = 64  # bytes before the new part, which must be the same as before


class AppendedFile:
    """A file that grows.

    Attributes:
        position: the number of bytes that the reader has accepted.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.position = 0
        self._inode = -1
        self._tail = b""

    def read(self) -> tuple[bytes, bool]:
        """Return the bytes that the reader has not accepted yet, and whether the file is another.

        The file is another if it was replaced, cut or rewritten, as by a run that was resumed or
        started again. Then all of its bytes are new. A file that is missing is empty.
        """
        if self.path.exists() and not self.path.is_file():
            raise SteelyardError(f"{self.path}: cannot be read: not a file")
        try:
            with self.path.open("rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                file.seek(self.position - len(self._tail))
                tail = file.read(len(self._tail))
                is_other = inode != self._inode or tail != self._tail
                if is_other:
                    file.seek(0)
                content = file.read()
        except FileNotFoundError:
            inode = -1
            is_other = self._inode != -1
            content = b""
        except OSError as error:
            raise SteelyardError(f"{self.path}: cannot be read: {error.strerror}") from None
        if is_other:
            self.position = 0
            self._tail = b""
        self._inode = inode
        return content, is_other

    def accept(self, content: bytes) -> None:
        """Mark the first new bytes as read.

        Args:
            content: these bytes.
        """
        self.position += len(content)
        self._tail = (self._tail + content)[-_TAIL:]


def follow_records(file: AppendedFile) -> tuple[list[dict[str, Any]], bool]:
    """Return the new records of a `rounds.jsonl`, and whether they start again from the beginning.

    A line that is not complete is left for the next time. A line that cannot be read is left out.
    """
    content, is_other = file.read()
    end = content.rfind(b"\n") + 1
    records = []
    for line in content[:end].splitlines():
        try:
            records.append(parse_record(line))
        except ValueError:
            continue
    file.accept(content[:end])
    return records, is_other


def follow_grams(file: AppendedFile) -> tuple[list[RoundGram], bool]:
    """Return the new rounds of a `grams.bin`, and whether they start again from the beginning.

    An entry that is not complete is left for the next time.

    Raises:
        SteelyardError: if the file is damaged.
    """
    content, is_other = file.read()
    rounds = []
    end = 0
    try:
        for start, data in split_entries(content):
            rounds.append(decode(data))
            end = start + FRAME_SIZE + len(data)
    except SteelyardError as error:
        raise SteelyardError(f"{file.path}: {error}") from None
    file.accept(content[:end])
    return rounds, is_other


def find_runs(directories: Sequence[Path]) -> Iterator[Path]:
    """Yield the run directories in directories and their subdirectories."""
    seen = set()
    for directory in directories:
        for path in sorted(directory.rglob(ROUNDS)):
            if path.parent not in seen:
                seen.add(path.parent)
                yield path.parent
