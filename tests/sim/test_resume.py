"""Crash safety: checkpoints, the run directory, the lock, workers that die."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch

import steelyard
from steelyard.core._errors import SteelyardError
from steelyard.data import Dataset, Federation
from steelyard.runs import _checkpoint as checkpoint
from steelyard.runs._checkpoint import Checkpoints, Snapshot, read_verified
from steelyard.runs._directory import read_clients, read_log
from tests.sim.runs import ALGORITHMS, OPTIONS, Stop, files, net, options, same, simulate


def test_the_log_is_on_disk_before_a_checkpoint_speaks_of_it(tmp_path, monkeypatch):
    order = []
    sync, rename = os.fsync, os.rename
    monkeypatch.setattr(os, "fsync", lambda handle: (order.append(handle), sync(handle)))
    monkeypatch.setattr(os, "rename", lambda a, b: (order.append("rename"), rename(a, b)))
    with open(tmp_path / "log", "wb") as log:
        Checkpoints(tmp_path / "c").save(
            Snapshot(1, {"w": torch.ones(2)}, {}, "id"), [log.fileno()]
        )
        assert order.index(log.fileno()) < order.index("rename")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_resumed_run_has_the_same_bits(name, tmp_path):
    given = options(ALGORITHMS[name])
    whole = simulate(ALGORITHMS[name], out=tmp_path / "whole", **given)
    for after in (1, 4):
        path = tmp_path / f"cut-{after}"
        with pytest.raises(KeyboardInterrupt):
            simulate(ALGORITHMS[name], out=path, callbacks=[Stop(after)], **given)
        resumed = simulate(
            ALGORITHMS[name],
            out=path,
            resume=True,
            executor="process",
            workers=2,
            **given,
        )
        assert same(whole, resumed)
        assert files(path) == files(tmp_path / "whole")


@pytest.mark.parametrize("kind", ["batch_norm", "dropout"])
def test_networks_with_statistics_and_randomness_resume_too(kind, tmp_path):
    simulate("fedadp", model=net(kind), out=tmp_path / "whole", **OPTIONS)
    with pytest.raises(KeyboardInterrupt):
        simulate("fedadp", model=net(kind), out=tmp_path / "cut", callbacks=[Stop(3)], **OPTIONS)
    simulate("fedadp", model=net(kind), out=tmp_path / "cut", resume=True, **OPTIONS)
    assert files(tmp_path / "cut") == files(tmp_path / "whole")


def test_a_resumed_run_remembers_void_rounds_and_the_best_one(tmp_path):
    nobody = {"rounds": 9, "participation": {"dropout": 1.0}}
    with pytest.raises(KeyboardInterrupt):
        simulate(
            "fedavg", out=tmp_path / "void", callbacks=[Stop(3)], checkpoint_pace=1.0, **nobody
        )
    with pytest.raises(SteelyardError, match="round 5: 5 rounds in a row were void"):
        simulate("fedavg", out=tmp_path / "void", resume=True, **nobody)
    wild = {**OPTIONS, "local": {"lr": 3.0, "batch_size": 4}, "rounds": 12, "seed": 2}
    whole = simulate("fedavg", out=tmp_path / "whole", **wild)
    assert whole.rounds_to(whole.best) < 8  # or this test could not fail
    with pytest.raises(KeyboardInterrupt):
        simulate("fedavg", out=tmp_path / "cut", callbacks=[Stop(8)], checkpoint_pace=1.0, **wild)
    simulate("fedavg", out=tmp_path / "cut", resume=True, **wild)
    assert files(tmp_path / "cut") == files(tmp_path / "whole")


def test_a_run_from_before_clients_were_written_down_goes_on_and_writes_them(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        simulate(
            "fedavg", out=tmp_path / "run", callbacks=[Stop(3)], checkpoint_pace=1.0, **OPTIONS
        )
    written = (tmp_path / "run" / "clients.json").read_bytes()
    (tmp_path / "run" / "clients.json").unlink()
    assert read_clients(tmp_path / "run") is None
    simulate("fedavg", out=tmp_path / "run", resume=True, **OPTIONS)
    assert (tmp_path / "run" / "clients.json").read_bytes() == written


def test_a_run_from_before_layers_were_written_down_goes_on_and_writes_them(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        simulate(
            "fedavg", out=tmp_path / "run", callbacks=[Stop(3)], checkpoint_pace=1.0, **OPTIONS
        )
    path = tmp_path / "run" / "config.json"
    config = json.loads(path.read_text())
    written = config["resolved"]["model"].pop("layers")
    path.write_text(json.dumps(config))
    assert len(simulate("fedavg", out=tmp_path / "run", resume=True, **OPTIONS)) == 6
    assert json.loads(path.read_text())["resolved"]["model"]["layers"] == written


def rate(p):
    """A network whose rate of dropout is not in its parameters; nor is where its code lies part of what it is."""
    made = net("dropout")
    made[1].p = p
    made[1].extra_repr = lambda: f"p={p}, {object()}"
    return made


SAME = {
    "the same": ({}, {}, None),
    "more cohorts": ({"cohorts": [[0, 1]] * 6}, {"cohorts": [[0, 1]] * 6 + [[2]]}, None),
    "other cohorts later": (
        {"cohorts": [[0, 1]] * 6},
        {"cohorts": [[0, 1]] * 6 + [[2]], "rounds": 7},
        None,
    ),
    "other cohorts": (
        {"cohorts": [[0, 1]] * 6},
        {"cohorts": [[0, 1], [0, 2]] * 3},
        "another cohort in round 2: give",
    ),
    "forgotten cohorts": (
        {"cohorts": [[0, 1]] * 6},
        {},
        "another cohort in round 1: give the same cohorts=, or",
    ),
    "fewer rounds": (
        {},
        {"rounds": 5},
        "6 rounds are done, rounds=5 asks for fewer: give rounds=6 or more",
    ),
    "the same layers": ({"model": rate(0.2)}, {"model": rate(0.2)}, None),
    "other layers": (
        {"model": rate(0.2)},
        {"model": rate(0.9)},
        "the run in it is another one .model: ",
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_a_run_is_resumed_only_as_what_it_was(name, tmp_path):
    first, then, message = SAME[name]
    simulate("fedavg", out=tmp_path / "run", **OPTIONS | first)
    cohorts = (tmp_path / "run" / "cohorts.json").read_bytes()
    if message is None:
        simulate("fedavg", out=tmp_path / "run", resume=True, **OPTIONS | then)
        return
    with pytest.raises(SteelyardError, match=message):
        simulate("fedavg", out=tmp_path / "run", resume=True, **OPTIONS | then)
    assert (tmp_path / "run" / "cohorts.json").read_bytes() == cohorts


def test_groups_of_samples_are_written_down(tmp_path):
    inputs, targets = (
        torch.randn(12, 5, generator=torch.Generator().manual_seed(0)),
        torch.arange(12) % 3,
    )
    data = Dataset(inputs, targets, 3, "grouped", torch.arange(12) % 4)
    simulate(
        "fedavg", Federation.partitioned(data, None, "iid", 2, 0), out=tmp_path / "run", rounds=1
    )
    groups = read_clients(tmp_path / "run")["groups"]
    assert [sum(column) for column in zip(*groups, strict=True)] == [3, 3, 3, 3]


def test_a_run_directory_holds_what_it_should(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "SkylakeX")  # numpy has read it before
    simulate("fedawa", out=tmp_path / "run", **OPTIONS)
    found = {path.name for path in (tmp_path / "run").iterdir()}
    named = {"config.json", "environment.json", "clients.json", "cohorts.json", "rounds.jsonl"}
    named.add("grams.bin")
    assert found == named | {"checkpoints", "lock"}
    held = json.loads((tmp_path / "run" / "clients.json").read_text())
    assert held["ids"] == [f"client-{k}" for k in range(6)]
    assert (
        held["sizes"]
        == [20 + 3 * k for k in range(6)]
        == [sum(counts) for counts in held["counts"]]
    )
    config = json.loads((tmp_path / "run" / "config.json").read_text())["resolved"]
    assert config["algorithm"] == {"weighting": "fedawa"}
    assert config["local"]["momentum"] == 0.9
    cohorts = json.loads((tmp_path / "run" / "cohorts.json").read_text())
    records = read_log(tmp_path / "run")
    assert [sorted(r["weights"]) for r in records] == [sorted(cohort) for cohort in cohorts]
    assert {
        "accuracy",
        "loss",
        "weights",
        "coherence",
        "timings",
        "quarantined",
        "effective_clients",
    } <= set(records[0])
    assert {"train", "sgd", "aggregate", "evaluate", "total"} == set(records[0]["timings"])
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment["torch"] == torch.__version__
    assert environment["openblas_coretype"] == "SkylakeX"
    last, best = (
        read_verified(tmp_path / "run" / "checkpoints" / name) for name in ("last", "best")
    )
    assert last.round == 6
    top = max(r["accuracy"] for r in records)
    assert best.round == next(r["round"] for r in records if r["accuracy"] == top)


def test_checkpoints_are_pruned_and_the_best_stays(tmp_path):
    store = Checkpoints(tmp_path, keep=2)
    model = {"w": torch.arange(3.0)}
    for number in range(1, 6):
        if number == 2:
            store.save(Snapshot(number, model, None, "id"))
        store.save(Snapshot(number, model, {"round": number}, "id"))
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "best",
        "best-000002",
        "last",
        "round-000004",
        "round-000005",
    ]
    assert os.readlink(tmp_path / "last") == "round-000005"


@pytest.mark.parametrize("name", ["model.safetensors", "state.safetensors", "manifest.json"])
@pytest.mark.parametrize(
    "damage", ["empty", "one", "half", "short", "missing", *[f"bit{i}" for i in range(64)]]
)
def test_a_damaged_checkpoint_is_found_out_and_the_one_before_is_used(name, damage, tmp_path):
    store = Checkpoints(tmp_path)
    for number in (1, 2):
        store.save(
            Snapshot(number, {"w": torch.full((50,), float(number))}, {"x": [number] * 20}, "id")
        )
    victim = tmp_path / "round-000002" / name
    data = bytearray(victim.read_bytes())
    if damage == "missing":
        victim.unlink()
    elif damage.startswith("bit"):
        at = (int(damage[3:]) * 7919 + 13) % (8 * len(data))
        data[at // 8] ^= 1 << at % 8
        victim.write_bytes(data)
    else:
        victim.write_bytes(
            data[: {"empty": 0, "one": 1, "half": len(data) // 2, "short": len(data) - 1}[damage]]
        )
    snapshot, refused = store.read_newest("id")
    assert snapshot.round == 1
    assert torch.equal(snapshot.model["w"], torch.ones(50))
    assert len(refused) == 1
    assert refused[0].startswith("round-000002: ")
    assert (tmp_path / "damaged-round-000002").exists()


def test_resume_after_damage_names_it_and_ends_with_the_same_bits(tmp_path):
    simulate("fedadp", out=tmp_path / "whole", **OPTIONS)
    with pytest.raises(KeyboardInterrupt):
        simulate("fedadp", out=tmp_path / "cut", callbacks=[Stop(4)], **OPTIONS)
    newest = sorted((tmp_path / "cut" / "checkpoints").glob("round-*"))[-1]
    (newest / "state.safetensors").write_bytes(b"x")
    said = []

    class Listen(steelyard.Callback):
        def warn(self, message):
            said.append(message)

    simulate("fedadp", out=tmp_path / "cut", resume=True, callbacks=[Listen()], **OPTIONS)
    assert len(said) == 1
    assert newest.name in said[0]
    assert files(tmp_path / "cut") == files(tmp_path / "whole")


DAMAGED = {
    1: r"\(round-000006: state.safetensors is damaged\), the one before is used$",
    2: r"\(round-000006: .*; round-00000\d: .*\), none is left: the run starts over at round 1$",
}


@pytest.mark.parametrize("count", DAMAGED)
def test_what_a_run_goes_on_from_is_said_even_if_nobody_listens(count, tmp_path):
    whole = simulate("fedadp", out=tmp_path / "run", **OPTIONS)
    for path in sorted((tmp_path / "run" / "checkpoints").glob("round-*"))[-count:]:
        (path / "state.safetensors").write_bytes(b"x")
    with pytest.warns(RuntimeWarning, match="checkpoint passed over " + DAMAGED[count]) as caught:
        again = simulate(
            "fedadp", out=tmp_path / "run", resume=True, callbacks=[steelyard.Callback()], **OPTIONS
        )
    assert len(caught) == 1
    assert same(whole, again)


def test_a_run_whose_checkpoints_are_gone_says_that_it_starts_over(tmp_path):
    whole = simulate("fedadp", out=tmp_path / "run", **OPTIONS)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.warns(
        RuntimeWarning, match="holds no checkpoint .*: the run starts over at round 1$"
    ) as caught:
        again = simulate("fedadp", out=tmp_path / "run", resume=True, **OPTIONS)
    assert len(caught) == 1
    assert same(whole, again)


CALLS = ["mkdtemp", "save_file", "save_state", "fsync", "rename", "symlink", "replace", "rmtree"]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_killed_at_every_step_of_a_save(call, moment, count, tmp_path, monkeypatch):
    store = Checkpoints(tmp_path / "c", keep=1)
    store.save(Snapshot(1, {"w": torch.ones(4)}, {"x": 1}, "id"))
    homes = {
        "mkdtemp": (checkpoint.tempfile, "mkdtemp"),
        "save_file": (checkpoint, "save_file"),
        "save_state": (checkpoint, "save_state"),
        "fsync": (os, "fsync"),
        "rename": (os, "rename"),
        "symlink": (Path, "symlink_to"),
        "replace": (os, "replace"),
        "rmtree": (shutil, "rmtree"),
    }
    home, name = homes[call]
    real, calls = getattr(home, name), []

    def deadly(*args, **kwargs):
        calls.append(1)
        if len(calls) == count and moment == "before":
            os._exit(9)
        result = real(*args, **kwargs)
        if len(calls) == count:
            os._exit(9)
        return result

    before = (tmp_path / "c" / "round-000001" / "state.safetensors").read_bytes()
    child = os.fork()
    if not child:  # no handler and no clean-up runs in it once it is told to exit
        monkeypatch.setattr(home, name, deadly)
        store.save(Snapshot(2, {"w": torch.full((4,), 2.0)}, {"x": 2}, "id"))
        os._exit(0)
    os.waitpid(child, 0)
    snapshot, refused = Checkpoints(tmp_path / "c", keep=1).read_newest("id")
    assert refused == []
    assert snapshot.round in (1, 2)
    assert snapshot.state["x"] == snapshot.round
    assert float(snapshot.model["w"][0]) == snapshot.round
    if snapshot.round == 1:
        assert (tmp_path / "c" / "round-000001" / "state.safetensors").read_bytes() == before
    store.save(Snapshot(3, {"w": torch.full((4,), 3.0)}, {"x": 3}, "id"))
    assert store.read_newest("id")[0].round == 3
    assert not [p for p in (tmp_path / "c").iterdir() if p.name.startswith(".")]
