"""FedExP against the formulas of the paper and of the authors' code, written on whole vectors."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import steelyard
from steelyard.core._spec import to_text
from steelyard.testing import check_rule


def draw_round(seed, count, dim=40, size=1.0):
    """A global model, clients that partly agree, and their numbers of examples."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=dim)
    updates = size * (0.3 * common + rng.normal(size=(count, dim)))
    return rng.normal(size=dim), updates, rng.integers(1, 50, size=count)


def aggregate(rule, base, updates, sizes, **options):
    metrics = {"num_examples": sizes.tolist()}
    clients = torch.from_numpy(base + updates)
    return steelyard.aggregate(rule, torch.from_numpy(base), clients, metrics=metrics, **options)


@pytest.mark.parametrize("count", [1, 2, 5, 20])
@pytest.mark.parametrize("eps", [0.0, 1e-3, 0.5])
def test_the_papers_equation(count, eps):
    base, updates, sizes = draw_round(count, count)
    mean = sum(updates) / count
    ratio = sum(np.linalg.norm(update) ** 2 for update in updates)
    ratio /= 2 * count * (np.linalg.norm(mean) ** 2 + eps)
    out = aggregate(f"uniform|fedexp:eps={eps}", base, updates, sizes)
    np.testing.assert_allclose(out.params, base + max(1.0, ratio) * mean, rtol=1e-12, atol=1e-12)
    assert out.weights.sum().item() == pytest.approx(max(1.0, ratio), rel=1e-12)


@pytest.mark.parametrize("count", [1, 3, 20])
def test_the_steps_of_the_authors_code(count):
    """Weighted by size, and with the number of clients times eps."""
    base, updates, sizes = draw_round(7, count)
    eps = 0.1
    squares, mean, total = 0.0, np.zeros_like(base), 0.0
    for share, update in zip(sizes / sizes.sum(), updates, strict=True):
        squares += share * (update @ update)
        mean += share * update
        total += share
    mean /= total
    step_size = max(1, 0.5 * (squares / total) / (mean @ mean + count * eps))
    out = aggregate(f"fedexp:eps={eps},preset=official", base, updates, sizes)
    np.testing.assert_allclose(out.params, base + step_size * mean, rtol=1e-12, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 12),
    size=st.floats(1e-6, 1e6),
    eps=st.floats(0, 10),
)
def test_the_step_size_is_at_least_one_and_falls_with_eps(seed, count, size, eps):
    base, updates, sizes = draw_round(seed, count, size=size)
    out = aggregate(f"fedexp:eps={eps!r}", base, updates, sizes)
    shares = sizes / sizes.sum()
    total = out.weights.sum().item()
    assert total >= 1 - 1e-12
    np.testing.assert_allclose(out.weights / total, shares, rtol=1e-12)
    more = aggregate(f"fedexp:eps={eps + 1!r}", base, updates, sizes)
    assert more.weights.sum().item() <= total * (1 + 1e-12)


def test_equal_and_zero_updates_have_step_size_one():
    base = torch.ones(5, dtype=torch.float64)
    for updates in (torch.zeros(4, 5), torch.ones(4, 5)):
        out = steelyard.aggregate("uniform|fedexp:eps=0", base, base + updates)
        assert out.weights.tolist() == [0.25] * 4


def test_updates_that_cancel_need_eps():
    """The mean is zero: only eps keeps the step size finite, and the step is zero anyway."""
    base = torch.zeros(3, dtype=torch.float64)
    clients = torch.tensor([[1.0, 0, 0], [-1.0, 0, 0]], dtype=torch.float64)
    out = steelyard.aggregate("uniform|fedexp:eps=0.001", base, clients)
    assert out.weights.sum().item() == pytest.approx(1 / 0.002)
    assert out.params.abs().max().item() == 0
    out = steelyard.aggregate("uniform|fedexp:eps=0", base, clients)
    assert out.weights.sum().item() == 1


def test_layers_have_a_step_size_of_their_own():
    base, updates, sizes = draw_round(3, 8)
    out = aggregate("per_layer(fedexp):layers=[10,30]", base, updates, sizes)
    for layer, part in enumerate((slice(0, 10), slice(10, 40))):
        alone = aggregate("fedexp", base[part], updates[:, part], sizes)
        np.testing.assert_allclose(out.weights[layer], alone.weights, rtol=1e-12)


def test_the_guard_bounds_the_extrapolation():
    base, updates, sizes = draw_round(5, 20)
    out = aggregate("guard(fedexp)", base, updates - updates.mean(axis=0), sizes)
    assert out.weights.max().item() <= 3 / 20 + 1e-12


def test_text_and_contract():
    rule = steelyard.fedexp(eps=0.25, preset="official")
    assert steelyard.parse_rule(to_text(rule)) == rule
    check_rule(rule, sums_to_one=False)
    for wrong in ("fedexp:eps=-1", "fedexp:preset=code", "fedexp:eps=nan"):
        with pytest.raises(steelyard.SteelyardError):
            steelyard.parse_rule(wrong)
