"""Replies that are missing, wrong, late, double or failed: the round goes on, and the record says who and why."""

import logging
from dataclasses import dataclass

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord

import steelyard
from steelyard import SteelyardError
from steelyard.core._mixture import Mixture
from steelyard.core._needs import Needs
from steelyard.core._weighting import Info, Weighting
from steelyard.flower import client, to_record, to_state_dict
from steelyard.flower._server import FlowerServer
from steelyard.runs._directory import read_log
from tests.flower import runs
from tests.flower.grid import LocalGrid


def one_round(tmp_path, grid, **options):
    made = runs.strategy("fedavg", out=tmp_path, **options)
    made.start(grid, to_record(runs.model("mlp").state_dict()), num_rounds=1, timeout=0.5)
    (record,) = read_log(tmp_path)
    return record


def test_a_node_that_is_gone_is_named(tmp_path):
    grid = LocalGrid(runs.app(), runs.COUNT, gone=(2,))
    record = one_round(tmp_path, grid)
    assert record["failed"] == {"986": "node 986: the node is gone (code 5): Node unavailable"}
    assert set(record["weights"]) == {"0", "1", "3", "4"}


def test_in_later_rounds_by_its_own_id(tmp_path):
    grid = LocalGrid(runs.app(), runs.COUNT)
    made = runs.strategy("fedavg", out=tmp_path)
    real = grid.push_messages

    def push(messages):
        grid.gone = {2} if made.run_log.cohorts else set()
        return real(messages)

    grid.push_messages = push
    runs.start(made, grid, rounds=2)
    assert read_log(tmp_path)[1]["dropped_clients"] == ["2"]


def test_silence(tmp_path):
    record = one_round(tmp_path, LocalGrid(runs.app(), runs.COUNT, silent=(0,)))
    assert record["late_clients"] == [1000]
    assert record["failed"] == {"1000": "node 1000 did not answer within 0.5 s"}


def unavailable(reason):
    """The first client's reply becomes the SuperLink's error 3."""

    def change(number, reply):
        if number != 0:
            return reply
        made = Message(Error(code=3, reason=reason), reply_to=reply)
        made.metadata.__dict__["_reply_to_message_id"] = reply.metadata.reply_to_message_id
        return made

    return change


def test_a_message_that_ran_out_of_time_is_silence(tmp_path):
    record = one_round(
        tmp_path, LocalGrid(runs.app(), runs.COUNT, change=unavailable("Message Unavailable"))
    )
    assert record["late_clients"] == [1000]
    assert record["failed"] == {"1000": "node 1000 did not answer within 0.5 s"}


def test_an_exception_at_the_client(tmp_path):
    def change(number, reply):
        if number == 3:
            raise ValueError("disk full")
        return reply

    record = one_round(tmp_path, LocalGrid(runs.app(), runs.COUNT, change=change))
    assert "disk full" in record["failed"]["979"]
    assert "(code 2)" in record["failed"]["979"]


def test_double_and_stray_replies(tmp_path):
    plain = one_round(tmp_path / "plain", LocalGrid(runs.app(), runs.COUNT))

    def change(number, reply):
        if number == 1:
            return [reply, reply]
        if number == 2:
            stray = Message(reply.content, reply_to=reply)
            stray.metadata.__dict__["_reply_to_message_id"] = "of-another-round"
            return [stray, reply]
        return reply

    record = one_round(tmp_path / "odd", LocalGrid(runs.app(), runs.COUNT, change=change))
    assert record["weights"] == plain["weights"]
    assert len(record["unmatched_replies"]) == 2
    assert any("replied twice" in line for line in record["unmatched_replies"])
    assert any(
        "does not belong to a message of this round" in line for line in record["unmatched_replies"]
    )


def test_two_nodes_with_one_id(tmp_path):
    def change(number, reply):
        reply.content["steelyard"] = ConfigRecord({"partition-id": 0 if number == 4 else number})
        return reply

    records = [
        one_round(
            tmp_path / str(seed), LocalGrid(runs.app(), runs.COUNT, change=change, shuffle=seed)
        )
        for seed in (0, 1, 2)
    ]
    assert {tuple(record["quarantined"]) for record in records} == {("0 (node 1000)",)}
    assert len({str(record["weights"]) for record in records}) == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda content: content.pop("arrays"), "no ArrayRecord 'arrays'"),
        (lambda content: content["arrays"].pop("0.bias"), "missing key '0.bias'"),
        (
            lambda content: content["arrays"]["0.bias"].__dict__.update(data=b"junk"),
            "'0.bias' is not a numpy array",
        ),
        (
            lambda content: content["arrays"]["0.bias"].__dict__.update(stype="pickle"),
            "serialised as 'pickle'",
        ),
        (
            lambda content: content.__setitem__("arrays", to_record({"x": torch.zeros(2)})),
            "missing key",
        ),
        (lambda content: content.__setitem__("arrays", ArrayRecord()), "missing key"),
        (lambda content: content.pop("metrics"), "did not report 'num_examples'"),
        (
            lambda content: content["metrics"].__setitem__("num-examples", -3),
            "invalid num_examples=-3",
        ),
        (
            lambda content: content["metrics"].__setitem__("num-examples", [1, 2]),
            "invalid num_examples=",
        ),
    ],
)
def test_what_cannot_be_used_is_quarantined(tmp_path, change, reason):
    def spoil(number, reply):
        if number == 1:
            change(reply.content)
        return reply

    record = one_round(tmp_path, LocalGrid(runs.app(), runs.COUNT, change=spoil))
    assert reason in record["quarantined"]["1"]
    assert set(record["weights"]) == {"0", "2", "3", "4"}


def test_ids_fall_back_to_the_nodes_with_a_warning(tmp_path, caplog):
    parts = runs.data()
    app = runs.steelyard_flower.client(
        lambda context: runs.model("mlp"),
        lambda context: parts[context.node_id % 5],
        local=runs.LOCAL,
    )

    def nameless(number, reply):
        del reply.content["steelyard"]
        return reply

    with caplog.at_level(logging.WARNING, logger="flwr"):
        record = one_round(tmp_path, LocalGrid(app, runs.COUNT, change=nameless, named=False))
    assert set(record["weights"]) == {"1000", "993", "986", "979", "972"}
    assert "do not report 'partition-id'" in caplog.text


def test_ids_from_metrics_of_ones_own(tmp_path):
    def named(number, reply):
        reply.content["steelyard"] = ConfigRecord({"hospital": f"ward-{number}"})
        return reply

    record = one_round(tmp_path, LocalGrid(runs.app(), runs.COUNT, change=named), id_key="hospital")
    assert set(record["weights"]) == {f"ward-{k}" for k in range(5)}


def test_a_metric_nobody_reports_ends_the_run_with_the_cure():
    made = runs.strategy("feddisco")

    def silent(number, reply):
        del reply.content["metrics"]["label-hist"]
        return reply

    with pytest.raises(
        Exception, match="no client reported 'label-hist', the number of examples of each class"
    ):
        runs.start(made, LocalGrid(runs.app(), runs.COUNT, change=silent))


def test_all_metrics_that_nobody_reports_are_named_together():
    made = runs.strategy("feddisco|pa3fed:detector=criticalfl_window")

    def silent(number, reply):
        for name in ("label-hist", "grad-norm"):
            del reply.content["metrics"][name]
        return reply

    named = "'grad-norm', the .*; 'label-hist', the number of examples of each class: the rule needs all of them"
    with pytest.raises(SteelyardError, match=f"no client reported {named}"):
        runs.start(made, LocalGrid(runs.app(), runs.COUNT, change=silent))


@pytest.mark.parametrize(
    "parts", [{"weighting": "feddisco"}, {"weighting": "fedavg", "client": "scaffold"}]
)
def test_one_client_alone_does_not_end_the_run_by_what_it_leaves_out(parts, tmp_path):
    """The others are late in the first round: who answers may not report what the rule needs, or add the terms."""
    grid = LocalGrid(runs.app(), runs.COUNT, silent=(0, 2, 3, 4))
    made = runs.strategy(steelyard.Algorithm(**parts), out=tmp_path)
    real = grid.push_messages

    def spoil(number, reply):
        if number == 1:
            reply.content["metrics"].pop("label-hist", None)
            reply.content["steelyard"] = ConfigRecord({"partition-id": 1})
        return reply

    def push(messages):
        grid.silent = set() if made.run_log.cohorts else grid.silent
        return real(messages)

    grid.change, grid.push_messages = spoil, push
    made.start(grid, to_record(runs.model("mlp").state_dict()), num_rounds=2, timeout=0.3)
    first, second = read_log(tmp_path)
    assert first["void"]
    assert set(second["weights"]) == {"0", "2", "3", "4"}
    assert list(first["quarantined"]) == list(second["quarantined"]) == ["1"]


@pytest.mark.parametrize(
    "value", [None, [], [1.0, 2.0], float("nan"), float("inf"), 1e300, -(2**63)]
)
@pytest.mark.parametrize(
    "name",
    ["loss", "loss-before", "accuracy", "grad-norm", "label-hist", "num-steps", "normalizer"],
)
def test_a_metric_that_the_rule_does_not_need_may_be_anything(name, value, tmp_path):
    """It is on record where it is a number, and that is all."""

    def change(number, reply):
        metrics = reply.content["metrics"]
        metrics[name] = [1, 2, 3] if name == "label-hist" else 0.5
        if number == 1:
            del metrics[name]
            if value is not None:
                metrics[name] = value
        return reply

    record = one_round(tmp_path, LocalGrid(runs.app(), runs.COUNT, change=change))
    assert set(record["weights"]) == set("01234")
    reported = record.get("reported", {}).get(name.replace("-", "_"), {})
    assert "1" not in reported or reported["1"] == value


def test_a_rule_of_ones_own_may_need_a_metric_of_ones_own(tmp_path):
    @dataclass(frozen=True)
    class ByHeat(Weighting):
        name = "by_heat"
        needs = Needs.of("heat")
        modifies = False
        info = Info("weighs by heat", "", "no")

        def apply(self, prior, view, state):
            return Mixture.convex(view.metric("heat")[None, :]), state

    def change(number, reply):
        reply.content["metrics"]["heat"] = number + 1
        return reply

    made = runs.strategy(steelyard.Algorithm(ByHeat()), guard=False, out=tmp_path)
    app = client(
        lambda context: runs.model("mlp"),
        lambda context: runs.data()[context.node_config["partition-id"]],
    )
    grid = LocalGrid(app, runs.COUNT, change=change)
    real = grid.push_messages

    def push(messages):  # our own client would refuse to report it
        for message in messages:
            message.content.config_records["steelyard"]["metrics"] = ["num_examples"]
        return real(messages)

    grid.push_messages = push
    runs.start(made, grid, rounds=1)
    assert read_log(tmp_path)[0]["weights"] == pytest.approx(
        {str(k): (k + 1) / 15 for k in range(5)}
    )


def test_messages_live_as_long_as_the_round_waits():
    grid = LocalGrid(runs.app(), runs.COUNT)
    runs.start(runs.strategy("fedavg"), grid, rounds=1)
    assert set(grid.ttl) == {30}


def test_too_few_nodes_do_not_hang():
    made = runs.strategy("fedavg", min_available_nodes=9)
    with pytest.raises(Exception, match=r"5 of 9 nodes are connected after 0.1 s"):
        made.start(
            LocalGrid(runs.app(), runs.COUNT),
            to_record(runs.model("mlp").state_dict()),
            timeout=0.1,
        )


@pytest.mark.parametrize("wrong", ["missing", "nan", "short", "integers", "another name"])
def test_a_vector_that_cannot_be_used_changes_nothing_at_the_server(wrong):
    """SCAFFOLD's server variate moves by what the others tell; the client's model counts all the same."""

    def control(spoil):
        def change(number, reply):
            if number == 2:
                told = to_state_dict(reply.content["steelyard.told"])["scaffold.control"]
                spoil(reply.content, told)
            return reply

        made = runs.strategy(steelyard.Algorithm("fedavg", client="scaffold"))
        runs.start(made, LocalGrid(runs.app(), runs.COUNT, change=change), rounds=1)
        return made.server.state.vectors["scaffold.control"]

    def put(values, name="scaffold.control"):
        return lambda content, told: content.update(
            {"steelyard.told": to_record({name: values(told)})}
        )

    spoils = {
        "missing": lambda content, told: content.pop("steelyard.told"),
        "nan": put(lambda told: torch.where(torch.arange(len(told)) == 7, torch.nan, told)),
        "short": put(lambda told: told[:-1]),
        "integers": put(lambda told: told.long()),
        "another name": put(lambda told: told, "scaffold.other"),
    }
    silent = control(put(torch.zeros_like))
    assert torch.equal(control(spoils[wrong]), silent)
    assert not torch.equal(control(put(lambda told: told)), silent)


def test_a_reply_that_could_not_be_fetched_is_no_silence(tmp_path):
    record = one_round(
        tmp_path,
        LocalGrid(
            runs.app(), runs.COUNT, change=unavailable("Reply message objects are unavailable.")
        ),
    )
    assert (record["late_clients"], record["dropped_clients"]) == ([], ["1000"])
    assert "objects are unavailable" in record["failed"]["1000"]


def test_a_number_and_its_text_are_one_id(tmp_path):
    def change(number, reply):
        reply.content["steelyard"] = ConfigRecord({"partition-id": "0" if number == 4 else number})
        return reply

    record = one_round(tmp_path, LocalGrid(runs.app(), runs.COUNT, change=change))
    assert sum(record["weights"].values()) == pytest.approx(1.0)
    assert list(record["quarantined"]) == ["0 (node 1000)"]


@pytest.mark.parametrize("last", ["w", "num-examples"])
@pytest.mark.parametrize("scale", [1, 0.25])
def test_the_chosen_key_is_the_weight(last, scale, tmp_path):
    def change(number, reply):
        said = {"w": scale * (4 if number == 0 else 1), "num-examples": 10}
        reply.content["metrics"] = MetricRecord(
            {**{k: v for k, v in said.items() if k != last}, last: said[last]}
        )
        return reply

    grid = LocalGrid(runs.app(), runs.COUNT, change=change)
    record = one_round(tmp_path, grid, guard=False, weighted_by_key="w")
    assert record["weights"] == {"0": 0.5, "1": 0.125, "2": 0.125, "3": 0.125, "4": 0.125}


@pytest.mark.parametrize("bad", [0, -1.5, float("nan"), float("inf")])
def test_no_weights(bad, tmp_path):
    def change(number, reply):
        reply.content["metrics"] = MetricRecord({"w": bad if number == 0 else 0.5})
        return reply

    record = one_round(
        tmp_path, LocalGrid(runs.app(), runs.COUNT, change=change), weighted_by_key="w"
    )
    assert record["quarantined"]["0"] == f"invalid num_examples={bad}"


def test_without_the_chosen_key_the_number_of_examples(tmp_path):
    def change(number, reply):
        reply.content["metrics"] = MetricRecord({"num-examples": 3})
        return reply

    record = one_round(
        tmp_path, LocalGrid(runs.app(), runs.COUNT, change=change), weighted_by_key="w"
    )
    assert record["weights"] == {str(k): pytest.approx(0.2) for k in range(5)}


def test_a_metric_that_was_reported_before_voids_a_round(tmp_path):
    grid, made = LocalGrid(runs.app(), runs.COUNT), runs.strategy("feddisco", out=tmp_path)
    real = grid.push_messages

    def push(messages):
        second = len(made.run_log.cohorts) == 1
        grid.silent = {1, 2, 3, 4} if second else set()
        grid.change = (
            (lambda number, reply: reply.content["metrics"].pop("label-hist") and reply)
            if second
            else None
        )
        return real(messages)

    grid.push_messages = push
    made.start(grid, to_record(runs.model("mlp").state_dict()), num_rounds=3, timeout=0.3)
    records = read_log(tmp_path)
    assert [bool(record["void"]) for record in records] == [False, True, False]
    assert records[1]["quarantined"] == {"0": "did not report 'label_hist'"}


@pytest.mark.parametrize("share", [0.4, 1.0])
def test_the_population_is_who_is_connected(share, monkeypatch, tmp_path):
    seen, real = [], FlowerServer.aggregate

    def aggregate(self, number, model, results, population):
        seen.append(population)
        return real(self, number, model, results, population)

    monkeypatch.setattr(FlowerServer, "aggregate", aggregate)
    for base in (0, 5000):  # a resumed run has other node ids
        grid = LocalGrid(runs.app(), runs.COUNT)
        grid.ids = {node + base: number for node, number in grid.ids.items()}
        grid.contexts = {node + base: context for node, context in grid.contexts.items()}
        made = runs.strategy(
            "fedavg",
            population=None,
            fraction_train=share,
            min_train_nodes=2,
            out=tmp_path,
            resume=True,
        )
        runs.start(made, grid, rounds=3 if base else 1)
    assert seen == [runs.COUNT] * 3
