"""What clients report of the model, and functions of the user's own that look at it."""

import logging

import pytest
from flwr.app import Array, ArrayRecord, Message, MessageType, MetricRecord, RecordDict

import steelyard
import steelyard.flower
from steelyard.runs._directory import read_log
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
    assert len(record["evaluation"]["unmatched_replies"]) == 4


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
        tmp_path,
        lambda number, reply: report(
            reply, accuracy=bad if number == 0 else 0.5, loss=float(number)
        ),
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
    grid.change = lambda number, reply: (
        reply if reply.content.array_records else change(number, reply)
    )
    with caplog.at_level(logging.WARNING, logger="flwr"):
        made.start(
            grid,
            runs.steelyard_flower.to_record(runs.model("mlp").state_dict()),
            num_rounds=1,
            timeout=0.3,
        )
    (record,) = read_log(tmp_path)
    assert (record["failed"], record["late_clients"]) == ({}, [])
    assert (record["evaluation"]["dropped_clients"], record["evaluation"]["late_clients"]) == (
        ["2"],
        [3],
    )
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
    made = runs.strategy(
        steelyard.Algorithm("uniform", client=client), out=tmp_path, fraction_evaluate=1.0
    )
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

    options = {
        "train_metrics_aggr_fn": fold,
        "evaluate_metrics_aggr_fn": fold,
        "fraction_evaluate": 1.0,
    }
    result = runs.start(
        runs.strategy("fedavg", **options),
        LocalGrid(runs.app(), runs.COUNT, change=change),
        rounds=1,
    )
    assert seen == [[["arrays", "metrics", "mine", "steelyard"]] * 5, [["metrics", "mine"]] * 5]
    total = sum(len(targets) for _, targets in runs.data().values())
    assert result.train_metrics_clientapp[1]["sum"] == total
    assert result.evaluate_metrics_clientapp[1]["sum"] == total


class OwnMessages(steelyard.flower.Steelyard):
    """Asks for evaluation in its own way, as subclasses of Flower's strategies do."""

    def configure_evaluate(self, server_round, arrays, config, grid):
        content = RecordDict({"arrays": arrays, "config": config})
        nodes = grid.get_node_ids()
        return [
            Message(content, dst_node_id=node, message_type=MessageType.EVALUATE) for node in nodes
        ]


class EverySecond(steelyard.flower.Steelyard):
    def configure_evaluate(self, server_round, arrays, config, grid):
        return (
            super().configure_evaluate(server_round, arrays, config, grid)
            if server_round % 2
            else []
        )


@pytest.mark.parametrize(("kind", "rounds"), [(OwnMessages, [1, 2, 3]), (EverySecond, [1, 3])])
def test_a_subclass_asks_whom_and_when_it_likes(kind, rounds, tmp_path):
    nodes = dict.fromkeys(
        ("min_train_nodes", "min_evaluate_nodes", "min_available_nodes"), runs.COUNT
    )
    made = kind("fedavg", out=tmp_path, seed=3, **nodes)
    result = runs.start(made, LocalGrid(runs.app(), runs.COUNT), rounds=3)
    assert list(result.evaluate_metrics_clientapp) == rounds
    log = read_log(tmp_path)
    assert [record["round"] for record in log if record["accuracy"] is not None] == rounds
    assert all(not record["evaluation"]["failed"] for record in log)


def test_a_function_may_be_set_later(tmp_path):
    made = runs.strategy("fedavg", out=tmp_path, fraction_evaluate=1.0)
    made.evaluate_metrics_aggr_fn = lambda contents, weight: MetricRecord(
        {"replies": len(contents)}
    )
    made.train_metrics_aggr_fn = made.evaluate_metrics_aggr_fn
    result = runs.start(made, LocalGrid(runs.app(), runs.COUNT), rounds=1)
    assert dict(result.evaluate_metrics_clientapp[1]) == {"replies": runs.COUNT}
    assert dict(result.train_metrics_clientapp[1]) == {"replies": runs.COUNT}


def lying(lie):
    """Client 1 says of its evaluation what it likes: `lie(round)` are its metrics."""
    rounds = []

    def change(number, reply):
        if reply.content.array_records:
            rounds.extend([number] if number == 0 else [])
        elif number == 1:
            reply.content["metrics"].update(lie(len(rounds)))
        return reply

    return change


def evaluations(tmp_path, change=None, rounds=3, **options):
    made = runs.strategy(
        "fedavg", out=tmp_path, **{"fraction_evaluate": 1.0, "min_evaluate_nodes": 5, **options}
    )
    grid = LocalGrid(runs.app(), runs.COUNT, change=change)
    made.start(
        grid,
        runs.steelyard_flower.to_record(runs.model("mlp").state_dict()),
        num_rounds=rounds,
        timeout=2,
    )
    return read_log(tmp_path)


@pytest.fixture(scope="module")
def honest_evaluation(tmp_path_factory):
    """The evaluation of a round in which client 1 trains, but does not evaluate."""

    def silent(number, reply):
        return [] if number == 1 and not reply.content.array_records else reply

    (record,) = evaluations(tmp_path_factory.mktemp("silent"), silent, rounds=1)
    return record["client_evaluation"]


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        (
            {"accuracy": 1e9, "num-examples": 10**15},
            "invalid accuracy=1000000000.0: report a number from 0 to 1",
        ),
        ({"accuracy": 1.0000001}, "invalid accuracy=1.0000001"),
        ({"accuracy": -1}, "invalid accuracy=-1"),
        ({"accuracy": 2**63 - 1}, "invalid accuracy=9223372036854775807"),
        ({"accuracy": [0.5, 7.0]}, "invalid accuracy=[0.5, 7.0]"),
        ({"loss": 1e16}, "invalid loss=1e+16"),
        ({"loss": -(2**63)}, "invalid loss=-9223372036854775808"),
        ({"mine": [1.0, 1e300]}, "invalid mine=[1.0, 1e+300]"),
        ({"num-examples": 0}, "invalid num-examples=0"),
        ({"num-examples": -1}, "invalid num-examples=-1"),
        ({"num-examples": 2.5}, "invalid num-examples=2.5"),
        ({"num-examples": 2**63 - 1}, "invalid num-examples=9223372036854775807"),
        ({"num-examples": [10]}, "invalid num-examples=[10]"),
        ({"num-examples": float("nan")}, "invalid num-examples=nan"),
    ],
)
def test_a_report_that_cannot_be_right_is_quarantined(lie, reason, tmp_path, honest_evaluation):
    (record,) = evaluations(tmp_path, lying(lambda number: lie), rounds=1)
    ((who, said),) = record["evaluation"]["quarantined"].items()
    assert (who, said[: len(reason)]) == ("1", reason)
    assert record["client_evaluation"] == honest_evaluation


def test_percentages_are_taken_where_most_clients_report_them(tmp_path):
    def in_percent(number, reply):
        metrics = reply.content.metric_records["metrics"]
        if "accuracy" in metrics and not reply.content.array_records:
            metrics["accuracy"] = 1e9 if number == 1 else 100 * metrics["accuracy"]
        return reply

    (record,) = evaluations(tmp_path / "percent", in_percent, rounds=1)
    assert list(record["evaluation"]["quarantined"]) == ["1"]
    assert 1 < record["accuracy"] <= 100


def test_one_that_claims_much_data_counts_for_no_more_than_a_few(tmp_path):
    clean = evaluations(tmp_path / "clean")
    much = evaluations(
        tmp_path / "much", lying(lambda number: {"accuracy": 1.0, "num-examples": 10**15})
    )
    sizes = sorted(len(targets) for _, targets in runs.data().values())
    share = 5 * sizes[2] / (5 * sizes[2] + sum(sizes) - max(sizes))  # metric_cap of the guard
    for told, honest in zip(much, clean, strict=True):
        assert told["accuracy"] < honest["accuracy"] + share * (1 - honest["accuracy"]) + 0.05
        assert told["accuracy"] < 0.95


@pytest.mark.parametrize("size", [10, 10**15])
@pytest.mark.parametrize(("first", "later"), [(1.0, 0.0), (1.0, 0.5), (0.0, 1.0)])
def test_one_liar_does_not_decide_which_model_is_best(first, later, size, tmp_path):
    """The others' medians grow from round to round, so the last model is the best whatever one client says."""

    def change(number, reply):
        if reply.content.array_records:
            grown[0] += number == 0
            return reply
        accuracy = 0.5 + 0.1 * grown[0] + 0.01 * number
        lie = {"accuracy": first if grown[0] == 1 else later, "num-examples": size}
        reply.content["metrics"].update(lie if number == 1 else {"accuracy": accuracy})
        return reply

    grown = [0]
    log = evaluations(tmp_path, change)
    assert (tmp_path / "checkpoints/best").readlink().name == "best-000003"
    assert [record["evaluation"]["quarantined"] for record in log] == [{}] * 3


def test_one_that_leaves_a_metric_out_does_not_take_it_from_the_others(tmp_path):
    def change(number, reply):
        if number == 1 and not reply.content.array_records:
            del reply.content["metrics"]["accuracy"]
            reply.content["metrics"]["an-invention"] = 0.5
        if number == 2 and not reply.content.array_records:
            reply.content["metrics"]["loss"] = [0.1, 0.2]
        return reply

    (record,) = evaluations(tmp_path, change, rounds=1)
    assert set(record["client_evaluation"]) == {"accuracy", "loss"}
    assert isinstance(record["client_evaluation"]["loss"], float)
    assert 0 < record["accuracy"] <= 1


def test_arrays_in_an_evaluation_count(tmp_path):
    def change(number, reply):
        if number == 1 and reply.metadata.message_type.startswith("evaluate"):
            reply.content["junk"] = ArrayRecord(
                {
                    "x": Array(
                        dtype="uint8", shape=(1 << 20,), stype="numpy.ndarray", data=bytes(1 << 20)
                    )
                }
            )
            replies.append(reply)
        return reply

    replies = []
    (record,) = evaluations(tmp_path, change, rounds=1, memory="1 MB")
    assert "at most 65536 are allowed" in record["evaluation"]["quarantined"]["1"]
    assert not replies[0].content.array_records


def test_a_function_of_ones_own_that_raises_costs_the_metrics_alone(tmp_path, caplog):
    def fold(contents, weight):
        return MetricRecord(
            {"accuracy": sum(content["metrics"]["accuracy"] for content in contents)}
        )

    def change(number, reply):
        if number == 1:
            reply.content["metrics"] = MetricRecord({"num-examples": 10})
        return reply

    options = {"evaluate_metrics_aggr_fn": fold, "train_metrics_aggr_fn": fold}
    with caplog.at_level(logging.ERROR, logger="flwr"):
        log = evaluations(tmp_path, change, rounds=2, **options)
    assert len(log) == 2
    assert [record["accuracy"] for record in log] == [None, None]
    assert "fold raised an error, so this round has no means of metrics: KeyError" in caplog.text


def test_metrics_of_ones_own_are_on_record_and_choose_the_best_model(tmp_path):
    def change(number, reply):
        if reply.content.array_records:
            grown[0] += number == 0
            return reply
        error = [3.0, 1.0, 2.0][grown[0] - 1] + 0.1 * number
        reply.content["metrics"] = MetricRecord({"num-examples": 10, "mean-error": error})
        return reply

    for mode, best in (("auto", 2), ("min", 2), ("max", 1)):
        grown, path = [0], tmp_path / mode
        log = evaluations(path, change, monitor="mean-error", mode=mode)
        assert [record["mean_error"] for record in log] == pytest.approx([3.2, 1.2, 2.2])
        assert steelyard.History.read(path).column("mean_error") == pytest.approx([3.2, 1.2, 2.2])
        assert (path / "checkpoints/best").readlink().name == f"best-{best:06d}"


def test_the_servers_own_metric_chooses_the_best_model_after_a_resume_too(tmp_path):
    values = [5.0, 4.0, 2.0, 3.0, 6.0]

    def evaluate(number, arrays):
        return MetricRecord({"mae": values[number], "accuracy": 0.1 * number})

    for rounds in (3, 4):
        made = runs.strategy("fedavg", out=tmp_path, monitor="mae", resume=True)
        runs.start(made, LocalGrid(runs.app(), runs.COUNT), rounds=rounds, evaluate_fn=evaluate)
    assert [record["mae"] for record in read_log(tmp_path)] == values[1:]
    assert (tmp_path / "checkpoints/best").readlink().name == "best-000002"


def test_modes_there_are():
    with pytest.raises(steelyard.SteelyardError, match="mode='lowest': use auto, max or min"):
        runs.strategy("fedavg", mode="lowest")


def test_clients_of_ours_report_metrics_of_ones_own(tmp_path):
    def margin(outputs, targets):
        best = outputs.topk(2).values
        return (best[:, 0] - best[:, 1]).mean()

    made = runs.strategy(
        "fedavg", out=tmp_path, fraction_evaluate=1.0, min_evaluate_nodes=5, monitor="margin"
    )
    app = runs.app(test_metrics={"margin": margin, "size": lambda outputs, targets: len(targets)})
    result = runs.start(made, LocalGrid(app, runs.COUNT), rounds=2)
    module = runs.model("mlp")
    module.load_state_dict(runs.params(result))
    parts = runs.data().values()
    total = sum(len(targets) for _, targets in parts)
    wanted = (
        sum(
            float(margin(module(inputs).detach(), targets)) * len(targets)
            for inputs, targets in parts
        )
        / total
    )
    record = read_log(tmp_path)[1]
    assert record["margin"] == pytest.approx(wanted, rel=1e-4)
    assert record["client_evaluation"]["size"] == pytest.approx(
        sum(len(y) ** 2 for _, y in parts) / total
    )
    assert (tmp_path / "checkpoints/best").exists()
