"""Statistics of several runs.

Means over seeds, and differences over the seeds that two algorithms share.

Runs with the same seed have the same data, initial model and cohorts, so differences are taken seed
by seed: the effect of the seed on both cancels out. With m the mean of the differences of n common
seeds and s their sample deviation, the interval is m ± t s / sqrt(n), t the quantile of Student's
distribution with n - 1 degrees of freedom.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from steelyard.core._errors import SteelyardError
from steelyard.experiments.scores import Score


def mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean."""
    if not values:
        raise SteelyardError("mean of no values: give at least one")
    return math.fsum(values) / len(values)


def deviation(values: Sequence[float]) -> float | None:
    """Return the sample deviation, sqrt(sum (x - mean)^2 / (n - 1)).

    None for fewer than two values.
    """
    if len(values) < 2:
        return None
    average = mean(values)
    return math.sqrt(math.fsum((x - average) ** 2 for x in values) / (len(values) - 1))


@dataclass(frozen=True)
class Difference:
    """The difference of two algorithms, first minus second, over the seeds that both have.

    Attributes:
        first: the name of the first algorithm.
        second: the name of the second algorithm.
        by_seed: the differences, by common seed.
        left_out: why other seeds are left out, by seed.
        confidence: the confidence level of the interval.
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
        """Half of the width of the interval; None for fewer than two seeds.

        A smaller mean difference cannot be distinguished from noise.
        """
        spread = deviation(list(self.by_seed.values()))
        if spread is None:
            return None
        count = len(self.by_seed)
        quantile = float(import_scipy_stats().t.ppf((1 + self.confidence) / 2, count - 1))
        return quantile * spread / math.sqrt(count)

    @property
    def p_value(self) -> float | None:
        """The two-sided p-value of the paired t-test against a mean of 0.

        None for fewer than two seeds.
        """
        average = self.mean
        spread = deviation(list(self.by_seed.values()))
        if average is None or spread is None:
            return None
        if average == 0:
            return 1.0
        if spread == 0:
            return 0.0
        count = len(self.by_seed)
        distance = abs(average) / (spread / math.sqrt(count))
        return 2 * float(import_scipy_stats().t.sf(distance, count - 1))

    @property
    def interval(self) -> tuple[float, float] | None:
        """The confidence interval of the mean difference; None for fewer than two seeds."""
        average = self.mean
        half_width = self.half_width
        if average is None or half_width is None:
            return None
        return average - half_width, average + half_width

    @property
    def beyond_noise(self) -> bool:
        """Whether the interval does not contain 0."""
        interval = self.interval
        return interval is not None and not interval[0] <= 0 <= interval[1]

    def sentence(self, metric: Score) -> str:
        """Return a sentence about the difference, and which seeds are left out."""
        sentence = self._describe(metric)
        if self.left_out:
            reasons = [f"seed {seed} ({reason})" for seed, reason in self.left_out.items()]
            sentence += f" Left out: {', '.join(reasons)}."
        return sentence

    def _describe(self, metric: Score) -> str:
        # The mean difference.
        average = self.mean
        interval = self.interval
        count = len(self.by_seed)
        if average is None:
            return f"{self.first} and {self.second} have no seed in common with a value of each."
        if average == 0:
            sentence = f"{self.first} and {self.second} are equal in the mean"
        else:
            verb, more_word, less_word = metric.words
            size = _format_number(metric.to_display(abs(average)))
            relation = more_word if average > 0 else less_word
            sentence = f"{self.first} {verb} {size} {metric.unit} {relation} {self.second}"

        # Without an interval: one seed, or no difference at all.
        if interval is None:
            seed = next(iter(self.by_seed))
            return f"{sentence} with seed {seed}: one seed says nothing about noise."
        if not any(self.by_seed.values()):
            return f"{self.first} and {self.second} are equal with each of {count} common seeds."

        # The interval, with the sign of the sentence.
        sign = -1 if average < 0 else 1
        low, high = sorted(metric.to_display(end) * sign for end in interval)
        limits = f"{_format_number(low)} to {_format_number(high)}"
        sentence += f" over {count} common seeds ({100 * self.confidence:g} % interval {limits})"
        if self.beyond_noise:
            return f"{sentence}: more than seed noise."
        half_width = _format_number(metric.to_display(self.half_width or 0.0))
        return f"{sentence}: within seed noise; {count} seeds cannot tell differences under {half_width} {metric.unit}."


def difference(
    first: str,
    second: str,
    ours: Mapping[str, float | None],
    theirs: Mapping[str, float | None],
    confidence: float = 0.95,
) -> Difference:
    """Return the difference of two algorithms, seed by seed.

    Args:
        first: the name of the first algorithm.
        second: the name of the second algorithm.
        ours: the values of the first algorithm by seed; a seed with None is left out.
        theirs: the values of the second algorithm by seed.
        confidence: the confidence level of the interval.
    """
    # The upper condition refuses numbers so close to 1 that they have no quantile.
    if not 0 < confidence < (1 + confidence) / 2 < 1:
        raise SteelyardError(f"confidence={confidence}: use a number between 0 and 1, such as 0.95")
    by_seed = {}
    left_out = {}
    for seed in dict.fromkeys([*ours, *theirs]):
        if seed not in theirs:
            left_out[seed] = f"only of {first}"
            continue
        if seed not in ours:
            left_out[seed] = f"only of {second}"
            continue
        first_value = ours[seed]
        second_value = theirs[seed]
        if first_value is not None and second_value is not None:
            by_seed[seed] = first_value - second_value
        elif first_value is not None:
            left_out[seed] = f"{second} has no value"
        elif second_value is not None:
            left_out[seed] = f"{first} has no value"
        else:
            left_out[seed] = "neither has a value"
    return Difference(first, second, by_seed, left_out, confidence)


def correct_for_many(p_values: Sequence[float | None]) -> list[float | None]:
    """Correct p-values for their number with Holm's step-down method.

    It bounds the probability of any false alarm. The i-th smallest of n values is multiplied by
    n - i + 1; a corrected value is not below that of a smaller one.

    Args:
        p_values: the p-values of comparisons that are read together; None for a comparison without
            one.

    Returns:
        The corrected values in the same order.
    """
    values = [(value, position) for position, value in enumerate(p_values) if value is not None]
    corrected: list[float | None] = [None] * len(p_values)
    lower_bound = 0.0
    for rank, (value, position) in enumerate(sorted(values)):
        lower_bound = max(lower_bound, min(1.0, value * (len(values) - rank)))
        corrected[position] = lower_bound
    return corrected


def import_scipy_stats() -> Any:
    """Import `scipy.stats`, which is slow to load and only needed for intervals."""
    try:
        import scipy.stats
    except ModuleNotFoundError:
        raise SteelyardError('intervals need scipy: pip install "steelyard[cli]"') from None
    return scipy.stats


def _format_number(value: float) -> str:
    """Return a number with two decimals; a small number with two significant digits."""
    if value == 0 or abs(value) >= 0.095:
        return f"{value:.2f}"
    return f"{value:.2g}"
