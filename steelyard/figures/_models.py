"""Reads models and data of finished runs, for measurements after the runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

from steelyard.client._adapters import load_model as load_parameters
from steelyard.client._losses import resolve_loss
from steelyard.core._errors import SteelyardError
from steelyard.data import Federation
from steelyard.runs._checkpoint import MODEL
from steelyard.runs._directory import read_clients, read_config
from steelyard.runs._history import History
from steelyard.sim._experiment import Experiment
from steelyard.sim._inputs import build_federation, build_module, split_proxy
from steelyard.sim._simulate import simulate


def get_path(history: History) -> Path:
    """Return the directory of a run."""
    if history.path is None:
        raise SteelyardError(f"{history.name}: a run in memory has no directory: give out=")
    return history.path


def read_experiment(history: History) -> Experiment:
    """Return the settings of a run."""
    path = get_path(history)
    return Experiment.from_dict(read_config(path)["config"], str(path))


def load_federation(history: History) -> Federation:
    """Return the clients of a run with their data, and the test set without proxy samples."""
    experiment = read_experiment(history)
    federation = build_federation(experiment.data, experiment.seed)
    return split_proxy(federation, experiment.proxy, experiment.algorithm, experiment.seed)[0]


def load_model(history: History) -> nn.Module:
    """Return the network of a run with its final parameters."""
    experiment = read_experiment(history)
    federation = build_federation(experiment.data, experiment.seed)
    loss = resolve_loss(experiment.loss)
    model = build_module(experiment.model, federation, experiment.seed, loss)
    load_parameters(model, load_file(get_path(history) / "checkpoints" / "last" / MODEL))
    return model.eval()


def load_test_samples(history: History, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets of at most `count` test samples, without proxy samples."""
    test = load_federation(history).test
    if test is None:
        raise SteelyardError(f"{history.name}: has no test set: name one with data.test")
    positions = np.random.default_rng(0).permutation(len(test))[:count]
    samples = test.take(np.sort(positions))
    return samples.inputs, samples.targets


def read_label_counts(history: History) -> dict[str, Any]:
    """Return the samples of each class, by client id."""
    clients = read_clients(get_path(history))
    if clients is None or "counts" not in clients:
        raise SteelyardError(f"{history.name}: has no record of its clients' classes")
    return {
        str(client): counts
        for client, counts in zip(clients["ids"], clients["counts"], strict=True)
    }


def train_clients(history: History) -> list[Mapping[str, torch.Tensor]]:
    """Train each client of a finished run once more, for one round, from the final model.

    Args:
        history: the run.

    Returns:
        The models of the clients, as state dicts, in the order of the federation.
    """
    experiment = read_experiment(history)
    federation = load_federation(history)
    models = []
    for client, positions in zip(federation.ids, federation.index, strict=True):
        alone = Federation(federation.train, (client,), (positions,))
        trained = simulate(
            "uniform",
            alone,
            load_model(history),
            rounds=1,
            local=experiment.local,
            seed=experiment.seed,
            executor="serial",
            evaluate_every=0,
        )
        models.append(trained.params)
    return models
