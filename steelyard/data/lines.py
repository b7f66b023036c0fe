"""Text files, plain or packed by xz, read line by line within limits: a small file can unpack to a large one."""

from __future__ import annotations

import lzma
from collections.abc import Iterator
from pathlib import Path

from steelyard.core.errors import SteelyardError

UNPACKED = 4 << 30
"""Most bytes a file may hold, unpacked: Sogou News, the largest known here, has 1.4 GB."""

LINE = 1 << 24
"""Most bytes of one line."""

_CHUNK = 1 << 20
_MEMORY = 1 << 28  # xz -9 unpacks in a quarter of it; a header may ask for gigabytes


def lines(path: Path) -> Iterator[str]:
    """The lines of a file in UTF-8, each with its end."""
    number, rest = 1, b""
    for chunk in chunks(path):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield _text(path, number, line + b"\n")
            number += 1
        if len(rest) > LINE:
            raise SteelyardError(f"{path}, line {number} has more than {LINE} bytes: this is not the file it should be")
    if rest:
        yield _text(path, number, rest)


def chunks(path: Path, most: int | None = None) -> Iterator[bytes]:
    """A file's bytes, unpacked if its name ends with .xz; at most so many."""
    most = UNPACKED if most is None else most
    found = 0
    try:
        for chunk in _decompress_chunks(path) if path.suffix == ".xz" else _read_chunks(path):
            found += len(chunk)
            if found > most:
                raise SteelyardError(f"{path} holds more than {most} bytes: this is not the file it should be")
            yield chunk
    except (lzma.LZMAError, EOFError) as error:
        raise SteelyardError(f"{path} is no complete xz file ({error}): fetch it again") from error
    except OSError as error:
        raise SteelyardError(f"{path} cannot be read ({error.strerror}): check that it is a file of yours") from error


def _read_chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def _decompress_chunks(path: Path) -> Iterator[bytes]:
    unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MEMORY)
    with path.open("rb") as file:
        while not unpacker.eof:
            packed = file.read(_CHUNK) if unpacker.needs_input else b""
            if unpacker.needs_input and not packed:
                raise EOFError("it ends too early")
            yield unpacker.decompress(packed, _CHUNK)
        if unpacker.unused_data or file.read(1):
            raise EOFError("something follows its end")


def _text(path: Path, number: int, line: bytes) -> str:
    if b"\0" in line:
        raise SteelyardError(f"{path}, line {number} holds a NUL byte: this is no text, fetch it again")
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise SteelyardError(f"{path}, line {number} is not UTF-8 ({error.reason}): fetch it again") from error
