"""Rounds in which something goes wrong: nobody answers, bad data, NaN, errors in a user's code."""

import pytest
import torch
from torch import nn

import steelyard
from steelyard.core._errors import SteelyardError
from steelyard.runs._checkpoint import read_verified
from steelyard.sim._executors import TaskError
from steelyard.sim._simulator import RunStopped
from tests.sim.runs import ALGORITHMS, clients, net, same, simulate


def test_dropouts_and_stragglers_are_left_out_and_named():
    history = simulate(participation={"dropout": 0.4, "spread": 1.0, "deadline": 1.2}, rounds=8)
    dropped = [len(r["dropped_clients"]) for r in history.records]
    late = [len(r["late_clients"]) for r in history.records]
    assert 0 < sum(dropped) < 48
    assert sum(late) > 0
    for record in history.records:
        named = {*record["dropped_clients"], *record["late_clients"]}
        assert not named & set(record["weights"])
        assert record["void"] or len(named) + len(record["weights"]) == 6
    again = simulate(participation={"dropout": 0.4, "spread": 1.0, "deadline": 1.2}, rounds=8)
    assert same(history, again)


def test_nobody_in_a_round_makes_it_void_and_too_many_of_them_end_the_run():
    history = simulate(participation={"dropout": 0.9, "patience": 100}, rounds=20, seed=3)
    void = [r for r in history.records if r["void"]]
    assert void
    assert all(r["void"] == "no client took part" and r["weights"] == {} for r in void)
    with pytest.raises(
        RunStopped, match="5 rounds in a row were void, the last because: no client took part"
    ):
        simulate(participation={"dropout": 1.0}, rounds=9)
    with pytest.raises(RunStopped, match="2 rounds in a row were void"):
        simulate(participation={"dropout": 1.0}, rounds=2)


def test_void_rounds_that_are_not_in_a_row_do_not_end_a_run():
    rare = {"dropout": 0.8, "patience": 100}
    history = simulate(participation=rare, rounds=25, seed=3)
    voids = "".join("x" if r["void"] else " " for r in history.records)
    longest = max(map(len, voids.split()))
    assert voids.count("x") > longest + 1
    assert same(
        history, simulate(participation=rare | {"patience": longest + 1}, rounds=25, seed=3)
    )


def test_a_quorum():
    history = simulate(participation={"dropout": 0.5, "quorum": 4, "patience": 100}, rounds=12)
    assert {bool(r["void"]) for r in history.records} == {True, False}
    assert all(len(r["weights"]) >= 4 for r in history.records if not r["void"])
    assert all(
        r["void"].endswith(" clients were valid, fewer than the quorum of 4")
        for r in history.records
        if r["void"]
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"quorum": 8},
            "participation.quorum=8: only 6 of 6 clients are asked in a round: use at most 6",
        ),
        (
            {"quorum": 3, "share": 0.4},
            "participation.quorum=3: only 2 of 6 clients are asked in a round",
        ),
        ({"quorum": 3, "count": 2}, "participation.quorum=3: only 2 of 6 clients"),
        ({"count": 7}, "participation.count=7: there are only 6 clients"),
    ],
)
def test_more_than_there_are_is_refused(options, message):
    with pytest.raises(SteelyardError, match=message):
        simulate(participation=options)


def test_an_empty_client_is_quarantined_and_the_run_goes_on():
    data = clients() | {"empty": (torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64))}
    history = simulate(data=data)
    for record in history.records:
        assert record["quarantined"] == {"empty": "has no examples"}
        assert len(record["weights"]) == 6


@pytest.mark.parametrize("kind", ["mlp", "batch_norm"])
@pytest.mark.parametrize("executor", ["serial", "process"])
def test_one_sample_one_class_and_a_batch_larger_than_the_data(kind, executor):
    inputs, targets = clients(1)["client-0"]
    data = {
        "one": (inputs[:1], targets[:1]),
        "class": (inputs, torch.zeros_like(targets)),
        "nine": (inputs[:9], targets[:9]),  # a batch of 8 and one of 1
        "few": (inputs[:3], targets[:3]),
    }
    history = simulate(
        "fedadp", data, net(kind, classes=int(targets.max()) + 1), executor=executor, workers=2
    )
    assert all(r["quarantined"] == {} and len(r["weights"]) == 4 for r in history.records)
    assert all(torch.isfinite(value).all() for value in history.params.values())


@pytest.mark.parametrize("name", ["fedavg", "fedawa", "scaffold", "pa3fed"])
def test_a_client_whose_loss_becomes_nan_is_quarantined_and_the_run_goes_on(name):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = net()

        def forward(self, x):
            return self.inner(x) / (x[:, :1] < 50).float()  # infinite for the marked client

    data = clients()
    data["client-3"] = (data["client-3"][0] + 100, data["client-3"][1])
    history = simulate(ALGORITHMS[name], data, Odd(), executor="process", workers=2)
    for record in history.records:
        assert record["quarantined"] == {"client-3": "NaN or infinity in its parameters"}
        assert len(record["weights"]) == 5
    assert all(torch.isfinite(value).all() for value in history.params.values())


def test_all_clients_failing_is_one_clear_sentence(tmp_path):
    with pytest.raises(
        RunStopped, match=r"5 rounds in a row were void.*NaN or infinity.*lower learning rate"
    ) as caught:
        simulate(local={"lr": 1e30}, rounds=9, out=tmp_path / "run")
    assert "\n" not in str(caught.value)
    records = steelyard.History.read(tmp_path / "run").records
    assert len(records[-1]["quarantined"]) == 6
    assert read_verified(tmp_path / "run" / "checkpoints" / "last").round >= 1


@pytest.mark.parametrize("executor", ["serial", "process"])
def test_an_error_in_a_module_names_stage_round_and_client(executor):
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = net()

        def forward(self, x):
            if self.training and float(x.max()) > 50:
                raise ValueError("no such luck")
            return self.inner(x)

    data = clients()
    data["client-3"] = (data["client-3"][0] + 100, data["client-3"][1])
    message = "round 1, training, client 'client-3': ValueError: no such luck"
    with pytest.raises(TaskError, match=message) as caught:
        simulate("fedavg", data, Broken(), executor=executor, workers=2)
    if executor == "serial":
        assert isinstance(caught.value.__cause__, ValueError)
    else:
        assert "test_bad_input.py" in str(caught.value)


def test_an_error_in_failed_does_not_hide_the_runs_own():
    class Angry(steelyard.Callback):
        def round(self, simulation, record):
            raise ValueError("mine")

        def failed(self, simulation, error):
            raise KeyError("another")

    with (
        pytest.warns(RuntimeWarning, match="Angry.failed: KeyError"),
        pytest.raises(ValueError, match="mine"),
    ):
        steelyard.simulate(
            "fedavg",
            "digits",
            "logistic",
            rounds=1,
            clients=3,
            callbacks=[Angry()],
            executor="serial",
        )
