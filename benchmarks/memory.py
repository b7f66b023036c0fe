"""Memory of a process and its children, counted once where they share it."""

import time
from pathlib import Path


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    own = [int(word) for word in text.split()]
    return own + [grandchild for child in own for grandchild in _children(child)]


def _proportional(pid: int) -> int:
    """Bytes of a process, each page divided by the number of processes that have it mapped."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def peak_of_tree(pid: int, every: float = 0.02) -> int:
    """The most memory a process and all its children used at one time, sampled until it ends."""
    peak = 0
    while True:
        used = sum(_proportional(one) for one in [pid, *_children(pid)])
        if not used:
            return peak
        peak = max(peak, used)
        time.sleep(every)
