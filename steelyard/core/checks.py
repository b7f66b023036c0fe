"""Checks of options: one line each in a rule, one wording everywhere."""

from __future__ import annotations

import math
from typing import Any

from steelyard.core.errors import SteelyardError, shorten

LARGEST = (1 << 63) - 1  # whole numbers beyond it are none to torch, numpy and Flower


def one_of(name: str, value: Any, *allowed: Any) -> None:
    """The option must be one of these."""
    if value not in allowed:
        raise SteelyardError(f"{name}={shorten(value)}: use one of {', '.join(repr(a) for a in allowed)}")


def number(name: str, value: Any, low: float = -math.inf, high: float = math.inf, open_low: bool = False) -> None:
    """The option must be a finite number in `[low, high]` (`(low, high]` if `open_low`)."""
    if isinstance(value, int) and abs(value) > LARGEST:  # neither torch nor numpy computes with it
        raise SteelyardError(f"{name}={shorten(value)}: use a number below 2^63, or write it as 1e30")
    fine = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not fine or not low <= value <= high or (open_low and value == low):
        left = "(" if open_low or math.isinf(low) else "["
        right = ")" if math.isinf(high) else "]"
        raise SteelyardError(f"{name}={shorten(value)}: use a number in {left}{low}, {high}{right}")


def integer(name: str, value: Any, low: int = 0, high: int = LARGEST) -> None:
    """The option must be a whole number, at least `low` and at most `high`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise SteelyardError(f"{name}={shorten(value)}: use a whole number >= {low}")
    if value > high:
        limit = "below 2^63" if high == LARGEST else f"of {high:,} at most"
        raise SteelyardError(f"{name}={shorten(value)}: use a whole number {limit}")


def betas(value: Any) -> None:
    """Adam's two decay rates: at 1 its averages would never move, and their correction divides by zero."""
    pair = isinstance(value, (tuple, list)) and len(value) == 2
    if not pair or not all(isinstance(beta, (int, float)) and 0 <= beta < 1 for beta in value):
        raise SteelyardError(f"betas={shorten(value)}: use two numbers in [0, 1)")
