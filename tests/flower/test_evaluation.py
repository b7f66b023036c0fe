"""What clients report of the model, and functions of the user's own that look at it."""

import logging

import pytest
from flwr.app import Message, MessageType, MetricRecord, RecordDict

import steelyard
import steelyard.flower
from steelyard.sim.rundir import read_log
from tests.flower import runs
from tests.flower.grid import LocalGrid


def evaluated(tmp_path, change=None, **options):
    """One round; `change(number, reply)` acts on evaluations alone."""

    def only(number, reply):
        return reply if change is None or reply.content.array_records else change(number, reply)

    made = runs.strategy("fedavg", out=tmp_path, fraction_evaluate=1.0, **options)
    result = runs.start(made, LocalGrid(runs.app(), runs.COUNT, change=only), rounds=1)
    return result.evaluate_metrics_clientapp.get(1), read_log(tmp_path)[0]


def report(reply, **metrics):
    reply.content["metrics"] = MetricRecord({"num-examples": 10, **metrics})
    return reply


def test_who_answers_five_times_counts_once(tmp_path):
    def change(number, reply):
        return [report(reply, accuracy=float(number == 0))] * (5 if number == 0 else 1)

    _, record = evaluated(tmp_path, change)
    assert record["accuracy"] == pytest.approx(0.2)
    assert len(record["evaluation"]["strays"]) == 4


def test_the_order_of_replies_does_not_change_bits(tmp_path):
    found = set()
    for seed in (None, 1, 2, 3):
        made = runs.strategy("fedavg", out=tmp_path / str(seed), fraction_evaluate=1.0)
        runs.start(made, LocalGrid(runs.app(), runs.COUNT, shuffle=seed), rounds=2)
        found.add(tuple(read_log(tmp_path / str(seed))[1]["client_evaluation"].values()))
    assert len(found) == 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_one_that_is_no_number_is_left_out(bad, tmp_path):
    found, _ = evaluated(
        tmp_path, lambda number, reply: report(reply, accuracy=bad if number == 0 else 0.5, loss=float(number))
    )
    assert dict(found) == {"accuracy": 0.5, "loss": pytest.approx(2.0)}


@pytest.mark.parametrize("bad", [float("inf"), float("nan"), 0, -1])
def test_so_is_a_weight_that_is_none(bad, tmp_path):
    def change(number, reply):
        report(reply, accuracy=0.0 if number == 0 else 0.5)
        reply.content["metrics"]["num-examples"] = bad if number == 0 else 10
        return reply

    assert dict(evaluated(tmp_path, change)[0]) == {"accuracy": pytest.approx(0.5)}


def test_who_does_not_answer_is_on_record(tmp_path, caplog):
    def change(number, reply):
        if number == 2:
            raise ValueError("no test data")
        return [] if number == 3 else reply

    made = runs.strategy("fedavg", out=tmp_path, fraction_evaluate=1.0)
    grid = LocalGrid(runs.app(), runs.COUNT)
    grid.change = lambda number, reply: reply if reply.content.array_records else change(number, reply)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        made.start(grid, runs.steelyard_flower.to_record(runs.model("mlp").state_dict()), num_rounds=1, timeout=0.3)
    (record,) = read_log(tmp_path)
    assert (record["failed"], record["late"]) == ({}, [])
    assert (record["evaluation"]["dropped"], record["evaluation"]["late"]) == (["2"], [3])
    assert "no test data" in record["evaluation"]["failed"]["2"]
    assert "round 1, evaluation, client 3: node 979 did not answer" in caplog.text


def test_nobody_answers(tmp_path):
    def change(number, reply):
        raise ValueError("broken")

    found, record = evaluated(tmp_path, change)
    assert found is None
    assert record["accuracy"] is None
    assert len(record["evaluation"]["failed"]) == runs.COUNT


@pytest.mark.parametrize("client", ["fedcos", "scaffold", "feddyn"])
def test_terms_do_not_matter(client, tmp_path):
    """Their vectors are sent with training messages alone."""
    made = runs.strategy(steelyard.Algorithm("uniform", client=client), out=tmp_path, fraction_evaluate=1.0)
    runs.start(made, rounds=2)
    record = read_log(tmp_path)[1]
    assert record["evaluation"]["failed"] == {}
    assert record["accuracy"] > 0


def test_functions_of_ones_own_see_replies_as_they_are(tmp_path):
    seen = []

    def fold(contents, weight):
        seen.append([sorted(content) for content in contents])
        return MetricRecord({"sum": sum(content["metrics"][weight] for content in contents)})

    def change(number, reply):
        reply.content["mine"] = MetricRecord({"loss": 0.5, f"only-{number}": 1.0})
        return reply

    options = {"train_metrics_aggr_fn": fold, "evaluate_metrics_aggr_fn": fold, "fraction_evaluate": 1.0}
    result = runs.start(runs.strategy("fedavg", **options), LocalGrid(runs.app(), runs.COUNT, change=change), rounds=1)
    assert seen == [[["arrays", "metrics", "mine", "steelyard"]] * 5, [["metrics", "mine"]] * 5]
    total = sum(len(targets) for _, targets in runs.data().values())
    assert result.train_metrics_clientapp[1]["sum"] == total
    assert result.evaluate_metrics_clientapp[1]["sum"] == total


class OwnMessages(steelyard.flower.Steelyard):
    """Asks for evaluation in its own way, as subclasses of Flower's strategies do."""

    def configure_evaluate(self, server_round, arrays, config, grid):
        content = RecordDict({"arrays": arrays, "config": config})
        nodes = grid.get_node_ids()
        return [Message(content, dst_node_id=node, message_type=MessageType.EVALUATE) for node in nodes]


class EverySecond(steelyard.flower.Steelyard):
    def configure_evaluate(self, server_round, arrays, config, grid):
        return super().configure_evaluate(server_round, arrays, config, grid) if server_round % 2 else []


@pytest.mark.parametrize(("kind", "rounds"), [(OwnMessages, [1, 2, 3]), (EverySecond, [1, 3])])
def test_a_subclass_asks_whom_and_when_it_likes(kind, rounds, tmp_path):
    nodes = dict.fromkeys(("min_train_nodes", "min_evaluate_nodes", "min_available_nodes"), runs.COUNT)
    made = kind("fedavg", out=tmp_path, seed=3, **nodes)
    result = runs.start(made, LocalGrid(runs.app(), runs.COUNT), rounds=3)
    assert list(result.evaluate_metrics_clientapp) == rounds
    log = read_log(tmp_path)
    assert [record["round"] for record in log if record["accuracy"] is not None] == rounds
    assert all(not record["evaluation"]["failed"] for record in log)


def test_a_function_may_be_set_later(tmp_path):
    made = runs.strategy("fedavg", out=tmp_path, fraction_evaluate=1.0)
    made.evaluate_metrics_aggr_fn = lambda contents, weight: MetricRecord({"replies": len(contents)})
    made.train_metrics_aggr_fn = made.evaluate_metrics_aggr_fn
    result = runs.start(made, LocalGrid(runs.app(), runs.COUNT), rounds=1)
    assert dict(result.evaluate_metrics_clientapp[1]) == {"replies": runs.COUNT}
    assert dict(result.train_metrics_clientapp[1]) == {"replies": runs.COUNT}
