"""What aggregation weights follow and where they lead, by hand."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import steelyard
from steelyard.core._errors import SteelyardError
from steelyard.diagnostics._recorded import series
from steelyard.diagnostics._weights import (
    effective_clients,
    ideal_distances,
    ideal_model,
    run_correlations,
    run_similarity,
    similarity,
)
from steelyard.experiments._correlations import heterogeneity, pearson, weight_correlations
from tests.sim.runs import clients, net, simulate

COUNTS = np.array([[5, 5, 2], [20, 0, 0], [3, 3, 2], [1, 9, 2]])


def test_effective_clients():
    weights = np.array(
        [[0.25, 0.25, 0.25, 0.25], [1.0, 0, 0, 0], [0.5, 0.5, np.nan, np.nan], [2, 2, 0, 0]]
    )
    assert effective_clients(weights) == pytest.approx([4, 1, 2, 2])
    for nothing in ([0, 0], [[1, 1], [np.nan, 0]]):
        with pytest.raises(SteelyardError, match="all weights are 0"):
            effective_clients(nothing)
    history = simulate("fedadp", rounds=2)
    table = np.array([list(record["weights"].values()) for record in history])
    assert effective_clients(table) == pytest.approx(series(history, "effective_clients").values)


def test_similarity():
    assert similarity([1.0, 0.0], [1.0, 1.0]) == pytest.approx(np.sqrt(0.5))
    assert similarity([[3.0, 4.0, np.nan], [np.nan, 1.0, 1.0]], [6.0, 8.0, 1.0]) == pytest.approx(
        [1, 9 / np.sqrt(130)]
    )
    assert similarity([0.0, 0.0], [1.0, 1.0]) == 0
    with pytest.raises(SteelyardError, match=r"weights of 3 clients and a vector \[2\]"):
        similarity([1.0, 2.0, 3.0], [1.0, 2.0])


def test_heterogeneity_is_one_over_the_variance_of_shares():
    shares = COUNTS / COUNTS.sum(axis=1, keepdims=True)
    expected = [1 / np.mean((row - 1 / 3) ** 2) for row in shares]
    assert heterogeneity(COUNTS) == pytest.approx(expected)
    assert heterogeneity(10 * COUNTS) == pytest.approx(expected)  # sizes do not matter
    assert heterogeneity(COUNTS)[2] == heterogeneity(COUNTS).max()  # the most balanced
    assert heterogeneity([[2, 2], [1, 3]], floor=0.01).tolist() == [100.0, 16.0]
    with pytest.raises(SteelyardError, match=r"classes of client 0 are balanced, .*floor="):
        heterogeneity([[2, 2], [1, 3]])
    with pytest.raises(SteelyardError, match="client 1 has no sample"):
        heterogeneity([[2, 1], [0, 0]])


def test_correlations_of_accumulated_weights():
    weights = np.array([[0.4, 0.1, 0.5, np.nan], [0.3, np.nan, 0.3, 0.4]])
    sizes, degree = COUNTS.sum(axis=1), heterogeneity(COUNTS)
    found = weight_correlations(weights, sizes, COUNTS)
    total = [0.7, 0.1, 0.8, 0.4]
    assert found.size == pytest.approx(np.corrcoef(total, sizes)[0, 1])
    assert found.heterogeneity == pytest.approx(np.corrcoef(total, degree)[0, 1])
    assert found.product == pytest.approx(np.corrcoef(total, sizes * degree)[0, 1])
    assert weight_correlations(weights, [5, 5, 5, 5], COUNTS).size is None


def test_what_is_constant_but_for_rounding_has_no_correlation():
    assert pearson([0.1, 0.2, 0.7], [100.1, 100.1, 100.1]) is None
    assert pearson([0.1 + 0.2, 0.3, 0.3], [1, 2, 3]) is None
    assert pearson([1.0, 1.0 + 1e-9, 1.0 + 2e-9], [1, 2, 3]) == pytest.approx(1)


def test_pearson_wants_equally_many():
    with pytest.raises(SteelyardError, match="2 and 3 numbers"):
        pearson([1, 2], [1, 2, 3])


@pytest.fixture
def run(tmp_path):
    """A run whose directory says what clients hold."""
    data = clients()
    simulate("fedavg", data, out=tmp_path / "run", participation={"share": 0.5})
    sizes = [len(targets) for _, targets in data.values()]
    counts = [torch.bincount(targets, minlength=3).tolist() for _, targets in data.values()]
    (tmp_path / "run" / "clients.json").write_text(
        json.dumps({"ids": list(data), "sizes": sizes, "counts": counts})
    )
    return tmp_path / "run", dict(zip(data, sizes, strict=True)), np.array(counts)


def test_fedavgs_weights_are_the_sizes(run):
    path, sizes, _ = run
    assert run_similarity(path).values == pytest.approx(np.ones(4))
    assert run_similarity(path).rounds.tolist() == [1, 2, 3, 4]
    against = run_similarity(path, dict.fromkeys(sizes, 1.0)).values
    assert (against < 1).all()


def test_correlations_of_a_run(run):
    path, sizes, counts = run
    records = steelyard.History.read(path).records
    total = [sum(record["weights"].get(client, 0.0) for record in records) for client in sizes]
    found = run_correlations(path)
    assert found.size == pytest.approx(np.corrcoef(total, list(sizes.values()))[0, 1])
    assert found == weight_correlations(total, list(sizes.values()), counts)


def test_a_run_that_does_not_say_what_clients_hold(run):
    path, _, _ = run
    (path / "clients.json").write_text(json.dumps({"ids": [], "sizes": []}))
    with pytest.raises(SteelyardError, match="has no counts"):
        run_correlations(path)
    (path / "clients.json").unlink()
    with pytest.raises(SteelyardError, match="no record of its clients"):
        run_similarity(path)
    with pytest.raises(SteelyardError, match="a run in memory"):
        run_correlations(simulate(rounds=1))


def test_distances_to_the_ideal_vector():
    base = torch.tensor([5.0, -3.0])
    models = base + torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    ideal = base + torch.tensor([2.0, 2.0])
    found = ideal_distances(base, models, ideal, [3, 3])
    assert found.clients == pytest.approx([1 - np.sqrt(0.5)] * 2)
    assert found.merged == pytest.approx(0)
    found = ideal_distances(
        base,
        {"b": models[0], "a": models[1]},
        ideal + torch.tensor([1.0, 0.0]),
        [3, 1],
        "euclidean",
    )
    assert found.clients == pytest.approx([np.sqrt(8), np.sqrt(10)])  # in the order given
    assert found.merged == pytest.approx(np.hypot(2.25, 1.75))
    with pytest.raises(SteelyardError, match="one for each of 2 clients"):
        ideal_distances(base, models, ideal, [1, 2, 3])
    with pytest.raises(SteelyardError, match="metric='l1'"):
        ideal_distances(base, models, ideal, [1, 1], "l1")


def test_the_ideal_model_is_a_step_on_all_data():
    """One full batch, one step: -lr times the gradient of the loss on the union, though clients share samples."""
    federation = steelyard.Federation.of(clients(3))
    federation = steelyard.Federation(
        federation.train, (0, 1), (federation.index[0], np.arange(len(federation.train)))
    )
    model = net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = ideal_model(federation, model, {"lr": 0.1, "batch_size": len(federation.train)})
    loss = nn.functional.cross_entropy(model(federation.train.inputs), federation.train.targets)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    for (name, start), gradient in zip(model.named_parameters(), gradients, strict=True):
        assert torch.allclose(found[name], start - 0.1 * gradient, atol=1e-6)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_the_mixture_is_nearer_to_the_ideal_than_the_clients():
    """FedAWA, Fig. 3, on full batches: there the mixture by size is the ideal step itself."""
    federation, model = steelyard.Federation.of(clients(4)), net()
    local = {"lr": 0.1, "batch_size": len(federation.train)}
    models = []
    for index in federation.index:
        alone = steelyard.Federation(federation.train, (0,), (index,))
        run = steelyard.simulate("uniform", alone, model, rounds=1, local=local, executor="serial")
        models.append(run.params)
    found = ideal_distances(
        model.state_dict(), models, ideal_model(federation, model, local), federation.sizes
    )
    assert found.merged == pytest.approx(0, abs=1e-5)
    assert found.clients.min() > 0.01
