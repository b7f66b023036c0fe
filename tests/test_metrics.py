"""What clients report: one liar never ends a round."""

import numpy as np
import pytest
import torch

import steelyard
from steelyard.metrics import METRICS, find_metric
from tests.sim.runs import simulate

BASE, CLIENTS = torch.zeros(4), torch.eye(4)[:3]


@pytest.mark.parametrize(
    ("rule", "name", "honest", "lie"),
    [
        ("fedavg", "num_examples", 5, 10**400),
        ("fedavg", "num_examples", 5, 1e308),
        ("fedavg", "num_examples", 5, float("nan")),
        ("fedavg", "num_examples", 5, "many"),
        ("fedavg:by=score", "score", 5.0, 1e300),
        ("uniform|fednova", "normalizer", 5.0, 1e-310),
        ("uniform|fednova", "normalizer", 5.0, 1e300),
        ("uniform|feddisco", "label_hist", [1, 2], [1, 10**400]),
        ("uniform|feddisco", "label_hist", [1, 2], torch.tensor(3.0)),
        ("uniform|feddisco", "label_hist", [1, 2], torch.ones(2, requires_grad=True)),
        ("uniform|feddisco", "label_hist", [1, 2], "12"),
        ("guard(uniform|feddisco)", "label_hist", [1, 2], [[1], [2, 3]]),
        ("uniform|feddisco", "label_hist", torch.tensor([1.0, 2.0]), torch.ones(3)),
        ("uniform|feddisco", "label_hist", range(1, 3), torch.tensor(2.0)),
    ],
)
def test_a_liar_is_quarantined_and_the_round_goes_on(rule, name, honest, lie):
    metrics = {"num_examples": [1, 1, 1], name: [honest, lie, honest]}
    out = steelyard.aggregate(rule, BASE, CLIENTS, metrics=metrics)
    assert list(out.report["quarantined"]) == [1]
    assert out.report["quarantined"][1].startswith(f"invalid {name}=")
    assert out.weights.tolist() == [0.5, 0.0, 0.5]


@pytest.mark.parametrize(
    "form", [list, tuple, np.array, torch.tensor, lambda values: dict(enumerate(values))]
)
def test_numbers_come_in_any_form(form):
    out = steelyard.aggregate("fedavg", BASE, CLIENTS, metrics={"num_examples": form([1, 2, 1])})
    assert out.weights.tolist() == [0.25, 0.5, 0.25]


@pytest.mark.parametrize(
    "form", [list, torch.tensor, np.array, lambda rows: [torch.tensor(row) for row in rows]]
)
def test_histograms_come_in_any_form(form):
    metrics = {"num_examples": [1, 1, 1], "label_hist": form([[1.0, 2.0]] * 3)}
    out = steelyard.aggregate("feddisco", BASE, CLIENTS, metrics=metrics)
    assert out.report["quarantined"] == {}


@pytest.mark.parametrize("metrics", [5, {"num_examples": 600}, [1, 2, 3], {"num_examples": [1, 2]}])
def test_what_is_no_table_is_refused_with_a_sentence(metrics):
    with pytest.raises(steelyard.SteelyardError, match="metrics"):
        steelyard.aggregate("fedavg", BASE, CLIENTS, metrics=metrics)


@pytest.mark.parametrize("name", [name for name, metric in METRICS.items() if metric.is_recorded])
def test_a_metric_has_the_same_value_alone_and_with_all_others(name):
    """An entry of the table says which models must be evaluated for the metric."""
    alone = simulate("fedavg", metrics=(name,), rounds=1).records[0]["reported"]
    together = simulate("fedavg", metrics=tuple(METRICS), rounds=1).records[0]["reported"]
    assert alone[name] == together[name]
    assert any(alone[name].values())


def test_a_metric_of_the_user_is_described_by_its_name():
    assert not find_metric("quality").may_be_negative
    assert find_metric("loss_on_proxy").may_be_negative
    assert find_metric("num_examples") is METRICS["num_examples"]
