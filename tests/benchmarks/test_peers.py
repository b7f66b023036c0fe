"""The driver of `make bench-peers`: what it writes, reads and concludes. No peer is installed for this."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.peers.__main__ import verdicts
from benchmarks.peers.contest import (
    CONTESTANTS,
    OURS,
    Failed,
    Run,
    agreement,
    compared,
    parsed,
    turn,
)
from benchmarks.peers.job import LAYERS, Job, write_parameters
from benchmarks.peers.torch_net import network, taken
from benchmarks.peers.workloads import EVERYONE, published, quickstart, same_work, write
from steelyard.models import build


def said(*events):
    return [json.dumps({"event": name, "at": at, **facts}) for name, at, facts in events]


def test_what_a_peer_says_is_found_among_what_it_prints():
    lines = said(
        ("start", 12.0, {"versions": {"flwr": "1"}}),
        ("round", 15.0, {"number": 1, "steps": 4}),
        ("round", 16.0, {"number": 2, "steps": 5}),
        ("round", 18.0, {"number": 3, "steps": 6}),
        ("done", 18.5, {}),
    )
    run = parsed(["INFO: hello", *lines[:2], "{not json", *lines[2:]], 10.0, 20.0)
    assert (run.seconds, run.start, run.rounds, run.steps) == (
        10.0,
        2.0,
        (3.0, 1.0, 2.0),
        (4, 5, 6),
    )
    assert run.per_round == 1.5
    assert run.versions == {"flwr": "1"}
    with pytest.raises(Failed, match="no start and rounds among 1 events"):
        parsed(lines[:1], 10.0, 20.0)


def turns(*seconds):
    return [
        Run(seconds=10 * one, start=1.0, rounds=(99.0, one, one), steps=(3, 3, 3))
        for one in seconds
    ]


def test_ratios_are_of_neighbours_in_time():
    runs = {OURS: turns(1.0, 2.0, 4.0), "pfl": turns(3.0, 3.0, 12.0), "bare": turns(1.0, 2.0, 4.0)}
    rows = compared(published(), runs)
    assert rows["pfl"]["ratio"] == 3.0  # of 3, 1.5 and 3
    assert rows["pfl"]["range"] == [1.5, 3.0]
    assert (rows["pfl"]["bar"], rows["pfl"]["holds"]) == (2.0, True)
    assert rows["bare"]["holds"] is None
    assert rows[OURS]["ratio"] == 1.0
    assert compared(replace(published(), bars={"pfl": 3.1}), runs)["pfl"]["holds"] is False


def test_start_up_counts_where_whole_processes_are_compared():
    runs = {
        OURS: [replace(turns(1.0)[0], seconds=2.0)],
        "flower": [replace(turns(1.0)[0], seconds=30.0)],
    }
    assert compared(quickstart(100), runs)["flower"]["ratio"] == 15.0
    assert compared(published(), runs)["flower"]["ratio"] == 1.0


def test_a_failure_is_said_and_so_is_a_missed_bar():
    row = {"holds": True, "distance": 1e-6}
    good = {"workload": same_work().name, "rows": {"pfl": row}, "failures": {}}
    assert verdicts([good])[-1] == "no bar was missed by those that ran"
    bad = {
        "workload": "w",
        "rows": {"pfl": {**row, "holds": False}},
        "failures": {"fedjax": "no jax"},
    }
    assert verdicts([bad]) == ["w: fedjax FAILED", "w: pfl MISSED"]
    apart = {**good, "rows": {"pfl": {**row, "distance": float("nan")}}}
    assert "DIFFER: pfl" in verdicts([apart])[0]


@pytest.mark.parametrize(("model", "zoo"), [("lenet", "lenet"), ("pfl_cnn", "pfl_cnn")])
def test_peers_train_the_networks_of_the_zoo(model, zoo):
    ours, theirs = build(zoo, (3, 32, 32), 10, 0), network(model)
    assert [p.shape for p in ours.parameters()] == [p.shape for p in theirs.parameters()]
    assert set(LAYERS) == {"lenet", "pfl_cnn"}


def test_everyone_with_a_bar_is_a_contestant():
    assert set(EVERYONE) | {OURS} <= set(CONTESTANTS)


def test_files_come_back(tmp_path):
    workload = replace(same_work(), clients=3, cohort=2)
    job = write(workload, tmp_path / "w", None)
    assert job == Job(**json.loads(job.text()))
    assert job.clients == 3
    assert job.array("inputs").shape == (120, 3, 32, 32)
    assert job.array("cohorts").shape == (2, 2)
    assert job.rows(1) == slice(40, 80)
    assert [value.shape for value in job.initial()] == [
        value.shape for value in taken(network("lenet"))
    ]
    split = replace(job, train=30)
    assert (split.rows(2), split.held_out(2)) == (slice(80, 110), slice(110, 120))


def test_how_far_models_are_apart(tmp_path):
    job = write(replace(same_work(), clients=2, cohort=2, tests=20), tmp_path / "w", None)
    runs = {}
    for name, step in ((OURS, 1.0), ("pfl", 1.5)):
        write_parameters(
            tmp_path / f"{name}.npz", [value + np.float32(step) for value in job.initial()]
        )
        runs[name] = replace(turns(1.0)[0], result=tmp_path / f"{name}.npz")
    found = agreement(job, runs)
    assert found[OURS]["distance"] == 0.0
    assert found["pfl"]["distance"] == pytest.approx(0.5, rel=1e-4)
    assert np.isfinite(found["pfl"]["loss"])


@pytest.mark.slow
def test_our_own_turn_and_the_bare_loop_agree(tmp_path):
    workload = replace(same_work(), clients=2, cohort=2, tests=20)
    job = write(workload, tmp_path / "w", None)
    runs = {name: turn(name, job, tmp_path / "w") for name in (OURS, "bare")}
    assert runs[OURS].steps == runs["bare"].steps == (6, 6)
    assert agreement(job, runs)["bare"]["distance"] < 1e-4
    assert torch.__version__ == runs["bare"].versions["torch"]


def test_a_turn_that_fails_says_so(tmp_path):
    job = replace(
        write(replace(same_work(), clients=2, cohort=2, tests=20), tmp_path / "w", None),
        model="lenot",
    )
    with pytest.raises(Failed, match=r"bare ended with code 1: KeyError: 'lenot'"):
        turn("bare", job, tmp_path / "w")
