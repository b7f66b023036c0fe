"""Whether a path still leads to the file or directory that it led to before."""

from __future__ import annotations

import os
from pathlib import Path


class HeldDirectory:
    """A directory that is held open, so that one that takes its place can be told from it.

    While a directory is open, the file system gives its inode number to no other.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: int | None = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def is_in_place(self) -> bool:
        """Return whether the path still leads to this directory."""
        return self._handle is not None and lead_to_same(self.path, self._handle)

    def close(self) -> None:
        """Release the directory."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def __del__(self) -> None:
        self.close()


def lead_to_same(path: Path, handle: int) -> bool:
    """Return whether a path leads to an open file or directory."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except OSError:
        return False


def is_present(path: Path) -> bool:
    """Return whether something has this name, if only a link that leads nowhere."""
    return os.path.lexists(path)
