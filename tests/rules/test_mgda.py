"""MGDA and FedMGDA+ against two oracles: all faces of the box, one by one, and TorchJD."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import steelyard
from steelyard.core._spec import to_text
from steelyard.testing import check_rule


def search_faces(gram, low, high):
    """The minimum of `w^T G w` over the box and the simplex: the best of all faces of the box.

    On a face, some weights are at their bounds and the others solve linear equations.
    """
    best, solution = np.inf, None
    for face in product((0, 1, 2), repeat=len(gram)):
        places = np.array(face)
        weights = np.select([places == 1, places == 2], [low, high], 0.0)
        free = np.flatnonzero(places == 0)
        rest = 1 - weights.sum()
        if len(free):
            block = np.ones((len(free) + 1, len(free) + 1))
            block[:-1, :-1] = gram[np.ix_(free, free)]
            block[-1, -1] = 0.0
            solved = np.linalg.solve(block, np.append(-(gram @ weights)[free], rest))
            weights[free] = solved[:-1]
        elif abs(rest) > 1e-12:
            continue
        is_inside = (weights >= low - 1e-12).all() and (weights <= high + 1e-12).all()
        if is_inside and weights @ gram @ weights < best:
            best, solution = weights @ gram @ weights, weights
    return solution


def draw_updates(seed, count, dim=12, spread=2.0):
    """Updates of different lengths that agree in part."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=dim) * rng.choice([0.0, 0.5, 1.0])
    lengths = 10.0 ** rng.uniform(-spread / 2, spread / 2, size=(count, 1))
    return lengths * (common + rng.normal(size=(count, dim)))


def aggregate(rule, updates, sizes=None):
    base = torch.zeros(updates.shape[1], dtype=torch.float64)
    metrics = {"num_examples": [1] * len(updates) if sizes is None else sizes.tolist()}
    return steelyard.aggregate(rule, base, torch.from_numpy(updates), metrics=metrics)


@pytest.mark.parametrize("seed", range(30))
def test_mgda_is_the_best_of_all_faces(seed):
    updates = draw_updates(seed, 1 + seed % 6)
    count = len(updates)
    expected = search_faces(updates @ updates.T, np.zeros(count), np.ones(count))
    np.testing.assert_allclose(aggregate("mgda", updates).weights, expected, atol=1e-10)


@pytest.mark.parametrize("epsilon", [0.0, 0.02, 0.1, 0.4, 1.0])
@pytest.mark.parametrize("seed", range(8))
def test_fedmgda_is_the_best_of_all_faces(seed, epsilon):
    """The paper's problem: unit updates, a box around the sizes, a step of length 1 at most."""
    updates = draw_updates(seed, 2 + seed % 4)
    sizes = np.random.default_rng(seed).integers(1, 40, size=len(updates))
    shares = sizes / sizes.sum()
    units = updates / np.linalg.norm(updates, axis=1, keepdims=True)
    low, high = np.maximum(shares - epsilon, 0), np.minimum(shares + epsilon, 1)
    expected = search_faces(units @ units.T, low, high)
    out = aggregate(f"fedmgda:epsilon={epsilon}", updates, sizes)
    np.testing.assert_allclose(out.params, expected @ units, rtol=1e-9, atol=1e-10)
    assert np.linalg.norm(out.params) <= 1 + 1e-12
    # The mean length is a factor; without normalisation the problem is another one.
    longer = aggregate(f"fedmgda:epsilon={epsilon},length=mean", updates, sizes)
    factor = np.linalg.norm(updates, axis=1).mean()
    np.testing.assert_allclose(longer.params, factor * (expected @ units), rtol=1e-9, atol=1e-9)
    plain = aggregate(f"fedmgda:epsilon={epsilon},normalize=false", updates, sizes)
    expected = search_faces(updates @ updates.T, low, high)
    np.testing.assert_allclose(plain.weights, expected, atol=1e-9)


def test_fedmgda_between_fedavg_and_mgda():
    updates = draw_updates(3, 5)
    sizes = np.array([5, 1, 2, 9, 3])
    average = aggregate("fedmgda:epsilon=0,normalize=false", updates, sizes)
    np.testing.assert_allclose(average.weights, sizes / sizes.sum(), atol=1e-14)
    free = aggregate("fedmgda:epsilon=1,normalize=false", updates, sizes)
    np.testing.assert_allclose(free.weights, aggregate("mgda", updates).weights, atol=1e-10)


@pytest.mark.parametrize("shape", [(2, 14), (5, 7), (9, 37), (32, 114)])
def test_mgda_against_torchjd(shape):
    """Its Frank-Wolfe steps come as near to our point as they must, and never below its length.

    After t steps the square of the length is at most 4 D^2 / (t + 2) too large, where D is the
    diameter of the hull. The search over all faces is the precise oracle.
    """
    aggregation = pytest.importorskip("torchjd.aggregation")
    updates = torch.from_numpy(np.random.default_rng(shape[0]).normal(size=shape) + 0.2)
    ours = aggregate("mgda", updates.numpy()).params
    diameter = torch.cdist(updates, updates).max().item()
    for steps in (100, 1000):
        theirs = aggregation.MGDA(epsilon=1e-12, max_iters=steps)(updates)
        excess = (theirs @ theirs - ours @ ours).item()
        assert -1e-12 <= excess <= 4 * diameter**2 / (steps + 2)
        # Points of the hull are no farther from the shortest one than their squares differ.
        distance = theirs - ours
        assert (distance @ distance).item() <= excess + 1e-12


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 25),
    dim=st.integers(1, 30),
    spread=st.floats(0, 8),
)
def test_no_client_is_contradicted(seed, count, dim, spread):
    """The optimality conditions, also with more clients than coordinates: <d, d_k> >= |d|^2."""
    updates = draw_updates(seed, count, dim, spread)
    out = aggregate("mgda", updates)
    weights, step = out.weights.numpy(), out.params.numpy()
    assert (weights >= 0).all()
    assert weights.sum() == pytest.approx(1, abs=1e-12)
    lengths = np.linalg.norm(updates, axis=1)
    slack = updates @ step - step @ step
    shortest = lengths.min()
    assert (slack >= -1e-6 * lengths * shortest).all()


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 25),
    dim=st.integers(1, 30),
    epsilon=st.floats(0, 1),
)
def test_weights_stay_in_the_box_and_cannot_be_improved(seed, count, dim, epsilon):
    updates = draw_updates(seed, count, dim)
    sizes = np.random.default_rng(seed).integers(1, 40, size=count)
    shares = sizes / sizes.sum()
    lengths = np.linalg.norm(updates, axis=1)
    units = updates / lengths[:, None]
    out = aggregate(f"fedmgda:epsilon={epsilon!r}", updates, sizes)
    moved = out.weights.numpy() * lengths
    assert moved.sum() == pytest.approx(1, abs=1e-9)
    assert (np.abs(moved - shares) <= epsilon + 1e-9).all()
    assert (moved >= -1e-12).all()
    # No transfer of weight between two clients makes the step shorter.
    slopes = units @ (moved @ units)
    can_rise = moved < np.minimum(shares + epsilon, 1) - 1e-9
    can_fall = moved > np.maximum(shares - epsilon, 0) + 1e-9
    if can_rise.any() and can_fall.any():
        assert slopes[can_fall].max() <= slopes[can_rise].min() + 1e-6


@pytest.mark.parametrize("rule", ["mgda", "fedmgda", "fedmgda:epsilon=1,normalize=false"])
def test_equal_clients_have_equal_weights_in_any_order(rule):
    updates = np.repeat(draw_updates(5, 4), 3, axis=0)
    weights = aggregate(rule, updates).weights.numpy().reshape(4, 3)
    np.testing.assert_allclose(weights, np.repeat(weights[:, :1], 3, axis=1), rtol=1e-8, atol=1e-10)
    order = np.random.default_rng(0).permutation(12)
    other = aggregate(rule, updates[order]).weights.numpy()
    np.testing.assert_allclose(other, weights.ravel()[order], rtol=1e-8, atol=1e-10)


def test_zero_updates():
    updates = draw_updates(1, 5)
    still = aggregate("mgda", np.zeros((4, 6)))
    assert still.weights.tolist() == [0.25] * 4
    still = aggregate("fedmgda", np.zeros((4, 6)))
    assert still.params.abs().max().item() == 0
    # A client that does not move stops MGDA, as its definition says, and the guard sets it aside.
    updates[2] = 0.0
    assert aggregate("mgda", updates).weights.tolist() == [0.0, 0.0, 1.0, 0.0, 0.0]
    others = aggregate("guard(mgda):weight_cap=5,clip=100", updates)
    assert others.weights[2].item() == 0
    assert others.params.norm() > 0
    # In FedMGDA+ it takes weight from the others, within the box.
    units = np.delete(updates, 2, axis=0)
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    padded = np.insert(units, 2, 0.0, axis=0)
    expected = search_faces(
        padded @ padded.T + np.diag([0, 0, 1e-15, 0, 0]), np.full(5, 0.1), np.full(5, 0.3)
    )
    out = aggregate("fedmgda", updates)
    np.testing.assert_allclose(out.params, expected @ padded, atol=1e-8)


def test_one_client():
    update = draw_updates(0, 1)
    np.testing.assert_allclose(aggregate("mgda", update).params, update[0], rtol=1e-15)
    unit = update[0] / np.linalg.norm(update)
    np.testing.assert_allclose(aggregate("fedmgda", update).params, unit, rtol=1e-14)


def test_opposite_clients_stop():
    """No step is good for both: the shortest combination is zero."""
    updates = np.array([[1.0, 0.0], [-2.0, 0.0], [0.5, 1.0]])
    out = aggregate("mgda", updates)
    np.testing.assert_allclose(out.weights, [2 / 3, 1 / 3, 0], atol=1e-10)
    np.testing.assert_allclose(out.params, 0, atol=1e-10)


def test_lengths_of_any_size():
    """One update ten orders of magnitude longer than the others changes nothing."""
    updates = draw_updates(2, 6, spread=0)
    updates += 0.5
    longer = np.vstack([updates, 1e10 * updates[0]])
    weights = aggregate("mgda", longer).weights
    np.testing.assert_allclose(weights[:-1], aggregate("mgda", updates).weights, atol=1e-8)


def test_layers_are_solved_one_by_one():
    updates = draw_updates(8, 5)
    out = aggregate("per_layer(mgda):layers=[5,7]", updates)
    for layer, part in enumerate((slice(0, 5), slice(5, 12))):
        alone = aggregate("mgda", updates[:, part]).weights
        np.testing.assert_allclose(out.weights[layer], alone, atol=1e-10)


@pytest.mark.parametrize(
    ("rule", "sums_to_one"),
    [
        (steelyard.fedmgda(epsilon=0.3, length="mean"), False),
        (steelyard.fedmgda(normalize=False), True),
        (steelyard.mgda(), True),
    ],
)
def test_text_and_contract(rule, sums_to_one):
    assert steelyard.parse_rule(to_text(rule)) == rule
    check_rule(rule, sums_to_one=sums_to_one)


@pytest.mark.parametrize("text", ["fedmgda:epsilon=2", "fedmgda:length=max", "fedmgda:normalize=2"])
def test_wrong_options(text):
    with pytest.raises(steelyard.SteelyardError):
        steelyard.parse_rule(text)
