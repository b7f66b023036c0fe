"""Coherence against the papers' sums, written out."""

import numpy as np
import pytest
import torch

import steelyard
from steelyard.core._errors import SteelyardError
from steelyard.core._evidence import inner_products
from steelyard.diagnostics import (
    cohort_alignment,
    critical_point,
    gradient_coherence,
    group_coherence,
    heterogeneity_coherence,
    series,
)
from steelyard.runs._history import History

WEIGHTS = [5, 1, 2, 8, 4]


@pytest.fixture
def updates():
    return torch.randn(5, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def cosine(a, b):
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def double_sum(rows, weights, pairs=None):
    """Definition 5.1, term by term."""
    rows, share = rows.numpy(), np.array(weights) / sum(weights)
    count = len(rows)
    pairs = (
        [(i, j) for i in range(count) for j in range(count) if i != j] if pairs is None else pairs
    )
    return sum(share[i] * share[j] * cosine(rows[i], rows[j]) for i, j in pairs) / count


@pytest.mark.parametrize("weights", [None, WEIGHTS, np.array(WEIGHTS) / 20, torch.tensor(WEIGHTS)])
def test_definition_5_1(updates, weights):
    literal = double_sum(updates, [1] * 5 if weights is None else WEIGHTS)
    assert gradient_coherence(updates, weights) == pytest.approx(literal, rel=1e-12)


def test_a_store_and_its_gram_give_the_same(updates):
    store = steelyard.MemoryStore.of(torch.zeros(40, dtype=torch.float64), updates)
    layered = inner_products(store, (10, 30))
    assert layered.dots.shape[0] == 2
    found = [
        gradient_coherence(form, WEIGHTS)
        for form in (updates, store, inner_products(store), layered)
    ]
    assert found == pytest.approx([double_sum(updates, WEIGHTS)] * 4, rel=1e-12)


def test_the_report_of_a_round_has_the_same_number(updates):
    base = torch.zeros(40, dtype=torch.float64)
    out = steelyard.aggregate(
        "fedavg", base, updates, metrics={"num_examples": WEIGHTS}, diagnose=True
    )
    assert gradient_coherence(updates, WEIGHTS) == pytest.approx(out.report["coherence"], rel=1e-12)


def test_groups_are_cohorts_of_their_own(updates):
    found = group_coherence(updates, ["iid", "skewed", "iid", "skewed", "skewed"], WEIGHTS)
    some, others = [0, 2], [1, 3, 4]
    order = some + others
    across = [(i, j) for i in range(5) for j in range(5) if (i < 2) != (j < 2)]
    assert found.overall == pytest.approx(double_sum(updates, WEIGHTS), rel=1e-12)
    assert found.within == {
        "iid": pytest.approx(double_sum(updates[some], [5, 2]), rel=1e-12),
        "skewed": pytest.approx(double_sum(updates[others], [1, 8, 4]), rel=1e-12),
    }
    crossing = double_sum(updates[order], [WEIGHTS[k] for k in order], across)
    assert found.between == {("iid", "skewed"): pytest.approx(crossing, rel=1e-12)}


def test_pairs_of_three_groups(updates):
    found = group_coherence(updates, ["a", "b", "c", "c", "b"], WEIGHTS)
    assert set(found.between) == {("a", "b"), ("a", "c"), ("b", "c")}
    crossing = double_sum(updates[[0, 2, 3]], [5, 2, 8], [(0, 1), (1, 0), (0, 2), (2, 0)])
    assert found.between["a", "c"] == pytest.approx(crossing, rel=1e-12)


def test_two_groups_add_up_to_the_whole(updates):
    found = group_coherence(updates, [0, 0, 1, 1, 1])
    parts = (
        2 / 5 * (2 / 5) ** 2 * found.within[0]
        + 3 / 5 * (3 / 5) ** 2 * found.within[1]
        + found.between[0, 1]
    )
    assert parts == pytest.approx(found.overall, rel=1e-12)


@pytest.mark.parametrize(
    ("series", "options", "expected"),
    [
        ([0.3, 0.2, 0.1, 0.01, -0.01], {}, 4),  # near zero is 5 % of the peak
        ([0.3, 0.2, 0.1, 0.01, -0.01], {"near": 0}, 5),
        ([0.3, 0.2, 0.1], {}, None),
        ([0.3, 0.0], {"near": 0}, 2),  # zero itself is near zero
        ([-0.1, -0.2, 0.4, 0.0], {}, 4),  # nothing falls before it was positive
        ([-0.1, -0.2], {}, None),
        ([0.3, 0.0, 0.3, 0.0, -0.1, 0.0], {"hold": 3}, 4),  # a single dip is chance
        ([0.3, 0.0, 0.3, 0.0], {"hold": 2}, None),
        ([], {}, None),
    ],
)
def test_critical_point(series, options, expected):
    assert critical_point(series, **options) == expected


def test_the_critical_point_of_a_record_with_gaps_is_a_round():
    void = {"round": 2, "void": "nobody"}
    coherent = [
        {"round": number, "coherence": value} for number, value in ((1, 0.3), (3, 0.2), (4, 0.0))
    ]
    history = History("h", [coherent[0], void, *coherent[1:]])
    assert critical_point(series(history, "coherence")) == 4
    assert critical_point(series(history, "coherence"), hold=2) is None


def test_definition_5_2():
    counts = np.array([[6, 0, 0], [0, 3, 0], [1, 1, 4]])
    whole = np.array([7, 4, 4]) / 15
    mixed = 0.25 * np.array([1, 0, 0]) + 0.75 * np.array([1, 1, 4]) / 6
    assert heterogeneity_coherence(counts, [0, 2], [1, 3]) == pytest.approx(cosine(mixed, whole))
    overlap = heterogeneity_coherence(counts, [0, 2], [1, 3], similarity="overlap")
    assert overlap == pytest.approx(sum(min(p, q) for p, q in zip(mixed, whole, strict=True)))
    by_size = heterogeneity_coherence(counts, [0, 2], similarity="overlap")
    assert by_size == pytest.approx(np.minimum(np.array([7, 1, 4]) / 12, whole).sum())


@pytest.mark.parametrize("similarity", ["cosine", "overlap"])
def test_all_clients_are_like_all_clients(similarity):
    counts = np.random.default_rng(0).integers(0, 50, (6, 10))
    assert heterogeneity_coherence(counts, range(6), similarity=similarity) == pytest.approx(1)
    assert heterogeneity_coherence(counts, [2], similarity=similarity) < 1


def test_an_empty_client_may_take_part_with_weight_zero():
    counts = [[4, 0], [0, 0], [0, 4]]
    assert heterogeneity_coherence(counts, [0, 1], [1, 0]) == pytest.approx(np.sqrt(0.5))
    with pytest.raises(SteelyardError, match="without samples"):
        heterogeneity_coherence(counts, [0, 1], [1, 1])


def test_alignment_of_a_cohort(updates):
    rows, share = updates.numpy(), np.array(WEIGHTS) / 20
    part = (5 * rows[0] + 8 * rows[3]) / 13
    assert cohort_alignment(updates, [0, 3], WEIGHTS) == pytest.approx(
        cosine(part, share @ rows), rel=1e-12
    )
    assert cohort_alignment(updates, range(5)) == pytest.approx(1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gradient_coherence(torch.ones(3)), r"float32 \[3\]: give floats"),
        (lambda: gradient_coherence(torch.ones(2, 3, dtype=torch.int64)), "int64"),
        (
            lambda: gradient_coherence(torch.tensor([[1.0], [float("nan")]])),
            "client 1 has NaN or infinity",
        ),
        (lambda: gradient_coherence(torch.ones(2, 3), [1, 2, 3]), "each of the 2 clients"),
        (lambda: gradient_coherence(torch.ones(2, 3), [2, -1]), "numbers >= 0"),
        (lambda: gradient_coherence(torch.ones(2, 3), [0, 0]), "not all of them 0"),
        (lambda: group_coherence(torch.ones(2, 3), ["a"]), "each of the 2 clients"),
        (lambda: critical_point([0.1, float("nan")]), "one finite number"),
        (lambda: critical_point([0.1], near=2), "near=2"),
        (lambda: critical_point([0.1], hold=0), "hold=0"),
        (lambda: heterogeneity_coherence([[1, -1]], [0]), "numbers >= 0"),
        (lambda: heterogeneity_coherence([[1, 1]], [0], similarity="l2"), "similarity='l2'"),
        (lambda: heterogeneity_coherence([[1, 1]], [1]), "positions from 0 to 0"),
        (lambda: cohort_alignment(torch.ones(2, 3), [0, 0]), "each once"),
        (lambda: cohort_alignment(torch.ones(2, 3), []), "at least one"),
    ],
)
def test_errors_name_the_value_and_the_cure(call, message):
    with pytest.raises(SteelyardError, match=message):
        call()
