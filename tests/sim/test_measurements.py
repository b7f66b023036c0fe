"""What a run measures of its global model: on clients' data, its Fisher trace, and its cohorts."""

import numpy as np
import pytest
import torch

import steelyard
from steelyard.client._losses import resolve_loss
from steelyard.core._errors import SteelyardError
from steelyard.data import Federation, load
from steelyard.diagnostics import (
    by_client,
    fisher_trace,
    heterogeneity_coherence,
    series,
    weighted_cosines,
)
from steelyard.models import build
from steelyard.report._build import build_report, find_figure

OPTIONS = {"rounds": 4, "clients": 4, "seed": 3, "partition": "dirichlet:0.5"}


def logistic(params):
    network = build("logistic", (1, 8, 8), 10, 0)
    network.load_state_dict(params)
    return network.eval()


def mean_loss(params, inputs, targets):
    with torch.no_grad():
        return float(resolve_loss("cross_entropy")(logistic(params)(inputs), targets))


@pytest.mark.parametrize("executor", ["serial", "process"])
def test_loss_on_clients_and_on_all_training_samples(executor):
    history = steelyard.simulate(
        "fedavg",
        "digits",
        "logistic",
        evaluate_clients=2,
        evaluate_train=3,
        executor=executor,
        workers=2,
        **OPTIONS,
    )
    train, test = load("digits")
    federation = Federation.partitioned(train, test, "dirichlet:0.5", 4, 3)
    last = history.records[-1]
    for client, index in enumerate(federation.index):
        inputs, targets = train.inputs[index], train.targets[index]
        loss = mean_loss(history.params, inputs, targets)
        assert last["client_loss"][str(client)] == pytest.approx(loss, rel=1e-5)
        with torch.no_grad():
            right = (logistic(history.params)(inputs).argmax(dim=1) == targets).float().mean()
        assert last["client_accuracy"][str(client)] == pytest.approx(float(right), abs=1e-6)
    assert last["train_loss"] == pytest.approx(
        mean_loss(history.params, train.inputs, train.targets), rel=1e-5
    )
    assert 0 < last["train_accuracy"] <= 1
    assert series(history, "train_loss").rounds.tolist() == [3, 4]
    assert by_client(history, "client_loss").rounds.tolist() == [2, 4]


def test_measurements_are_drawn_in_the_report(tmp_path):
    steelyard.simulate(
        "fedadp",
        "digits",
        "logistic",
        evaluate_clients=1,
        evaluate_train=1,
        evaluate_fisher=2,
        fisher_samples=10,
        out=tmp_path / "run",
        executor="serial",
        **OPTIONS,
    )
    report = build_report([tmp_path / "run"])
    assert find_figure(report, "train_loss").lines[0].x == (1, 2, 3, 4)
    assert find_figure(report, "fisher_trace").lines[0].x == (2, 4)
    names = [figure.name for figure in report.figures]
    assert {"train_accuracy", "client_loss", "client_accuracy"} <= {*names}
    assert {"heterogeneity_coherence", "weighted_cosine_gain"} <= {*names}


def test_training_samples_are_those_that_clients_train_on():
    history = steelyard.simulate(
        "fedavg",
        "digits",
        "logistic",
        evaluate_clients=1,
        evaluate_train=1,
        local={"train_share": 0.7},
        executor="serial",
        **OPTIONS | {"rounds": 30},
    )
    last = history.records[-1]
    held_out = np.mean(list(last["client_loss"].values()))
    assert last["train_loss"] < held_out


@pytest.mark.parametrize("executor", ["serial", "process"])
def test_the_fisher_trace_by_round(executor):
    history = steelyard.simulate(
        "fedavg",
        "digits",
        "logistic",
        evaluate_fisher=2,
        fisher_samples=10_000,
        executor=executor,
        workers=2,
        **OPTIONS,
    )
    traces = series(history, "fisher_trace")
    assert traces.rounds.tolist() == [2, 4]
    train, _ = load("digits")
    expected = fisher_trace(logistic(history.params), train.inputs)
    assert traces.values[-1] == pytest.approx(expected, rel=1e-4)
    assert traces.values[0] != traces.values[1]


def test_the_fisher_trace_of_few_samples_is_that_of_a_fixed_draw():
    options = OPTIONS | {"evaluate_fisher": 1, "fisher_samples": 20, "executor": "serial"}
    first, again = (steelyard.simulate("fedavg", "digits", "logistic", **options) for _ in range(2))
    assert first.column("fisher_trace") == again.column("fisher_trace")
    other = steelyard.simulate("fedavg", "digits", "logistic", **options | {"fisher_samples": 30})
    assert first.column("fisher_trace") != other.column("fisher_trace")
    assert first.accuracy == other.accuracy


def test_a_fisher_trace_needs_classes():
    data = (torch.randn(40, 3), torch.randn(40, 1))
    with pytest.raises(SteelyardError, match="evaluate_fisher=1"):
        steelyard.simulate(
            "fedavg", data, "logistic", loss="mse", evaluate_fisher=1, partition="iid", clients=2
        )


def test_heterogeneity_coherence_of_each_cohort():
    history = steelyard.simulate(
        "fedadp",
        "digits",
        "logistic",
        participation={"share": 0.5},
        executor="serial",
        **OPTIONS | {"clients": 8},
    )
    train, test = load("digits")
    federation = Federation.partitioned(train, test, "dirichlet:0.5", 8, 3)
    for record in history:
        cohort = [int(client) for client in record["weights"]]
        assert len(cohort) == 4
        expected = heterogeneity_coherence(
            federation.label_counts(), cohort, list(record["weights"].values())
        )
        assert record["heterogeneity_coherence"] == pytest.approx(expected, rel=1e-12)
    assert len(set(history.column("heterogeneity_coherence"))) == 4


def test_all_clients_by_size_are_coherent_with_themselves():
    history = steelyard.simulate("fedavg", "digits", "logistic", executor="serial", **OPTIONS)
    assert history.column("heterogeneity_coherence") == pytest.approx([1.0] * 4)


def test_numbers_without_labels_have_no_heterogeneity_coherence():
    data = (torch.randn(40, 3), torch.randn(40, 1))
    history = steelyard.simulate(
        "fedavg", data, "logistic", loss="mse", partition="iid", clients=2, rounds=1
    )
    assert "heterogeneity_coherence" not in history.records[0]


def test_theorem_2_on_the_record():
    # Three IID nodes and seven of one class, FedAdp's own setting.
    history = steelyard.simulate(
        "fedadp",
        "digits",
        "logistic",
        partition="x_class:classes=1,iid=3,samples=60",
        rounds=3,
        clients=10,
        seed=1,
        executor="serial",
    )
    for record in history:
        assert record["weighted_cosine"] > record["fedavg_weighted_cosine"]
    gains = series(history, "weighted_cosine_gain").values
    np.testing.assert_allclose(
        gains,
        np.subtract(history.column("weighted_cosine"), history.column("fedavg_weighted_cosine")),
    )
    fedavg = steelyard.simulate("fedavg", "digits", "logistic", executor="serial", **OPTIONS)
    np.testing.assert_allclose(series(fedavg, "weighted_cosine_gain").values, 0, atol=1e-12)


def test_the_sums_of_theorems_1_and_2_from_gradients():
    gradients = torch.randn(5, 40, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    psi, sizes = np.array([0.1, 0.2, 0.3, 0.3, 0.1]), np.array([10, 20, 5, 5, 10])
    mean = sizes / sizes.sum() @ gradients.numpy()
    cosines = np.array(
        [g @ mean / np.linalg.norm(g) / np.linalg.norm(mean) for g in gradients.numpy()]
    )
    sums = weighted_cosines(-gradients, psi, sizes)
    assert sums.rule == pytest.approx(psi @ cosines, rel=1e-12)
    assert sums.fedavg == pytest.approx(sizes / sizes.sum() @ cosines, rel=1e-12)
    assert sums.gain == pytest.approx(sums.rule - sums.fedavg)
