"""Damaged and hostile files: one sentence for whatever a decoder makes of them, and a limit on what they unpack to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from steelyard.core.errors import SteelyardError

_STEP = 1 << 20


@contextmanager
def reading(path: Path | str, what: str) -> Iterator[None]:
    """Turns any error of a decoder into one that names the file; `what` is the kind of file it should be."""
    try:
        yield
    except SteelyardError:
        raise
    except Exception as error:  # on damaged bytes, decoders raise whatever comes up
        reason = (str(error).splitlines() or [""])[0][:120] or type(error).__name__
        raise SteelyardError(f"{path} is no complete {what} ({reason}): fetch it again") from error


def read_bounded(stream: IO[bytes], limit: int, path: Path | str) -> bytes:
    """Everything in a stream, if that is `limit` bytes at most: a small file may unpack to any size."""
    parts, left = [], limit
    while part := stream.read(min(_STEP, left + 1)):
        left -= len(part)
        if left < 0:
            raise SteelyardError(f"{path} unpacks to more than {limit:,} bytes, far beyond its kind: fetch it again")
        parts.append(part)
    return b"".join(parts)


def write(out: IO[bytes], data: bytes, path: Path) -> None:
    """Writes, or says in one sentence why it cannot be done; `path` is what the user asked for."""
    try:
        out.write(data)
    except OSError as error:
        raise SteelyardError(f"{path}: cannot be written ({error.strerror}): make room and go on") from error
