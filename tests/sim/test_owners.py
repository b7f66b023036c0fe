"""Who owns a run directory, whose run is in it, and workers that die."""

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import steelyard
from steelyard.core._errors import SteelyardError
from steelyard.runs import _checkpoint as checkpoint
from steelyard.runs._checkpoint import CheckpointError, Checkpoints, Snapshot
from steelyard.runs._directory import RunDirectory, read_log
from steelyard.runs._lock import LOCK, lock, lock_directory
from tests.sim.runs import OPTIONS, Stop, clients, files, net, same, simulate


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("call", ["save_file", "fsync", "rename"])
def test_a_full_or_failing_disk_loses_nothing_but_that_round(code, call, tmp_path, monkeypatch):
    path = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        simulate("fedadp", out=path, callbacks=[Stop(3)], **OPTIONS)
    before = {p.name: p.read_bytes() for p in (path / "checkpoints" / "last").iterdir()}

    def failing(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(checkpoint if call == "save_file" else os, call, failing)
    with pytest.raises((CheckpointError, OSError, SteelyardError)) as caught:
        simulate("fedadp", out=path, resume=True, **OPTIONS)
    assert os.strerror(code) in str(caught.value)
    monkeypatch.undo()
    assert {p.name: p.read_bytes() for p in (path / "checkpoints" / "last").iterdir()} == before
    assert not [p for p in (path / "checkpoints").iterdir() if p.name.startswith(".")]
    simulate("fedadp", out=tmp_path / "whole", **OPTIONS)
    simulate("fedadp", out=path, resume=True, **OPTIONS)
    assert files(path) == files(tmp_path / "whole")


@pytest.fixture
def small_files():
    """No file may grow beyond 64 kB; the real error of the kernel, as safetensors passes it on."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize("place", ["model", "state"])
def test_a_disk_that_fails_within_safetensors_is_one_sentence(place, tmp_path):
    few, many = torch.zeros(4), torch.zeros(1 << 16)
    store = Checkpoints(tmp_path / "c")
    store.save(Snapshot(1, {"w": few}, {"x": few}, "id"))
    model, state = (many, few) if place == "model" else (few, many)
    with pytest.raises(
        CheckpointError, match=r"checkpoint of round 2 .* too large .* make room, then resume"
    ):
        store.save(Snapshot(2, {"w": model}, {"x": state}, "id"))
    assert store.read_newest("id")[0].round == 1
    assert not list((tmp_path / "c").glob(".round*"))


def test_a_line_that_is_taken_in_part_is_written_to_its_end(tmp_path, monkeypatch):
    real = os.write
    with RunDirectory(tmp_path / "run") as directory:
        directory.open_log(0)
        monkeypatch.setattr(os, "write", lambda handle, data: real(handle, data[:7]))
        directory.append({"round": 1, "accuracy": 0.5})
    monkeypatch.undo()
    assert json.loads((tmp_path / "run" / "rounds.jsonl").read_text()) == {
        "round": 1,
        "accuracy": 0.5,
    }


def test_a_directory_locked_for_nothing_is_gone(tmp_path):
    with lock_directory(tmp_path / "a" / "new", "sweep"):
        assert (tmp_path / "a" / "new" / LOCK).exists()
    assert not (tmp_path / "a" / "new").exists()
    (tmp_path / "mine").mkdir()
    with (
        lock_directory(tmp_path / "mine", "sweep"),
        pytest.raises(SteelyardError, match=rf"in use by pid {os.getpid()}"),
    ):
        lock(tmp_path / "mine", "sweep")
    assert (tmp_path / "mine").exists()
    (tmp_path / "file").touch()
    with pytest.raises(
        SteelyardError,
        match="cannot be a sweep directory: Not a directory: choose another directory",
    ):
        lock(tmp_path / "file" / "out", "sweep")


def test_a_second_process_is_refused_before_anything_is_loaded(tmp_path, monkeypatch):
    held = RunDirectory(tmp_path / "run")
    try:
        code = f"import steelyard; steelyard.simulate(rounds=1, out={str(tmp_path / 'run')!r})"
        with monkeypatch.context() as patch:
            patch.setattr(
                "steelyard.sim._simulate.build_federation", None
            )  # a call would be a TypeError
            with pytest.raises(SteelyardError, match=rf"in use by pid {os.getpid()} on "):
                simulate(out=tmp_path / "run")
        other = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        assert other.returncode != 0
        assert f"in use by pid {os.getpid()}" in other.stderr
    finally:
        held.close()
    simulate(rounds=1, out=tmp_path / "run")


def test_workers_do_not_keep_the_lock_of_a_killed_parent(tmp_path):
    code = f"""
import os, signal, steelyard, threading
class Die(steelyard.Callback):
    def round(self, simulation, record):
        os.kill(os.getpid(), signal.SIGKILL)
steelyard.simulate(rounds=3, out={str(tmp_path / "run")!r}, executor="process", workers=2, callbacks=[Die()])
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    RunDirectory(tmp_path / "run").close()


def test_workers_do_not_hold_the_lock(tmp_path):
    found = []

    class Look(steelyard.Callback):
        def round(self, simulation, record):
            if record["round"] < 8:
                return  # workers may still be at their first lines
            for child in (
                Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
            ):
                found.append(
                    [os.readlink(handle) for handle in Path(f"/proc/{child}/fd").iterdir()]
                )

    simulate(rounds=8, out=tmp_path / "run", executor="process", workers=2, callbacks=[Look()])
    assert len(found) == 2
    for names in found:
        assert not [name for name in names if name.endswith("/lock")]


def test_a_directory_with_a_run_is_not_overwritten_by_accident(tmp_path):
    simulate(out=tmp_path / "run", rounds=2)
    with pytest.raises(SteelyardError, match=r"holds a run: resume it \(steelyard resume"):
        simulate(out=tmp_path / "run", rounds=2)
    (tmp_path / "run" / "notes.txt").write_text("mine")
    simulate(out=tmp_path / "run", rounds=1, overwrite=True)
    assert len(read_log(tmp_path / "run")) == 1
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"


def test_another_run_is_not_resumed(tmp_path):
    simulate("fedavg", out=tmp_path / "run", rounds=2)
    with pytest.raises(
        SteelyardError, match=r"the run in it is another one.*algorithm.*fedavg.*then.*fedadp.*now"
    ):
        simulate("fedadp", out=tmp_path / "run", rounds=2, resume=True)
    with pytest.raises(SteelyardError, match=r"another one.*seed"):
        simulate("fedavg", out=tmp_path / "run", rounds=2, resume=True, seed=5)
    with pytest.raises(SteelyardError, match=r"another one.*data"):
        simulate("fedavg", clients(seed=3), out=tmp_path / "run", rounds=2, resume=True)


def test_a_finished_run_can_be_prolonged(tmp_path):
    whole = simulate("fedadp", out=tmp_path / "whole", rounds=5)
    simulate("fedadp", out=tmp_path / "run", rounds=3)
    assert same(whole, simulate("fedadp", out=tmp_path / "run", rounds=5, resume=True))
    assert same(
        whole, simulate("fedadp", out=tmp_path / "run", rounds=5, resume=True)
    )  # nothing left to do
    local = {"lr": 0.1, "schedule": "cosine"}
    simulate("fedadp", out=tmp_path / "cosine", rounds=3, local=local)
    with pytest.raises(SteelyardError, match=r"another one.*rounds"):
        simulate("fedadp", out=tmp_path / "cosine", rounds=5, resume=True, local=local)


@pytest.mark.parametrize("model", ["mlp", "batch_norm"])  # tasks handed out two at a time, and one
def test_a_worker_that_dies_is_replaced_and_its_clients_redone(model):
    killed = []

    class Assassin(steelyard.Callback):
        def progress(self, simulation, round, done, total):
            if done == 1 and round in (2, 3, 4):
                children = (
                    Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
                )
                for child in children if round == 4 else children[round % 2 :][:1]:
                    os.kill(int(child), signal.SIGKILL)
                    killed.append(child)

    options = {"model": net(model), "executor": "process", "workers": 2, "rounds": 6}
    calm = simulate("fedadp", **options)
    assert same(calm, simulate("fedadp", callbacks=[Assassin()], **options))
    assert len(killed) == 4


def test_a_task_that_kills_every_worker_is_named():
    class Deadly(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(5, 3)

        def forward(self, x):
            if self.training and float(x.max()) > 50:
                os.kill(os.getpid(), signal.SIGKILL)
            return self.inner(x)

    data = clients()
    data["client-3"] = (data["client-3"][0] + 100, data["client-3"][1])
    with pytest.raises(
        SteelyardError, match=r"client 'client-3': 3 workers died here.*use fewer workers"
    ):
        simulate("fedavg", data, Deadly(), executor="process", workers=2)


def test_no_process_or_thread_is_left_behind():
    before = threading.active_count()
    simulate(executor="process", workers=3)
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    assert children == []
    assert threading.active_count() <= before + 2  # the kernels' own two stay


def test_a_log_that_lost_its_lines_is_not_continued(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        simulate("fedadp", out=tmp_path / "run", callbacks=[Stop(4)], **OPTIONS)
    (tmp_path / "run" / "rounds.jsonl").write_text("")
    with pytest.raises(SteelyardError, match=r"lines of rounds 1 to . are missing"):
        simulate("fedadp", out=tmp_path / "run", resume=True, **OPTIONS)
