"""The recorder on Flower: the same inner products as in the simulator, shadow rules, replay."""

import numpy as np
import pytest

import steelyard
from steelyard import SteelyardError
from steelyard.report import build_report
from steelyard.runs._directory import read_log
from steelyard.runs._gram_log import read_grams
from tests.cli.test_cli import steelyard_command
from tests.flower import runs
from tests.flower.test_resume import Killed, judge

SHADOW = ["fedadp", "feddisco|fedawa"]


@pytest.mark.parametrize(
    ("algorithm", "kind", "record"),
    [
        ("fedavg", "mlp", "gram"),
        ("fedadp", "cnn", "gram"),
        ("guard(fedawa:steps=3)", "images", "gram"),
        ("feddisco|fedawa_l:steps=2", "images", "gram:layers=tensor"),
    ],
)
def test_flower_and_the_simulator_record_the_same_bits(algorithm, kind, record, tmp_path):
    runs.simulated(algorithm, kind, out=tmp_path / "sim", record=record)
    made = runs.strategy(algorithm, guard=False, out=tmp_path / "flower", record=record)
    runs.start(made, kind=kind)
    simulated = list(read_grams(tmp_path / "sim" / "grams.bin"))
    on_flower = list(read_grams(tmp_path / "flower" / "grams.bin"))
    assert len(simulated) == len(on_flower) == 3
    for first, second in zip(simulated, on_flower, strict=True):
        assert (first.round, first.ids, first.layers) == (second.round, second.ids, second.layers)
        np.testing.assert_array_equal(first.weights, second.weights)
        np.testing.assert_array_equal(first.metrics["num_examples"], second.metrics["num_examples"])
        assert first.grams.keys() == second.grams.keys()
        for layers, entry in first.grams.items():
            other = second.grams[layers]
            assert entry.names == other.names
            for name in ("dots", "theta_dots", "theta_sq", "dims"):
                np.testing.assert_array_equal(getattr(entry.gram, name), getattr(other.gram, name))


def test_shadow_rules_on_flower_do_not_change_the_run(tmp_path):
    alone = runs.start(runs.strategy("fedavg"))
    made = runs.strategy("fedavg", out=tmp_path, shadow=SHADOW)
    watched = runs.start(made)
    assert runs.same(runs.params(alone), runs.params(watched))
    result = steelyard.replay(tmp_path, SHADOW)
    for number, record in enumerate(read_log(tmp_path)):
        for rule in SHADOW:
            weights = result.rounds[rule][number].weights
            assert record["shadow_weights"][rule] == {
                str(client): weight for client, weight in weights.items()
            }


def test_the_commands_read_a_run_of_flower(tmp_path):
    runs.start(runs.strategy("fedavg", out=tmp_path / "run", record="gram"))
    page = tmp_path / "replay.html"
    replayed = steelyard_command("replay", tmp_path / "run", "--rule", "fedadp", "-o", page)
    assert replayed.exit_code == 0, replayed.output
    assert "run (" in replayed.output
    assert page.exists()
    ledger = steelyard_command("contributions", tmp_path / "run")
    assert ledger.exit_code == 0, ledger.output
    names = [figure.name for figure in build_report([tmp_path / "run"]).figures]
    assert "contributions" in names


def test_a_killed_run_resumes_its_recording_and_shadow_rules(tmp_path):
    options = {"shadow": SHADOW}
    judge.dies_at = None
    runs.start(
        runs.strategy("fedavg", out=tmp_path / "whole", **options), rounds=4, evaluate_fn=judge
    )
    judge.dies_at = 3
    with pytest.raises(Killed):
        runs.start(
            runs.strategy("fedavg", out=tmp_path / "run", **options), rounds=4, evaluate_fn=judge
        )
    judge.dies_at = None
    runs.start(
        runs.strategy("fedavg", out=tmp_path / "run", resume=True, **options),
        rounds=4,
        evaluate_fn=judge,
    )
    names = ("whole", "run")
    assert len({(tmp_path / name / "grams.bin").read_bytes() for name in names}) == 1
    weights = [[record["shadow_weights"] for record in read_log(tmp_path / name)] for name in names]
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"record": "everything"}, "use auto, gram"),
        ({"shadow": ["fedlaw"]}, "proxy data"),
        ({"shadow": ["pa3fed"]}, "grad_norm"),
    ],
)
def test_options_that_cannot_work_are_refused(options, reason):
    with pytest.raises(SteelyardError, match=reason):
        runs.strategy("fedavg", **options)
