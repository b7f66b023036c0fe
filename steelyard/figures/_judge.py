"""Compares runs seed by seed, for verdicts on figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from steelyard.diagnostics import series
from steelyard.experiments._statistics import Difference, difference
from steelyard.figures._figure import Check
from steelyard.figures._style import Array
from steelyard.runs._history import History

Direction = Literal["higher", "lower"]


def average_series(
    histories: Sequence[History], name: str, share: float = 1.0, from_end: bool = True
) -> list[float]:
    """Return the mean of a series over the last, or the first, rounds of each run.

    Args:
        histories: the runs, one per seed.
        name: the series.
        share: the share of the rounds that count: 0.5 for the second half.
        from_end: take the last rounds; otherwise the first.
    """
    means = []
    for history in histories:
        values = series(history, name).values
        count = max(1, round(share * len(values)))
        part = values[-count:] if from_end else values[:count]
        means.append(float(np.mean(part)))
    return means


def average_middle(
    histories: Sequence[History], name: str, take: Callable[[Array], Any] = np.mean
) -> list[float]:
    """Return the mean of a series in the middle of each run, as FedLAW's appendix D.5 does.

    These are rounds 90 to 110 of 200, and at least five rounds of a short run.

    Args:
        histories: the runs, one per seed.
        name: the series.
        take: the function of these rounds; the mean, or the median.
    """
    means = []
    for history in histories:
        values = series(history, name).values
        count = min(len(values), max(5, round(0.105 * len(values))))
        start = (len(values) - count) // 2
        means.append(float(take(values[start : start + count])))
    return means


def last_accuracies(histories: Sequence[History], count: int = 10) -> list[float]:
    """Return the mean test accuracy of the last rounds of each run, in percent.

    Args:
        histories: the runs, one per seed.
        count: the number of rounds.
    """
    accuracies = []
    for history in histories:
        values = series(history, "accuracy").values
        accuracies.append(100 * float(np.mean(values[-count:])))
    return accuracies


def subtract_by_seed(ours: Sequence[float], theirs: Sequence[float]) -> Difference:
    """Return the difference of two series of numbers, one per seed, with its interval."""
    return difference(
        "ours",
        "theirs",
        {str(seed): value for seed, value in enumerate(ours)},
        {str(seed): value for seed, value in enumerate(theirs)},
    )


def check_difference(
    text: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    expected: Direction,
    unit: str = "",
    digits: int = 2,
) -> Check:
    """Check whether numbers are higher or lower than others, seed by seed.

    It holds if the 95 % interval of the mean difference lies on the expected side of 0, and does
    not hold if it lies on the other side. If the interval contains 0, or with one seed, the numbers
    cannot tell.

    Args:
        text: what is compared: "the gain of A over B".
        ours: the first numbers, one per seed.
        theirs: the second numbers, one per seed.
        expected: what the paper says of the first numbers.
        unit: the unit of the difference.
        digits: the number of decimals to print.
    """
    gap = subtract_by_seed(ours, theirs)
    mean = gap.mean or 0.0
    words = f"{text}: {mean:+.{digits}f}"
    if gap.half_width is not None:
        words += f" ± {gap.half_width:.{digits}f}"
    if unit:
        words += f" {unit}"
    if not gap.beyond_noise:
        return Check(words, None)
    is_higher = mean > 0
    return Check(words, is_higher == (expected == "higher"))


def check_not_lower(
    text: str, ours: Sequence[float], theirs: Sequence[float], margin: float, unit: str = ""
) -> Check:
    """Check whether numbers are as high as others, seed by seed, except for a margin.

    It holds if the whole 95 % interval of the mean difference lies above `-margin`, and does not
    hold if it lies below 0. Otherwise, or with one seed, the numbers cannot tell.

    Args:
        text: what is compared.
        ours: the first numbers, one per seed.
        theirs: the second numbers, one per seed.
        margin: how much lower the first numbers may be.
        unit: the unit of the difference.
    """
    words = check_difference(text, ours, theirs, "higher", unit).text
    interval = subtract_by_seed(ours, theirs).interval
    if interval is None:
        return Check(words, None)
    low, high = interval
    if low > -margin:
        return Check(words, True)
    return Check(words, False if high < 0 else None)


def check_value(
    text: str, values: Sequence[float], expected: Direction, limit: float, digits: int = 2
) -> Check:
    """Check whether numbers, one per seed, are above or below a limit, as `check_difference` does."""
    check = check_difference(text, values, [limit] * len(values), expected, "", digits)
    mean = float(np.mean(values))
    gap = subtract_by_seed(values, [limit] * len(values))
    words = f"{text}: {mean:.{digits}f}"
    if gap.half_width is not None:
        words += f" ± {gap.half_width:.{digits}f}"
    return Check(words, check.holds)


def check_trend(
    text: str, positions: Sequence[float], rows: ArrayLike, expected: Direction
) -> Check:
    """Check whether values rise (or fall) along an axis, by the sign of their slope.

    Args:
        text: what is measured, and along which axis.
        positions: the positions on the axis; only their order counts.
        rows: the values, `[seeds, positions]`.
        expected: "higher" if the paper says that values rise, "lower" if they fall.
    """
    ranks = np.argsort(np.argsort(positions)).astype(float)
    slopes = []
    for row in np.asarray(rows, dtype=np.float64):
        slopes.append(float(np.polyfit(ranks, row, 1)[0]))
    means = np.asarray(rows, dtype=np.float64).mean(axis=0)
    ends = f"{means[int(ranks.argmin())]:.3g} to {means[int(ranks.argmax())]:.3g}"
    check = check_difference(text, slopes, [0.0] * len(slopes), expected)
    return Check(f"{text}: {ends}", check.holds)


def check_equal(
    text: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    margin: float,
    unit: str = "",
    digits: int = 2,
) -> Check:
    """Check whether numbers are the same as others up to a margin, seed by seed.

    It holds if the 95 % interval of the mean difference lies within the margin, and does not hold
    if it lies outside. Otherwise, or with one seed, the numbers cannot tell.

    Args:
        text: what is compared: "A minus B".
        ours: the first numbers, one per seed.
        theirs: the second numbers, one per seed.
        margin: the largest difference that counts as none.
        unit: the unit of the difference.
        digits: the number of decimals to print.
    """
    words = check_difference(text, ours, theirs, "higher", unit, digits).text
    interval = subtract_by_seed(ours, theirs).interval
    if interval is None:
        return Check(words, None)
    low, high = interval
    if -margin <= low and high <= margin:
        return Check(words, True)
    if low > margin or high < -margin:
        return Check(words, False)
    return Check(words, None)


def count_rounds(histories: Sequence[History], target: float) -> list[float]:
    """Return the rounds to a target accuracy; a run that does not reach it counts all of its rounds.

    Args:
        histories: the runs, one per seed.
        target: the accuracy, a share.
    """
    return [float(history.rounds_to(target) or len(history)) for history in histories]
