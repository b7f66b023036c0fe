"""A run directory, its log or its checkpoints that disappear or are replaced while the run goes on (T10)."""

import errno
import os
import shutil
import tempfile

import pytest

import steelyard
from steelyard.core._errors import SteelyardError
from steelyard.runs import _directory as rundir
from tests.sim.runs import simulate


def delete(path, _=None):
    """All at once: a checkpoint may just be written."""
    shutil.rmtree(path.rename(path.parent / "trash"), ignore_errors=True)


def replace(path, other):
    delete(path)
    path.symlink_to(other)


def move(path, other):
    path.rename(other / "moved")


def make_anew(path, _):
    delete(path)
    path.mkdir()


def cut_off(path, _):
    path.unlink()
    path.touch()


CHANGES = {
    "directory deleted": ("", delete),
    "directory moved": ("", move),
    "directory made anew": ("", make_anew),
    "directory replaced by a link": ("", replace),
    "checkpoints deleted": ("checkpoints", delete),
    "checkpoints made anew": ("checkpoints", make_anew),
    "checkpoints replaced by a link": ("checkpoints", replace),
    "log removed": ("rounds.jsonl", lambda path, _: path.unlink()),
    "log made anew": ("rounds.jsonl", cut_off),
    "configuration removed": ("config.json", lambda path, _: path.unlink()),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("number", [2, 4])  # in between, and after the last round
@pytest.mark.parametrize("executor", ["serial", "process"])
def test_the_run_stops_and_writes_nothing_elsewhere(change, number, executor, tmp_path):
    run, other = tmp_path / "run", tmp_path / "other"
    other.mkdir()
    name, act = CHANGES[change]

    class Act(steelyard.Callback):
        def round(self, simulation, record):
            if record["round"] == number:
                act(run / name, other)

    with pytest.raises(SteelyardError, match=r"removed|replaced") as caught:
        simulate(out=run, callbacks=[Act()], executor=executor, workers=2, checkpoint_pace=1.0)
    assert str(run) in str(caught.value)
    assert {path.name for path in other.iterdir()} <= {"moved"}
    if change in ("directory deleted", "directory moved"):
        assert not run.exists()
    if change in ("directory made anew", "checkpoints made anew"):
        assert list((run / name).iterdir()) == []


def test_a_directory_that_a_run_was_to_create_is_not_removed_in_its_place(tmp_path):
    """The lock of another directory is not removed, when a run that made its directory ends before it began."""
    run, other = tmp_path / "run", tmp_path / "other"
    other.mkdir()
    (other / "lock").write_text("mine")
    with rundir.RunDirectory(run):
        replace(run, other)
    assert (other / "lock").read_text() == "mine"


@pytest.mark.parametrize("call", ["checkpoint", "log"])
def test_a_disk_that_became_read_only_stops_the_run(call, tmp_path, monkeypatch):
    def failing(*args, **kwargs):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    class Change(steelyard.Callback):
        def round(self, simulation, record):
            if call == "checkpoint":
                monkeypatch.setattr(tempfile, "mkdtemp", failing)
            else:
                monkeypatch.setattr(rundir.os, "write", failing)

    with pytest.raises(SteelyardError, match=os.strerror(errno.EROFS)) as caught:
        simulate(out=tmp_path / "run", callbacks=[Change()])
    assert str(tmp_path / "run") in str(caught.value)


def test_a_directory_that_is_a_link_from_the_start_is_as_good_as_any(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    simulate(out=tmp_path / "run", rounds=2)
    simulate(out=tmp_path / "run", rounds=3, resume=True)
    assert (tmp_path / "disk" / "rounds.jsonl").exists()
