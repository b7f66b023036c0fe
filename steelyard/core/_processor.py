"""The processor of this machine."""

from __future__ import annotations

import platform
import re
from pathlib import Path


def find_processor_name() -> str:
    """Return the name of the processor, such as `AMD EPYC 7763`; its architecture if unknown."""
    information = Path("/proc/cpuinfo")
    if information.is_file():  # on Linux
        text = information.read_text(encoding="utf-8", errors="replace")
        match = re.search(r"^model name\s*: (.+)$", text, flags=re.MULTILINE)
        if match is not None:
            return match[1].strip()
    return platform.processor() or platform.machine()
