"""FedLAW's client coherence: whether clients pull the same way, and whether a cohort stands for all.

Li et al., "Revisiting Weighted Aggregation in Federated Learning with Neural Networks", ICML 2023, Section 5.

    c_cohort = (1/m) sum_{i != j} lambda_i lambda_j cos(g_i, g_j)                              (Definition 5.1)
    sim(D_cohort, D) ,  D_cohort = sum_{i in cohort} lambda_i D_i ,  D = sum_j lambda_j D_j    (Definition 5.2)

A factor common to all updates cancels in the cosine, so updates stand for gradients. The paper leaves open what "near
zero" is at the critical point, how groups of clients are compared (Figure 5), and which similarity of distributions
`sim` is.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from steelyard.core import checks
from steelyard.core.errors import SteelyardError
from steelyard.core.round_report import coherence
from steelyard.diagnostics.cohort import Updates, Weights, gram_of, shares_of
from steelyard.diagnostics.recorded import Series


@dataclass(frozen=True)
class Coherence:
    """Local gradient coherence of a cohort and of its groups, all on the scale of Definition 5.1.

    Attributes:
        overall: of the whole cohort.
        within: by group, as if it were a cohort of its own.
        between: by pair of groups, as if they were a cohort of their own, over the pairs that cross.
    """

    overall: float
    within: Mapping[Hashable, float]
    between: Mapping[tuple[Hashable, Hashable], float]


def gradient_coherence(updates: Updates, weights: Weights | None = None) -> float:
    """Definition 5.1: `(1/m) sum_{i != j} lambda_i lambda_j cos(d_i, d_j)`; equal weights by default."""
    gram = gram_of(updates)
    return coherence(gram, shares_of(weights, gram.dots.shape[1]))


def group_coherence(updates: Updates, groups: Sequence[Hashable], weights: Weights | None = None) -> Coherence:
    """Definition 5.1 for the cohort, within each group of clients, and between groups (as in Figure 5).

    Args:
        updates: `[K, d]`, a store or a Gram.
        groups: a label for each client, such as `["balanced"] * 10 + ["skewed"] * 10`.
        weights: aggregation weights; equal ones by default. A group's are divided by their sum.
    """
    gram = gram_of(updates)
    count = gram.dots.shape[1]
    if len(groups) != count:
        raise SteelyardError(f"groups has {len(groups)} labels: give one for each of the {count} clients")
    shares = shares_of(weights, count)
    members = {label: [k for k, other in enumerate(groups) if other == label] for label in dict.fromkeys(groups)}

    def own(some: list[int]) -> float:
        return coherence(gram.transform(np.eye(count)[some]), shares_of(shares[some], len(some)))

    def crossing(a: list[int], b: list[int]) -> float:
        part = shares_of(shares[a + b], len(a + b))
        pairs = np.outer(part[: len(a)], part[len(a) :]) * gram.cosines()[0][np.ix_(a, b)]
        return float(2 * pairs.sum() / len(part))

    return Coherence(
        coherence(gram, shares),
        {label: own(some) for label, some in members.items()},
        {(a, b): crossing(members[a], members[b]) for a, b in combinations(members, 2)},
    )


def critical_point(series: Series | Sequence[float], near: float = 0.05, hold: int = 1) -> int | None:
    """The round in which coherence falls from positive to near zero (Section 5.2); None if it does not.

    Args:
        series: `series(run, "coherence")`, which knows its rounds, or coherence of rounds 1, 2, ...
        near: what counts as near zero, as a share of the highest value so far; 0 waits for zero or below.
        hold: rounds in a row that must be near zero; a single one may be chance.
    """
    checks.number("near", near, 0.0, 1.0)
    checks.integer("hold", hold, 1)
    values = np.asarray(series.values if isinstance(series, Series) else series, dtype=np.float64)
    if values.ndim != 1 or not np.isfinite(values).all():
        raise SteelyardError(f"series={values.tolist()}: give one finite number for each round")
    if not values.size:
        return None
    peak = np.maximum.accumulate(values)
    low = (peak > 0) & (values <= near * peak)
    for start in range(len(values) - hold + 1):
        if low[start : start + hold].all():
            return int(series.rounds[start]) if isinstance(series, Series) else start + 1
    return None


def heterogeneity_coherence(
    counts: Any, cohort: Sequence[int], weights: Weights | None = None, similarity: str = "cosine"
) -> float:
    """Definition 5.2 on labels: how like all clients' data the weighted data of a cohort are; 1 if they are alike.

    Args:
        counts: samples of each class at each client, `[n, C]`.
        cohort: positions of the clients that take part.
        weights: their aggregation weights; by default their sizes. All clients together are weighed by size.
        similarity: `cosine` of the two distributions, or their `overlap`, `sum_c min(p_c, q_c)`.
    """
    checks.one_of("similarity", similarity, "cosine", "overlap")
    table = np.asarray(counts, dtype=np.float64)
    if table.ndim != 2 or 0 in table.shape or not np.isfinite(table).all() or table.min() < 0 or table.sum() == 0:
        raise SteelyardError(f"counts have shape {list(table.shape)}: give numbers >= 0, not all 0, [clients, classes]")
    chosen = _positions(cohort, len(table))
    sizes = table.sum(axis=1)
    shares = shares_of(sizes[chosen] if weights is None else weights, len(chosen))
    if (shares[sizes[chosen] == 0] > 0).any():
        raise SteelyardError("weights: a client without samples has no distribution: give it weight 0")
    rows = table[chosen] / np.maximum(sizes[chosen], 1e-300)[:, None]
    mixed, whole = shares @ rows, table.sum(axis=0) / table.sum()
    if similarity == "overlap":
        return float(np.minimum(mixed, whole).sum())
    return float(mixed @ whole / np.linalg.norm(mixed) / np.linalg.norm(whole))


def cohort_alignment(updates: Updates, cohort: Sequence[int], weights: Weights | None = None) -> float:
    """Definition 5.2 carried over to updates (not in the paper): `cos(sum_{i in cohort} l_i d_i, sum_j l_j d_j)`.

    Args:
        updates: of all n clients: `[n, d]`, a store or a Gram.
        cohort: positions of the clients that take part.
        weights: of all n clients; equal ones by default. The cohort's are divided by their sum.
    """
    gram = gram_of(updates)
    count = gram.dots.shape[1]
    chosen = _positions(cohort, count)
    whole = shares_of(weights, count)
    part = np.zeros(count)
    part[chosen] = shares_of(whole[chosen], len(chosen))
    rows = np.vstack([part, whole])
    return float(gram.transform(rows).cosines()[0, 0, 1])


def _positions(cohort: Sequence[int], count: int) -> list[int]:
    chosen = [int(k) for k in cohort]
    if not chosen or len(set(chosen)) < len(chosen) or not all(0 <= k < count for k in chosen):
        raise SteelyardError(f"cohort={chosen}: use positions from 0 to {count - 1}, each once, and at least one")
    return chosen
