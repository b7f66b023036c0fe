"""In the simulator, a client whose training runs away does not take the server's vectors with it."""

import pytest
import torch

import steelyard
from tests.sim.runs import clients, net, simulate


def run(client, scale, out=None, weighting="guard(uniform)"):
    """Eight clients, the inputs of one of them multiplied; returns the length of the model and the history."""
    data = clients(8)
    inputs, targets = data["client-5"]
    data["client-5"] = (inputs * scale, targets)
    algorithm = steelyard.Algorithm(weighting, client=client)
    local = {"lr": 0.05, "batch_size": 8}
    history = simulate(
        algorithm, data, net(), rounds=10, local=local, participation={"patience": 99}, out=out
    )
    return sum(
        value.double().square().sum().item() for value in history.params.values()
    ) ** 0.5, history


@pytest.mark.parametrize("client", ["feddyn", "feddyn:form=fedlaw", "scaffold", "vrlsgd"])
@pytest.mark.parametrize("scale", [30.0, 100.0])
def test_the_model_stays_as_long_as_it_is_without_the_client(client, scale):
    clean, _ = run(client, 1.0)
    attacked, _ = run(client, scale)
    assert attacked < 2 * clean


def test_the_guard_changes_nothing_where_all_is_well():
    _, plain = run("scaffold", 1.0, weighting="uniform")
    _, guarded = run("scaffold", 1.0)
    for name, value in plain.params.items():
        torch.testing.assert_close(guarded.params[name], value, rtol=1e-3, atol=1e-4)


def test_usual_lengths_survive_a_resume(tmp_path):
    data, options = clients(6), {"local": {"lr": 0.1, "batch_size": 8}, "executor": "serial"}
    algorithm = steelyard.Algorithm("guard(uniform)", client="scaffold")
    straight = steelyard.simulate(algorithm, data, net(), rounds=4, **options)
    steelyard.simulate(algorithm, data, net(), rounds=2, out=tmp_path / "run", **options)
    resumed = steelyard.simulate(
        algorithm, data, net(), rounds=4, out=tmp_path / "run", resume=True, **options
    )
    assert all(torch.equal(straight.params[name], value) for name, value in resumed.params.items())
