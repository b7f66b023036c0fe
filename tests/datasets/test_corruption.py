"""Corrupted clients: who, how, and that nobody else notices."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.core._errors import SteelyardError
from steelyard.data import Dataset, Federation
from steelyard.data._corruption import corrupt, find_corrupted_clients

CLASSES = 4


def federation(clients=8, shared=False):
    """Ten samples per client, of all classes; if shared, each list reaches into the next client's."""
    size = 10 * clients
    inputs = torch.arange(2.0 * size).reshape(size, 2)
    data = Dataset(inputs, torch.arange(size) % CLASSES, CLASSES, "toy")
    index = tuple(
        np.arange(10 * k, 10 * k + (20 if shared and k < clients - 1 else 10))
        for k in range(clients)
    )
    test = Dataset(inputs[:3], data.targets[:3], CLASSES)
    return Federation(data, tuple(f"c{k}" for k in range(clients)), index, test)


def samples(made, client):
    at = made.index[made.ids.index(client)]
    return made.train.inputs[at], made.train.targets[at]


@pytest.mark.parametrize("kind", ["swap", "flip", "noise"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
def test_only_the_chosen_change(kind, shared, share):
    before, kept = federation(shared=shared), federation(shared=shared)
    after = corrupt(before, share, kind, seed=3)
    chosen = find_corrupted_clients(before, share, seed=3)
    assert len(chosen) == 8 * share
    for client in before.ids:
        (x, y), (x_after, y_after) = samples(before, client), samples(after, client)
        assert torch.equal(x, x_after) == (client not in chosen or kind != "noise")
        assert torch.equal(y, y_after) == (client not in chosen or kind == "noise")
    assert torch.equal(before.train.inputs, kept.train.inputs)  # the given one stays as it was
    assert torch.equal(before.train.targets, kept.train.targets)
    assert after.test is before.test
    assert after.ids == before.ids
    assert after.sizes.tolist() == before.sizes.tolist()


def test_swapped_labels_are_two_and_differ_between_clients():
    before = federation(20)
    after = corrupt(before, 1.0, "swap", seed=0)
    pairs = set()
    for client in before.ids:
        y, changed = samples(before, client)[1], samples(after, client)[1]
        one, other = sorted(set(y[y != changed].tolist()))
        assert changed.tolist() == [
            {one: other, other: one}.get(label, label) for label in y.tolist()
        ]
        pairs.add((one, other))
    assert len(pairs) > 3


def test_a_common_pair_is_the_same_for_all_clients_and_any_share():
    before = federation(20)
    pairs = set()
    for share in (0.25, 1.0):
        after = corrupt(before, share, "swap:pair=common", seed=0)
        for client in find_corrupted_clients(before, share, seed=0):
            y, changed = samples(before, client)[1], samples(after, client)[1]
            one, other = sorted(set(y[y != changed].tolist()))
            assert changed.tolist() == [
                {one: other, other: one}.get(label, label) for label in y.tolist()
            ]
            pairs.add((one, other))
    assert len(pairs) == 1
    others = {
        tuple(torch.bincount(corrupt(before, 1.0, "swap:pair=common", seed=s).train.targets[:10]))
        for s in range(10)
    }
    assert len(others) > 1  # the seed decides which pair it is


def test_a_spec_string_is_the_same_as_arguments():
    before = federation()
    spelled = corrupt(before, kind="noise:share=0.25,deviation=0.5", seed=2)
    assert torch.equal(
        spelled.train.inputs, corrupt(before, 0.25, "noise", deviation=0.5, seed=2).train.inputs
    )
    assert corrupt(before, kind="swap:0.25").fingerprint() == corrupt(before, 0.25).fingerprint()


def test_a_client_of_one_label_is_corrupted_too():
    data = Dataset(torch.zeros(30, 1), torch.full((30,), 2), 5)
    made = Federation(data, tuple(range(10)), tuple(np.arange(3 * k, 3 * k + 3) for k in range(10)))
    labels = corrupt(made, 1.0).train.targets.reshape(10, 3)
    assert (labels != 2).all()
    assert (labels == labels[:, :1]).all()


def test_flipped_labels():
    before = federation()
    assert torch.equal(
        corrupt(before, 1.0, "flip").train.targets, CLASSES - 1 - before.train.targets
    )


def test_noise_has_the_deviation_asked_for():
    data = Dataset(torch.zeros(2000, 5), torch.zeros(2000, dtype=torch.int64), 1)
    made = Federation(data, (0, 1), (np.arange(1000), np.arange(1000, 2000)))
    noise = corrupt(made, 1.0, "noise", deviation=0.3, seed=1).train.inputs
    assert abs(float(noise.std()) - 0.3) < 0.01
    assert abs(float(noise.mean())) < 0.01
    assert not torch.equal(noise[:1000], noise[1000:])


def test_clients_without_samples_are_not_chosen_and_classes_are_those_of_train_and_test():
    data = Dataset(torch.zeros(4, 1), torch.tensor([0, 1, 0, 1]), 2)
    test = Dataset(torch.zeros(1, 1), torch.tensor([4]), 5)
    lists = (np.arange(2), np.zeros(0, dtype=np.int64), np.arange(2, 4))
    made = Federation(data, ("a", "b", "c"), lists, test)
    assert find_corrupted_clients(made, 1.0) == ("a", "c")
    assert corrupt(made, 1.0, "flip").train.targets.tolist() == [4, 3, 4, 3]


def test_nothing_to_do():
    before = federation()
    assert corrupt(before, 0.0) is before
    assert find_corrupted_clients(before, 0.0) == ()


@settings(max_examples=30, deadline=None)
@given(
    st.floats(0, 1),
    st.floats(0, 1),
    st.integers(0, 2**40),
    st.sampled_from(["swap", "flip", "noise"]),
)
def test_a_function_of_the_seed_that_grows_with_the_share(low, high, seed, kind):
    low, high = sorted((low, high))
    made = federation()
    assert set(find_corrupted_clients(made, low, seed)) <= set(
        find_corrupted_clients(made, high, seed)
    )
    first, again = (corrupt(made, low, kind, seed=seed) for _ in range(2))
    assert first.fingerprint() == again.fingerprint()
    some = corrupt(made, high, kind, seed=seed)
    for client in find_corrupted_clients(
        made, low, seed
    ):  # how it is corrupted does not depend on the others
        assert all(
            torch.equal(a, b)
            for a, b in zip(samples(first, client), samples(some, client), strict=True)
        )


def test_the_seed_decides():
    made = federation(20)
    assert len({find_corrupted_clients(made, 0.5, seed) for seed in range(5)}) == 5


def test_refused():
    made = federation()
    tokens = Federation.of({0: (torch.ones(2, 3, dtype=torch.int64), torch.tensor([0, 1]))})
    numbers = Federation.of({0: (torch.ones(2, 3), torch.ones(2))})
    cases = [
        (made, {"share": 1.5}, r"share=1.5: use a number in \[0.0, 1.0\]"),
        (
            made,
            {"share": 0.5, "kind": "shuffle"},
            "unknown corruption 'shuffle'",
        ),
        (made, {"share": 0.5, "kind": "noise", "deviation": -1.0}, "deviation=-1.0"),
        (made, {"share": 0.5, "seed": -1}, "seed=-1"),
        (made, {"kind": "swap:pair=any"}, "pair='any'"),
        (made, {"kind": "swap", "deviation": 1.0}, "only kind='noise' has a deviation"),
        (tokens, {"share": 1.0, "kind": "noise"}, "inputs are tokens, use 'swap' or 'flip'"),
        (numbers, {"share": 1.0, "kind": "flip"}, "corrupt=flip: targets"),
    ]
    for data, options, message in cases:
        with pytest.raises(SteelyardError, match=message):
            corrupt(data, **options)


@pytest.mark.parametrize("kind", ["swap", "noise"])
def test_groups_of_samples_stay(kind):
    made = federation()
    groups = torch.arange(len(made.train)) % 3
    grouped = replace(made, train=replace(made.train, groups=groups))
    assert torch.equal(corrupt(grouped, 1.0, kind).train.groups, groups)
