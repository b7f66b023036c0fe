"""Server optimizers against their equations, step by step."""

import numpy as np
import pytest
import torch

import steelyard
from tests.rounds import cohort, equal


def written_out(name, steps, lr):
    """The equations of the docstring in plain numpy."""
    theta, m, v = np.zeros(4), np.zeros(4), np.zeros(4)
    for t, d in enumerate(steps, 1):
        if name == "sgd":
            theta = theta + lr * d
        elif name in ("hsu", "ema", "fedcos"):
            keep = 1.0 if name == "hsu" or (name == "fedcos" and t == 1) else 0.1
            v = 0.9 * v + keep * d
            theta = theta + lr * v
        else:
            m = d if name == "adagrad" else 0.9 * m + 0.1 * d
            if name == "adam":
                v = 0.99 * v + 0.01 * d**2
            elif name == "yogi":
                v = v - 0.01 * d**2 * np.sign(v - d**2)
            else:
                v = v + d**2
            theta = theta + lr * m / (np.sqrt(v) + (1e-5 if name == "adam" else 1e-3))
    return theta


@pytest.mark.parametrize("name", ["sgd", "hsu", "ema", "fedcos", "adam", "yogi", "adagrad"])
def test_against_the_equations(name):
    rng = np.random.default_rng(0)
    steps = rng.standard_normal((6, 4))
    lr = 0.3
    conventions = ("hsu", "ema", "fedcos")
    server = steelyard.momentum(lr=lr, convention=name) if name in conventions else getattr(steelyard, name)(lr=lr)
    base, state = torch.zeros(4, dtype=torch.float64), None
    for t, step in enumerate(steps, 1):
        clients = base + torch.from_numpy(np.stack([step, step]))
        out = steelyard.aggregate("uniform", base, clients, state=state, server=server, round=t)
        base, state = out.params, out.state
    np.testing.assert_allclose(base.numpy(), written_out(name, steps, lr), rtol=1e-12)


@pytest.mark.parametrize("server", ["sgd:lr=0.5", "momentum", "momentum:convention=ema", "adam", "yogi", "adagrad"])
def test_state_can_be_saved_and_is_not_shared(server, tmp_path):
    base, clients = cohort(3)
    first = steelyard.aggregate("uniform", base, clients, server=server)
    steelyard.save_state(tmp_path / "s", first.state)
    once = steelyard.aggregate("uniform", first.params, clients, server=server, state=first.state, round=2)
    again = steelyard.aggregate(
        "uniform", first.params, clients, server=server, state=steelyard.load_state(tmp_path / "s"), round=2
    )
    assert equal(once.params, again.params)
    assert not equal(once.params, first.params)
    # Statistics and counters do not pass through the optimizer.
    plain = steelyard.aggregate("uniform", base, clients)
    assert torch.equal(first.params["bn.running_mean"], plain.params["bn.running_mean"])


def test_a_state_of_another_optimizer_is_refused():
    base, clients = cohort(2)
    first = steelyard.aggregate("uniform", base, clients, server="momentum")
    with pytest.raises(steelyard.SteelyardError, match="'momentum', not 'adam'"):
        steelyard.aggregate("uniform", base, clients, server="adam", state=first.state)


@pytest.mark.parametrize(
    "text",
    [
        "sgd:lr=0",
        "momentum:beta=2",
        "adam:betas=[2,0.9]",
        "adam:betas=0.9",
        "adam:betas=[0.9]",
        "yogi:betas=[0.9,1]",
        "yogi:tau=0",
        "momentum:convention=x",
    ],
)
def test_options_are_checked(text):
    with pytest.raises(steelyard.SteelyardError):
        steelyard.parse_optimizer(text)


def test_none_is_no_optimizer():
    plain = steelyard.aggregate("uniform", torch.zeros(3), torch.eye(3))
    for none in (None, "none", ""):
        out = steelyard.aggregate("uniform", torch.zeros(3), torch.eye(3), server=none, refine=none)
        assert torch.equal(out.params, plain.params)
