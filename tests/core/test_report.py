"""The report against direct computation."""

import numpy as np
import pytest
import torch

import steelyard


@pytest.fixture
def made():
    g = torch.Generator().manual_seed(0)
    base = torch.randn(300, generator=g, dtype=torch.float64)
    clients = base + torch.randn(5, 300, generator=g, dtype=torch.float64)
    return base, clients, {"num_examples": [5, 1, 2, 8, 4]}


@pytest.mark.parametrize("rule", ["fedavg", "fedadp", "fedawa_l:layers=[100,200]"])
def test_geometry(made, rule):
    base, clients, metrics = made
    out = steelyard.aggregate(rule, base, clients, metrics=metrics, diagnose=True)
    updates = (clients - base).numpy()
    step = (out.params - base).numpy()
    share = np.atleast_2d(out.weights.numpy()).mean(0)
    cosines = updates @ step / np.linalg.norm(updates, axis=1) / np.linalg.norm(step)
    unit = updates / np.linalg.norm(updates, axis=1, keepdims=True)
    pairs = [share[i] * share[j] * (unit[i] @ unit[j]) for i in range(5) for j in range(5) if i != j]
    assert list(out.report["norms"].values()) == pytest.approx(np.linalg.norm(updates, axis=1).tolist())
    assert list(out.report["cosines"].values()) == pytest.approx(cosines.tolist())
    assert out.report["update_norm"] == pytest.approx(np.linalg.norm(step))
    assert out.report["coherence"] == pytest.approx(sum(pairs) / 5)
    assert out.report["effective_clients"] == pytest.approx(1 / (share**2).sum())


def test_what_needs_a_gram_says_how_to_get_one(made):
    base, clients, metrics = made
    out = steelyard.aggregate("fedavg", base, clients, metrics=metrics)
    assert out.report["effective_clients"] == pytest.approx(20**2 / sum(n * n for n in metrics["num_examples"]))
    with pytest.raises(KeyError, match="diagnose=True"):
        out.report["coherence"]
    with pytest.raises(KeyError, match="nonsense"):
        out.report["nonsense"]


def test_a_closed_gate_costs_no_pass(made, monkeypatch):
    from steelyard import kernels

    base, clients, metrics = made
    passes = []
    original = kernels.gram
    monkeypatch.setattr(kernels, "gram", lambda *a, **k: passes.append(1) or original(*a, **k))
    rule = steelyard.gate(steelyard.eq6(first=False), steelyard.fedawa())
    quiet = steelyard.aggregate(rule, base, clients, metrics={**metrics, "grad_norm": [1.0] * 5})
    assert quiet.report["critical"] is False
    prior = steelyard.aggregate("fedavg", base, clients, metrics=metrics)
    assert torch.equal(quiet.weights, prior.weights)
    during = len(passes)
    loud = steelyard.aggregate(
        rule, base, clients, metrics={**metrics, "grad_norm": [9.0] * 5}, state=quiet.state, round=2
    )
    assert loud.report["critical"] is True
    assert during == 0
    assert len(passes) == 1
