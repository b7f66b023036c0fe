"""Memory that parent and workers share: pages mapped before the fork, gone with the last process.

Nothing is named, so a killed run leaves nothing behind, and no limit of /dev/shm applies. Pages take up memory when
they are first written to: a table with a row for each of 10 000 clients costs what the rows in use cost.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import torch

_FLAGS = getattr(mmap, "MAP_SHARED", 0) | getattr(mmap, "MAP_ANONYMOUS", 0) | getattr(mmap, "MAP_NORESERVE", 0)


def zeros(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of zeros in shared memory."""
    count = 1
    for length in shape:
        count *= length
    if count == 0:
        return torch.zeros(tuple(shape), dtype=dtype)
    size = count * dtype.itemsize
    memory = mmap.mmap(-1, size, flags=_FLAGS) if _FLAGS else mmap.mmap(-1, size)
    return torch.frombuffer(memory, dtype=dtype, count=count).view(tuple(shape))
