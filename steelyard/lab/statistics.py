"""What may be said of several runs: means over seeds, and differences over the seeds that two algorithms share.

Runs with the same seed have the same data, initial model and cohorts, so the difference is taken seed by seed: what a
seed does to both cancels out. With m the mean of the differences of n common seeds and s their sample deviation, the
interval is m ± t s / sqrt(n), t the quantile of Student's distribution with n - 1 degrees of freedom.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from steelyard.core.errors import SteelyardError
from steelyard.lab.scores import Metric

_TINY = 1e-300


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
        return t_quantile((1 + self.confidence) / 2, count - 1) * spread / math.sqrt(count)

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
        size = _figure(metric.shown(abs(middle)))
        said = f"{self.first} {verb} {size} {metric.unit} {more if middle > 0 else less} {self.second}"
        if middle == 0:
            said = f"{self.first} and {self.second} are equal in the mean"
        if interval is None:
            return f"{said} with seed {next(iter(self.by_seed))}: one seed says nothing about noise."
        if not any(self.by_seed.values()):
            return f"{self.first} and {self.second} are equal with each of {count} common seeds."
        low, high = sorted(metric.shown(end) * (-1 if middle < 0 else 1) for end in interval)
        said += f" over {count} common seeds ({100 * self.confidence:g} % interval {_figure(low)} to {_figure(high)})"
        if self.beyond_noise:
            return f"{said}: more than seed noise."
        half = metric.shown(self.half_width or 0.0)
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


def t_quantile(probability: float, freedom: int) -> float:
    """The quantile of Student's t distribution, to about 12 digits."""
    if not 0 < probability < 1 or freedom < 1:
        raise SteelyardError(f"t_quantile({probability}, {freedom}): use a probability in (0, 1) and freedom >= 1")
    if probability < 0.5:
        return -t_quantile(1 - probability, freedom)
    low, high = 0.0, 1.0
    tail = 1 - probability
    while _tail(high, freedom) > tail:
        low, high = high, 2 * high
    for _ in range(200):  # bisection: certain, and fast enough for a handful of calls
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if _tail(middle, freedom) > tail else (low, middle)
    return (low + high) / 2


def _tail(t: float, freedom: int) -> float:
    """P(T > t) for t >= 0: half of the regularised incomplete beta function I_x(freedom / 2, 1 / 2)."""
    x = freedom / (freedom + t * t)
    a, b = freedom / 2, 0.5
    if x < (a + 1) / (a + b + 2):
        return 0.5 * _beta(a, b, x)
    return 0.5 * (1 - _beta(b, a, t * t / (freedom + t * t)))


def _beta(a: float, b: float, x: float) -> float:
    """I_x(a, b) by its continued fraction (Lentz's method), which converges fast for x < (a + 1) / (a + b + 2)."""
    if x <= 0:
        return 0.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    c = 1.0
    fraction = d = 1 / _away(1 - (a + b) * x / (a + 1))
    for m in range(1, 500):
        for step in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _away(1 + step * d)
            c = _away(1 + step / c)
            fraction *= c * d
        if abs(c * d - 1) < 1e-16:
            break
    return front * fraction / a


def _away(value: float) -> float:
    """Not zero, so that it can be divided by."""
    return value if abs(value) > _TINY else _TINY


def _figure(value: float) -> str:
    """Two decimals, or two figures of a number too small for them."""
    return f"{value:.2f}" if abs(value) >= 0.095 or value == 0 else f"{value:.2g}"
