"""Contributions: Shapley values against brute force, and flags on real runs."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import steelyard
from steelyard.data import corrupt, find_corrupted_clients
from steelyard.recorder._contributions import (
    group_flags,
    sample_shapley_values,
    shapley_values,
    value_round,
)
from steelyard.runs._gram_log import read_grams
from steelyard.sim._experiment import Data
from steelyard.sim._inputs import build_federation
from steelyard.sim._server import SimulationServer


def value_by_definition(parts, group):
    """Returns the cosine between the sum of some vectors and the sum of all."""
    if not group:
        return 0.0
    step = parts[list(group)].sum(axis=0)
    whole = parts.sum(axis=0)
    lengths = np.linalg.norm(step) * np.linalg.norm(whole)
    return float(step @ whole / lengths) if lengths > 0 else 0.0


def shapley_by_definition(parts):
    """Returns the Shapley values from all groups, written without the Gram matrix."""
    count = len(parts)
    shapley = np.zeros(count)
    for client in range(count):
        others = [k for k in range(count) if k != client]
        for size in range(count):
            chance = math.factorial(size) * math.factorial(count - size - 1) / math.factorial(count)
            for group in itertools.combinations(others, size):
                gain = value_by_definition(parts, (*group, client))
                shapley[client] += chance * (gain - value_by_definition(parts, group))
    return shapley


@given(count=st.integers(1, 10), seed=st.integers(0, 10**6), shift=st.floats(-0.5, 1.5))
@settings(max_examples=25, deadline=None)
def test_exact_values_equal_brute_force(count, seed, shift):
    parts = np.random.default_rng(seed).normal(size=(count, 7)) + shift
    np.testing.assert_allclose(
        shapley_values(parts @ parts.T), shapley_by_definition(parts), atol=1e-9
    )


def test_properties_of_the_values():
    parts = np.random.default_rng(0).normal(size=(6, 20)) + 0.5
    parts[1] = 0.0  # sends nothing
    parts[3] = parts[2]  # the same as another
    values = shapley_values(parts @ parts.T)
    assert values.sum() == pytest.approx(1.0)
    assert values[1] == 0.0
    assert values[2] == pytest.approx(values[3])
    assert shapley_values(np.zeros((3, 3))).tolist() == [0.0, 0.0, 0.0]


def test_drawn_orders_agree_with_exact_values_within_their_error():
    parts = np.random.default_rng(1).normal(size=(12, 30)) + 0.3
    exact = shapley_values(parts @ parts.T)
    values, errors = sample_shapley_values(parts @ parts.T, 1, orders=2000)
    assert (np.abs(values - exact) < 5 * errors).all()
    assert values.sum() == pytest.approx(1.0)


def test_the_stated_error_holds_for_many_clients():
    parts = np.random.default_rng(2).normal(size=(60, 80)) + 0.2
    precise, precise_errors = sample_shapley_values(parts @ parts.T, 99, 4000)
    deviations = []
    for number in range(8):
        values, errors = sample_shapley_values(parts @ parts.T, number)
        deviations.append((values - precise) / np.hypot(errors, precise_errors))
    assert 0.8 < np.sqrt(np.mean(np.square(deviations))) < 1.2


def test_leave_one_out_is_the_cosine_without_the_client(tmp_path):
    steelyard.simulate("fedadp", "digits", rounds=1, clients=5, out=tmp_path)
    (seen,) = read_grams(tmp_path / "grams.bin")
    result = value_round(seen)
    # Vectors with the recorded inner products.
    values, vectors = np.linalg.eigh(seen.whole.dots[0])
    updates = vectors * np.sqrt(np.maximum(values, 0.0))
    parts = seen.weights[0][:, None] * updates
    for client in range(5):
        others = [k for k in range(5) if k != client]
        expected = 1 - value_by_definition(parts, others)
        assert result.leave_one_out[client] == pytest.approx(expected, abs=1e-6)


def test_contributions_of_a_run(tmp_path):
    steelyard.simulate("fedavg", "digits", rounds=6, clients=20, out=tmp_path)
    result = steelyard.contributions(tmp_path)
    assert not result.is_exact
    assert sum(entry.total for entry in result.clients) == pytest.approx(6.0)
    assert all(entry.margin > 0 for entry in result.clients)
    assert len(result.to_pandas()) == 6 * 20
    assert result[0].client == 0


def manipulate_updates(monkeypatch, idle, copy, source):
    """Lets one client send nothing, and another what a third sends."""
    build_store = SimulationServer._build_store

    def build(self, cohort):
        ids = self.work.federation.ids
        rows = {ids[member.client]: member.row for member in cohort}
        self.buffers.matrix[rows[idle]].zero_()
        self.buffers.matrix[rows[copy]].copy_(self.buffers.matrix[rows[source]])
        return build_store(self, cohort)

    monkeypatch.setattr(SimulationServer, "_build_store", build)


# The limits of the flags were chosen on seeds 0 to 2.
@pytest.mark.parametrize("seed", [10, 11, 12])
@pytest.mark.parametrize("partition", ["iid", "dirichlet:1.0", "dirichlet:0.5"])
def test_bad_clients_are_flagged_and_honest_ones_are_not(partition, seed, tmp_path, monkeypatch):
    federation = build_federation(Data(partition=partition, clients=10), seed)
    (flipping,) = find_corrupted_clients(federation, 0.1, seed=seed)
    federation = corrupt(federation, 0.1, "flip", seed=seed)
    idle, copy, source = [client for client in federation.ids if client != flipping][:3]
    manipulate_updates(monkeypatch, idle, copy, source)
    steelyard.simulate(
        "fedavg",
        federation,
        "mlp",
        rounds=20,
        seed=seed,
        out=tmp_path,
        executor="serial",
        local={"lr": 0.1, "batch_size": 16},
    )
    flags = group_flags(steelyard.contributions(tmp_path).clients)
    assert flags["free rider"] == [idle]
    assert sorted(flags["duplicate"]) == sorted([copy, source])
    assert flags["opponent"] == [flipping]
    assert set(flags.get("drifting", [])) <= {flipping}
