"""Options whose default depends on other options, such as a preset or an optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class _Unset(str):
    """The placeholder for an option that was not set; compare it with `is`.

    It is text, so that lists of options can print it.
    """


UNSET: Any = _Unset("preset")


def fill(part: Any, defaults: Mapping[str, Any]) -> None:
    """Set the options of a frozen part that are `UNSET` to these defaults."""
    for option, value in defaults.items():
        if getattr(part, option) is UNSET:
            object.__setattr__(part, option, value)
