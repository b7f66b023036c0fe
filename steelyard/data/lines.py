"""Read text files, plain or compressed by xz, line by line within limits of size.

A small compressed file can unpack to a very large one.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterator
from pathlib import Path

from steelyard.core.errors import SteelyardError

UNPACKED = 4 << 30
"""Maximum number of bytes of a file, unpacked: Sogou News, the largest one here, has 1.4 GB."""

LINE = 1 << 24
"""Maximum number of bytes of a line."""

_CHUNK = 1 << 20
_MEMORY = 1 << 28  # xz -9 needs a quarter of it; a header may ask for gigabytes


def lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file, each with its line end."""
    number = 1
    rest = b""
    for chunk in chunks(path):
        *complete_lines, rest = (rest + chunk).split(b"\n")
        for line in complete_lines:
            yield _decode(path, number, line + b"\n")
            number += 1
        if len(rest) > LINE:
            raise SteelyardError(f"{path}, line {number} has more than {LINE} bytes: it is not the expected file")
    if rest:
        yield _decode(path, number, rest)


def chunks(path: Path, limit: int | None = None) -> Iterator[bytes]:
    """Yield the bytes of a file in blocks, unpacked if its name ends with .xz.

    Raise an error after `limit` bytes, by default `UNPACKED`.
    """
    limit = UNPACKED if limit is None else limit
    size = 0
    blocks = _decompress_chunks(path) if path.suffix == ".xz" else _read_chunks(path)
    try:
        for chunk in blocks:
            size += len(chunk)
            if size > limit:
                raise SteelyardError(f"{path} has more than {limit} bytes: it is not the expected file")
            yield chunk
    except (lzma.LZMAError, EOFError) as error:
        raise SteelyardError(f"{path} is not a complete xz file ({error}): fetch it again") from error
    except OSError as error:
        raise SteelyardError(
            f"{path} cannot be read ({error.strerror}): check that it is a file and that you may read it"
        ) from error


def _read_chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def _decompress_chunks(path: Path) -> Iterator[bytes]:
    """Yield the unpacked bytes of an xz file in blocks; raise an error if it is not complete."""
    unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MEMORY)
    with path.open("rb") as file:
        while not unpacker.eof:
            packed = file.read(_CHUNK) if unpacker.needs_input else b""
            if unpacker.needs_input and not packed:
                raise EOFError("it ends too early")
            yield unpacker.decompress(packed, _CHUNK)
        if unpacker.unused_data or file.read(1):
            raise EOFError("there are more bytes after its end")


def _decode(path: Path, number: int, line: bytes) -> str:
    """Return a line as text; `number` is for the error message."""
    if b"\0" in line:
        raise SteelyardError(f"{path}, line {number} contains a NUL byte: it is not text, fetch it again")
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise SteelyardError(f"{path}, line {number} is not UTF-8 ({error.reason}): fetch it again") from error
