"""FedLWS against the steps of the authors' code, written on whole vectors."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import steelyard
from steelyard.core._spec import to_text
from steelyard.testing import check_rule
from tests.rounds import aggregate_arrays

SIZES = (6, 24, 10)


def draw_round(seed, count, step=1.0):
    rng = np.random.default_rng(seed)
    theta = rng.normal(size=sum(SIZES))
    return theta, theta + step * rng.normal(size=(count, sum(SIZES))), rng.integers(1, 30, count)


def shrink_layers(theta, models, sizes, beta=0.03, low=0.01, high=0.2):
    """The new model and the gammas, layer by layer."""
    shares = sizes / sizes.sum()
    averaged = sum(share * model for share, model in zip(shares, models, strict=True))
    merged, gammas = [], []
    start = 0
    for size in SIZES:
        layer = slice(start, start + size)
        start += size
        step = np.linalg.norm(averaged[layer] - theta[layer])
        updates = [model[layer] - theta[layer] for model in models]
        center = np.mean(updates, axis=0)
        distance = np.mean([np.linalg.norm(update - center) for update in updates])
        tau = min(max(beta * distance, low), high)
        length = np.linalg.norm(theta[layer])
        gammas.append(length / (length + tau * step))
        merged.append(gammas[-1] * averaged[layer])
    return np.concatenate(merged), gammas


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("step", [0.01, 1.0, 5.0])  # tau at its lower limit, between, at its upper
def test_the_steps_of_the_authors_code(count, step):
    theta, models, sizes = draw_round(count, count, step)
    expected, gammas = shrink_layers(theta, models, sizes)
    out = aggregate_arrays(steelyard.fedlws(layers=SIZES), theta, models, sizes)
    np.testing.assert_allclose(out.params, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(out.base, gammas, rtol=1e-12)


def test_options():
    theta, models, sizes = draw_round(9, 5)
    rule = steelyard.fedlws(beta=0.5, min_tau=0.0, max_tau=10.0, layers=SIZES)
    expected, _ = shrink_layers(theta, models, sizes, 0.5, 0.0, 10.0)
    np.testing.assert_allclose(
        aggregate_arrays(rule, theta, models, sizes).params, expected, rtol=1e-11
    )


def test_tau_is_the_ratio_of_regularisation_to_optimisation():
    """The step is gamma g - (1 - gamma) theta; with one client tau is its lower limit."""
    theta, models, sizes = draw_round(4, 1)
    out = aggregate_arrays(steelyard.fedlws(layers=SIZES), theta, models, sizes)
    start = 0
    for gamma, size in zip(out.base.tolist(), SIZES, strict=True):
        layer = slice(start, start + size)
        start += size
        regularisation = (1 - gamma) * np.linalg.norm(theta[layer])
        optimisation = gamma * np.linalg.norm(models[0, layer] - theta[layer])
        assert regularisation / optimisation == pytest.approx(0.01, rel=1e-9)


def test_after_another_rule_the_step_is_that_rules():
    """Also if it is a shrunk model, whose step is not a sum of updates alone."""
    theta, models, sizes = draw_round(6, 4)
    rule = steelyard.chain("fedavg", "shrink:gamma=0.8", steelyard.fedlws(layers=SIZES))
    out = aggregate_arrays(rule, theta, models, sizes)
    before = aggregate_arrays("fedavg|shrink:gamma=0.8", theta, models, sizes).params.numpy()
    start = 0
    for gamma, size in zip((out.base / 0.8).tolist(), SIZES, strict=True):
        layer = slice(start, start + size)
        start += size
        updates = models[:, layer] - theta[layer]
        distances = np.linalg.norm(updates - updates.mean(axis=0), axis=1)
        tau = np.clip(0.03 * distances.mean(), 0.01, 0.2)
        length = np.linalg.norm(theta[layer])
        step = np.linalg.norm(before[layer] - theta[layer])
        assert gamma == pytest.approx(length / (length + tau * step), rel=1e-11)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 10), step=st.floats(1e-6, 1e6))
def test_gamma_is_in_the_unit_interval_and_shares_stay(seed, count, step):
    theta, models, sizes = draw_round(seed, count, step)
    out = aggregate_arrays(steelyard.fedlws(layers=SIZES), theta, models, sizes)
    assert ((out.base > 0) & (out.base <= 1)).all()
    shares = out.weights / out.weights.sum(dim=1, keepdim=True)
    np.testing.assert_allclose(shares, np.tile(sizes / sizes.sum(), (3, 1)), rtol=1e-9)


def test_layers_of_zeros_can_start_to_learn():
    base = {"lora_A": torch.ones(3, 4), "lora_B": torch.zeros(4, 3)}
    clients = [{"lora_A": torch.ones(3, 4), "lora_B": torch.full((4, 3), 0.5)}] * 3
    out = steelyard.aggregate("uniform|fedlws", base, clients)
    assert torch.allclose(out.params["lora_B"], torch.full((4, 3), 0.5))
    assert torch.equal(out.params["lora_A"], base["lora_A"])  # no step, no shrinking


def test_weight_and_bias_of_a_module_are_one_layer():
    torch.manual_seed(0)
    base = {"0.weight": torch.randn(4, 3), "0.bias": torch.zeros(4), "1.weight": torch.randn(2, 4)}
    clients = [{name: value + torch.randn(value.shape) for name, value in base.items()}] * 2
    out = steelyard.aggregate("uniform|fedlws", base, clients)
    assert out.report["layers"] == ["0", "1"]
    assert (out.base < 1).all()


def test_text_and_contract():
    rule = steelyard.fedlws(beta=0.1, max_tau=0.5, layers="tensor")
    assert steelyard.parse_rule(to_text(rule)) == rule
    check_rule(rule, sums_to_one=False)
    with pytest.raises(steelyard.SteelyardError, match="min_tau="):
        steelyard.fedlws(min_tau=0.3)
