"""The client half, and the mod for training code of one's own."""

import logging

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import steelyard
from steelyard.core._errors import SteelyardError
from steelyard.flower import (
    Steelyard,
    TrainInstructions,
    client,
    partitioned,
    read_instructions,
    reporting,
    to_record,
)
from steelyard.runs._directory import read_log
from tests.flower import runs
from tests.flower.grid import LocalGrid


def test_it_reports_what_the_rule_needs_and_nothing_else():
    seen = []

    def change(number, reply):
        seen.append(set(reply.content["metrics"]))
        return reply

    for rule in ("uniform", "feddisco", "pa3fed"):
        runs.start(runs.strategy(rule), LocalGrid(runs.app(), runs.COUNT, change=change), rounds=1)
    assert seen[0] == {"num-examples"}
    assert seen[5] == {"num-examples", "label-hist"}
    assert seen[10] >= {"num-examples", "loss-before", "grad-norm"}


def test_scaffold_keeps_its_control_at_the_client():
    grid = LocalGrid(runs.app(), runs.COUNT)
    runs.start(runs.strategy(steelyard.Algorithm("fedavg", client="scaffold")), grid, rounds=1)
    kept = [context.state.array_records["steelyard"] for context in grid.contexts.values()]
    assert all("scaffold.control" in record for record in kept)


class Empty(torch.utils.data.Dataset):
    def __len__(self):
        return 0

    def __getitem__(self, at):
        raise IndexError


@pytest.mark.parametrize("kind", ["tensors", "torch"])
def test_a_client_without_data_is_left_out_and_named(kind, tmp_path):
    parts = runs.data()
    parts[3] = Empty() if kind == "torch" else (parts[3][0][:0], parts[3][1][:0])
    grid = LocalGrid(runs.app(parts=parts), runs.COUNT)
    runs.start(runs.strategy("fedavg", out=tmp_path), grid, rounds=1)
    record = read_log(tmp_path)[0]
    assert set(record["weights"]) == {"0", "1", "2", "4"}
    assert len(record["failed"]) == 1
    assert "client 3 has no data: data_fn returned an empty data set" in str(record["failed"])


def test_a_regression_has_a_loss_and_no_accuracy():
    parts = {c: (inputs, inputs.sum(dim=1, keepdim=True)) for c, (inputs, _) in runs.data().items()}
    seen = []

    def change(number, reply):
        seen.append(dict(reply.content["metrics"]))
        return reply

    app = client(
        lambda context: torch.nn.Linear(5, 1),
        lambda c: parts[c.node_config["partition-id"]],
        loss="mse",
    )
    made = runs.strategy(
        "fedavg", fraction_evaluate=1.0, min_evaluate_nodes=runs.COUNT, monitor="loss"
    )
    initial = to_record(torch.nn.Linear(5, 1).state_dict())
    result = made.start(
        LocalGrid(app, runs.COUNT, change=change), initial, num_rounds=1, timeout=30
    )
    evaluated = [metrics for metrics in seen if "loss" in metrics]
    assert len(evaluated) == runs.COUNT
    assert all(set(metrics) == {"loss", "num-examples"} for metrics in evaluated)
    measured = result.evaluate_metrics_clientapp[1]
    assert measured["loss"] > 0
    assert "accuracy" not in measured


def test_another_model_than_the_servers_is_named(tmp_path):
    app = client(lambda context: torch.nn.Linear(5, 2), lambda context: runs.data()[0])
    with pytest.raises(Exception, match="void"):
        runs.start(
            runs.strategy("fedavg", out=tmp_path, patience=1), LocalGrid(app, runs.COUNT), rounds=1
        )
    failed = read_log(tmp_path)[0]["failed"]
    assert "the received model is not that of model_fn" in next(iter(failed.values()))


@pytest.mark.parametrize("local", [{"optimizer": "adam"}, {"momentum": 0.9, "persistent": True}])
def test_an_optimizer_that_a_term_cannot_bear_is_named(local, tmp_path):
    made = runs.strategy(steelyard.Algorithm("fedavg", client="scaffold"), out=tmp_path, patience=1)
    with pytest.raises(Exception, match="void"):
        runs.start(made, LocalGrid(runs.app(local=local), runs.COUNT), rounds=1)
    failed = read_log(tmp_path)[0]["failed"]
    assert "a mean gradient only for SGD whose velocity starts at zero" in next(
        iter(failed.values())
    )


def test_evaluation_is_on_the_test_data():
    inputs, targets = runs.data(seed=7)[0]
    app = runs.app(test_fn=lambda context: (inputs, targets))
    made = runs.strategy("fedavg", fraction_evaluate=1.0, min_evaluate_nodes=runs.COUNT)
    result = runs.start(made, LocalGrid(app, runs.COUNT), rounds=1)
    module = runs.model("mlp")
    module.load_state_dict(runs.params(result))
    loss = torch.nn.functional.cross_entropy(module(inputs), targets)
    assert result.evaluate_metrics_clientapp[1]["loss"] == pytest.approx(loss.item(), rel=1e-5)


def own(report, confirm=False, name=None, **options):
    app = ClientApp(**options)

    @app.train()
    def train(message, context):
        state = message.content["arrays"].to_torch_state_dict()
        moved = {
            name: tensor + 0.1 * (context.node_config["partition-id"] + 1)
            for name, tensor in state.items()
        }
        said = (
            report if name is None else {**report, name: context.node_config["partition-id"] + 10}
        )
        reply = RecordDict({"arrays": ArrayRecord(moved), "metrics": MetricRecord(said)})
        if confirm:
            reply["steelyard"] = ConfigRecord({"client": read_instructions(message).client})
        return Message(reply, reply_to=message)

    return app


def test_the_mod_names_the_missing_metric(tmp_path):
    grid = LocalGrid(own({"num-examples": 5}, mods=[reporting]), runs.COUNT)
    with pytest.raises(Exception, match="void"):
        runs.start(runs.strategy("feddisco", out=tmp_path, patience=1), grid, rounds=1)
    (reason, *_) = read_log(tmp_path)[0]["failed"].values()
    assert "the server's rule needs 'label-hist', the number of examples of each class" in reason


def test_the_mod_names_all_of_them_together(tmp_path):
    grid = LocalGrid(own({"loss": 0.5}, mods=[reporting]), runs.COUNT)
    made = runs.strategy("feddisco|pa3fed:detector=criticalfl_window", out=tmp_path, patience=1)
    with pytest.raises(Exception, match="void"):
        runs.start(made, grid, rounds=1)
    (reason, *_) = read_log(tmp_path)[0]["failed"].values()
    for name in ("label-hist", "grad-norm", "num-examples"):
        assert f"'{name}', the" in reason


def test_a_client_of_ours_names_all_that_it_does_not_report(tmp_path):
    made = runs.strategy("fedavg", out=tmp_path, patience=1)
    grid = LocalGrid(runs.app(), runs.COUNT)
    real = grid.push_messages

    def push(messages):
        for message in messages:
            ours = message.content.config_records["steelyard"]
            ours["metrics"] = [*ours["metrics"], "heat", "pressure"]
        return real(messages)

    grid.push_messages = push
    with pytest.raises(Exception, match="void"):
        runs.start(made, grid, rounds=1)
    (reason, *_) = read_log(tmp_path)[0]["failed"].values()
    assert "asks for 'heat', 'pressure', which a steelyard client does not report" in reason


def test_what_clients_have_to_report_is_logged_before_the_first_round(caplog):
    with caplog.at_level(logging.INFO, logger="flwr"):
        runs.start(runs.strategy("feddisco"), rounds=1)
    before, _, _ = caplog.text.partition("[ROUND 1/1]")
    assert "Clients must report: label-hist, num-examples" in before


def test_the_mod_adds_the_id(tmp_path):
    grid = LocalGrid(own({"num-examples": 5}, mods=[reporting]), runs.COUNT)
    runs.start(runs.strategy("fedawa", out=tmp_path), grid, rounds=1)
    assert set(read_log(tmp_path)[0]["weights"]) == {"0", "1", "2", "3", "4"}


def test_under_another_key_for_examples(tmp_path):
    grid = LocalGrid(own({"n": 5}, mods=[reporting]), runs.COUNT)
    runs.start(runs.strategy("fedavg", out=tmp_path, weighted_by_key="n"), grid, rounds=1)
    assert len(read_log(tmp_path)[0]["weights"]) == 5


def test_stock_strategies_drive_our_clients():
    from flwr.serverapp.strategy import FedAvg

    result = FedAvg(min_train_nodes=runs.COUNT).start(
        LocalGrid(runs.app(), runs.COUNT),
        to_record(runs.model("mlp").state_dict()),
        num_rounds=2,
        timeout=5,
    )
    assert (
        result.evaluate_metrics_clientapp[2]["loss"] < result.evaluate_metrics_clientapp[1]["loss"]
    )


def test_what_is_asked():
    seen = []
    app = ClientApp()

    @app.train()
    def train(message, context):
        seen.append(read_instructions(message))
        return Message(RecordDict({}), reply_to=message)

    made = runs.strategy(steelyard.Algorithm("fedavg", client="fedcos:mu=0.02"), patience=9)
    runs.start(made, LocalGrid(app, runs.COUNT), rounds=1)
    want = seen[0]
    assert isinstance(want, TrainInstructions)
    assert (want.round, want.rounds, want.seed, want.client) == (1, 1, 3, "fedcos")
    assert want.metrics == ("num_examples",)
    assert torch.equal(want.vectors["step"], torch.zeros(75))


def test_partitioned_says_what_a_node_lacks():
    grid = LocalGrid(
        client(lambda context: runs.model("mlp"), partitioned("digits")), 2, named=False
    )
    made = Steelyard("fedavg", fraction_evaluate=0.0, patience=1)
    with pytest.raises(Exception, match="the node has no partition-id or num-partitions"):
        made.start(grid, to_record(runs.model("mlp").state_dict()), num_rounds=1, timeout=1)


@pytest.mark.parametrize("mods", [[], [reporting]])
@pytest.mark.parametrize("name", ["FedProx", "FedCos"])
def test_terms_that_nobody_adds_are_warned_of_once(name, mods, tmp_path, caplog):
    options = {"fraction_evaluate": 0.0, "out": tmp_path, "min_train_nodes": runs.COUNT}
    made = getattr(steelyard.flower, name)(**options)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        runs.start(made, LocalGrid(own({"num-examples": 5}, mods=mods), runs.COUNT), rounds=2)
    assert caplog.text.count("5 of 5 clients did not confirm that client=") == 1
    assert [len(record["unconfirmed"]) for record in read_log(tmp_path)] == [5, 5]


@pytest.mark.parametrize("client", ["scaffold", "feddyn"])
def test_terms_with_a_half_at_the_server_are_refused_where_nobody_adds_them(client):
    made = runs.strategy(steelyard.Algorithm("fedavg", client=client))
    with pytest.raises(
        SteelyardError,
        match=f"did not confirm that client={client} was added.*steelyard.flower.client",
    ):
        runs.start(made, LocalGrid(own({"num-examples": 5}), runs.COUNT), rounds=1)


def test_a_single_one_that_does_not_is_set_aside(tmp_path):
    def change(number, reply):
        if number == 2:
            reply.content["steelyard"] = ConfigRecord({"partition-id": 2})
        return reply

    made = runs.strategy(steelyard.Algorithm("fedavg", client="scaffold"), out=tmp_path)
    runs.start(made, LocalGrid(runs.app(), runs.COUNT, change=change), rounds=1)
    (record,) = read_log(tmp_path)
    assert "did not confirm that client=scaffold" in record["quarantined"]["2"]
    assert (record["unconfirmed"], set(record["weights"])) == ([2], {"0", "1", "3", "4"})


@pytest.mark.parametrize("mods", [[], [reporting]])
def test_training_code_of_ones_own_confirms(mods, tmp_path, caplog):
    app = own({"num-examples": 5}, confirm=True, mods=mods)
    made = runs.strategy(steelyard.Algorithm("fedavg", client="fedprox"), out=tmp_path)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        runs.start(made, LocalGrid(app, runs.COUNT), rounds=1)
    (record,) = read_log(tmp_path)
    assert record["unconfirmed"] == []
    assert "did not confirm" not in caplog.text
    assert len(record["weights"]) == 5


def test_the_id_of_a_metric_counts_where_the_node_has_none(tmp_path):
    grid = LocalGrid(own({"num-examples": 5}, mods=[reporting], name="hospital"), runs.COUNT)
    runs.start(runs.strategy("fedavg", out=tmp_path, id_key="hospital"), grid, rounds=1)
    assert set(read_log(tmp_path)[0]["weights"]) == {"10", "11", "12", "13", "14"}


def test_a_node_without_an_id_is_warned_of(caplog):
    parts = runs.data()
    app = client(
        lambda context: runs.model("mlp"),
        lambda context: parts[context.node_id % 5],
        local=runs.LOCAL,
    )
    with caplog.at_level(logging.WARNING, logger="flwr"):
        runs.start(runs.strategy("fedavg"), LocalGrid(app, runs.COUNT, named=False), rounds=1)
    assert "5 clients do not report 'partition-id'" in caplog.text
    assert "ClientApp(mods=[steelyard.flower.reporting])" in caplog.text
    assert "id_key=" in caplog.text


@pytest.mark.parametrize("key", ["model", "steelyard-model"])
def test_under_another_name_of_the_arrays(key, tmp_path):
    made = runs.strategy("fedavg", arrayrecord_key=key, out=tmp_path, fraction_evaluate=1.0)
    runs.start(made, rounds=1)
    (record,) = read_log(tmp_path)
    assert (record["failed"], record["quarantined"], record["evaluation"]["failed"]) == ({}, {}, {})
    assert record["accuracy"] is not None


def test_float_targets_under_cross_entropy_are_refused_with_the_cure(tmp_path):
    inputs = runs.data()[0][0]
    app = client(lambda context: runs.model("mlp"), lambda context: (inputs, inputs[:, 0]))
    with pytest.raises(Exception, match="void"):
        runs.start(
            runs.strategy("fedavg", out=tmp_path, patience=1), LocalGrid(app, runs.COUNT), rounds=1
        )
    failed = read_log(tmp_path)[0]["failed"]
    assert 'use loss="mse" for numbers' in next(iter(failed.values()))
