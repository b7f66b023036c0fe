"""A run removes and overwrites only what an earlier run of ours wrote."""

import json
import os
import shutil

import pytest
import torch

from steelyard.core._errors import SteelyardError
from steelyard.runs._checkpoint import CheckpointError, Checkpoints, Snapshot
from steelyard.runs._directory import FILES, RunDirectory
from steelyard.runs._lock import lock
from tests.sim.runs import OPTIONS, Stop, simulate

FOREIGN = {
    "config.json": '{"model": "resnet50", "lr": 0.1}',
    "environment.json": '{"mine": true}',
    "clients.json": '["anna", "bob"]',
    "cohorts.json": '{"2024": ["anna"]}',
    "rounds.jsonl": '{"loss": 0.5}\n',
    "lock": "owned by apt\n",
    "checkpoints/llama-8b.bin": "three weeks of GPU time",
    "checkpoints/.git/HEAD": "ref",
    "checkpoints/round-000001/weights.bin": "mine",
    "checkpoints/best-000001/model.safetensors": "mine",
    "checkpoints": "a file",
}


def contents(directory):
    """What is in a directory: bytes of files, targets of links."""
    return {
        str(path.relative_to(directory)): os.readlink(path)
        if path.is_symlink()
        else path.read_bytes()
        for path in directory.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def put(directory, name, text):
    (directory / name).parent.mkdir(parents=True, exist_ok=True)
    (directory / name).write_text(text)


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("options", [{}, {"overwrite": True}, {"resume": True}], ids=str)
def test_a_directory_with_a_foreign_file_in_the_way_is_refused_and_stays(name, options, tmp_path):
    put(tmp_path, name, FOREIGN[name])
    put(tmp_path, "notes.txt", "hello")
    before = contents(tmp_path)
    with pytest.raises(SteelyardError, match="move it away, or choose another directory"):
        simulate(rounds=1, out=tmp_path, **options)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", FOREIGN)
def test_so_is_one_where_the_file_took_the_place_of_a_run_s(name, tmp_path):
    simulate(rounds=1, out=tmp_path / "run")
    if name == "checkpoints":
        shutil.rmtree(tmp_path / "run" / name)
    if name == "checkpoints/round-000001/weights.bin":
        shutil.rmtree(tmp_path / "run" / "checkpoints")
    put(tmp_path / "run", name, FOREIGN[name])
    before = contents(tmp_path / "run")
    try:
        simulate(rounds=1, out=tmp_path / "run", overwrite=True)
    except SteelyardError:
        assert contents(tmp_path / "run") == before
    else:  # a model of ours with other bytes is a damaged one
        assert name == "checkpoints/best-000001/model.safetensors"


def test_files_that_are_not_in_the_way_stay(tmp_path):
    put(tmp_path, "notes.txt", "hello")
    put(tmp_path, "src/config.json", "{}")
    simulate(rounds=1, out=tmp_path)
    simulate(rounds=1, out=tmp_path, overwrite=True)
    assert (tmp_path / "notes.txt").read_text() == "hello"
    assert (tmp_path / "src" / "config.json").read_text() == "{}"


def test_links_are_not_followed(tmp_path):
    """Each name of ours as a link to a file of somebody else."""
    for name in (*FILES, "lock", ".environment.json.new"):
        directory, target = tmp_path / f"run{name}", tmp_path / f"target{name}"
        directory.mkdir()
        target.write_text("mine")
        (directory / name).symlink_to(target)
        with pytest.raises(SteelyardError):
            simulate(rounds=1, out=directory, overwrite=True)
        assert target.read_text() == "mine"


def test_a_run_that_lost_its_configuration_is_not_started_afresh_by_accident(tmp_path):
    simulate(rounds=2, out=tmp_path)
    (tmp_path / "config.json").unlink()
    before = contents(tmp_path)
    for options in ({}, {"resume": True}):
        with pytest.raises(SteelyardError, match=r"holds a run: .*config.json"):
            simulate(rounds=2, out=tmp_path, **options)
        assert contents(tmp_path) == before
    simulate(rounds=1, out=tmp_path, overwrite=True)
    assert len((tmp_path / "rounds.jsonl").read_text().splitlines()) == 1


def test_what_a_run_that_was_killed_while_it_began_left_is_not_in_the_way(tmp_path):
    simulate(rounds=1, out=tmp_path)
    for name in ("config.json", "rounds.jsonl"):
        (tmp_path / name).unlink()
    shutil.rmtree(tmp_path / "checkpoints")
    simulate(rounds=1, out=tmp_path)
    assert len((tmp_path / "rounds.jsonl").read_text().splitlines()) == 1


def test_a_refused_directory_is_left_without_a_lock(tmp_path):
    (tmp_path / "clients.json").write_text("mine")
    with pytest.raises(SteelyardError):
        simulate(rounds=1, out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["clients.json"]


def test_an_empty_lock_of_a_killed_run_is_taken(tmp_path):
    (tmp_path / "lock").touch()
    RunDirectory(tmp_path).close()
    (tmp_path / "lock").write_text("pid 12 on a-machine.example\n")
    RunDirectory(tmp_path).close()
    (tmp_path / "lock").write_text("pid 12 on a-machine.example\nand a shopping list\n")
    with pytest.raises(SteelyardError, match="not the lock of a sweep"):
        lock(tmp_path, "sweep")


# Checkpoints beside files of others, as with Flower's checkpoint_dir=


def snapshot(number, identity="id", best=False):
    return Snapshot(number, {"w": torch.ones(3)}, None if best else {"x": number}, identity)


BESIDE = (
    ".env",
    ".git/HEAD",
    ".round-robin/a",
    "best-resnet50/w.bin",
    "round-2024-baseline/w.csv",
    "round-7/a",
)
BESIDE += (
    "damaged-goods/list",
    "latest",
    ".last.news",
    "round-000001.bak/model.safetensors",
    "notes/round-000001",
)


def test_checkpoints_touch_only_names_of_their_own(tmp_path):
    for name in BESIDE:
        put(tmp_path, name, name)
    before = contents(tmp_path)
    for _ in range(2):
        store = Checkpoints(tmp_path, keep=1)
        store.read_newest("id")
        for number in (1, 2, 3):
            store.save(snapshot(number, best=True))
            store.save(snapshot(number))
    for path in (tmp_path / "round-000003", tmp_path / "best-000003"):
        (path / "manifest.json").write_text("damaged")
    Checkpoints(tmp_path).read_newest("id")
    after = contents(tmp_path)
    assert {name: after.get(name) for name in before} == before


def test_checkpoints_of_another_run_are_not_pruned(tmp_path):
    Checkpoints(tmp_path, keep=1).save(snapshot(9, "another"))
    Checkpoints(tmp_path, keep=1).save(snapshot(8, "another", best=True))
    store = Checkpoints(tmp_path, keep=1)
    for number in (1, 2):
        store.save(snapshot(number, best=True))
        store.save(snapshot(number))
    found = {path.name for path in tmp_path.iterdir()}
    assert found == {"last", "best", "best-000002", "best-000008", "round-000002", "round-000009"}


@pytest.mark.parametrize("name", ["round-000002", "last"])
@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_a_checkpoint_does_not_replace_what_is_not_one(name, kind, tmp_path):
    store = Checkpoints(tmp_path / "c")
    store.save(snapshot(1))
    (tmp_path / "c" / "last").unlink()
    if kind == "file":
        (tmp_path / "c" / name).write_text("mine")
    elif kind == "directory":
        put(tmp_path / "c", f"{name}/a.bin", "mine")
    else:
        put(tmp_path, "elsewhere/a.bin", "mine")
        (tmp_path / "c" / name).symlink_to(tmp_path / "elsewhere")
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match=f"{name}: is in the way"):
        store.save(snapshot(2))
    after = contents(tmp_path)
    assert {path: after.get(path) for path in before} == before


def test_a_file_of_the_user_s_within_a_checkpoint_stays_and_does_no_harm(tmp_path):
    store = Checkpoints(tmp_path, keep=1)
    store.save(snapshot(1))
    put(tmp_path, "round-000001/notes.txt", "a good one")
    assert store.read_newest("id")[0].round == 1
    store.save(snapshot(2))
    store.save(snapshot(3))
    assert (tmp_path / "round-000001" / "notes.txt").exists()
    assert store.read_newest("id")[0].round == 3


def test_a_resumed_run_leaves_files_beside_its_checkpoints(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        simulate(out=tmp_path, callbacks=[Stop(3)], **OPTIONS)
    for name in BESIDE:
        put(tmp_path / "checkpoints", name, name)
    simulate(out=tmp_path, resume=True, **OPTIONS)
    assert [name for name in BESIDE if (tmp_path / "checkpoints" / name).read_text() != name] == []


def test_a_configuration_of_somebody_else_is_not_resumed(tmp_path):
    put(tmp_path, "config.json", json.dumps({"resolved": {"algorithm": "adam"}}))
    with pytest.raises(SteelyardError, match="not the configuration of a run"):
        simulate(rounds=1, out=tmp_path, resume=True)


def test_a_run_copied_without_its_links_resumes(tmp_path):
    simulate(rounds=2, executor="serial", out=tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")  # follows links
    assert not (tmp_path / "copy" / "checkpoints" / "last").is_symlink()
    simulate(rounds=3, executor="serial", out=tmp_path / "copy", resume=True)
    assert (tmp_path / "copy" / "checkpoints" / "last").resolve().name == "round-000003"
