"""Damage that a resume must notice: in the best model, in the log."""

import os
from pathlib import Path

import pytest
import torch

from steelyard.core import _state as states
from steelyard.core._errors import SteelyardError
from steelyard.core._state import save_state
from steelyard.runs._checkpoint import Checkpoints, Snapshot, read_verified
from steelyard.runs._directory import read_log
from tests.sim.runs import OPTIONS, Stop, simulate

DIVERGING = OPTIONS | {"rounds": 8, "local": {"lr": 3.0, "batch_size": 4}, "checkpoint_pace": 1.0}


@pytest.fixture
def cut(tmp_path):
    """A run that was interrupted after round 6."""
    with pytest.raises(KeyboardInterrupt):
        simulate(out=tmp_path / "run", callbacks=[Stop(6)], **DIVERGING)
    return tmp_path / "run"


def flip(path):
    data = bytearray(path.read_bytes())
    data[-3] ^= 0x40
    path.write_bytes(data)


@pytest.mark.parametrize("damage", ["bit", "manifest", "missing"])
def test_a_damaged_best_model_is_named_and_set_aside(damage, cut):
    link = cut / "checkpoints" / "best"
    best = link.resolve()
    if damage == "bit":
        flip(best / "model.safetensors")
    elif damage == "manifest":
        (best / "manifest.json").write_text("[]")
    else:
        (best / "model.safetensors").unlink()
    with pytest.warns(
        RuntimeWarning, match=rf"{best.name}: .*(damaged|missing|No such file)"
    ) as caught:
        simulate(out=cut, resume=True, **DIVERGING)
    assert len(caught) == 1
    if os.path.lexists(link):  # a model that verifies, or none
        read_verified(link)


def test_a_best_model_is_written_anew_from_the_checkpoint_of_its_round(tmp_path):
    store = Checkpoints(tmp_path)
    model = {"w": torch.arange(3.0)}
    store.save(Snapshot(1, model, None, "id"))
    for number in (1, 2):
        store.save(Snapshot(number, model, {"x": number}, "id"))
    before = (tmp_path / "best" / "model.safetensors").read_bytes()
    flip(tmp_path / "best" / "model.safetensors")
    snapshot, _ = store.read_newest("id")
    assert "best-000001: model.safetensors is damaged: written again" in store.verify_best(
        snapshot, 1
    )
    assert (tmp_path / "best" / "model.safetensors").read_bytes() == before
    assert store.verify_best(snapshot, 1) is None


def test_a_best_model_from_after_the_checkpoint_is_no_damage(tmp_path):
    """A run that is killed between the best model and the checkpoint after it goes on without a warning."""
    with pytest.raises(KeyboardInterrupt):
        simulate(out=tmp_path, callbacks=[Stop(3)], **OPTIONS)
    store = Checkpoints(tmp_path / "checkpoints")
    snapshot, _ = store.read_newest(None)
    for path in (tmp_path / "checkpoints").glob("best-*"):
        best = read_verified(path)
    store.save(type(best)(snapshot.round + 1, best.model, None, best.identity))
    assert [path.name for path in (tmp_path / "checkpoints").glob("best-*")] == [
        f"best-{snapshot.round + 1:06d}"
    ]
    simulate(out=tmp_path, resume=True, **OPTIONS)


@pytest.mark.parametrize("change", ["digit", "added", "swapped"])
def test_a_changed_line_of_the_log_is_refused(change, cut):
    path = cut / "rounds.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    if change == "digit":
        at = lines[0].index('"accuracy":0.') + len('"accuracy":0.')
        lines[0] = lines[0][:at] + ("9" if lines[0][at] != "9" else "1") + lines[0][at + 1 :]
    elif change == "added":
        lines[0] = lines[0].replace(
            "{", '{"extra":1,', 1
        )  # the last checkpoint may be of any later round
    else:
        first, second = (line.split(",", 1) for line in lines[:2])
        lines[:2] = [f"{first[0]},{second[1]}", f"{second[0]},{first[1]}"]
    path.write_text("".join(lines))
    with pytest.raises(
        SteelyardError, match=r"rounds.jsonl: the lines of rounds 1 to \d are not those"
    ):
        simulate(out=cut, resume=True, **DIVERGING)
    assert path.read_text() == "".join(lines)


def test_a_checkpoint_from_before_the_log_was_hashed_is_good_enough(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        simulate(out=tmp_path, callbacks=[Stop(3)], **OPTIONS)
    store = Checkpoints(tmp_path / "checkpoints")
    snapshot, _ = store.read_newest(None)
    del snapshot.state["progress"]["best_round"]
    store.save(type(snapshot)(snapshot.round, snapshot.model, snapshot.state, snapshot.identity))
    simulate(out=tmp_path, resume=True, **OPTIONS)
    assert len(read_log(tmp_path)) == OPTIONS["rounds"]


def test_a_state_is_on_disk_before_it_has_its_name_and_its_name_after(tmp_path, monkeypatch):
    calls = []
    real = os.fsync, os.replace

    def fsync(handle):
        calls.append("directory" if os.path.isdir(f"/proc/self/fd/{handle}") else "file")
        real[0](handle)

    def replace(*names):
        calls.append("replace")
        real[1](*names)

    monkeypatch.setattr(states.os, "fsync", fsync)
    monkeypatch.setattr(states.os, "replace", replace)
    save_state(tmp_path / "state", {"a": 1})
    assert calls == ["file", "replace", "directory"]


def test_a_checkpoint_is_hidden_before_it_is_removed(tmp_path, monkeypatch):
    """A process that is killed while it removes an old checkpoint leaves no half of one."""
    removed = []
    monkeypatch.setattr(
        "steelyard.runs._checkpoint.shutil.rmtree",
        lambda path, **_: removed.append(Path(path).name),
    )
    store = Checkpoints(tmp_path, keep=1)
    for number in (1, 2, 2):
        store.save(Snapshot(number, {"w": torch.zeros(2)}, {}, "run"))
    assert [name[:13] for name in removed if (tmp_path / name).exists()] == [
        ".round-000001",
        ".round-000002",
    ]
    assert sorted(path.name for path in tmp_path.glob("round-*")) == ["round-000002"]
