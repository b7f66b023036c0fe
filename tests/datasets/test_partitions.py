"""Partitions: against FedLAW's own lists, and the properties the papers state."""

import numpy as np
import pytest

from steelyard.core._errors import SteelyardError
from steelyard.core._spec import parse, to_text
from steelyard.data import PARTITIONS, partition
from steelyard.data._partitions import IID, Dirichlet, XClass
from tests import golden

LABELS = np.repeat(np.arange(10), 100)


def test_dirichlet_gives_the_lists_of_fedlaws_code():
    document = golden.document("fedlaw_partition")
    case = document["dirichlet_a0.5_seed10_n6"]
    labels = np.array(document["labels"])
    groups = Dirichlet(alpha=0.5)(labels, 6, np.random.RandomState(10))
    assert [group.tolist() for group in groups] == case["groups"]
    # Its matrix of counts is rounded before the last client takes the rest, so it is right for the
    # others only.
    counts = [np.bincount(labels[group], minlength=5).tolist() for group in groups]
    assert counts[:-1] == case["counts"][:-1]


WHOLE = [
    *(
        "iid",
        "dirichlet",
        "dirichlet:alpha=0.01",
        "dirichlet:alpha=1e-6",
        "hybrid_dirichlet",
        "hybrid_dirichlet:0.1",
    ),
    *(
        "dirichlet_balanced",
        "dirichlet_balanced:0.01",
        "dirichlet_balanced:1e-6",
        "dirichlet_capped:10,minimum=1",
    ),
    *(
        "shards",
        "shards:3",
        "sorted",
        "sorted:0.3",
        "sorted:1",
        "quantity:minimum=0",
        "quantity:10,minimum=1",
    ),
]


@pytest.mark.parametrize("spec", WHOLE)
@pytest.mark.parametrize("clients", [1, 7, 300])
def test_every_sample_goes_to_exactly_one_client(spec, clients):
    groups = partition(spec, LABELS, clients, seed=1)
    assert len(groups) == clients
    assert sorted(np.concatenate(groups).tolist()) == list(range(1000))
    assert {group.dtype for group in groups} == {np.dtype(np.int64)}


@pytest.mark.parametrize("entry", list(PARTITIONS), ids=lambda entry: entry.name)
def test_the_seed_alone_decides(entry):
    spec = {"x_class": "x_class:samples=50", "sorted": "sorted:share_iid=0.3"}.get(
        entry.name, entry.name
    )
    first, again, other = (partition(spec, LABELS, 6, seed=seed) for seed in (4, 4, 5))
    assert [group.tolist() for group in first] == [group.tolist() for group in again]
    assert [group.tolist() for group in first] != [group.tolist() for group in other]


def test_iid_parts_are_equal_and_mixed():
    groups = partition("iid", LABELS, 3, seed=0)
    assert [len(group) for group in groups] == [334, 333, 333]
    assert min(np.bincount(LABELS[group], minlength=10).min() for group in groups) > 10


def test_a_small_alpha_is_more_skewed():
    def top_share(alpha):
        groups = [group for group in partition(Dirichlet(alpha), LABELS, 10, seed=0) if len(group)]
        return np.mean([np.bincount(LABELS[group]).max() / len(group) for group in groups])

    assert top_share(100.0) < 0.2 < 0.4 < top_share(0.1)


def test_dirichlet_without_samples_of_a_class():
    labels = np.array([0, 0, 3, 3, 3])
    assert sorted(np.concatenate(partition("dirichlet", labels, 2, seed=0)).tolist()) == [
        0,
        1,
        2,
        3,
        4,
    ]


def classes_of(groups):
    return [len(np.unique(LABELS[group])) for group in groups]


def test_x_class_is_fedadps_iid_and_non_iid_nodes():
    groups = partition("x_class:classes=2,iid=3,samples=90", LABELS, 10, seed=0)
    assert classes_of(groups) == [10] * 3 + [2] * 7
    assert all(len(set(group.tolist())) == 90 for group in groups)
    chosen = {tuple(np.unique(LABELS[group])) for group in groups[3:]}
    assert len(chosen) > 1


def test_x_class_takes_a_number_of_classes_for_each_node():
    """FedAdp's Fig. 2 has 5 IID nodes, 3 with one class and 2 with two."""
    mixed = partition("x_class:classes=[1,1,1,2,2],iid=5,samples=90", LABELS, 10, seed=0)
    assert [len(group) for group in mixed] == [90] * 10
    assert classes_of(mixed)[5:] == [1, 1, 1, 2, 2]
    assert min(classes_of(mixed)[:5]) == 10
    listed = XClass(classes=[1] * 5, samples=90)
    assert listed == parse(to_text(listed), PARTITIONS)
    assert hash(listed)
    same = partition("x_class:classes=1,iid=5,samples=90", LABELS, 10, seed=0)
    for one, other in zip(partition(listed, LABELS, 10, seed=0), same, strict=True):
        assert (one == other).all()


def test_x_class_clients_may_share_samples():
    groups = partition("x_class:iid=10,samples=500", LABELS, 10, seed=0)
    assert len(np.unique(np.concatenate(groups))) < 5000


def test_x_class_case_1_has_all_class_counts_once():
    groups = partition("x_class:samples=100,case=1", LABELS, 10, seed=0)
    assert sorted(classes_of(groups)) == list(range(1, 11))


def test_x_class_case_2_has_two_halves():
    counts = [
        classes_of(partition("x_class:samples=100,case=2", LABELS, 10, seed=seed))
        for seed in range(20)
    ]
    assert {count for row in counts for count in row[:5]} == set(range(1, 6))
    assert {count for row in counts for count in row[5:]} == set(range(6, 11))


@pytest.mark.parametrize(
    ("spec", "clients", "message"),
    [
        ("dirichlet:alpha=0", 4, "alpha=0: use a number in"),
        ("dirichlet:alpha=-1", 4, "alpha=-1"),
        ("x_class:samples=200", 10, "samples=200: 1 of the 10 classes .*100 samples"),
        ("x_class:classes=11,samples=10", 10, "classes=11: .*only 10"),
        ("x_class:classes=[1,11,1,1,1],samples=10", 10, "classes=11: .*only 10"),
        (
            "x_class:classes=[1,2],samples=10",
            10,
            r"classes=\[1, 2\]: 2 numbers for the 5 clients that are not IID",
        ),
        ("x_class:classes=[1,2],iid=10,samples=10", 10, "2 numbers for the 0 clients"),
        ("x_class:classes=[1,0,1,1,1],samples=10", 10, "classes=0: use a whole number >= 1"),
        ("x_class:classes=[1,1.5,1,1,1],samples=10", 10, "classes=1.5: use a whole number >= 1"),
        ("x_class:samples=10", 4, "iid=5: there are only 4 clients"),
        ("x_class:samples=10,case=1", 11, "clients=11: case=1"),
        ("x_class:case=3", 10, "case=3: use one of None, 1, 2"),
        ("iid", 1001, "clients=1001: there are only 1000 samples"),
        ("iid", 0, "clients=0: use a whole number >= 1"),
        ("dirichlett", 4, "did you mean 'dirichlet'"),
    ],
)
def test_refused(spec, clients, message):
    with pytest.raises(SteelyardError, match=message):
        partition(spec, LABELS, clients, seed=0)


def test_refused_labels_and_seeds():
    for labels in (LABELS / 2, LABELS[:, None], LABELS - 1):
        with pytest.raises(SteelyardError, match="a partition needs labels"):
            partition("iid", labels, 2, seed=0)
    with pytest.raises(SteelyardError, match="seed=-1"):
        partition("iid", LABELS, 2, seed=-1)


@pytest.mark.parametrize("part", [IID(), Dirichlet(0.1), XClass(classes=2, iid=3, case=2)])
def test_text_form(part):
    assert parse(to_text(part), PARTITIONS) == part
