"""Compares algorithms with a reference algorithm, over common seeds, in each setting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from steelyard.core._errors import SteelyardError
from steelyard.experiments._run_groups import (
    Labels,
    Run,
    format_labels,
    group_runs,
    list_algorithms,
)
from steelyard.experiments._statistics import Difference, correct_for_many, difference
from steelyard.experiments.scores import Score, speedup
from steelyard.runs._monitor import check_target


@dataclass(frozen=True)
class Comparison:
    """One algorithm against the reference, in one setting.

    Attributes:
        setting: the setting as text; empty if there is only one.
        difference: the difference over common seeds.
        speedups: by common seed, how many times fewer rounds the algorithm needs to reach the final
            accuracy of the reference (FedCos's measure); None if it does not reach it.
        monitored: the metric that is meant by "accuracy" above.
        p_corrected: the p-value after Holm's correction over the comparisons of the setting; None
            for a single seed.
        companions: the number of comparisons that were corrected together.
    """

    setting: str
    difference: Difference
    speedups: Mapping[str, float | None]
    monitored: str = "accuracy"
    p_corrected: float | None = None
    companions: int = 1

    def sentence(self, metric: Score) -> str:
        """Return a sentence about the difference."""
        sentence = self.difference.sentence(metric)
        if self.companions > 1 and self.p_corrected is not None:
            comparisons = f"{self.companions} comparisons"
            sentence += f" p = {self.p_corrected:.2g}, corrected for {comparisons} (Holm)."
        return f"{self.setting}: {sentence}" if self.setting else sentence

    def communication(self) -> str:
        """Return a sentence about the speed-ups; empty without a common seed."""
        if not self.speedups:
            return ""
        first = self.difference.first
        second = self.difference.second
        reached = [f"{times:.2f}" for times in self.speedups.values() if times is not None]
        missing = len(self.speedups) - len(reached)
        if reached:
            seeds = "1 seed" if len(reached) == 1 else f"{len(reached)} seeds"
            if missing:
                seeds += f"; with {missing} more, {first} never gets there"
            sentence = (
                f"{second} takes {', '.join(reached)} times as many rounds to its final "
                f"{self.monitored} as {first} ({seeds})."
            )
        else:
            sentence = f"{first} never reaches the final {self.monitored} of {second}."
        return f"{self.setting}: {sentence}" if self.setting else sentence


def compare(
    runs: Iterable[Run],
    metric: Score,
    *,
    target: float | None = None,
    confidence: float = 0.95,
    against: str | None = None,
) -> list[Comparison]:
    """Compare every algorithm with the reference, setting by setting.

    Args:
        runs: the runs of a sweep or of directories.
        metric: the score to compare.
        target: the value to reach, for the metric `rounds`: an accuracy, unless the runs monitor
            another metric.
        confidence: the confidence level of intervals.
        against: the label of the reference; by default plain FedAvg, or the first algorithm.

    Returns:
        The comparisons; none for a setting without the reference or with the reference only.
    """
    # Group the runs and find the reference.
    runs = list(runs)
    monitored = next((run.history.monitor.metric for run in runs), "accuracy")
    check_target(target, monitored)
    settings = group_runs(runs)
    base = find_reference(list_algorithms(settings), against)

    # Compare within each setting, and correct the p-values of a setting together.
    all_comparisons = []
    for setting, algorithms in settings.items():
        if base not in algorithms:
            continue
        base_runs = algorithms[base]
        comparisons = []
        for algorithm, seeds in algorithms.items():
            if algorithm == base:
                continue
            seed_difference = difference(
                format_labels(algorithm),
                format_labels(base),
                {seed: metric.of(run.history, target) for seed, run in seeds.items()},
                {seed: metric.of(run.history, target) for seed, run in base_runs.items()},
                confidence,
            )
            speedups = {}
            for seed, run in seeds.items():
                if seed in base_runs:
                    speedups[seed] = speedup(run.history, base_runs[seed].history)
            comparisons.append(
                Comparison(format_labels(setting), seed_difference, speedups, monitored)
            )
        all_comparisons += correct_comparisons(comparisons)
    return all_comparisons


def correct_comparisons(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Return the comparisons of one setting with p-values corrected for their number."""
    p_values = [comparison.difference.p_value for comparison in comparisons]
    corrected = correct_for_many(p_values)
    companions = sum(value is not None for value in corrected)
    return [
        replace(comparison, p_corrected=value, companions=companions)
        for comparison, value in zip(comparisons, corrected, strict=True)
    ]


def find_reference(algorithms: Sequence[Labels], against: str | None = None) -> Labels:
    """Return the algorithm that the others are compared with.

    Args:
        algorithms: the algorithms.
        against: the label of the reference; by default plain FedAvg, or the first algorithm.
    """
    if against is not None:
        by_label = {format_labels(algorithm): algorithm for algorithm in algorithms}
        if against not in by_label:
            raise SteelyardError(
                f"against {against!r}: no such algorithm here: use one of {'; '.join(by_label)}"
            )
        return by_label[against]
    for algorithm in algorithms:
        if algorithm and {value for _, value in algorithm} <= {"fedavg", "none"}:
            return algorithm
    return algorithms[0] if algorithms else ()
