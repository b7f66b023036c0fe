"""The landscape of weights on quadratics whose minimum is known, and of real networks at the corners."""

import numpy as np
import pytest
import torch
from torch import nn

from steelyard.core._errors import SteelyardError
from steelyard.diagnostics import Surface, simplex_grid, to_plane, weight_landscape

CLIENTS = torch.tensor([[2.0, 0.0, 1.0], [0.0, 3.0, 1.0], [0.0, 0.0, 5.0]], dtype=torch.float64)


def test_the_grid_is_the_simplex():
    grid = simplex_grid(5)
    assert grid.shape == (15, 3)
    assert len(np.unique(grid, axis=0)) == 15
    np.testing.assert_allclose(grid.sum(axis=1), 1)
    assert grid.min() == 0
    assert all(corner.tolist() in grid.tolist() for corner in np.eye(3))


def test_a_quadratic_has_its_minimum_where_it_was_put():
    best = np.array([0.2, 0.3, 0.5])
    centre = torch.from_numpy(best) @ CLIENTS

    def loss(theta):
        return (theta - centre).square().sum().item()

    found = weight_landscape(loss, CLIENTS, sizes=[1, 1, 2], points=11)
    np.testing.assert_allclose(found.optimum, best)
    assert found.optimum_loss == pytest.approx(0, abs=1e-20)
    np.testing.assert_allclose(found.fedavg, [0.25, 0.25, 0.5])
    expected = [loss(torch.from_numpy(weights) @ CLIENTS) for weights in found.weights]
    np.testing.assert_allclose(found.loss, expected, atol=1e-12)
    assert found.fedavg_loss == pytest.approx(
        loss(torch.tensor([0.25, 0.25, 0.5]).double() @ CLIENTS)
    )
    assert np.isnan(found.accuracy).all()
    assert np.isnan(found.fedavg_accuracy)


def test_clients_are_the_corners_of_an_equilateral_triangle():
    corners = to_plane(np.eye(3))
    sides = [np.linalg.norm(corners[i] - corners[j]) for i, j in ((0, 1), (1, 2), (2, 0))]
    np.testing.assert_allclose(sides, 1)
    np.testing.assert_allclose(to_plane(np.full(3, 1 / 3)), corners.mean(axis=0))
    found = weight_landscape(lambda theta: 0.0, CLIENTS, points=3)
    np.testing.assert_allclose(found.plane, to_plane(found.weights))


def network(seed):
    g = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    with torch.no_grad():
        for tensor in (*model.parameters(), model[1].running_mean):
            tensor.copy_(torch.randn(tensor.shape, generator=g))
        model[1].running_var.copy_(torch.rand(6, generator=g) + 0.5)
    return model.eval()


def test_networks_and_their_statistics_are_mixed():
    inputs = torch.randn(50, 4, generator=torch.Generator().manual_seed(9))
    targets = torch.arange(50) % 3
    models = [network(seed) for seed in range(3)]
    found = weight_landscape(
        Surface(network(7), inputs, targets), [model.state_dict() for model in models], points=2
    )
    assert found.weights.tolist() == [[0, 0, 1], [0, 1, 0], [1, 0, 0]]
    for model, loss, accuracy in zip(reversed(models), found.loss, found.accuracy, strict=True):
        outputs = model(inputs)
        assert loss == pytest.approx(nn.functional.cross_entropy(outputs, targets).item(), rel=1e-5)
        assert accuracy == pytest.approx((outputs.argmax(dim=1) == targets).double().mean().item())
    mean = network(0)
    mean.load_state_dict(
        {
            name: tensor
            if tensor.dtype == torch.int64
            else sum(m.state_dict()[name] for m in models) / 3
            for name, tensor in mean.state_dict().items()
        }
    )
    expected = nn.functional.cross_entropy(mean(inputs), targets).item()
    assert found.fedavg_loss == pytest.approx(expected, rel=1e-5)


def test_a_surface_keeps_the_networks_own_statistics_for_vectors():
    inputs, targets = torch.ones(4, 4), torch.arange(4) % 3
    surface = Surface(network(7), inputs, targets)
    own = nn.functional.cross_entropy(network(7)(inputs), targets).item()
    assert surface(surface.theta).loss == pytest.approx(own, rel=1e-6)
    assert surface(network(1).state_dict()).loss != pytest.approx(own, rel=1e-2)
    assert surface(surface.theta).loss == pytest.approx(own, rel=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: weight_landscape(lambda _: 0.0, CLIENTS[:2]), "2 clients"),
        (
            lambda: weight_landscape(lambda _: 0.0, [CLIENTS[0], CLIENTS[1], CLIENTS[2, :2]]),
            "number 2 is refused",
        ),
        (lambda: weight_landscape(lambda _: 0.0, CLIENTS, sizes=[1, 2]), "each of the 3 clients"),
        (lambda: simplex_grid(1), "points=1"),
        (
            lambda: weight_landscape(lambda _: np.nan, CLIENTS, points=2).optimum,
            "NaN at all points: give models",
        ),
        (
            lambda: weight_landscape(lambda _: np.nan, CLIENTS, points=2).optimum_loss,
            "NaN at all points: give models",
        ),
        (
            lambda: Surface(network(0), torch.ones(3, 4), torch.zeros(3).long())(torch.ones(2)),
            r"vector \[63\]",
        ),
        (lambda: Surface(network(0), torch.ones(3, 4), torch.zeros(3).long())({}), "missing key"),
    ],
)
def test_errors_name_the_value_and_the_cure(call, message):
    with pytest.raises(SteelyardError, match=message):
        call()
