"""examples/flower in our own simulator: what the same app gives on Flower, bit for bit."""

import tomllib
from pathlib import Path

import pytest
import torch

import steelyard
from steelyard.runs._checkpoint import read_verified

APP = Path(__file__).parent.parent.parent / "examples" / "flower"


class Models(steelyard.Callback):
    """The model after every round."""

    def __init__(self):
        self.seen = []

    def round(self, simulation, record):
        self.seen.append(simulation.server.model())


def simulated(clients, rounds, models):
    """The records of a run."""
    config = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    return steelyard.simulate(
        f"guard({config['algorithm']})",
        "digits",
        "mlp:hidden=[32]",
        rounds=rounds,
        clients=clients,
        partition="dirichlet:alpha=0.3",
        local={"lr": 0.1, "epochs": 2, "batch_size": 16},
        executor="serial",
        callbacks=[models],
    )


def assert_as_simulated(path, clients, rounds):
    """A run directory holds what the simulator gives: all rounds, all weights, and a model that learns."""
    models = Models()
    found, expected = steelyard.History.read(path), simulated(clients, rounds, models)
    assert [record["round"] for record in found] == list(range(1, rounds + 1))
    assert found.column("weights") == expected.column("weights")
    assert set(found.records[0]["weights"]) == {str(client) for client in range(clients)}
    assert found.column("accuracy") == pytest.approx(
        expected.column("accuracy"), abs=1e-6
    )  # a float32 there
    checkpoints = sorted((path / "checkpoints").glob("round-*"))
    assert len(checkpoints) == 2  # the last two are kept
    for checkpoint, model in zip(checkpoints, models.seen[-2:], strict=True):
        kept = read_verified(checkpoint).model
        assert kept.keys() == model.keys()
        assert all(torch.equal(kept[name], tensor) for name, tensor in model.items())
    assert found.final_accuracy > found.accuracy[0]
