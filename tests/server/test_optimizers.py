"""Server optimizers against their equations, step by step."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

import steelyard
from steelyard.core._errors import RoundOverflow
from tests.rounds import cohort, equal
from tests.sim.runs import clients, simulate


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
    server = (
        steelyard.momentum(lr=lr, convention=name)
        if name in conventions
        else getattr(steelyard, name)(lr=lr)
    )
    base, state = torch.zeros(4, dtype=torch.float64), None
    for t, step in enumerate(steps, 1):
        clients = base + torch.from_numpy(np.stack([step, step]))
        out = steelyard.aggregate("uniform", base, clients, state=state, server=server, round=t)
        base, state = out.params, out.state
    np.testing.assert_allclose(base.numpy(), written_out(name, steps, lr), rtol=1e-12)


@pytest.mark.parametrize(
    "server", ["sgd:lr=0.5", "momentum", "momentum:convention=ema", "adam", "yogi", "adagrad"]
)
def test_state_can_be_saved_and_is_not_shared(server, tmp_path):
    base, clients = cohort(3)
    first = steelyard.aggregate("uniform", base, clients, server=server)
    steelyard.save_state(tmp_path / "s", first.state)
    once = steelyard.aggregate(
        "uniform", first.params, clients, server=server, state=first.state, round=2
    )
    again = steelyard.aggregate(
        "uniform",
        first.params,
        clients,
        server=server,
        state=steelyard.load_state(tmp_path / "s"),
        round=2,
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


def run_rounds(server, size, count=4, rule="fedavg", first=1):
    """Rounds in which client 0 sends one update of this size in round `first`; returns what came of each."""
    theta, state, outcomes = torch.zeros(40), None, []
    for number in range(1, count + 1):
        updates = (
            theta
            + 1.0
            + 0.01 * torch.randn(10, 40, generator=torch.Generator().manual_seed(number))
        )
        if number == first:
            updates[0] = theta + size
        outcomes.append(
            steelyard.aggregate(
                rule,
                theta,
                updates,
                metrics={"num_examples": [10] * 10},
                server=server,
                state=state,
                round=number,
            )
        )
        theta, state = outcomes[-1].params, outcomes[-1].state
    return outcomes


@pytest.mark.parametrize("server", ["adam", "yogi", "adagrad", "momentum"])
@pytest.mark.parametrize("rule", ["fedavg", "guard(fedavg)", "uniform", "median"])
@pytest.mark.parametrize("size", [1e19, 1e20, 1e21, 1e30, 3e38, -3e38])
def test_what_an_optimizer_keeps_stays_finite_and_it_goes_on(server, rule, size):
    """With an infinite second moment, every step after it would be zero."""
    for outcome in run_rounds(server, size, rule=rule):
        slots = [
            value for value in outcome.state["server"].values() if isinstance(value, torch.Tensor)
        ]
        assert all(bool(torch.isfinite(slot).all()) for slot in slots)
        assert bool(torch.isfinite(outcome.params).all())


@pytest.mark.parametrize("server", ["yogi", "adagrad"])
def test_a_client_whose_update_cannot_be_squared_is_quarantined(server):
    poisoned = run_rounds(server, 1e21, first=2)
    (reason,) = poisoned[1].report["quarantined"].values()
    assert reason.startswith(f"its update is too large for the server optimizer {server}")
    assert "1.8e+19" in reason
    assert min((b.params - a.params).norm().item() for a, b in pairwise(poisoned)) > 1e-3


def test_a_round_that_overflows_by_nobody_s_fault_alone_is_refused_and_void_in_a_run():
    state = {"server": {"name": "adagrad", "rounds": 3, "v": torch.full((4,), 3e38)}}
    before = state["server"]["v"].clone()
    args = (torch.zeros(4), torch.full((2, 4), 1e19))
    with pytest.raises(
        RoundOverflow, match=r"state of the server optimizer adagrad overflows torch.float32"
    ):
        steelyard.aggregate("uniform", *args, server="adagrad", state=state)
    assert torch.equal(state["server"]["v"], before)
    void = steelyard.aggregate("guard(uniform)", *args, server="adagrad", state=state)
    assert "adagrad overflows" in void.report["void"]
    assert torch.equal(void.params, args[0])
    assert torch.equal(void.state["server"]["v"], before)


def test_a_simulated_run_survives_a_client_with_huge_numbers():
    """Its inputs are finite, and so is its update; nothing else is wrong with it."""
    data = clients()
    data["client-0"] = (data["client-0"][0] * 1e20, data["client-0"][1])
    for server in ("adam", "yogi", "adagrad"):
        history = simulate(
            steelyard.Algorithm("uniform", server=server),
            data,
            nn.Linear(5, 3),
            local={"lr": 100.0, "batch_size": 64},
        )
        assert [record["void"] for record in history if record.get("void")] == []
        assert "too large for the server optimizer" in history.records[0]["quarantined"]["client-0"]
        assert all(bool(torch.isfinite(tensor).all()) for tensor in history.params.values())
