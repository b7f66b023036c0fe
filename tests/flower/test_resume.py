"""Flower has no resume; ours goes on at the next round with everything intact."""

import json

import pytest
import torch
from flwr.app import MetricRecord

import steelyard
from steelyard.core.errors import SteelyardError
from steelyard.lab.runs import read_runs
from steelyard.report.gather import find, gather
from steelyard.report.page import html
from steelyard.sim.rundir import read_clients, read_log
from tests.flower import runs
from tests.flower.grid import LocalGrid

ALGORITHMS = {
    "fedawa": steelyard.Algorithm("fedawa:steps=3", server="momentum"),
    "scaffold": steelyard.Algorithm("fedavg", client="scaffold"),
    "feddyn": steelyard.Algorithm("uniform", client="feddyn"),  # shows another model than it sends
    "fedmut": steelyard.Algorithm("uniform", broadcast="fedmut:radius=0.5"),
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
    grid = _rewound(ALGORITHMS[name])
    result = runs.start(runs.strategy(ALGORITHMS[name], out=tmp_path, resume=True), grid, rounds=4, evaluate_fn=judge)
    assert len(grid.asked) == 2 * runs.COUNT
    assert runs.same(runs.params(result), runs.params(whole))
    assert [record["round"] for record in read_log(tmp_path)] == [1, 2, 3, 4]
    assert sorted(result.evaluate_metrics_serverapp) == [2, 3, 4]


def _rewound(algorithm):
    """Clients as they were after round 2: what they keep is theirs, and none of the server's business."""
    grid = LocalGrid(runs.app(), runs.COUNT)
    runs.start(runs.strategy(algorithm), grid, rounds=2)
    grid.asked.clear()
    return grid


def test_a_run_that_is_done_stays_as_it_is(tmp_path):
    first = runs.start(runs.strategy("fedavg", checkpoint_dir=tmp_path), rounds=2)
    grid = LocalGrid(runs.app(), runs.COUNT)
    again = runs.start(runs.strategy("fedavg", checkpoint_dir=tmp_path, resume=True), grid, rounds=2)
    assert grid.asked == []
    assert runs.same(runs.params(first), runs.params(again))


def test_resume_where_there_is_nothing_yet_starts(tmp_path):
    runs.start(runs.strategy("fedavg", out=tmp_path / "new", resume=True), rounds=1)
    assert len(read_log(tmp_path / "new")) == 1


def test_checkpoints_in_a_place_of_their_own(tmp_path):
    runs.start(runs.strategy("fedavg", out=tmp_path / "run", checkpoint_dir=tmp_path / "safe"), rounds=1)
    assert (tmp_path / "safe/round-000001/model.safetensors").exists()
    assert not (tmp_path / "run/checkpoints").exists()
    runs.start(runs.strategy("fedavg", out=tmp_path / "run", checkpoint_dir=tmp_path / "safe", resume=True), rounds=2)
    assert len(read_log(tmp_path / "run")) == 2


def test_what_is_refused(tmp_path):
    with pytest.raises(SteelyardError, match="say from where"):
        runs.strategy("fedavg", resume=True)
    runs.start(runs.strategy("fedavg", out=tmp_path), rounds=1)
    with pytest.raises(SteelyardError, match="holds a run: go on with it"):
        runs.start(runs.strategy("fedavg", out=tmp_path), rounds=1)
    with pytest.raises(SteelyardError, match=r"the run in it is another one.*fedadp"):
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
    report = gather([tmp_path])
    assert {"accuracy", "weights", "coherence"} <= {figure.name for figure in report.figures}
    assert [line.name for line in find(report, "accuracy").lines] == ["guard(fedavg)", "guard(fedawa)"]
    assert len(html(report)) > 1_000_000
