"""Checks of options, with the same error messages everywhere."""

from __future__ import annotations

import math
from typing import Any

from steelyard.core._errors import SteelyardError, shorten

LARGEST = (1 << 63) - 1  # the largest integer of torch, numpy and Flower


def one_of(name: str, value: Any, *allowed: Any) -> None:
    """Raise an error unless the option is one of the allowed values."""
    if value not in allowed:
        choices = ", ".join(repr(choice) for choice in allowed)
        raise SteelyardError(f"{name}={shorten(value)}: use one of {choices}")


def number(
    name: str, value: Any, low: float = -math.inf, high: float = math.inf, open_low: bool = False
) -> None:
    """Raise an error unless the option is a finite number in `[low, high]`.

    With `open_low`, the interval is `(low, high]`.
    """
    # torch and numpy cannot compute with larger integers.
    if isinstance(value, int) and abs(value) > LARGEST:
        raise SteelyardError(
            f"{name}={shorten(value)}: use a number below 2^63, or write it as 1e30"
        )
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    is_finite = is_number and math.isfinite(value)
    if not is_finite or not low <= value <= high or (open_low and value == low):
        opening = "(" if open_low or math.isinf(low) else "["
        closing = ")" if math.isinf(high) else "]"
        interval = f"{opening}{low}, {high}{closing}"
        raise SteelyardError(f"{name}={shorten(value)}: use a number in {interval}")


def integer(name: str, value: Any, low: int = 0, high: int = LARGEST) -> None:
    """Raise an error unless the option is a whole number in `[low, high]`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise SteelyardError(f"{name}={shorten(value)}: use a whole number >= {low}")
    if value > high:
        limit = "below 2^63" if high == LARGEST else f"<= {high:,}"
        raise SteelyardError(f"{name}={shorten(value)}: use a whole number {limit}")


def betas(value: Any) -> None:
    """Raise an error unless the option is a pair of decay rates for Adam, both in [0, 1).

    At 1, Adam's averages would never change and the bias correction would divide by zero.
    """
    is_pair = isinstance(value, (tuple, list)) and len(value) == 2
    if not is_pair or not all(isinstance(beta, (int, float)) and 0 <= beta < 1 for beta in value):
        raise SteelyardError(f"betas={shorten(value)}: use two numbers in [0, 1)")
