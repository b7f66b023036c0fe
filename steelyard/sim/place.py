"""Whether a path still leads to the file or directory that it led to before."""

from __future__ import annotations

import os
from pathlib import Path

Place = tuple[int, int]


def place_of(path: Path | int) -> Place | None:
    """Device and inode of what a path leads to, or of an open file; None if there is nothing."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def is_present(path: Path) -> bool:
    """Whether something has this name, if only a link that leads nowhere."""
    return os.path.lexists(path)
