"""Shrinking against Equation (4), written out."""

import numpy as np
import pytest
import torch
from torch import nn

from steelyard.core._errors import SteelyardError
from steelyard.diagnostics import (
    parameter_histogram,
    parameter_norm,
    rescaled_losses,
    share_near_zero,
    shrinking_terms,
)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("gamma", [0.9, 1.05])
def test_the_two_terms_of_equation_4(gamma):
    theta, update = draw(50), 0.1 * draw(50, seed=1)
    found = shrinking_terms(theta, update, gamma)
    after = gamma * (theta + update)
    learning = after - gamma * theta  # what is left of the step without the pull to zero
    pull = after - theta - gamma * update
    assert found.gradient == pytest.approx(learning.norm().item(), rel=1e-12)
    assert found.pseudo_gradient == pytest.approx(pull.norm().item(), rel=1e-12)
    assert found.ratio == pytest.approx(learning.norm().item() / pull.norm().item(), rel=1e-12)


def test_without_shrinking_the_ratio_is_infinite():
    assert shrinking_terms(draw(5), draw(5), 1.0).ratio == float("inf")


def test_norms_leave_statistics_and_counters_out():
    model = {
        "weight": torch.tensor([3.0, 0.0]),
        "bias": torch.tensor([4.0]),
        "bn.running_mean": torch.tensor([100.0]),
        "bn.num_batches_tracked": torch.tensor(7),
    }
    assert parameter_norm(model) == 5
    assert shrinking_terms(model, model, 0.5).ratio == 1


def test_the_norm_of_a_large_model():
    theta = draw(100_000).float()
    assert parameter_norm(theta) == pytest.approx(theta.double().norm().item(), rel=1e-7)


def test_histogram():
    found = parameter_histogram(torch.tensor([-1.0, -0.4, 0.1, 0.2, 0.9]), bins=4)
    assert found.edges.tolist() == [-1, -0.5, 0, 0.5, 1]
    assert found.counts.tolist() == [1, 1, 2, 1]
    assert parameter_histogram(
        {"a": torch.tensor([-3.0, 0.1, 0.3])}, 2, limit=0.2
    ).counts.tolist() == [0, 1]
    assert parameter_histogram(torch.zeros(4), 1).counts.tolist() == [4]


def test_share_near_zero():
    assert share_near_zero(torch.tensor([-0.2, 0.1, 0.0, 5.0]), 0.1) == 0.5


def test_loss_under_rescaling_of_a_homogeneous_network():
    model = nn.Sequential(
        nn.Linear(4, 6, bias=False), nn.ReLU(), nn.Linear(6, 3, bias=False)
    ).double()
    inputs, targets = draw(600, 4), torch.arange(600) % 3  # more than one pass
    before = [p.clone() for p in model.parameters()]
    found = rescaled_losses(model, inputs, targets, [0.0, 0.5, 1.0, 2.0])
    logits = model(inputs).detach()
    expected = [
        nn.functional.cross_entropy(c * c * logits, targets).item() for c in (0.0, 0.5, 1.0, 2.0)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert found[0] == pytest.approx(np.log(3))
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: shrinking_terms(torch.ones(2), torch.ones(2), 0), "gamma=0"),
        (
            lambda: shrinking_terms(torch.ones(3), torch.ones(4), 0.9),
            "theta has 3 parameters and update 4",
        ),
        (lambda: parameter_histogram(torch.ones(2), 0), "bins=0"),
        (lambda: parameter_histogram(torch.ones(2), 3, limit=-1), "limit=-1"),
        (lambda: share_near_zero(torch.ones(2), -1), "width=-1"),
        (
            lambda: share_near_zero(torch.ones(0), 1),
            "no float parameter.*give a model with parameters",
        ),
        (
            lambda: parameter_norm({"count": torch.tensor(3)}),
            "no float parameter.*give a model with parameters",
        ),
        (lambda: parameter_norm(torch.tensor([1.0, float("nan")])), "NaN or infinity.*all finite"),
        (
            lambda: rescaled_losses(nn.Linear(2, 2), torch.ones(3, 2), torch.zeros(2).long(), [1]),
            "3 inputs and 2 targ",
        ),
    ],
)
def test_errors_name_the_value_and_the_cure(call, message):
    with pytest.raises(SteelyardError, match=message):
        call()
