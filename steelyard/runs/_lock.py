"""Locks: only one process at a time writes to a directory."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

from steelyard.core._errors import SteelyardError

# Whether a path still leads to the file or directory that it led to before.


class DirectoryHandle:
    """An open directory, which can be distinguished from another one at the same path.

    While a directory is open, the file system does not use its inode number again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: int | None = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def is_unchanged(self) -> bool:
        """Return whether the path still leads to this directory."""
        return self._handle is not None and is_same_file(self.path, self._handle)

    def close(self) -> None:
        """Release the directory."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def __del__(self) -> None:
        self.close()


def is_same_file(path: Path, handle: int) -> bool:
    """Return whether a path leads to an open file or directory."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except OSError:
        return False


def is_present(path: Path) -> bool:
    """Return whether the path exists, also as a broken link."""
    return os.path.lexists(path)


LOCK = "lock"
_OWNER = re.compile(rb"(pid \d+ on [^\n]*\n?)?")  # what we write into the file

# Handles that belong to this process alone. A forked child, of this run or of another one in
# another thread, closes them: a lock is held as long as anybody has it open.
_private: set[int] = set()
_guard = threading.Lock()  # nobody forks between opening a handle and listing it here


def _close_in_child() -> None:
    for handle in _private:
        os.close(handle)
    _private.clear()
    _guard.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_close_in_child
    )


def open_private(path: Path, flags: int) -> int:
    """Open a file, and create it if it is missing; forked processes close the handle."""
    with _guard:
        handle = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        _private.add(handle)
    return handle


def close_private(handle: int) -> None:
    """Close a handle of `open_private`; a process that was forked later does nothing."""
    with _guard:
        if handle in _private:
            _private.remove(handle)
            os.close(handle)


def lock(path: Path, kind: str) -> int:
    """Create a directory if it is missing, and lock it until the handle is released.

    Args:
        path: the directory.
        kind: what messages call it: a run, a sweep.

    Returns:
        The handle, for `close_private`.
    """
    import fcntl  # not on Windows, where the rest of the package works

    try:
        path.mkdir(parents=True, exist_ok=True)
        _check_lock_file(path / LOCK, kind)
        handle = open_private(path / LOCK, os.O_RDWR)
    except OSError as error:
        reason = error.strerror or error
        raise SteelyardError(
            f"{path}: cannot be a {kind} directory: {reason}: choose another directory (out, --out)"
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(handle, 200, 0).decode(errors="replace").strip() or "another process"
        close_private(handle)
        raise SteelyardError(
            f"{path}: this {kind} is in use by {owner}: wait for it, or choose another directory "
            f"(out, --out)"
        ) from None
    if not is_same_file(path / LOCK, handle):  # its last owner removed it just now
        close_private(handle)
        return lock(path, kind)
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return handle


def _check_lock_file(path: Path, kind: str) -> None:
    """Raise an error if the file is not a lock of ours: it would be overwritten."""
    try:
        status = os.lstat(path)
        is_ours = stat.S_ISREG(status.st_mode) and status.st_size <= 400
        is_ours = is_ours and _OWNER.fullmatch(path.read_bytes()) is not None
    except FileNotFoundError:
        return
    if not is_ours:
        raise SteelyardError(
            f"{path}: this file is not the lock of a {kind} and would be overwritten: move it "
            f"away, or choose another "
            "directory (out, --out)"
        )


def remove_lock(path: Path, handle: int) -> None:
    """Remove the lock file of an unused directory, if it is still the one that was locked."""
    if is_same_file(path / LOCK, handle):
        (path / LOCK).unlink()


@contextlib.contextmanager
def lock_directory(path: Path, kind: str) -> Iterator[None]:
    """Lock a directory while the block runs.

    The directory is created if it is missing. It is removed again if it stays empty.
    """
    is_new = not path.exists()
    handle = lock(path, kind)
    try:
        yield
    finally:
        if is_new and path.is_dir() and os.listdir(path) == [LOCK]:
            remove_lock(path, handle)
            path.rmdir()
        close_private(handle)
