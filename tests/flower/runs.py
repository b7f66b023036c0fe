"""Small federations to try strategies on."""

import logging

import pytest
import torch
from torch import nn

import steelyard
from steelyard.runs._directory import read_log
from tests.flower.grid import LocalGrid
from tests.sim.runs import clients, net

steelyard_flower = pytest.importorskip("steelyard.flower")
logging.getLogger("flwr").setLevel(logging.ERROR)

COUNT = 5
LOCAL = {"lr": 0.1, "batch_size": 8}
IMAGES = {"shape": (2, 6, 6)}


def images(seed=0):
    """A network with convolutions and BatchNorm."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(2, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, 6, 3),
            nn.Flatten(),
            nn.Linear(24, 3),
        )


def model(kind):
    return images() if kind == "images" else net(kind)


def data(kind="mlp", count=COUNT, seed=0):
    shape = (2, 6, 6) if kind in ("images", "cnn") else (5,)
    return dict(enumerate(clients(count, seed=seed, shape=shape).values()))


def app(kind="mlp", parts=None, **options):
    parts = data(kind) if parts is None else parts
    return steelyard_flower.client(
        lambda context: model(kind),
        lambda context: parts[context.node_config["partition-id"]],
        **{"local": LOCAL, **options},
    )


def strategy(algorithm, **options):
    given = {
        "min_train_nodes": COUNT,
        "fraction_evaluate": 0.0,
        "seed": 3,
        "population": COUNT,
        **options,
    }
    return steelyard_flower.Steelyard(algorithm, **given)


def start(made, grid=None, kind="mlp", rounds=3, **options):
    grid = LocalGrid(app(kind), COUNT, shuffle=1) if grid is None else grid
    initial = steelyard_flower.to_record(model(kind).state_dict())
    return made.start(grid, initial, num_rounds=rounds, timeout=30, **options)


def params(result):
    return steelyard_flower.to_state_dict(result.arrays)


def simulated(algorithm, kind="mlp", rounds=3, **options):
    given = {"rounds": rounds, "local": LOCAL, "executor": "serial", "seed": 3, **options}
    return steelyard.simulate(algorithm, data(kind), model(kind), **given)


def weights(directory):
    return [record["weights"] for record in read_log(directory)]


def same(a, b):
    return a.keys() == b.keys() and all(
        torch.equal(a[name], b[name]) and a[name].dtype == b[name].dtype for name in a
    )
