"""The client half, and the mod for training code of one's own."""

import pytest
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import steelyard
from steelyard.flower import Asked, Steelyard, asked, client, partitioned, reporting, to_record
from steelyard.sim.rundir import read_log
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
    assert seen[10] >= {"num-examples", "loss", "grad-norm"}


def test_scaffold_keeps_its_control_at_the_client():
    grid = LocalGrid(runs.app(), runs.COUNT)
    runs.start(runs.strategy(steelyard.Algorithm("fedavg", client="scaffold")), grid, rounds=1)
    kept = [context.state.array_records["steelyard"] for context in grid.contexts.values()]
    assert all("scaffold.control" in record for record in kept)


def test_a_client_without_data_is_left_out(tmp_path):
    parts = runs.data()
    parts[3] = (parts[3][0][:0], parts[3][1][:0])
    grid = LocalGrid(runs.app(parts=parts), runs.COUNT)
    runs.start(runs.strategy("fedavg", out=tmp_path), grid, rounds=1)
    record = read_log(tmp_path)[0]
    assert set(record["weights"]) == {"0", "1", "2", "4"}


def test_another_model_than_the_servers_is_named(tmp_path):
    app = client(lambda context: torch.nn.Linear(5, 2), lambda context: runs.data()[0])
    with pytest.raises(Exception, match="void"):
        runs.start(runs.strategy("fedavg", out=tmp_path, patience=1), LocalGrid(app, runs.COUNT), rounds=1)
    failed = read_log(tmp_path)[0]["failed"]
    assert "the model received is not the one model_fn makes" in next(iter(failed.values()))


@pytest.mark.parametrize("local", [{"optimizer": "adam"}, {"momentum": 0.9, "persistent": True}])
def test_an_optimizer_that_a_term_cannot_bear_is_named(local, tmp_path):
    made = runs.strategy(steelyard.Algorithm("fedavg", client="scaffold"), out=tmp_path, patience=1)
    with pytest.raises(Exception, match="void"):
        runs.start(made, LocalGrid(runs.app(local=local), runs.COUNT), rounds=1)
    failed = read_log(tmp_path)[0]["failed"]
    assert "a mean gradient only under SGD whose velocity starts at zero" in next(iter(failed.values()))


def test_evaluation_is_on_the_test_data():
    inputs, targets = runs.data(seed=7)[0]
    app = runs.app(test_fn=lambda context: (inputs, targets))
    made = runs.strategy("fedavg", fraction_evaluate=1.0, min_evaluate_nodes=runs.COUNT)
    result = runs.start(made, LocalGrid(app, runs.COUNT), rounds=1)
    module = runs.model("mlp")
    module.load_state_dict(runs.params(result))
    loss = torch.nn.functional.cross_entropy(module(inputs), targets)
    assert result.evaluate_metrics_clientapp[1]["loss"] == pytest.approx(loss.item(), rel=1e-5)


def own(report, **options):
    app = ClientApp(**options)

    @app.train()
    def train(message, context):
        state = message.content["arrays"].to_torch_state_dict()
        moved = {name: tensor + 0.1 * (context.node_config["partition-id"] + 1) for name, tensor in state.items()}
        return Message(RecordDict({"arrays": ArrayRecord(moved), "metrics": MetricRecord(report)}), reply_to=message)

    return app


def test_the_mod_names_the_missing_metric(tmp_path):
    grid = LocalGrid(own({"num-examples": 5}, mods=[reporting]), runs.COUNT)
    with pytest.raises(Exception, match="void"):
        runs.start(runs.strategy("feddisco", out=tmp_path, patience=1), grid, rounds=1)
    (reason, *_) = read_log(tmp_path)[0]["failed"].values()
    assert "the server's rule needs 'label-hist', the number of examples of each class" in reason


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
        LocalGrid(runs.app(), runs.COUNT), to_record(runs.model("mlp").state_dict()), num_rounds=2, timeout=5
    )
    assert result.evaluate_metrics_clientapp[2]["loss"] < result.evaluate_metrics_clientapp[1]["loss"]


def test_what_is_asked():
    seen = []
    app = ClientApp()

    @app.train()
    def train(message, context):
        seen.append(asked(message))
        return Message(RecordDict({}), reply_to=message)

    made = runs.strategy(steelyard.Algorithm("fedavg", client="fedcos:mu=0.02"), patience=9)
    runs.start(made, LocalGrid(app, runs.COUNT), rounds=1)
    want = seen[0]
    assert isinstance(want, Asked)
    assert (want.round, want.rounds, want.seed, want.client) == (1, 1, 3, "fedcos")
    assert want.metrics == ("num_examples",)
    assert torch.equal(want.vectors["step"], torch.zeros(75))


def test_partitioned_says_what_a_node_lacks():
    grid = LocalGrid(client(lambda context: runs.model("mlp"), partitioned("digits")), 2, named=False)
    made = Steelyard("fedavg", fraction_evaluate=0.0, patience=1)
    with pytest.raises(Exception, match="the node has no partition-id or num-partitions"):
        made.start(grid, to_record(runs.model("mlp").state_dict()), num_rounds=1, timeout=1)
