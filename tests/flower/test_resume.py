"""Flower has no resume; ours goes on at the next round with everything intact."""

import json
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import steelyard
from steelyard.core._errors import SteelyardError
from steelyard.core._registry import TERMS
from steelyard.core._term import ClientTerm, TermTags
from steelyard.core._weighting import Info
from steelyard.experiments._run_groups import read_runs
from steelyard.flower import Steelyard
from steelyard.report._build import build_report, find_figure, render_html
from steelyard.runs._directory import read_clients, read_log
from tests.flower import runs
from tests.flower.grid import LocalGrid

ALGORITHMS = {
    "fedawa": steelyard.Algorithm("fedawa:steps=3", server="momentum"),
    "fedcos": steelyard.Algorithm("uniform", client="fedcos"),
    "fedcos_move": steelyard.Algorithm("fedavg", client="fedcos:direction=move", server="momentum"),
    "fedmut": steelyard.Algorithm("uniform", broadcast="fedmut:radius=0.5"),
    "fedproto": steelyard.Algorithm("fedawa:steps=3", client="fedproto"),
    "fpl": steelyard.Algorithm("fedavg", client="fpl:temperature=0.5"),
    "creff": steelyard.Algorithm("fedavg", client="creff:features=4,match_steps=3,epochs=2"),
}


class Killed(BaseException):
    """Nobody catches it, as nobody catches SIGKILL."""


def judge(number, arrays):
    if number == judge.dies_at:
        raise Killed
    return MetricRecord({"accuracy": 1 / (1 + number), "loss": float(number)})


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_killed_run_goes_on_bit_for_bit(name, tmp_path):
    judge.dies_at = None
    whole = runs.start(runs.strategy(ALGORITHMS[name]), rounds=4, evaluate_fn=judge)
    judge.dies_at = 3
    with pytest.raises(Killed):
        runs.start(runs.strategy(ALGORITHMS[name], out=tmp_path), rounds=4, evaluate_fn=judge)
    assert [record["round"] for record in read_log(tmp_path)] == [1, 2]
    judge.dies_at = None
    grid = LocalGrid(
        runs.app(), runs.COUNT
    )  # a new Flower run: clients have forgotten the one before
    result = runs.start(
        runs.strategy(ALGORITHMS[name], out=tmp_path, resume=True),
        grid,
        rounds=4,
        evaluate_fn=judge,
    )
    assert len(grid.asked) == 2 * runs.COUNT
    assert runs.same(runs.params(result), runs.params(whole))
    assert [record["round"] for record in read_log(tmp_path)] == [1, 2, 3, 4]
    assert sorted(result.evaluate_metrics_serverapp) == [2, 3, 4]


class FailsBeforeRound(Steelyard):
    """Fails at the start of a round, before anything of Steelyard runs in it."""

    def configure_train(self, server_round, arrays, config, grid):
        if server_round == 3:
            raise Killed
        return super().configure_train(server_round, arrays, config, grid)


@pytest.mark.parametrize("evaluate_fn", [None, judge])
@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_round_is_written_before_the_next_one_begins(evaluate_fn, share, tmp_path):
    judge.dies_at = None
    options = {"min_train_nodes": runs.COUNT, "fraction_evaluate": share, "seed": 3}
    failing = FailsBeforeRound("fedavg", out=tmp_path, **options)
    with pytest.raises(Killed):
        runs.start(failing, rounds=4, evaluate_fn=evaluate_fn)
    log = read_log(tmp_path)
    assert [record["round"] for record in log] == [1, 2]
    assert all((record["accuracy"] is not None) == bool(evaluate_fn or share) for record in log)
    assert (tmp_path / "checkpoints/last").readlink().name == "round-000002"
    whole = runs.start(Steelyard("fedavg", **options), rounds=4)
    resumed = runs.start(Steelyard("fedavg", out=tmp_path, resume=True, **options), rounds=4)
    assert runs.same(runs.params(resumed), runs.params(whole))


class OwnEvaluation(Steelyard):
    """A subclass that does not call our evaluation."""

    def aggregate_evaluate(self, server_round, replies):
        return None


def test_a_subclass_without_our_evaluation_writes_each_round(tmp_path):
    lengths = []
    grid = LocalGrid(runs.app(), runs.COUNT)
    push = grid.push_messages
    grid.push_messages = lambda messages: lengths.append(len(read_log(tmp_path))) or push(messages)
    options = {"min_train_nodes": runs.COUNT, "fraction_evaluate": 0.0}
    runs.start(OwnEvaluation("fedavg", out=tmp_path, **options), grid, rounds=3)
    assert lengths == [0, 1, 2]
    assert len(read_log(tmp_path)) == 3


def test_flowers_log_has_no_lines_on_an_evaluation_that_does_not_happen(caplog):
    with caplog.at_level("INFO", logger="flwr"):
        runs.start(runs.strategy("fedavg"), rounds=1)
        assert "lobal evaluation" not in caplog.text
        judge.dies_at = None
        runs.start(runs.strategy("fedavg"), rounds=1, evaluate_fn=judge)
    assert "Global evaluation" in caplog.text


@dataclass(frozen=True)
class Drift(ClientTerm):
    """A term of one's own that sends another model than it shows, and keeps nothing at clients."""

    name = "drift"
    info = Info("drift", "")
    server_slots = ("v",)
    tags = TermTags(changes_model=True)

    def add(self, grad, x, at):
        grad.add_(at.sent["v"], alpha=0.1)

    def server_update(self, at):
        at.server_vectors["v"].add_(0.01)
        at.theta.add_(at.server_vectors["v"])

    def params_to_evaluate(self, theta, kept):
        return theta - kept["v"]


def test_so_does_one_that_shows_another_model_than_it_sends(tmp_path):
    before = dict(TERMS._entries)
    TERMS.register(Drift)
    try:
        algorithm = steelyard.Algorithm("uniform", client="drift")
        whole = runs.start(runs.strategy(algorithm), rounds=4)
        for rounds in (2, 4):
            made = runs.strategy(algorithm, out=tmp_path, resume=True)
            result = runs.start(made, LocalGrid(runs.app(), runs.COUNT), rounds=rounds)
        assert runs.same(runs.params(result), runs.params(whole))
        assert list(made.model) == list(runs.model("mlp").state_dict())
    finally:
        TERMS._entries.clear()
        TERMS._entries.update(before)


def test_a_run_that_is_done_stays_as_it_is(tmp_path):
    first = runs.start(runs.strategy("fedavg", checkpoint_dir=tmp_path), rounds=2)
    grid = LocalGrid(runs.app(), runs.COUNT)
    again = runs.start(
        runs.strategy("fedavg", checkpoint_dir=tmp_path, resume=True), grid, rounds=2
    )
    assert grid.asked == []
    assert runs.same(runs.params(first), runs.params(again))


def test_resume_where_there_is_nothing_yet_starts(tmp_path):
    runs.start(runs.strategy("fedavg", out=tmp_path / "new", resume=True), rounds=1)
    assert len(read_log(tmp_path / "new")) == 1


def test_checkpoints_in_a_place_of_their_own(tmp_path):
    runs.start(
        runs.strategy("fedavg", out=tmp_path / "run", checkpoint_dir=tmp_path / "safe"), rounds=1
    )
    assert (tmp_path / "safe/round-000001/model.safetensors").exists()
    assert not (tmp_path / "run/checkpoints").exists()
    runs.start(
        runs.strategy(
            "fedavg", out=tmp_path / "run", checkpoint_dir=tmp_path / "safe", resume=True
        ),
        rounds=2,
    )
    assert len(read_log(tmp_path / "run")) == 2


def test_what_is_refused(tmp_path):
    with pytest.raises(SteelyardError, match="resume=True"):
        runs.strategy("fedavg", resume=True)
    runs.start(runs.strategy("fedavg", out=tmp_path), rounds=1)
    with pytest.raises(SteelyardError, match=r"contains a run: .*resume=True"):
        runs.start(runs.strategy("fedavg", out=tmp_path), rounds=1)
    with pytest.raises(SteelyardError, match=r"contains another run.*fedadp"):
        runs.start(runs.strategy("fedadp", out=tmp_path, resume=True), rounds=2)


def test_a_damaged_checkpoint_is_passed_over(tmp_path):
    runs.start(runs.strategy("fedavg", out=tmp_path), rounds=2)
    (tmp_path / "checkpoints/round-000002/model.safetensors").write_bytes(b"junk")
    runs.start(runs.strategy("fedavg", out=tmp_path, resume=True), rounds=3)
    assert [record["round"] for record in read_log(tmp_path)] == [1, 2, 3]


def test_compare_reads_flower_runs(tmp_path):
    judge.dies_at = None
    for rule in ("fedavg", "fedawa"):
        runs.start(runs.strategy(rule, out=tmp_path / rule), rounds=2, evaluate_fn=judge)
    found, notes = read_runs([tmp_path])
    assert notes == []
    assert {dict(run.algorithm)["weighting"] for run in found} == {"guard(fedavg)", "guard(fedawa)"}
    assert [record["accuracy"] for record in found[0].history.records] == [1 / 2, 1 / 3]
    config = json.loads((tmp_path / "fedavg/config.json").read_text())["resolved"]
    assert config["engine"].startswith("flower 1.")


def test_clients_evaluations_are_on_record(tmp_path):
    made = runs.strategy("fedavg", out=tmp_path, fraction_evaluate=1.0)
    result = runs.start(made, rounds=2)
    records = read_log(tmp_path)
    assert records[1]["accuracy"] == records[1]["client_evaluation"]["accuracy"]
    assert records[1]["accuracy"] == result.evaluate_metrics_clientapp[2]["accuracy"]
    assert torch.tensor(records[1]["loss"]) < records[0]["loss"]


def test_who_holds_what_is_written_down_as_it_is_told(tmp_path):
    runs.start(runs.strategy("feddisco", out=tmp_path), rounds=1)
    held = read_clients(tmp_path)
    assert held["ids"] == ["0", "1", "2", "3", "4"]
    assert held["sizes"] == [len(targets) for _, targets in runs.data().values()]
    assert [sum(row) for row in held["counts"]] == held["sizes"]


def test_the_report_reads_flower_runs(tmp_path):
    judge.dies_at = None
    for rule in ("fedavg", "fedawa"):
        runs.start(runs.strategy(rule, out=tmp_path / rule), rounds=3, evaluate_fn=judge)
    report = build_report([tmp_path])
    assert {"accuracy", "weights", "coherence"} <= {figure.name for figure in report.figures}
    assert [line.name for line in find_figure(report, "accuracy").lines] == [
        "guard(fedavg)",
        "guard(fedawa)",
    ]
    assert len(render_html(report)) > 1_000_000


def test_arrays_keep_their_order(tmp_path):
    """Checkpoints have another one; clients that go by position would get a scrambled model."""
    seen, app = [], ClientApp()

    @app.train()
    def train(message, context):
        arrays = message.content["arrays"].to_numpy_ndarrays()
        seen.append([float(values[0]) for values in arrays])
        reply = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 10})}
        return Message(RecordDict(reply), reply_to=message)

    initial = ArrayRecord([np.full(2, k, np.float32) for k in range(12)])
    for rounds in (1, 2):
        made = Steelyard("fedavg", fraction_evaluate=0.0, out=tmp_path, resume=True)
        result = made.start(LocalGrid(app, 3), initial, num_rounds=rounds, timeout=5)
    assert seen == [list(range(12))] * 6
    assert list(result.arrays) == list(initial)


def test_another_model_of_the_same_size_is_refused_and_the_run_stays(tmp_path):
    runs.start(runs.strategy("fedavg", out=tmp_path), rounds=1)
    config = (tmp_path / "config.json").read_bytes()
    flat = {
        "w": torch.zeros(sum(tensor.numel() for tensor in runs.model("mlp").state_dict().values()))
    }
    for _ in range(2):  # the lock is given back
        with pytest.raises(
            SteelyardError,
            match=r"not that of initial_arrays \(missing key 'w'\)",
        ):
            runs.strategy("fedavg", out=tmp_path, resume=True).start(
                LocalGrid(runs.app(), runs.COUNT),
                steelyard.flower.to_record(flat),
                num_rounds=2,
                timeout=5,
            )
    assert (tmp_path / "config.json").read_bytes() == config


def test_without_its_cohorts_a_run_cannot_go_on(tmp_path):
    runs.start(runs.strategy("fedavg", out=tmp_path), rounds=1)
    (tmp_path / "cohorts.json").unlink()
    with pytest.raises(SteelyardError, match=r"cohorts.json: missing or damaged"):
        runs.start(runs.strategy("fedavg", out=tmp_path, resume=True), rounds=2)


@pytest.mark.parametrize(
    ("found", "top", "apart"),
    [
        ({"accuracy": 0.5, "f1": 0.25}, {"accuracy": 0.5, "f1": 0.25}, None),
        (
            {"loss": 1, "round": 7, "timings": 2.0},
            {"loss": 1.0, "round": 1},
            {"round": 7.0, "timings": 2.0},
        ),
        ({"weights": [1.0, math.nan]}, {"accuracy": None}, {"weights": [1.0, None]}),
        ({"per-class": [1.0, math.inf]}, {"per_class": [1.0, None]}, None),
        ({"accuracy": [0.5, 0.6]}, {"accuracy": None}, {"accuracy": [0.5, 0.6]}),
    ],
)
def test_what_an_evaluation_finds_does_not_hide_the_record(found, top, apart, tmp_path):
    for rounds in (1, 2):  # the record can be gone on from
        made = runs.strategy("fedavg", out=tmp_path, resume=True)
        runs.start(made, rounds=rounds, evaluate_fn=lambda number, arrays: MetricRecord(found))
    record = read_log(tmp_path)[0]
    assert {name: record[name] for name in top} == top
    assert record.get("server_evaluation") == apart
    assert set(record["weights"]) == {"0", "1", "2", "3", "4"}


def test_a_second_start_of_one_strategy_begins_anew():
    for algorithm in (
        steelyard.Algorithm(server="momentum"),
        steelyard.Algorithm("uniform", client="feddyn"),
    ):
        made = runs.strategy(algorithm)
        first, second = (runs.params(runs.start(made, rounds=2)) for _ in range(2))
        assert runs.same(first, second)
