"""FedLAW's client coherence: do clients agree, and does a cohort represent all of them?

Li et al., "Revisiting Weighted Aggregation in Federated Learning with Neural Networks", ICML 2023,
Section 5.

    c_cohort = (1/m) sum_{i != j} lambda_i lambda_j cos(g_i, g_j)                              (Definition 5.1)
    sim(D_cohort, D) ,  D_cohort = sum_{i in cohort} lambda_i D_i ,  D = sum_j lambda_j D_j    (Definition 5.2)

A factor common to all updates cancels in the cosine, so updates can be used instead of gradients.
The paper does not say what "near zero" is at the critical point, how groups of clients are compared
(Figure 5), and which similarity of distributions `sim` is.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from steelyard.core import checks
from steelyard.core._errors import SteelyardError
from steelyard.core._round_report import coherence
from steelyard.core._round_report import heterogeneity_coherence as compute_heterogeneity
from steelyard.diagnostics._distances import Updates, Weights, gram_of, shares_of
from steelyard.diagnostics._recorded import Series


@dataclass(frozen=True)
class Coherence:
    """Local gradient coherence of a cohort and of its groups, all on the scale of Definition 5.1.

    Attributes:
        overall: of the whole cohort.
        within: by group, computed as if the group were a cohort of its own.
        between: by pair of groups, computed as if the two were a cohort of their own, over the
            pairs of clients from different groups.
    """

    overall: float
    within: Mapping[Hashable, float]
    between: Mapping[tuple[Hashable, Hashable], float]


def gradient_coherence(updates: Updates, weights: Weights | None = None) -> float:
    """Return `(1/m) sum_{i != j} lambda_i lambda_j cos(d_i, d_j)` (Definition 5.1).

    Weights are equal by default.
    """
    gram = gram_of(updates)
    return coherence(gram, shares_of(weights, gram.dots.shape[1]))


def group_coherence(
    updates: Updates, groups: Sequence[Hashable], weights: Weights | None = None
) -> Coherence:
    """Compute Definition 5.1 for the cohort, within groups and between groups (Figure 5).

    Args:
        updates: `[K, d]`, a store or a Gram.
        groups: a label for each client, such as `["balanced"] * 10 + ["skewed"] * 10`.
        weights: aggregation weights; equal ones by default. Those of a group are divided by their
            sum.
    """
    gram = gram_of(updates)
    count = gram.dots.shape[1]
    if len(groups) != count:
        raise SteelyardError(
            f"groups has {len(groups)} labels: give one for each of the {count} clients"
        )
    shares = shares_of(weights, count)
    # The positions of the clients of each group.
    members: dict[Hashable, list[int]] = {}
    for client, label in enumerate(groups):
        members.setdefault(label, []).append(client)

    def within(clients: list[int]) -> float:
        return coherence(
            gram.transform(np.eye(count)[clients]), shares_of(shares[clients], len(clients))
        )

    def between(a: list[int], b: list[int]) -> float:
        part = shares_of(shares[a + b], len(a + b))
        pairs = np.outer(part[: len(a)], part[len(a) :]) * gram.cosines()[0][np.ix_(a, b)]
        return float(2 * pairs.sum() / len(part))

    return Coherence(
        coherence(gram, shares),
        {label: within(clients) for label, clients in members.items()},
        {(a, b): between(members[a], members[b]) for a, b in combinations(members, 2)},
    )


def critical_point(
    series: Series | Sequence[float], near: float = 0.05, hold: int = 1
) -> int | None:
    """Return the round in which coherence falls from positive to near zero (Section 5.2).

    Return None if it does not.

    Args:
        series: `series(run, "coherence")`, which has round numbers, or the coherence of rounds 1,
            2, ...
        near: what counts as near zero, as a share of the highest value so far; 0 means zero or
            below.
        hold: how many consecutive rounds must be near zero; a single one may be chance.
    """
    checks.number("near", near, 0.0, 1.0)
    checks.integer("hold", hold, 1)
    values = np.asarray(series.values if isinstance(series, Series) else series, dtype=np.float64)
    if values.ndim != 1 or not np.isfinite(values).all():
        raise SteelyardError(f"series={values.tolist()}: give one finite number for each round")
    if not values.size:
        return None
    peak = np.maximum.accumulate(values)
    is_low = (peak > 0) & (values <= near * peak)
    for start in range(len(values) - hold + 1):
        if is_low[start : start + hold].all():
            return int(series.rounds[start]) if isinstance(series, Series) else start + 1
    return None


def heterogeneity_coherence(
    counts: Any, cohort: Sequence[int], weights: Weights | None = None, similarity: str = "cosine"
) -> float:
    """Compute Definition 5.2 on labels: how similar the data of a cohort and of all clients are.

    1 if equal.

    Args:
        counts: samples of each class at each client, `[n, C]`.
        cohort: positions of the clients that take part.
        weights: their aggregation weights; by default their sizes. All clients together are
            weighted by size.
        similarity: `cosine` of the two distributions, or their `overlap`, `sum_c min(p_c, q_c)`.
    """
    checks.one_of("similarity", similarity, "cosine", "overlap")
    table = np.asarray(counts, dtype=np.float64)
    is_table = table.ndim == 2 and 0 not in table.shape
    if not is_table or not np.isfinite(table).all() or table.min() < 0 or table.sum() == 0:
        raise SteelyardError(
            f"counts have shape {list(table.shape)}: give numbers >= 0, not all 0, [clients, "
            f"classes]"
        )
    positions = _positions(cohort, len(table))
    sizes = table.sum(axis=1)
    shares = shares_of(sizes[positions] if weights is None else weights, len(positions))
    if (shares[sizes[positions] == 0] > 0).any():
        raise SteelyardError(
            "weights: a client without samples has no distribution: give it weight 0"
        )
    return compute_heterogeneity(table, positions, shares, similarity)


def cohort_alignment(
    updates: Updates, cohort: Sequence[int], weights: Weights | None = None
) -> float:
    """Return `cos(sum_{i in cohort} l_i d_i, sum_j l_j d_j)`.

    This is Definition 5.2 applied to updates; it is not in the paper.

    Args:
        updates: of all n clients: `[n, d]`, a store or a Gram.
        cohort: positions of the clients that take part.
        weights: of all n clients; equal ones by default. Those of the cohort are divided by their
            sum.
    """
    gram = gram_of(updates)
    count = gram.dots.shape[1]
    positions = _positions(cohort, count)
    all_shares = shares_of(weights, count)
    cohort_shares = np.zeros(count)
    cohort_shares[positions] = shares_of(all_shares[positions], len(positions))
    rows = np.vstack([cohort_shares, all_shares])
    return float(gram.transform(rows).cosines()[0, 0, 1])


def _positions(cohort: Sequence[int], count: int) -> list[int]:
    """Return the cohort as a list; raise an error if it is not a set of positions of clients."""
    positions = [int(k) for k in cohort]
    is_distinct = len(set(positions)) == len(positions)
    if not positions or not is_distinct or not all(0 <= k < count for k in positions):
        raise SteelyardError(
            f"cohort={positions}: use positions from 0 to {count - 1}, each once, and at least one"
        )
    return positions
