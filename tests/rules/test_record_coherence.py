"""`record_coherence` measures what its name says, and leaves the weights alone."""

import pytest
import torch

import steelyard
from steelyard.diagnostics import gradient_coherence, group_coherence

SIZES = {"num_examples": [1, 2, 3, 4, 5, 6]}


def make_round():
    """A base model, and six updates that all enlarge it."""
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(50, generator=generator, dtype=torch.float64)
    noise = torch.randn(6, 50, generator=generator, dtype=torch.float64)
    return base, 0.3 * base + noise


def aggregate(rule):
    base, updates = make_round()
    return steelyard.aggregate(rule, base, base + updates, metrics=SIZES)


def test_across_the_model_is_the_coherence_of_what_is_at_right_angles_to_it():
    base, updates = make_round()
    out = aggregate("fedavg|record_coherence")
    across = updates - torch.outer(updates @ base, base) / (base @ base)
    expected = gradient_coherence(across, SIZES["num_examples"])
    assert out.report["coherence_across"] == pytest.approx(expected)
    assert out.report["coherence"] > out.report["coherence_across"] + 0.01


def test_groups_are_equal_parts_of_the_clients():
    updates = make_round()[1]
    out = aggregate("fedavg|record_coherence:groups=2")
    groups = group_coherence(updates, ["a"] * 3 + ["b"] * 3, SIZES["num_examples"]).within
    assert out.report["coherence_of_groups"]["1"] == pytest.approx(groups["a"])
    assert out.report["coherence_of_groups"]["2"] == pytest.approx(groups["b"])
    assert (
        "coherence_of_groups" not in aggregate("fedavg|record_coherence:groups=4").report
    )  # too small


def test_the_weights_stay():
    out = aggregate("fedadp|record_coherence:groups=3")
    plain = aggregate("fedadp")
    assert torch.equal(out.weights, plain.weights)
    assert torch.equal(out.params, plain.params)


def test_a_model_of_zeros_has_no_part_to_remove():
    updates = make_round()[1]
    out = steelyard.aggregate("uniform|record_coherence", torch.zeros(50).double(), updates)
    assert out.report["coherence_across"] == pytest.approx(out.report["coherence"])


def test_groups_are_at_least_one():
    with pytest.raises(steelyard.SteelyardError, match="groups"):
        steelyard.parse_rule("fedavg|record_coherence:groups=0")
