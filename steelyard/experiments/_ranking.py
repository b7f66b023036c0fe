"""What the results of the benchmark say.

Differences from the reference with corrected p-values, and mean ranks.

Differences are paired by seed (see `statistics`); within a setting their p-values are corrected for
the number of rules (Holm). Over settings, rules are ranked by their mean score, 1 the best. Two
mean ranks over N settings that differ by less than the critical difference

    CD = q sqrt(k (k + 1) / (6 N))

cannot be told apart: Nemenyi's test of k rules, q the quantile of the studentised range over sqrt 2
(Demsar, "Statistical Comparisons of Classifiers over Multiple Data Sets", JMLR 2006).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from steelyard.experiments._benchmark import Benchmark, Result, Rule
from steelyard.experiments._statistics import (
    Difference,
    correct_for_many,
    deviation,
    difference,
    import_scipy_stats,
    mean,
)
from steelyard.experiments.scores import SCORES, Score


@dataclass(frozen=True)
class RuleScore:
    """A score of a rule in a setting.

    Attributes:
        mean: over the seeds that have one; None if none has.
        deviation: sample deviation over seeds; None for fewer than two.
        count: how many seeds have one.
        failed: how many runs failed.
        difference: from the reference, paired by seed; None for the reference itself.
        p_corrected: p-value of the difference, corrected for the number of rules; None for the
            reference, and where a run failed: the other runs were selected by their success.
    """

    mean: float | None
    deviation: float | None
    count: int
    failed: int = 0
    difference: Difference | None = None
    p_corrected: float | None = None

    @property
    def is_told_apart(self) -> bool:
        """Whether the corrected p-value tells the rule from the reference."""
        if self.difference is None or self.p_corrected is None:
            return False
        return self.p_corrected < 1 - self.difference.confidence


@dataclass(frozen=True)
class Ranks:
    """Mean ranks over settings.

    Attributes:
        by_rule: mean rank by the rule's name, best first.
        settings: how many settings they are means over.
        critical_difference: mean ranks closer than this cannot be told apart; None for fewer than
            two settings.
        friedman_p: p-value of Friedman's test that all rules are alike; None where it has none.
    """

    by_rule: Mapping[str, float]
    settings: int
    critical_difference: float | None
    friedman_p: float | None


@dataclass(frozen=True)
class Analysis:
    """All that is said of the results.

    Attributes:
        rules: those that have results, in the order of the benchmark; rules it does not know come
            last.
        seeds: of the results.
        scores: by setting, score and rule.
        ranks: by the first score.
        processors: the rules that were run on each processor, by its name; the name is empty where
            it is not known.
    """

    rules: tuple[Rule, ...]
    seeds: tuple[int, ...]
    scores: Mapping[str, Mapping[str, Mapping[str, RuleScore]]]
    ranks: Ranks
    processors: Mapping[str, tuple[Rule, ...]]


def analyse(
    benchmark: Benchmark, results: Sequence[Result], scores: Sequence[str], confidence: float = 0.95
) -> Analysis:
    """Compare every rule with the reference, in every setting and by every score.

    Args:
        benchmark: names settings, reference and the order of rules.
        results: runs of the benchmark.
        scores: names of scores; rules are ranked by the first one.
        confidence: of intervals and ranks.
    """
    rules = _order_rules(benchmark, results)
    by_setting: dict[str, dict[str, dict[str, RuleScore]]] = {}
    for setting in benchmark.settings:
        here = [result for result in results if result.setting == setting.name]
        if here:
            by_setting[setting.name] = {
                name: _compare(benchmark.reference, rules, here, SCORES[name], confidence)
                for name in scores
            }
    columns = [
        {
            name: score.mean
            for name, score in by_setting[setting][scores[0]].items()
            if not score.failed
        }
        for setting in by_setting
    ]
    names = [
        rule.name
        for rule in rules
        if all(rule.name in by_setting[s][scores[0]] for s in by_setting)
    ]
    ranks = rank_rules(names, columns, SCORES[scores[0]].higher, confidence)
    seeds = tuple(sorted({result.seed for result in results}))
    processors = _group_by_processor(rules, results)
    return Analysis(rules, seeds, by_setting, ranks, processors)


def rank_rules(
    names: Sequence[str],
    columns: Sequence[Mapping[str, float | None]],
    higher: bool = True,
    confidence: float = 0.95,
) -> Ranks:
    """Rank rules within each setting, 1 the best, and take means.

    A rule without a value is the worst of its setting.

    Args:
        names: of the rules.
        columns: by setting, the score of each rule.
        higher: whether more is better.
        confidence: of the critical difference.
    """
    if not names or not columns:
        return Ranks({}, len(columns), None, None)
    stats = import_scipy_stats()
    worst = math.inf
    losses = []
    for column in columns:
        row = []
        for name in names:
            value = column.get(name)
            if value is None:
                row.append(worst)
            else:
                row.append(-value if higher else value)
        losses.append(row)
    ranks = [stats.rankdata(row) for row in losses]
    means = {
        name: mean([float(row[position]) for row in ranks]) for position, name in enumerate(names)
    }
    ordered = dict(sorted(means.items(), key=lambda item: item[1]))

    count = len(names)
    if len(columns) < 2 or count < 2:
        return Ranks(ordered, len(columns), None, None)
    quantile = float(stats.studentized_range.ppf(confidence, count, math.inf)) / math.sqrt(2)
    critical = quantile * math.sqrt(count * (count + 1) / (6 * len(columns)))
    friedman = None
    if count > 2 and any(len(set(row)) > 1 for row in losses):
        friedman = float(
            stats.friedmanchisquare(*([row[k] for row in ranks] for k in range(count))).pvalue
        )
    return Ranks(ordered, len(columns), critical, friedman)


def _order_rules(benchmark: Benchmark, results: Sequence[Result]) -> tuple[Rule, ...]:
    """Return the rules that have results.

    One that the benchmark defines is described as it says.
    """
    found = {result.rule.name: result.rule for result in results}
    known = [rule for rule in benchmark.rules if rule.name in found]
    names = {rule.name for rule in known}
    return (*known, *(rule for name, rule in found.items() if name not in names))


def _group_by_processor(
    rules: Sequence[Rule], results: Sequence[Result]
) -> dict[str, tuple[Rule, ...]]:
    """Return the rules that were run on each processor, by its name."""
    names: dict[str, set[str]] = {}
    for result in results:
        names.setdefault(result.processor, set()).add(result.rule.name)
    return {
        processor: tuple(rule for rule in rules if rule.name in rule_names)
        for processor, rule_names in names.items()
    }


def _compare(
    reference: str,
    rules: Sequence[Rule],
    results: Sequence[Result],
    metric: Score,
    confidence: float,
) -> dict[str, RuleScore]:
    """Return a score of every rule in one setting, with its difference from the reference."""
    values: dict[str, dict[str, float | None]] = {}
    failed: Counter[str] = Counter()
    for result in results:
        by_seed = values.setdefault(result.rule.name, {})
        by_seed[str(result.seed)] = result.scores.get(metric.name)
        failed[result.rule.name] += bool(result.error)
    labels = {rule.name: rule.label for rule in rules}
    scores = {}
    for rule in rules:
        if rule.name not in values:
            continue
        paired = None
        if rule.name != reference and reference in values:
            own, others = values[rule.name], values[reference]
            paired = difference(rule.label, labels[reference], own, others, confidence)
        known = [value for value in values[rule.name].values() if value is not None]
        scores[rule.name] = RuleScore(
            mean(known) if known else None,
            deviation(known),
            len(known),
            failed[rule.name],
            paired,
        )

    compared = [name for name, score in scores.items() if score.difference is not None]
    p_values = [scores[name].difference.p_value for name in compared]  # type: ignore[union-attr]
    for name, corrected in zip(compared, correct_for_many(p_values), strict=True):
        if not failed[name]:
            scores[name] = replace(scores[name], p_corrected=corrected)
    return scores
