"""What both kinds of checks share."""

from __future__ import annotations

import dataclasses
from typing import Any


def require(condition: Any, message: str) -> None:
    """Raises AssertionError with this sentence if the condition does not hold, also under `python -O`."""
    if not condition:
        raise AssertionError(message)


def is_frozen_dataclass(kind: type[Any]) -> bool:
    """Return whether a class was decorated with `@dataclass(frozen=True)`."""
    return dataclasses.is_dataclass(kind) and bool(kind.__dataclass_params__.frozen)  # type: ignore[attr-defined]
