"""Directories that only one process writes to at a time."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from steelyard.core.errors import SteelyardError

LOCK = "lock"


def lock(path: Path, what: str) -> int:
    """Makes a directory and locks it until the handle is closed; `what` is what messages call it."""
    import fcntl  # not on Windows, where the rest of the package works

    try:
        path.mkdir(parents=True, exist_ok=True)
        handle = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        reason = error.strerror or error
        raise SteelyardError(
            f"{path}: cannot be a {what} directory: {reason}: choose another directory (out, --out)"
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(handle, 200, 0).decode(errors="replace").strip() or "another process"
        os.close(handle)
        raise SteelyardError(
            f"{path}: this {what} is in use by {owner}: wait for it, or choose another directory (out, --out)"
        ) from None
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return handle


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Has a directory to itself; one that was made for it and stayed empty is removed."""
    ours = not path.exists()
    handle = lock(path, what)
    try:
        yield
    finally:
        if ours and os.listdir(path) == [LOCK]:
            (path / LOCK).unlink()
            path.rmdir()
        os.close(handle)
