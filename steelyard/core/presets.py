"""Options whose default depends on others: on a preset, or on the optimizer chosen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class _Unset(str):
    """A word that lists of options show, and that no option can be equal to by chance: it is told by identity."""


UNSET: Any = _Unset("preset")


def fill(part: Any, defaults: Mapping[str, Any]) -> None:
    """Gives the options of a frozen part that were left out these values."""
    for option, value in defaults.items():
        if getattr(part, option) is UNSET:
            object.__setattr__(part, option, value)
