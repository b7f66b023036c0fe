"""What clients report and runs record, and what users bring: losses, modules, callbacks, cohorts."""

import numpy as np
import pytest
import torch
from torch import nn

import steelyard
from steelyard.core._errors import SteelyardError
from tests.sim.runs import ALGORITHMS, clients, net, same, simulate


def test_official_feddyn_is_evaluated_without_the_correction():
    got = {}

    class Spy(steelyard.Callback):
        def end(self, simulation):
            got["theta"], got["h"] = (
                simulation.buffers.theta.clone(),
                simulation.buffers.sent["feddyn.h"].clone(),
            )
            got["shown"] = simulation.server.params_to_evaluate().clone()

    simulate(steelyard.Algorithm("uniform", client="feddyn"), callbacks=[Spy()])
    assert got["h"].norm() > 0
    assert torch.equal(got["shown"], got["theta"] - got["h"])


def test_only_declared_metrics_are_computed():
    asked = {}

    class Spy(steelyard.Callback):
        def start(self, simulation):
            asked[simulation.work.algorithm.weighting.name] = simulation.work.metrics

    for rule in ("fedavg", "pa3fed", "feddisco", "fednova"):
        simulate(rule, rounds=1, callbacks=[Spy()])
    simulate("pa3fed:model=global,score=accuracy", rounds=1, callbacks=[Spy()])
    assert asked.pop("pa3fed") == ("accuracy_before", "grad_norm", "num_examples")
    simulate("pa3fed", rounds=1, callbacks=[Spy()])
    assert asked == {
        "fedavg": ("num_examples",),
        "pa3fed": ("grad_norm", "loss_before", "num_examples"),
        "feddisco": ("label_hist", "num_examples"),
        "fednova": ("normalizer", "num_examples"),
    }
    with pytest.raises(SteelyardError, match="clients cannot report 'iq'"):
        simulate(metrics=["iq"])


def test_reports_hold_what_they_say():
    reported = {}

    class Spy(steelyard.Callback):
        def round(self, simulation, record):
            names = simulation.work.metrics
            reported.update(
                {n: simulation.buffers.reports[:, i].tolist() for i, n in enumerate(names)}
            )
            reported["label_hist"] = simulation.buffers.class_reports["label_hist"].clone()

    data = clients(2)
    names = [
        "loss",
        "loss_before",
        "accuracy",
        "accuracy_before",
        "num_steps",
        "normalizer",
        "label_hist",
        "grad_norm",
    ]
    history = simulate(
        "fedavg", data, rounds=1, metrics=names, callbacks=[Spy()], local={"lr": 0.1, "epochs": 3}
    )
    assert reported["num_examples"] == [20, 23]
    assert reported["num_steps"] == reported["normalizer"] == [3, 3]
    for k, (inputs, targets) in enumerate(data.values()):
        with torch.no_grad():
            expected = nn.functional.cross_entropy(net()(inputs), targets).item()
        assert reported["loss_before"][k] == pytest.approx(expected, abs=1e-6)
        assert reported["loss"][k] < expected
        assert reported["label_hist"][k].tolist() == torch.bincount(targets, minlength=3).tolist()
    assert min(reported["grad_norm"]) > 0
    assert history.records[0]["lr"] == 0.1


def test_authors_way_all_train_then_a_cohort_is_drawn():
    trained = []

    class Spy(steelyard.Callback):
        def round(self, simulation, record):
            trained.append((len(record["weights"]), len(simulation.server.stateful_clients)))

    local = {"lr": 0.1, "momentum": 0.9, "persistent": True}
    simulate(
        local=local, participation={"share": 0.5, "train_all": True}, rounds=2, callbacks=[Spy()]
    )
    assert trained == [(3, 6), (3, 6)]
    trained.clear()
    simulate(local=local, participation={"share": 0.5}, rounds=1, callbacks=[Spy()])
    assert trained == [(3, 3)]


KEPT = [("scaffold", "control", True), ("feddyn", "h", True), ("feddyn:form=fedlaw", "h", False)]


@pytest.mark.parametrize(("term", "slot", "mean"), KEPT, ids=[term for term, _, _ in KEPT])
def test_where_all_train_the_servers_vector_stays_the_mean_of_the_clients(term, slot, mean):
    """Only the cohort files its vectors, unless the term's authors let all; optimizers' vectors are filed by all."""
    gaps, moved = [], []

    class Spy(steelyard.Callback):
        def round(self, simulation, record):
            name = f"{term.split(':')[0]}.{slot}"
            tables = simulation.buffers.tables
            gaps.append(
                float((simulation.buffers.sent[name] - tables[name].mean(dim=0)).abs().max())
            )
            moved.append({n: int(rows.any(dim=1).sum()) for n, rows in tables.items()})

    local = {"lr": 0.1, "batch_size": 8, "momentum": 0.9, "persistent": term != "scaffold"}
    algorithm = steelyard.Algorithm("uniform", client=term)
    simulate(
        algorithm, local=local, participation={"count": 2, "train_all": True}, callbacks=[Spy()]
    )
    assert (max(gaps) < 1e-6) == mean
    of_term, *of_optimizer = moved[0].values()
    assert of_term == (2 if mean else 6)
    assert of_optimizer == ([] if term == "scaffold" else [6])


@pytest.mark.parametrize("name", ["fedadp", "scaffold"])
def test_rows_and_clients_stay_together_whatever_order_they_train_in(name):
    data = dict(reversed(clients(12).items()))  # as text, client-10 comes before client-2
    options = {"rounds": 3, "metrics": ["num_examples"]}
    usual = simulate(ALGORITHMS[name], data, **options)
    authors = simulate(ALGORITHMS[name], data, participation={"train_all": True}, **options)
    assert same(usual, authors)


def test_seventy_thirty_split_weighs_by_all_data_and_trains_on_seventy_percent():
    got = {}

    class Spy(steelyard.Callback):
        def start(self, simulation):
            work = simulation.work
            got["parts"] = [tuple(map(len, work.split(k))) for k in range(6)]
            got["sizes"] = work.federation.sizes.tolist()

    history = simulate(local={"train_share": 0.7}, rounds=1, evaluate_clients=1, callbacks=[Spy()])
    assert got["parts"] == [(n - int(0.3 * n), int(0.3 * n)) for n in got["sizes"]]
    total = sum(got["sizes"])
    assert list(history.records[0]["weights"].values()) == pytest.approx(
        [n / total for n in got["sizes"]]
    )
    assert len(history.records[0]["client_accuracy"]) == 6


def test_evaluation_is_that_of_the_final_model():
    test = clients(1, seed=4, size=1200)["client-0"]
    history = simulate(test=test, rounds=6, evaluate_every=4)
    assert [r["round"] for r in history.records if "accuracy" in r] == [4, 6]
    module = net()
    module.load_state_dict(history.params)
    with torch.no_grad():
        outputs = module(test[0])
    assert history.final_accuracy == pytest.approx(
        (outputs.argmax(1) == test[1]).double().mean().item(), abs=1e-12
    )
    assert history.records[-1]["loss"] == pytest.approx(
        nn.functional.cross_entropy(outputs, test[1]).item(), abs=1e-5
    )


@pytest.mark.parametrize("name", ["fedavg", "fedadp", "fedawa", "pa3fed", "robust"])
def test_all_aggregation_is_the_cores(name):
    """Round by round, `aggregate` makes of the same updates, reports and state what the simulator made of them."""
    algorithm = ALGORITHMS[name]
    compared = []

    class Spy(steelyard.Callback):
        def start(self, simulation):
            self.theta, self.state = simulation.buffers.theta.clone(), None

        def round(self, simulation, record):
            buffers, names = simulation.buffers, simulation.work.metrics
            ids = list(record["weights"])
            reports = {
                n: dict(zip(ids, buffers.reports[: len(ids), i].tolist(), strict=True))
                for i, n in enumerate(names)
            }
            out = steelyard.aggregate(
                algorithm.weighting,
                self.theta,
                self.theta + buffers.matrix[: len(ids)],
                ids=ids,
                metrics=reports,
                state=self.state,
                round=record["round"],
                server=algorithm.server,
            )
            torch.testing.assert_close(out.params, buffers.theta, rtol=0, atol=1e-6)
            torch.testing.assert_close(
                out.weights.tolist(), list(record["weights"].values()), rtol=1e-4, atol=1e-6
            )
            self.theta, self.state = buffers.theta.clone(), out.state
            compared.append(record["round"])

    simulate(algorithm, rounds=6, participation={"share": 0.7}, callbacks=[Spy()])
    assert compared == [1, 2, 3, 4, 5, 6]


def test_users_own_loss_on_regression_data():
    g = torch.Generator().manual_seed(0)
    true = torch.randn(5, 1, generator=g)
    data = {}
    for k in range(3):
        x = torch.randn(30, 5, generator=g)
        data[k] = (x, x @ true)
    history = simulate(
        "fedavg", data, nn.Linear(5, 1), loss=nn.functional.mse_loss, test=data[0], rounds=30
    )
    assert history.records[-1]["accuracy"] is None
    assert history.records[-1]["loss"] < 0.05 * history.records[0]["loss"]


def test_a_module_with_views_in_its_forward_tied_and_frozen_parameters():
    class Usual(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(2, 4, 3)
            self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64)
            self.b.weight = self.a.weight
            self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
            self.out = nn.Linear(64, 3)

        def forward(self, x):
            x = self.conv(x).relu()
            x = x.view(x.size(0), -1)  # refuses channels-last activations
            return self.out(self.b(self.a(x).relu())) * self.frozen

    local = {"lr": 0.1, "weight_decay": 0.1, "momentum": 0.9}
    history = simulate("fedadp", clients(shape=(2, 6, 6)), Usual(), local=local)
    assert history.params["a.weight"].data_ptr() == history.params["b.weight"].data_ptr()
    assert torch.equal(history.params["frozen"], torch.ones(3))
    assert history.records[-1]["update_norm"] > 0


def test_the_users_module_and_data_are_left_alone():
    module, data = net(), clients()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    inputs = {name: pair[0].clone() for name, pair in data.items()}
    first = simulate("fedavg", data, module)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(torch.equal(pair[0], inputs[name]) for name, pair in data.items())
    assert same(first, simulate("fedavg", data, module))
    with pytest.raises(SteelyardError, match="model is a type"):
        simulate("fedavg", data, nn.Linear)


def test_channels_last_is_only_a_matter_of_memory():
    data = clients(shape=(2, 6, 6))

    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = net("cnn")

        def forward(self, x):
            x = self.inner[0](x)
            return self.inner[3](self.inner[1](x).view(x.size(0), -1))

    fast = simulate("fedadp", data, net("cnn"), rounds=3)
    usual = simulate("fedadp", data, Plain(), rounds=3)
    for name, value in fast.params.items():
        torch.testing.assert_close(usual.params[f"inner.{name}"], value, rtol=0, atol=1e-6)


def test_callbacks_are_called_and_may_end_a_run():
    calls = []

    class Spy(steelyard.Callback):
        def start(self, simulation):
            calls.append("start")

        def progress(self, simulation, round, done, total):
            calls.append((round, done, total))

        def round(self, simulation, record):
            calls.append(record["round"])
            return record["round"] == 2

        def end(self, simulation):
            calls.append("end")

    history = simulate(rounds=9, callbacks=[Spy()])
    assert len(history) == 2
    assert calls[0] == "start"
    assert calls[-1] == "end"
    assert (1, 4, 4) in calls


def test_history_is_pleasant():
    history = simulate(test=clients(1, seed=9)["client-0"], rounds=15)
    frame = history.to_pandas()
    assert list(frame.index) == list(range(1, 16))
    assert {"accuracy", "loss", "coherence", "weight.client-0", "seconds.train"} <= set(
        frame.columns
    )
    assert history.accuracy == history.column("accuracy")
    assert len(history.accuracy) == 15
    assert history.final_accuracy == history.records[-1]["accuracy"]
    assert history.best == max(history.accuracy)
    reached = history.rounds_to(history.best)
    assert history.records[reached - 1]["accuracy"] == history.best
    assert history.rounds_to(2.0) is None
    assert "<table>" in history._repr_html_()


def test_accuracy_is_the_curve_of_the_evaluated_rounds():
    sparse = simulate(test=clients(1, seed=9)["client-0"], rounds=5, evaluate_every=2)
    assert sparse.accuracy == [sparse.records[at]["accuracy"] for at in (1, 3, 4)]
    untested = simulate(rounds=2)
    assert untested.accuracy == []
    assert untested.final_accuracy is None


def test_cohorts_are_the_same_for_every_algorithm_and_can_be_given():
    share = {"share": 0.5}
    cohorts = [
        [list(r["weights"]) for r in simulate(rule, participation=share).records]
        for rule in ("fedavg", "fedadp")
    ]
    assert cohorts[0] == cohorts[1]
    assert len({tuple(cohort) for cohort in cohorts[0]}) > 1
    given = simulate(cohorts=[[0], [1, 2], [5], [3]])
    assert [list(r["weights"]) for r in given.records] == [
        ["client-0"],
        ["client-1", "client-2"],
        ["client-5"],
        ["client-3"],
    ]
    with pytest.raises(SteelyardError, match="2 of them for 4 rounds"):
        simulate(cohorts=[[0], [1]])
    with pytest.raises(SteelyardError, match=r"round 1 has \[0, 9\]"):
        simulate(cohorts=[[0, 9]] * 4)


def test_digits_learn_under_every_executor():
    history = steelyard.simulate("fedavg", rounds=30, partition="iid", local={"lr": 0.3}, seed=1)
    assert history.final_accuracy > 0.9
    assert np.isclose(sum(history.records[0]["weights"].values()), 1.0)
