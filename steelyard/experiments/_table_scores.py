"""What the numbers of a paper's table are: scores of one or several runs.

    last10, best, final       accuracy, in percent
    rounds                    rounds to the target accuracy of the column
    mean(KEY,90-110)          mean of a recorded series over a window of rounds, e.g. of `shrinking`;
                              of `timings.aggregate` it is the time of one aggregation
    correlation(FACTOR)       Pearson's correlation of the accumulated weights, over the clients of all
                              runs, with `size`, `heterogeneity` or `product` (FedLAW, Table 11)

Other names are those of `scores.find_score`. Of several runs, a score is the mean, except for the
correlation, which is over the clients of all of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from steelyard.core._errors import SteelyardError
from steelyard.experiments._correlations import FACTORS, pool_runs, weight_correlations
from steelyard.experiments.scores import find_score
from steelyard.runs._history import History

# Gaps larger than these need an explanation: points of accuracy, share of rounds.
POINTS = 2.0
SHARE = 0.25


@dataclass(frozen=True)
class TableScore:
    """What a number of a table is, and how it is shown.

    Attributes:
        name: the name in the file.
        title: the name in a sentence.
        of: a function of runs and a target that returns the score; None if the runs have none.
        digits: decimals of our number.
        factor: what the score is multiplied by: 100 for accuracies in percent.
        is_share: whether a gap is shown as a share of the paper's number, not as a difference.
        limit: gaps beyond this need an explanation; None if there is no such limit.
        is_time: whether it is a time in seconds.
    """

    name: str
    title: str
    of: Callable[[Sequence[History], float | None], float | None]
    digits: int
    factor: float = 1.0
    is_share: bool = False
    limit: float | None = None
    is_time: bool = False

    def compute(self, histories: Sequence[History], target: float | None) -> float | None:
        """Return the score in the unit of the paper's number; None if the runs have none."""
        value = self.of(histories, target)
        return None if value is None else self.factor * value

    def compute_gap(self, ours: float, paper: float) -> float:
        """Return our number minus the paper's, or what share of the paper's that is."""
        return ours / paper - 1 if self.is_share else ours - paper

    def format_gap(self, gap: float) -> str:
        """Return a gap as text: rounds in percent, times as a multiple of the paper's."""
        if self.is_time:
            return f"{1 + gap:.2g} x"
        return f"{gap:+.0%}" if self.is_share else f"{gap:+.{self.digits}f}"


def find_table_score(name: str) -> TableScore:
    """Return what a number of a table is, by its name in the file."""
    if name.startswith("correlation("):
        return _make_correlation(name)
    score = find_score(name)

    def of(histories: Sequence[History], target: float | None) -> float | None:
        values = [score.of(history, target) for history in histories]
        known = [value for value in values if value is not None]
        return statistics.mean(known) if len(known) == len(values) else None

    if score.percent:
        title = f"{score.title}, %"
        return TableScore(name, title, of, digits=2, factor=100.0, limit=POINTS)
    if name == "rounds":
        return TableScore(name, score.title, of, digits=0, is_share=True, limit=SHARE)
    if name.startswith("mean(timings."):
        title = f"{score.title}, seconds"
        return TableScore(name, title, of, digits=4, is_share=True, is_time=True)
    return TableScore(name, score.title, of, digits=4)


def _make_correlation(name: str) -> TableScore:
    """Return the correlation of weights with a factor, from a text such as `correlation(size)`."""
    factor = name.removeprefix("correlation(").removesuffix(")")
    if factor not in FACTORS:
        raise SteelyardError(f"metric {name!r}: the factor is one of {', '.join(FACTORS)}")

    def of(histories: Sequence[History], _: float | None) -> float | None:
        weights, sizes, counts = pool_runs(histories)
        value: float | None = getattr(weight_correlations(weights, sizes, counts), factor)
        return value

    title = f"correlation of the accumulated weights with the {FACTORS[factor]}"
    return TableScore(name, title, of, digits=3)
