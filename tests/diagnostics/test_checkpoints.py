"""Spectra over the models that a run kept, and the path of the best weights."""

import numpy as np
import pytest
import torch

import steelyard
from steelyard.core._errors import SteelyardError
from steelyard.data import load
from steelyard.diagnostics import (
    OptimumPath,
    Surface,
    by_client,
    hessian_spectra,
    hessian_spectrum,
    read_models,
    series,
    simplex_grid,
)
from steelyard.models import build

OPTIONS = {"rounds": 6, "clients": 3, "seed": 2, "executor": "serial", "partition": "iid"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "kept"
    steelyard.simulate(
        "fedavg",
        "digits",
        "logistic",
        out=path,
        checkpoint_every=2,
        checkpoint_pace=1,
        keep=100,
        **OPTIONS,
    )
    return path


def test_every_second_model_is_kept_whatever_the_speed_of_the_disk(run):
    models = dict(read_models(run))
    assert list(models) == [2, 4, 6]
    for rounds, model in models.items():
        fresh = steelyard.simulate("fedavg", "digits", "logistic", **OPTIONS | {"rounds": rounds})
        for name, tensor in fresh.params.items():
            assert torch.equal(tensor, model[name])


def test_spectra_are_those_of_each_model(run):
    spectra = hessian_spectra(run, 5, samples=10_000, double=True)
    assert spectra.rounds.tolist() == [2, 4, 6]
    train, _ = load("digits")
    network = build("logistic", (1, 8, 8), 10, 0)
    for (_, model), values in zip(read_models(run), spectra.values, strict=True):
        network.load_state_dict(model)
        alone = hessian_spectrum(network, train.inputs, train.targets, 5, double=True)
        np.testing.assert_allclose(values, alone.values, rtol=1e-3)
    np.testing.assert_array_equal(spectra.top, spectra.values[:, 0])
    np.testing.assert_array_equal(spectra.ratio, spectra.values[:, 0] / spectra.values[:, 4])


def test_spectra_of_some_rounds_on_other_samples(run):
    _, test = load("digits")
    network = build("logistic", (1, 8, 8), 10, 0)
    spectra = hessian_spectra(run, 2, rounds=[4], model=network, data=test, samples=50)
    assert spectra.rounds.tolist() == [4]
    assert spectra.values.shape == (1, 2)
    with pytest.raises(SteelyardError, match="k=5"):
        _ = spectra.ratio


def test_a_round_that_was_not_kept(run, tmp_path):
    with pytest.raises(SteelyardError, match=r"no model of round 3 \(it has 2, 4, 6\)"):
        list(read_models(run, [3]))
    with pytest.raises(SteelyardError, match="no model of round 1"):
        list(read_models(tmp_path, [1]))


def test_a_run_on_own_data_needs_its_objects(tmp_path):
    train, _ = load("digits")
    data = (train.inputs[:60], train.targets[:60])
    steelyard.simulate("fedavg", data, "logistic", out=tmp_path / "own", **OPTIONS)
    with pytest.raises(SteelyardError, match="give model= and data="):
        hessian_spectra(tmp_path / "own")
    network = build("logistic", (1, 8, 8), 10, 0)
    assert len(hessian_spectra(tmp_path / "own", 1, model=network, data=data).rounds) >= 1


@pytest.fixture(scope="module")
def path_of_optimum():
    callback = OptimumPath(points=6, samples=100)
    history = steelyard.simulate(
        "fedavg", "digits", "logistic", callbacks=[callback], **OPTIONS | {"partition": "dirichlet"}
    )
    return callback, history


def test_the_best_weights_are_those_of_the_grid(path_of_optimum):
    callback, history = path_of_optimum
    table = by_client(history, "optimal_weights")
    assert table.values.shape == (6, 3)
    np.testing.assert_allclose(table.values.sum(axis=1), 1)
    grid = {tuple(np.round(row, 6)) for row in simplex_grid(6)}
    assert {tuple(np.round(row, 6)) for row in table.values} <= grid
    assert callback.last is not None
    losses = series(history, "optimal_weights_loss").values
    assert losses[-1] == callback.last.loss.min()
    assert len(set(losses.tolist())) == 6


def test_fedavgs_point_of_the_landscape_is_the_next_global_model(path_of_optimum):
    # The landscape is one of the round's own client models: mixed by size, they are the new model.
    callback, history = path_of_optimum
    _, test = load("digits")
    network = build("logistic", (1, 8, 8), 10, 0)
    surface = Surface(network, test.inputs[:100], test.targets[:100])
    expected = surface(history.params).loss
    assert callback.last.fedavg_loss == pytest.approx(expected, rel=1e-5)
    weights = list(history.records[-1]["weights"].values())
    np.testing.assert_allclose(callback.last.fedavg, weights, rtol=1e-12)


def test_the_path_needs_three_clients_and_a_test_set():
    with pytest.raises(SteelyardError, match="needs 3"):
        steelyard.simulate(
            "fedavg", "digits", callbacks=[OptimumPath()], **OPTIONS | {"clients": 4}
        )
    train, _ = load("digits")
    with pytest.raises(SteelyardError, match="no test set"):
        steelyard.simulate(
            "fedavg",
            (train.inputs, train.targets),
            "logistic",
            callbacks=[OptimumPath()],
            **OPTIONS,
        )
