"""What may be said of several runs: means over seeds, and differences over the seeds that two algorithms share.

Runs with the same seed have the same data, initial model and cohorts, so the difference is taken seed by seed: what a
seed does to both cancels out. With m the mean of the differences of n common seeds and s their sample deviation, the
interval is m ± t s / sqrt(n), t the quantile of Student's distribution with n - 1 degrees of freedom.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from steelyard.core.errors import SteelyardError
from steelyard.experiments.scores import Metric


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean."""
    if not values:
        raise SteelyardError("mean of no values: give at least one")
    return math.fsum(values) / len(values)


def deviation(values: Sequence[float]) -> float | None:
    """The sample deviation, sqrt(sum (x - mean)^2 / (n - 1)); None of a single value, which tells nothing of it."""
    if len(values) < 2:
        return None
    middle = mean(values)
    return math.sqrt(math.fsum((x - middle) ** 2 for x in values) / (len(values) - 1))


@dataclass(frozen=True)
class Difference:
    """One algorithm less another, over the seeds that both have.

    Attributes:
        first: name of the one.
        second: name of the other.
        by_seed: the differences, by common seed.
        left_out: other seeds, with the reason.
        confidence: of the interval.
    """

    first: str
    second: str
    by_seed: Mapping[str, float]
    left_out: Mapping[str, str]
    confidence: float = 0.95

    @property
    def mean(self) -> float | None:
        """The mean difference; None without a common seed."""
        return mean(list(self.by_seed.values())) if self.by_seed else None

    @property
    def half_width(self) -> float | None:
        """Half of the interval: observed differences below it cannot be told from noise. None for fewer than two."""
        spread = deviation(list(self.by_seed.values()))
        if spread is None:
            return None
        count = len(self.by_seed)
        quantile = float(import_scipy_stats().t.ppf((1 + self.confidence) / 2, count - 1))
        return quantile * spread / math.sqrt(count)

    @property
    def p_value(self) -> float | None:
        """The two-sided p-value of the paired t-test against a mean of 0; None for fewer than two seeds."""
        middle = self.mean
        spread = deviation(list(self.by_seed.values()))
        if middle is None or spread is None:
            return None
        if middle == 0:
            return 1.0
        if spread == 0:
            return 0.0
        count = len(self.by_seed)
        distance = abs(middle) / (spread / math.sqrt(count))
        return 2 * float(import_scipy_stats().t.sf(distance, count - 1))

    @property
    def interval(self) -> tuple[float, float] | None:
        """The confidence interval of the mean difference; None for fewer than two seeds."""
        middle, half = self.mean, self.half_width
        return None if middle is None or half is None else (middle - half, middle + half)

    @property
    def beyond_noise(self) -> bool:
        """Whether the interval leaves out 0."""
        interval = self.interval
        return interval is not None and not interval[0] <= 0 <= interval[1]

    def sentence(self, metric: Metric) -> str:
        """What may be said, in plain words."""
        said = self._sentence(metric)
        reasons = [f"seed {seed} ({reason})" for seed, reason in self.left_out.items()]
        return said + (f" Left out: {', '.join(reasons)}." if reasons else "")

    def _sentence(self, metric: Metric) -> str:
        middle, interval, count = self.mean, self.interval, len(self.by_seed)
        if middle is None:
            return f"{self.first} and {self.second} have no seed in common with a value of each."
        verb, more, less = metric.words
        size = _figure(metric.to_display(abs(middle)))
        said = f"{self.first} {verb} {size} {metric.unit} {more if middle > 0 else less} {self.second}"
        if middle == 0:
            said = f"{self.first} and {self.second} are equal in the mean"
        if interval is None:
            return f"{said} with seed {next(iter(self.by_seed))}: one seed says nothing about noise."
        if not any(self.by_seed.values()):
            return f"{self.first} and {self.second} are equal with each of {count} common seeds."
        low, high = sorted(metric.to_display(end) * (-1 if middle < 0 else 1) for end in interval)
        said += f" over {count} common seeds ({100 * self.confidence:g} % interval {_figure(low)} to {_figure(high)})"
        if self.beyond_noise:
            return f"{said}: more than seed noise."
        half = metric.to_display(self.half_width or 0.0)
        return f"{said}: within seed noise; {count} seeds cannot tell differences under {_figure(half)} {metric.unit}."


def difference(
    first: str,
    second: str,
    ours: Mapping[str, float | None],
    theirs: Mapping[str, float | None],
    confidence: float = 0.95,
) -> Difference:
    """Pairs two algorithms' values by seed. None is a value that a run does not have: that seed is left out."""
    if not 0 < confidence < (1 + confidence) / 2 < 1:  # a number next to 1 has no quantile
        raise SteelyardError(f"confidence={confidence}: use a number between 0 and 1, such as 0.95")
    by_seed, left_out = {}, {}
    for seed in dict.fromkeys([*ours, *theirs]):
        if seed not in theirs or seed not in ours:
            left_out[seed] = f"only of {first if seed in ours else second}"
            continue
        a, b = ours[seed], theirs[seed]
        if a is None or b is None:
            left_out[seed] = "neither has a value" if a is b else f"{first if a is None else second} has no value"
        else:
            by_seed[seed] = a - b
    return Difference(first, second, by_seed, left_out, confidence)


def correct_for_many(p_values: Sequence[float | None]) -> list[float | None]:
    """Correct p-values for their number by Holm's step-down method, which bounds the chance of any false alarm.

    The i-th smallest of n is multiplied by n - i + 1, and no corrected value is below that of a smaller one.

    Args:
        p_values: of comparisons that are read together; None where a comparison has none.

    Returns:
        The corrected values in the same order.
    """
    known = [(value, position) for position, value in enumerate(p_values) if value is not None]
    corrected: list[float | None] = [None] * len(p_values)
    floor = 0.0
    for rank, (value, position) in enumerate(sorted(known)):
        floor = max(floor, min(1.0, value * (len(known) - rank)))
        corrected[position] = floor
    return corrected


def import_scipy_stats() -> Any:
    """Import `scipy.stats`, which is slow to load and needed for intervals only."""
    try:
        import scipy.stats
    except ModuleNotFoundError:
        raise SteelyardError('intervals need scipy: pip install "steelyard[cli]"') from None
    return scipy.stats


def _figure(value: float) -> str:
    """Two decimals, or two figures of a number too small for them."""
    return f"{value:.2f}" if abs(value) >= 0.095 or value == 0 else f"{value:.2g}"
