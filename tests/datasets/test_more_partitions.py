"""Partitions beyond FedLAW's plain one: its other lists, what the papers state, and what holds for any labels."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.core._errors import SteelyardError
from steelyard.core._spec import parse, to_text
from steelyard.data import PARTITIONS, partition
from steelyard.data._partitions import (
    BalancedDirichlet,
    CappedDirichlet,
    HybridDirichlet,
    LongTail,
    Quantity,
    Shards,
    Sorted,
)
from tests import golden

LABELS = np.tile(np.arange(10), 100)


def label_counts(groups, labels=LABELS):
    return np.stack([np.bincount(labels[group], minlength=10) for group in groups])


@pytest.mark.parametrize(
    ("part", "case"),
    [
        (HybridDirichlet(10.0, 0.1), "hybrid_a10_a0.1_seed10_n6_patched_int_division"),
        (LongTail(5.0, 1.0), "LT_rho5_a1_seed10_n6"),
    ],
)
def test_the_lists_of_fedlaws_code(part, case):
    document = golden.document("fedlaw_partition")
    groups = part(np.array(document["labels"]), 6, np.random.RandomState(10))
    assert [group.tolist() for group in groups] == document[case]["groups"]


def test_hybrid_has_a_mixed_and_a_skewed_half():
    counts = label_counts(partition("hybrid_dirichlet:alpha1=1000,alpha2=0.01", LABELS, 9, seed=0))
    mixed, skewed = counts[:4], counts[4:]
    assert np.abs(mixed - 100 / 9).max() < 3
    assert (
        skewed.max(axis=0) > 0.9 * skewed.sum(axis=0)
    ).mean() > 0.5  # a class goes to one client, mostly


def test_the_long_tail_is_cut_by_class():
    groups = partition("long_tail:rho=100,alpha=1", LABELS, 5, seed=0)
    assert label_counts(groups).sum(axis=0).tolist() == [
        int(100 * 100 ** (-c / 9)) for c in range(10)
    ]
    assert len(np.concatenate(partition("long_tail:rho=1", LABELS, 5, seed=0))) == 1000


class Draws:
    """Proportions given beforehand, and no shuffling."""

    def __init__(self, *rows):
        self.rows = list(rows)

    def dirichlet(self, alpha):
        assert len(alpha) == len(self.rows[0])
        return np.array(self.rows.pop(0))

    def shuffle(self, positions):
        pass


def test_full_clients_get_no_more():
    labels = np.repeat([0, 1, 2], 4)  # 12 samples, 3 clients: 4 is full
    draws = Draws([1.0, 0.0, 0.0], [0.5, 0.375, 0.125], [0.2, 0.3, 0.5])
    groups = CappedDirichlet(minimum=1)(labels, 3, draws)
    # Class 1 has shares 0, 3/4, 1/4 of 4 samples.
    # Class 2 has shares 0, 3/8, 5/8: it is cut at 0 and at 1.5, rounded down.
    assert [group.tolist() for group in groups] == [[0, 1, 2, 3], [4, 5, 6, 8], [7, 9, 10, 11]]


def test_all_is_drawn_again_until_every_client_has_the_minimum():
    labels = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    bad, good = ([0.25, 0.75], [0.1, 0.9]), ([0.5, 0.5], [0.5, 0.5])
    draws = Draws(
        *bad, *bad, *good
    )  # bad: class 0 gives 1 and 3, class 1 gives 0 and 4, the minimum is 2 classes
    groups = CappedDirichlet()(labels, 2, draws)
    assert [group.tolist() for group in groups] == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert not draws.rows
    assert [len(group) for group in CappedDirichlet(minimum=1)(labels, 2, Draws(*bad))] == [1, 7]


def test_capped_sizes():
    sizes = [len(group) for group in partition("dirichlet_capped:alpha=0.3", LABELS, 8, seed=0)]
    assert min(sizes) >= 10
    assert max(sizes) < 1000 / 8 + 100


def test_balanced_sizes_are_equal_and_labels_are_not():
    groups = partition("dirichlet_balanced:alpha=0.1", LABELS, 7, seed=0)
    assert [len(group) for group in groups] == [143] * 6 + [142]
    assert (label_counts(groups)[:3].max(axis=1) > 60).all()
    even = label_counts(partition("dirichlet_balanced:alpha=1000", LABELS, 5, seed=0))
    assert np.abs(even[:4] - 20).max() < 15  # the last client gets what is left


def test_balanced_labels_are_the_more_skewed_the_smaller_alpha_is():
    labels = np.repeat(np.arange(10), 200)
    tops = []
    for alpha in (1, 0.1, 0.01, 1e-3, 1e-6, 1e-300):
        made = [
            label_counts(partition(f"dirichlet_balanced:{alpha}", labels, 20, seed), labels)
            for seed in range(5)
        ]
        tops.append(np.mean([counts.max(axis=1) for counts in made]) / 100)
    assert tops == sorted(tops)
    assert tops[-2:] == [1.0, 1.0]  # a class makes two clients whole


def test_balanced_proportions_follow_those_of_the_data():
    labels = np.repeat([0, 1], [900, 100])
    groups = partition("dirichlet_balanced:alpha=1000", labels, 10, seed=0)
    assert np.abs(label_counts(groups, labels)[:9, 1] - 10).max() < 10


def test_shards_hold_few_labels():
    groups = partition("shards:per_client=2", LABELS, 10, seed=0)
    counts = label_counts(groups)
    assert [len(group) for group in groups] == [100] * 10
    assert ((counts > 0).sum(axis=1) <= 2).all()
    assert set(counts[counts > 0].tolist()) <= {50, 100}  # 20 shards of 50


def test_sorted_blocks_are_two_classes_each():
    counts = label_counts(partition("sorted", LABELS, 5, seed=0))
    assert counts.tolist() == [[100 * (c // 2 == client) for c in range(10)] for client in range(5)]


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_sorted_with_a_share_for_all(share):
    groups = partition(Sorted(share), LABELS, 5, seed=0)
    own = np.array([[c // 2 == client for c in range(10)] for client in range(5)])
    counts, rest = label_counts(groups), round(100 * (1 - share))
    assert (counts.sum(axis=1) == 200).all()
    assert (counts[own] >= rest).all()
    assert (counts[~own].reshape(5, 8).sum(axis=1) > 0).all()
    first = np.concatenate(
        [np.flatnonzero(c == LABELS)[: 100 - rest] for c in range(10)]
    )  # the first go to the pool
    pooled = np.concatenate([group[2 * rest :] for group in groups])
    assert sorted(pooled.tolist()) == sorted(first.tolist())


def test_sorted_with_share_one_is_iid():
    groups = partition("sorted:share_iid=1", LABELS, 5, seed=0)
    assert [len(group) for group in groups] == [200] * 5
    assert label_counts(groups).min() > 5


def test_quantity_skews_sizes_and_not_labels():
    groups = partition("quantity:alpha=0.5,minimum=10", LABELS, 5, seed=3)
    sizes = np.array([len(group) for group in groups])
    assert sizes.min() >= 10
    assert sizes.max() > 3 * sizes.min()
    largest = label_counts(groups)[sizes.argmax()]
    assert largest.min() > 0.4 * largest.mean()


PARTS = st.one_of(
    st.builds(HybridDirichlet, st.floats(0.01, 100), st.floats(0.01, 100)),
    st.builds(LongTail, st.floats(1, 100), st.floats(0.01, 100)),
    st.builds(CappedDirichlet, st.floats(1, 100), st.just(0)),
    st.builds(BalancedDirichlet, st.floats(0.001, 100)),
    st.builds(Shards, st.integers(1, 3)),
    st.builds(Sorted, st.floats(0, 1)),
    st.builds(Quantity, st.floats(0.1, 100), st.just(0)),
)


@settings(max_examples=150, deadline=None)
@given(
    PARTS,
    st.lists(st.integers(0, 6), min_size=1, max_size=80),
    st.integers(1, 12),
    st.integers(0, 2**32),
)
def test_for_any_labels(part, labels, clients, seed):
    labels = np.array(labels)
    if clients * getattr(part, "per_client", 1) > len(labels):
        clients = max(1, len(labels) // 3)
        part = Shards(1) if isinstance(part, Shards) else part
    before = labels.copy()
    groups = partition(part, labels, clients, seed)
    assert np.array_equal(labels, before)
    assert [group.tolist() for group in groups] == [
        group.tolist() for group in partition(part, labels, clients, seed)
    ]
    assert len(groups) == clients
    assert {group.dtype for group in groups} == {np.dtype(np.int64)}
    everyone = np.concatenate(groups)
    assert len(np.unique(everyone)) == len(everyone)
    assert len(everyone) == len(labels) or isinstance(part, LongTail)
    sizes = [len(group) for group in groups]
    slack = {BalancedDirichlet: 1, Sorted: 2, Shards: getattr(part, "per_client", 1)}.get(
        type(part), len(labels)
    )
    assert max(sizes) - min(sizes) <= slack
    assert parse(to_text(part), PARTITIONS) == part


@pytest.mark.parametrize(
    ("spec", "clients", "message"),
    [
        ("hybrid_dirichlet:alpha1=0", 4, "alpha1=0: use a number in"),
        ("hybrid_dirichlet:alpha2=0", 4, "alpha2=0"),
        ("long_tail:rho=0.5", 4, "rho=0.5: use a number in"),
        ("long_tail:alpha=0", 4, "alpha=0"),
        ("dirichlet_capped:alpha=0", 4, "alpha=0"),
        ("dirichlet_capped:minimum=-1", 4, "minimum=-1"),
        (
            "dirichlet_capped",
            101,
            "minimum=10: 101 clients would need 1010 samples and there are 1000, use at most 9",
        ),
        ("dirichlet_capped:alpha=1e-4", 50, "alpha=0.0001: in 1000 draws"),
        ("dirichlet_balanced:0", 4, "alpha=0"),
        ("dirichlet_balanced:inf", 4, r"alpha=inf: use a number in \(0.0, 1e\+100\]$"),
        ("long_tail:rho=inf", 4, r"rho=inf: use a number in \[1.0, inf\)$"),
        ("shards:0", 4, "per_client=0: use a whole number >= 1"),
        (
            "shards:3",
            400,
            "per_client=3: 400 clients need 1200 shards and there are 1000 samples, use at most 2",
        ),
        ("sorted:1.5", 4, r"share_iid=1.5: use a number in \[0.0, 1.0\]"),
        ("quantity:alpha=0", 4, "alpha=0"),
        ("quantity:minimum=-1", 4, "minimum=-1"),
        ("quantity:minimum=10", 101, "minimum=10: 101 clients would need"),
        ("quantity:alpha=1e-3", 20, "alpha=0.001: in 1000 draws"),
    ],
)
def test_refused(spec, clients, message):
    with pytest.raises(SteelyardError, match=message):
        partition(spec, LABELS, clients, seed=0)


def test_class_halves_has_clients_of_three_kinds_and_one_size():
    groups = partition("class_halves", LABELS, 12, seed=0)
    counts = label_counts(groups)
    half = counts.shape[1] // 2
    assert len({len(group) for group in groups}) == 1
    assert not counts[:4, half:].any()
    assert not counts[4:8, :half].any()
    assert counts[8:, :half].any(axis=1).all()
    assert counts[8:, half:].any(axis=1).all()
    samples = np.concatenate(groups)
    assert len(np.unique(samples)) == len(samples) >= len(LABELS) - 12
    again = partition("class_halves", LABELS, 12, seed=0)
    assert all((a == b).all() for a, b in zip(groups, again, strict=True))


def test_class_halves_needs_clients_and_samples_of_each_kind():
    with pytest.raises(SteelyardError, match="2 clients"):
        partition("class_halves", LABELS, 2, seed=0)
    with pytest.raises(SteelyardError, match="0 and 9 samples"):
        partition("class_halves", np.zeros(9, dtype=np.int64), 3, seed=0)
