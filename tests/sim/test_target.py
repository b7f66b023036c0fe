"""A run that ends at an accuracy."""

import pytest

import steelyard
from steelyard.sim._experiment import read_experiment


def test_a_run_ends_at_its_target_and_stays_there(tmp_path):
    whole = steelyard.simulate(rounds=8, executor="serial")
    target = sorted(whole.column("accuracy"))[4]
    arguments = {
        "rounds": 8,
        "executor": "serial",
        "out": tmp_path / "run",
        "target": target,
        "resume": True,
    }
    short = steelyard.simulate(**arguments)
    assert len(short) == whole.rounds_to(target) < 8
    assert short.comparable() == whole.comparable()[: len(short)]
    again = steelyard.simulate(**arguments)
    assert again.records == short.records
    further = steelyard.simulate(**arguments | {"target": None})
    assert further.comparable() == whole.comparable()


def test_target_is_a_key_of_a_configuration():
    assert read_experiment(None, ["target=0.95"]).target == pytest.approx(0.95)
