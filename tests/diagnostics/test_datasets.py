"""Distances between clients' data, updates and models, against closed forms and brute force."""

import itertools
import sys

import numpy as np
import pytest
import torch

import steelyard
from steelyard.core._errors import SteelyardError
from steelyard.diagnostics._datasets import (
    client_distances,
    data_distances,
    data_vector,
    matrix_correlation,
)

ot = pytest.importorskip("ot", reason="POT is the extra [diagnostics]")


def cloud(count, seed=0, dim=3):
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))


def labels(count):
    return torch.zeros(count, dtype=torch.int64)


def test_a_shifted_cloud_is_as_far_as_the_shift():
    """W_2 of a distribution and its translate by v is |v|."""
    points, shift = cloud(60), torch.tensor([3.0, -4.0, 12.0])
    data = {
        "here": (points, labels(60)),
        "there": (points + shift, labels(60)),
        "again": (points.flip(0), labels(60)),
    }
    distances = data_distances(data)
    assert distances == pytest.approx(np.array([[0, 13, 0], [13, 0, 13], [0, 13, 0]]), abs=1e-5)


def test_equals_the_best_of_all_assignments():
    a, b = cloud(6, 1), cloud(6, 2)
    squares = ((a[:, None] - b[None]) ** 2).sum(-1).double().numpy()
    best = min(
        sum(squares[i, j] for i, j in enumerate(order))
        for order in itertools.permutations(range(6))
    )
    distances = data_distances({0: (a, labels(6)), 1: (b, labels(6))})
    assert distances[0, 1] == pytest.approx(np.sqrt(best / 6), rel=1e-6)


def test_equals_pot_between_sets_of_unequal_size():
    a, b = cloud(5, 1), cloud(9, 2)
    cost = ot.dist(a.double().numpy(), b.double().numpy())
    expected = np.sqrt(ot.emd2(np.full(5, 1 / 5), np.full(9, 1 / 9), cost))
    assert data_distances({0: (a, labels(5)), 1: (b, labels(9))})[1, 0] == pytest.approx(
        expected, rel=1e-6
    )


def test_labels_are_as_far_apart_as_their_samples():
    """Two points in each of two classes, 10 apart: a client with the other class pays for the label, too."""
    inputs = torch.tensor([[0.0], [0.0], [10.0], [10.0]])
    data = {0: (inputs[:2], labels(2)), 1: (inputs[2:], labels(2) + 1)}
    assert data_distances(data)[0, 1] == pytest.approx(10)
    assert data_distances(data, cost="labels")[0, 1] == pytest.approx(np.sqrt(10**2 + 10**2))
    swapped = {
        0: (inputs[:2], labels(2)),
        1: (inputs[:2], labels(2) + 1),
        2: (inputs[2:], labels(2) + 1),
    }
    between = 50.0  # class 0 is at 0; class 1 half at 0, half at 10: squared distance 50
    assert data_distances(swapped)[0, 1] == 0
    assert data_distances(swapped, cost="labels")[0, 1] == pytest.approx(np.sqrt(between))


def test_features_are_what_is_compared():
    points = cloud(20)
    data = {0: (points, labels(20)), 1: (points + torch.tensor([1.0, 0.0, 0.0]), labels(20))}
    assert data_distances(data, features=lambda x: x[:, 1:])[0, 1] == pytest.approx(0, abs=1e-6)
    assert data_distances(data, features=lambda x: 5 * x[:, :1])[0, 1] == pytest.approx(5, rel=1e-6)


def test_samples_are_drawn_by_seed():
    data = {k: (cloud(50, k), labels(50)) for k in range(2)}
    few = [data_distances(data, samples=8, seed=seed)[0, 1] for seed in (0, 0, 1)]
    assert few[0] == few[1] != few[2]
    assert data_distances(data, samples=50, seed=0)[0, 1] == pytest.approx(
        data_distances(data, seed=1)[0, 1]
    )


def test_data_vector_is_equation_5():
    """All data is half at 0 and half at 8: each client moves half of its mass by 8."""
    data = {"a": (torch.zeros(10, 1), labels(10)), "b": (torch.full((10, 1), 8.0), labels(10))}
    expected = 1 / (1 + np.sqrt(8**2 / 2))
    assert data_vector(data) == pytest.approx({"a": expected, "b": expected})


def test_vectors_and_models():
    base, clients = cloud(1, 5, 40)[0].double(), cloud(4, 6, 40).double()
    models = base + 0.1 * clients
    found = client_distances(base, models)

    def one_minus_cosine(rows):
        unit = (rows / rows.norm(dim=1, keepdim=True)).numpy()
        return 1 - unit @ unit.T

    assert found.vectors == pytest.approx(one_minus_cosine(clients), abs=1e-12)
    assert found.models == pytest.approx(one_minus_cosine(models), abs=1e-12)
    assert (
        found.models.max() < found.vectors[found.vectors > 0].min()
    )  # "the distances between models are similar"
    straight = client_distances(base, models, "euclidean")
    assert straight.vectors == pytest.approx(torch.cdist(models, models).numpy(), abs=1e-9)
    assert straight.models == pytest.approx(straight.vectors)


def test_clients_come_by_id():
    base, clients = cloud(1, 5, 10)[0], cloud(3, 6, 10)
    by_id = client_distances(
        {"w": base}, {"b": {"w": clients[0]}, "a": {"w": clients[1]}, "c": {"w": clients[2]}}
    )
    assert by_id.ids == ("a", "b", "c")
    assert by_id.vectors[0, 1] == pytest.approx(client_distances(base, clients).vectors[1, 0])


def test_correlation_of_matrices_looks_above_the_diagonal():
    a = np.array([[9.0, 1, 2], [1, 9, 3], [2, 3, 9]])
    b = np.array([[-5.0, 10, 20], [10, -5, 30], [20, 30, -5]])
    assert matrix_correlation(a, b) == pytest.approx(1)
    assert matrix_correlation(a, -b) == pytest.approx(-1)
    assert matrix_correlation(a, np.ones((3, 3))) is None


def test_client_vectors_tell_of_client_data_and_models_do_not():
    """FedAWA, Fig. 2 in small: half the clients have the first classes, half the last."""
    train, _ = steelyard.data.load("digits")
    low, high = (np.flatnonzero((train.targets < 5).numpy() == side) for side in (True, False))
    index = (*np.array_split(low[:300], 3), *np.array_split(high[:300], 3))
    federation = steelyard.Federation(train, tuple(range(6)), index)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    options = {"rounds": 1, "executor": "serial", "evaluate_every": 0}
    models = []
    for one in index:
        alone = steelyard.Federation(train, (0,), (one,))
        models.append(steelyard.simulate("uniform", alone, network, **options).params)
    found = client_distances(network.state_dict(), models)
    data = data_distances(federation, samples=60)
    assert matrix_correlation(data, found.vectors) > 0.9
    assert found.models.max() < found.vectors.max() / 5


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: data_distances(
                {0: (torch.ones(2, 1), labels(2)), 1: (torch.ones(0, 1), labels(0))}
            ),
            "client 1 has no",
        ),
        (lambda: data_distances({0: (torch.ones(2, 1), labels(2))}, cost="earth"), "cost='earth'"),
        (
            lambda: data_distances({0: (torch.ones(2, 1), torch.ones(2))}, cost="labels"),
            "not classes",
        ),
        (lambda: data_distances({0: (torch.ones(2, 1), labels(2))}, samples=0), "samples=0"),
        (lambda: matrix_correlation(np.ones((2, 2)), np.ones((2, 2))), "at least 3"),
        (lambda: matrix_correlation(np.ones((3, 3)), np.ones((4, 4))), r"\[3, 3\] and \[4, 4\]"),
        (lambda: client_distances(torch.zeros(2), torch.tensor([[0.0, np.nan]])), "client 0: NaN"),
        (lambda: client_distances(torch.zeros(2), torch.ones(2, 2), "l1"), "metric='l1'"),
    ],
)
def test_errors_are_one_sentence(call, words):
    with pytest.raises(SteelyardError, match=words):
        call()


def test_without_pot_there_is_a_cure(monkeypatch):
    monkeypatch.setitem(sys.modules, "ot", None)
    with pytest.raises(SteelyardError, match=r"pip install 'steelyard\[diagnostics\]'"):
        data_distances({0: (torch.ones(2, 1), labels(2)), 1: (torch.ones(2, 1), labels(2))})
