"""Handle damaged and hostile files: one error for all decoders, a limit on the unpacked size."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from steelyard.core.errors import SteelyardError

_STEP = 1 << 20


@contextmanager
def reading(path: Path | str, what: str) -> Iterator[None]:
    """Turn any error of a decoder into a `SteelyardError` that names the file.

    Args:
        path: the file.
        what: the kind of file it should be.
    """
    try:
        yield
    except SteelyardError:
        raise
    except Exception as error:  # decoders raise all kinds of errors on damaged bytes
        reason = (str(error).splitlines() or [""])[0][:120] or type(error).__name__
        raise SteelyardError(f"{path} is not a complete {what} ({reason}): fetch it again") from error


def read_bounded(stream: IO[bytes], limit: int, path: Path | str) -> bytes:
    """Return the content of a stream; raise an error if it has more than `limit` bytes.

    A small file may unpack to any size.
    """
    parts = []
    remaining = limit
    while part := stream.read(min(_STEP, remaining + 1)):
        remaining -= len(part)
        if remaining < 0:
            raise SteelyardError(f"{path} unpacks to more than {limit:,} bytes, which cannot be right: fetch it again")
        parts.append(part)
    return b"".join(parts)


def write(out: IO[bytes], data: bytes, path: Path) -> None:
    """Write data, and turn an error into one that names `path`, the file the user asked for."""
    try:
        out.write(data)
    except OSError as error:
        raise SteelyardError(f"{path}: cannot be written ({error.strerror}): free some space and try again") from error
