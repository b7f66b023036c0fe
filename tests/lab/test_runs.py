"""Which axes of a sweep are about the algorithm."""

import pytest

import steelyard
from steelyard.lab.runs import label, of_algorithm, read_runs


@pytest.mark.parametrize("axis", ["case", "weighting", "client", "server", "broadcast", "refine", "local.lr"])
def test_every_part_of_an_algorithm_is_a_row(axis):
    assert of_algorithm(axis)


@pytest.mark.parametrize("axis", ["data.partition", "participation.share", "proxy.per_class", "model"])
def test_settings_are_columns(axis):
    assert not of_algorithm(axis)


def test_a_single_algorithm_is_named_with_all_its_parts(tmp_path):
    algorithm = steelyard.Algorithm("fedawa", client="fedcos:mu=0.01", server="momentum")
    steelyard.simulate(algorithm, rounds=1, clients=3, out=tmp_path / "run")
    (run,), _ = read_runs([tmp_path])
    assert label(run.algorithm) == "fedawa + fedcos:mu=0.01 + momentum"
