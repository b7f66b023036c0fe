"""FedCos's example against an independent implementation of it, and the paper's claim about it."""

import numpy as np
import pytest

import steelyard
from steelyard.core._errors import SteelyardError
from steelyard.diagnostics import THREE_CLIENTS, TWO_CLIENTS, trajectory
from tests.golden import arrays, assert_near

GOLDEN = arrays("fedcos_toy_derived")


@pytest.mark.parametrize(
    ("name", "term", "rounds", "tolerance"),
    [
        ("fedavg_0", None, 80, 1e-12),
        ("fedprox_0.1", steelyard.fedprox(mu=0.2), 80, 1e-12),  # the authors' has no 1/2
        ("fedcos_0.2", steelyard.fedcos(mu=0.2), 80, 1e-8),
        (
            "fedcos_0.5",
            steelyard.fedcos(mu=0.5),
            9,
            1e-6,
        ),  # chaotic: the last bit decides from then on
    ],
)
def test_trajectories(name, term, rounds, tolerance):
    assert_near(trajectory(term=term, rounds=rounds).points, GOLDEN[name][: rounds + 1], tolerance)


def test_the_optimum():
    assert_near(TWO_CLIENTS.optimum, GOLDEN["global_opt"], 1e-12)
    around = THREE_CLIENTS.optimum + 1e-3 * np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])
    assert (THREE_CLIENTS.loss(around) > THREE_CLIENTS.loss(THREE_CLIENTS.optimum)).all()


def test_the_functions_of_footnote_3_and_the_starts():
    assert (TWO_CLIENTS.start, THREE_CLIENTS.start) == ((5.1, -3.1), (4.53, 0.38))
    x, y = 4.0, 1.5
    first = 0.5 * (x - 6) ** 2 + 0.75 * (x - 6) * y + 0.5 * y**2
    second = 0.5 * (x - 3) ** 2 - 0.5 * (x - 3) * y + 0.5 * y**2
    assert TWO_CLIENTS.loss(np.array([x, y])) == pytest.approx(first + second, rel=1e-12)


@pytest.mark.parametrize("toy", [TWO_CLIENTS, THREE_CLIENTS])
def test_fedcos_comes_closer_to_the_optimum_than_fedavg(toy):
    plain, cosine = trajectory(toy), trajectory(toy, steelyard.fedcos(mu=0.2))
    assert plain.points[0].tolist() == list(toy.start)
    assert plain.points.shape == (81, 2)
    assert cosine.closest < 0.7 * plain.closest
    assert plain.closest == pytest.approx(
        np.linalg.norm(plain.points[1:] - toy.optimum, axis=1).min()
    )


@pytest.mark.parametrize("toy", [TWO_CLIENTS, THREE_CLIENTS])
def test_fedavg_rests_in_the_middle_of_the_local_optima(toy):
    assert_near(trajectory(toy, rounds=3, steps=400).points[-1], np.mean(toy.optima, axis=0), 1e-3)


def test_errors_name_the_value_and_the_cure():
    with pytest.raises(SteelyardError, match="'scaffold' keeps vectors"):
        trajectory(term=steelyard.scaffold())
    with pytest.raises(SteelyardError, match="steps=0"):
        trajectory(steps=0)
