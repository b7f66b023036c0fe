"""Compositions that have a name: `recommended`."""

import pytest
import torch

import steelyard
from steelyard.algorithm import COMPOSITIONS
from tests.cli.test_cli import steelyard_command

RECOMMENDED = COMPOSITIONS["recommended"]


def test_the_name_stands_for_its_parts():
    assert steelyard.recommended() == steelyard.Algorithm(**RECOMMENDED)
    assert steelyard.Algorithm(" recommended ") == steelyard.recommended()
    with_server = steelyard.Algorithm("recommended", server="momentum")
    assert with_server == steelyard.recommended().replace_parts(server="momentum")


def test_a_run_has_the_bits_of_its_parts_and_stores_them():
    options = {"rounds": 2, "partition": "dirichlet:0.1", "executor": "serial"}
    named = steelyard.simulate("recommended", "digits", **options)
    written_out = steelyard.simulate(steelyard.Algorithm(**RECOMMENDED), "digits", **options)
    for name, tensor in named.params.items():
        assert torch.equal(tensor, written_out.params[name])
    stored = steelyard.Experiment("recommended").to_stored()
    assert {name: stored[name] for name in RECOMMENDED} == RECOMMENDED


def test_a_part_that_it_has_itself_is_refused():
    with pytest.raises(steelyard.SteelyardError, match=r"fedprox.*leave client out"):
        steelyard.Algorithm("recommended", client="fedprox:mu=0.1")
    with pytest.raises(steelyard.SteelyardError, match=r"fedprox.*leave client out"):
        steelyard.Experiment("recommended", client="fedprox:mu=0.1")


def test_aggregate_names_its_rule():
    """Aggregation alone would be only a part of it."""
    with pytest.raises(steelyard.SteelyardError, match=RECOMMENDED["weighting"]):
        steelyard.aggregate("recommended", torch.zeros(2), torch.ones(3, 2))


def test_commands_describe_it():
    text = str(steelyard.recommended())
    assert f"recommended is {text}" in steelyard_command("explain", "recommended").output
    assert f"recommended is {text}" in steelyard_command("rules").output
