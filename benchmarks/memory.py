"""Memory of a process and its children, counted once where they share it."""

import gc
import time
from collections.abc import Callable
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


def peak_during(call: Callable[[], object]) -> int:
    """Bytes this process held at most while it made the call, beyond what it held before."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    before = _of_self("VmRSS")
    call()
    return _of_self("VmHWM") - before


def _of_self(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))
