"""Distances and angles against direct computation, and the angles against FedAdp's golden data."""

import numpy as np
import pytest
import torch

import steelyard
from steelyard.core._errors import SteelyardError
from steelyard.diagnostics import (
    gradient_divergence,
    mean_cosine,
    moving_distances,
    smoothed_angles,
    update_angles,
    update_cosines,
)
from tests.golden import arrays, assert_near

WEIGHTS = np.array([3, 1, 2, 4])


@pytest.fixture
def updates():
    return torch.randn(4, 60, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_cosines(updates):
    rows = unit(updates.numpy())
    assert_near(update_cosines(updates), rows @ rows.T, 1e-12)
    pairs = [rows[i] @ rows[j] for i in range(4) for j in range(i)]
    assert mean_cosine(updates) == pytest.approx(np.mean(pairs), rel=1e-12)
    assert mean_cosine(updates[:1]) == 0


def test_distances_of_local_and_global_models(updates):
    rows, share = updates.numpy(), WEIGHTS / 10
    found = moving_distances(updates, WEIGHTS)
    assert_near(found.local, np.linalg.norm(rows, axis=1), 1e-12)
    assert_near(found.between, np.linalg.norm(rows[:, None] - rows[None], axis=2), 1e-12)
    assert found.moved == pytest.approx(np.linalg.norm(share @ rows), rel=1e-12)
    pairs = [np.linalg.norm(rows[i] - rows[j]) for i in range(4) for j in range(i)]
    assert found.mean_between == pytest.approx(np.mean(pairs), rel=1e-12)


def test_equation_4_of_orthogonal_updates_of_one_length():
    found = moving_distances(2 * torch.eye(9))
    assert found.moved == pytest.approx(2 / 3)  # |d| / sqrt(N)
    assert found.mean_between == pytest.approx(2 * np.sqrt(2))


@pytest.mark.parametrize("lr", [1.0, 0.01])
def test_divergence(updates, lr):
    gradients = -updates.numpy() / lr
    mean = WEIGHTS / 10 @ gradients
    expected = np.mean([np.linalg.norm(gradient - mean) for gradient in gradients])
    assert gradient_divergence(updates, WEIGHTS, lr) == pytest.approx(expected, rel=1e-12)


def test_divergence_of_clients_that_agree_is_zero():
    assert gradient_divergence(torch.ones(3, 5).double()) == 0


def test_angles(updates):
    rows = updates.numpy()
    mean = WEIGHTS / 10 @ rows
    assert_near(
        update_angles(updates, WEIGHTS), np.arccos(unit(rows) @ mean / np.linalg.norm(mean)), 1e-12
    )


def test_right_angles_in_radians():
    assert_near(
        update_angles(torch.tensor([[1.0, 1.0], [1.0, -1.0]])), [np.pi / 4, np.pi / 4], 1e-12
    )


@pytest.mark.parametrize("case", ["equal", "unequal"])
def test_smoothed_angles_of_the_public_implementation(case):
    golden = arrays("fedadp")
    deltas, sizes = golden[f"{case}/client_deltas"], golden[f"{case}/sizes"]
    series = [update_angles(torch.from_numpy(round_), sizes) for round_ in deltas]
    assert_near(smoothed_angles(series), golden[f"{case}/theta_smoothed"], 1e-7)


def test_smoothing_is_the_mean_so_far():
    series = np.random.default_rng(0).uniform(0, 3, (5, 2))
    assert_near(smoothed_angles(series), [series[: t + 1].mean(axis=0) for t in range(5)], 1e-12)


def test_the_report_of_a_round_has_the_same_angles(updates):
    base = torch.zeros(60, dtype=torch.float64)
    out = steelyard.aggregate("fedadp", base, updates, metrics={"num_examples": WEIGHTS.tolist()})
    assert_near(update_angles(updates, WEIGHTS), list(out.report["angles"].values()), 1e-12)


def test_errors_name_the_value_and_the_cure(updates):
    with pytest.raises(SteelyardError, match="lr=0"):
        gradient_divergence(updates, lr=0)
    with pytest.raises(SteelyardError, match=r"shape \[3\]: give angles \[rounds, clients\]"):
        smoothed_angles(np.zeros(3))
    with pytest.raises(SteelyardError, match="each of the 4 clients"):
        moving_distances(updates, [1])
