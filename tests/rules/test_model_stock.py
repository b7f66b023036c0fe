"""Model Stock against the paper's equations, written on whole vectors."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import steelyard
from steelyard.core._spec import to_text
from steelyard.testing import check_rule


def interpolate(theta, models):
    """The merged layer of the paper, with the mean cosine over pairs and t not below 0."""
    updates = [model - theta for model in models]
    count = len(updates)
    cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in combinations(updates, 2)]
    mean_cosine = np.mean(cosines)
    t = max(0.0, count * mean_cosine / (1 + (count - 1) * mean_cosine))
    return t * np.mean(models, axis=0) + (1 - t) * theta


def draw_models(seed, count, agreement=1.0):
    rng = np.random.default_rng(seed)
    theta = rng.normal(size=30)
    common = agreement * rng.normal(size=30)
    return theta, theta + common + rng.normal(size=(count, 30))


@pytest.mark.parametrize("count", [2, 3, 8])
def test_the_papers_equation(count):
    theta, models = draw_models(count, count)
    out = steelyard.aggregate("model_stock", torch.from_numpy(theta), torch.from_numpy(models))
    np.testing.assert_allclose(out.params, interpolate(theta, models), rtol=1e-12, atol=1e-12)


def test_two_models_are_the_papers_first_case():
    """w = (2 cos / (1 + cos)) mean + (1 - ...) w_0, at right angles to the line between the models."""
    angle = 0.7
    theta = np.array([3.0, -1.0])
    models = theta + 2 * np.array([[1.0, 0.0], [np.cos(angle), np.sin(angle)]])
    ratio = 2 * np.cos(angle) / (1 + np.cos(angle))
    out = steelyard.aggregate("model_stock", torch.from_numpy(theta), torch.from_numpy(models))
    assert out.weights.sum().item() == pytest.approx(ratio, rel=1e-12)
    # The merged model is the orthocenter of the triangle of the three models.
    merged = out.params.numpy()
    assert (merged - models[0]) @ (models[1] - theta) == pytest.approx(0, abs=1e-12)
    assert (merged - models[1]) @ (models[0] - theta) == pytest.approx(0, abs=1e-12)


def test_every_tensor_has_its_own_ratio():
    rng = np.random.default_rng(0)
    base = {"a": rng.normal(size=(4, 5)), "b": rng.normal(size=7)}
    common = {name: rng.normal(size=value.shape) for name, value in base.items()}
    clients = [
        {name: base[name] + common[name] + rng.normal(size=base[name].shape) for name in base}
        for _ in range(4)
    ]

    def tensors(model):
        return {name: torch.from_numpy(value) for name, value in model.items()}

    out = steelyard.aggregate("model_stock", tensors(base), [tensors(model) for model in clients])
    for name, value in base.items():
        models = np.stack([model[name].ravel() for model in clients])
        expected = interpolate(value.ravel(), models)
        np.testing.assert_allclose(out.params[name].flatten(), expected, rtol=1e-12, atol=1e-12)
    whole = steelyard.aggregate(
        steelyard.model_stock(layers=("*",)), tensors(base), [tensors(model) for model in clients]
    )
    assert whole.weights.shape == (1, 4)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 10),
    agreement=st.floats(0, 10),
    size=st.floats(1e-8, 1e8),
)
def test_the_ratio_is_in_the_unit_interval_and_free_of_scale(seed, count, agreement, size):
    theta, models = draw_models(seed, count, agreement)
    base = torch.zeros(30, dtype=torch.float64)
    updates = torch.from_numpy(models - theta)
    one = steelyard.aggregate("model_stock", base, updates)
    other = steelyard.aggregate("model_stock", base, size * updates)
    assert 0 < one.weights.sum().item() <= 1 + 1e-12
    torch.testing.assert_close(one.weights, other.weights, rtol=1e-9, atol=1e-12)
    assert one.weights.unique().numel() == 1


def test_opposite_updates_leave_the_model_where_it_is():
    base = torch.ones(3)
    clients = torch.tensor([[2.0, 1, 1], [0.0, 1, 1], [1.0, 1, 1.5]])
    out = steelyard.aggregate("model_stock", base, clients)
    assert torch.equal(out.params, base)
    capped = steelyard.aggregate("model_stock|cap:max_weight=0.5", base, clients)
    assert torch.equal(capped.params, base)


def test_one_client_equal_clients_and_zero_updates():
    base = torch.zeros(4, dtype=torch.float64)
    update = torch.tensor([1.0, 2, 3, 4], dtype=torch.float64)
    assert torch.equal(steelyard.aggregate("model_stock", base, update[None]).params, update)
    equal = steelyard.aggregate("model_stock", base, update.repeat(5, 1))
    torch.testing.assert_close(equal.params, update, rtol=1e-12, atol=0)
    still = steelyard.aggregate("model_stock", base, torch.zeros(5, 4, dtype=torch.float64))
    assert torch.equal(still.params, base)


def test_text_and_contract():
    rule = steelyard.model_stock(layers="module")
    assert steelyard.parse_rule(to_text(rule)) == rule
    check_rule(rule, sums_to_one=False)
    with pytest.raises(steelyard.SteelyardError, match="layers="):
        steelyard.model_stock(layers="filter")
