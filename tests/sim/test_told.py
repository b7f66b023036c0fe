"""What a record keeps of the clients' reports."""

import json

import numpy as np
import pytest

import steelyard
from steelyard.sim._evaluation import report_metrics
from tests.sim.runs import clients, simulate


def test_fgn_of_both_kinds():
    table = {
        "grad_norm": {"a": 1.0, "b": 4.0, "gone": 9.0},
        "num_examples": {"a": 3, "b": 1, "gone": 9},
    }
    record = report_metrics(table, ["a", "b"])
    assert record == {"reported": {"grad_norm": {"a": 1.0, "b": 4.0}}, "fgn": 1.75, "fgn_mean": 2.5}
    assert "fgn" not in report_metrics({"grad_norm": table["grad_norm"]}, ["a", "b"])
    assert report_metrics({"num_examples": table["num_examples"]}, ["a", "b"]) == {}


def test_numbers_are_short():
    assert report_metrics({"loss": {0: 1 / 3}}, [0]) == {"reported": {"loss": {0: 0.333333}}}


def test_a_run_records_what_was_asked_for():
    history = simulate("fedavg", metrics=("loss", "loss_before", "grad_norm"), rounds=2)
    sizes = np.array([len(targets) for _, targets in clients().values()])
    for record in history:
        assert set(record["reported"]) == {"loss", "loss_before", "grad_norm"}
        norms = np.array(list(record["reported"]["grad_norm"].values()))
        assert record["fgn"] == pytest.approx(sizes / sizes.sum() @ norms, rel=1e-5)
        assert record["fgn_mean"] == pytest.approx(norms.mean(), rel=1e-5)
        losses, before = record["reported"]["loss"], record["reported"]["loss_before"]
        assert sum(losses.values()) < sum(before.values())
    assert "reported" not in simulate("fedavg", rounds=1).records[0]


def test_a_line_of_a_hundred_clients_stays_small():
    """What is added for the figures, beside weights, norms and cosines by client: a few numbers."""
    data = dict(enumerate(clients(100, size=3).values()))
    plain = simulate("fedavg", data, rounds=1).records[0]
    bulky = ("weights", "norms", "cosines")
    assert (
        len(json.dumps({name: value for name, value in plain.items() if name not in bulky})) < 1000
    )
    asked = simulate(steelyard.Algorithm("pa3fed"), data, rounds=1).records[0]
    assert len(json.dumps(asked["reported"])) < 4000
    assert len(json.dumps(asked)) < 15_000
