"""Algorithms against one of them, over common seeds, in each setting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from steelyard.core.errors import SteelyardError
from steelyard.experiments.run_groups import Labels, Run, groups, label
from steelyard.experiments.scores import Metric, speedup
from steelyard.experiments.statistics import Difference, correct_for_many, difference
from steelyard.runs.monitor import check_target


@dataclass(frozen=True)
class Comparison:
    """One algorithm against the reference, in one setting.

    Attributes:
        setting: the setting as text; empty if there is only one.
        difference: over common seeds.
        speedups: by common seed, how many times fewer rounds until the reference's final accuracy (FedCos's measure);
            None where it was not reached.
        monitored: the metric that "final accuracy" is of, if it is another.
        p_corrected: the p-value after Holm's correction over the comparisons of the setting; None for a single seed.
        companions: how many comparisons of the setting were corrected together.
    """

    setting: str
    difference: Difference
    speedups: Mapping[str, float | None]
    monitored: str = "accuracy"
    p_corrected: float | None = None
    companions: int = 1

    def sentence(self, metric: Metric) -> str:
        """What may be said, in plain words."""
        said = self.difference.sentence(metric)
        if self.companions > 1 and self.p_corrected is not None:
            said += f" p = {self.p_corrected:.2g}, corrected for {self.companions} comparisons (Holm)."
        return f"{self.setting}: {said}" if self.setting else said

    def communication(self) -> str:
        """FedCos's measure in plain words."""
        first, second = self.difference.first, self.difference.second
        reached = [f"{times:.2f}" for times in self.speedups.values() if times is not None]
        missing = len(self.speedups) - len(reached)
        if reached:
            never = f"; with {missing} more, {first} never gets there" if missing else ""
            seeds = f"{len(reached)} seed{'s' if len(reached) > 1 else ''}"
            times = ", ".join(reached)
            goal = f"its final {self.monitored}"
            said = f"{second} takes {times} times as many rounds to {goal} as {first} ({seeds}{never})."
        else:
            said = f"{first} never reaches the final {self.monitored} of {second}." if missing else ""
        return f"{self.setting}: {said}" if self.setting and said else said


def compare(
    runs: Iterable[Run],
    metric: Metric,
    *,
    target: float | None = None,
    confidence: float = 0.95,
    against: str | None = None,
) -> list[Comparison]:
    """Every algorithm against the reference, setting by setting; settings with one algorithm have no comparison.

    Args:
        runs: from a sweep or from directories.
        metric: what to compare.
        target: what to reach, for the metric `rounds`: an accuracy, unless the runs monitor another metric.
        confidence: of intervals.
        against: the reference, as its label; by default plain FedAvg, or else the algorithm that comes first.
    """
    runs = list(runs)
    monitored = next((run.history.monitor.metric for run in runs), "accuracy")
    check_target(target, monitored)
    sorted_runs = groups(runs)
    names = dict.fromkeys(algorithm for algorithms in sorted_runs.values() for algorithm in algorithms)
    base = reference(list(names), against)
    made = []
    for setting, algorithms in sorted_runs.items():
        if base not in algorithms:
            continue
        theirs = algorithms[base]
        in_setting = []
        for algorithm, ours in algorithms.items():
            if algorithm == base:
                continue
            paired = difference(
                label(algorithm),
                label(base),
                {seed: metric.of(run.history, target) for seed, run in ours.items()},
                {seed: metric.of(run.history, target) for seed, run in theirs.items()},
                confidence,
            )
            times = {seed: speedup(ours[seed].history, theirs[seed].history) for seed in ours if seed in theirs}
            in_setting.append(Comparison(label(setting), paired, times, monitored))
        made += correct_comparisons(in_setting)
    return made


def correct_comparisons(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Return the comparisons of one setting with p-values corrected for their number."""
    corrected = correct_for_many([one.difference.p_value for one in comparisons])
    companions = sum(value is not None for value in corrected)
    return [
        replace(one, p_corrected=value, companions=companions)
        for one, value in zip(comparisons, corrected, strict=True)
    ]


def reference(algorithms: Sequence[Labels], against: str | None = None) -> Labels:
    """What the others are compared with."""
    if against is not None:
        named = {label(algorithm): algorithm for algorithm in algorithms}
        if against not in named:
            raise SteelyardError(f"against {against!r}: no such algorithm here: use one of {'; '.join(named)}")
        return named[against]
    plain = (one for one in algorithms if one and {value for _, value in one} <= {"fedavg", "none"})
    return next(plain, algorithms[0]) if algorithms else ()
