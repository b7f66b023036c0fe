"""Many runs, each in a process of its own."""

import fcntl
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import steelyard
from steelyard.core._errors import SteelyardError
from steelyard.data import load
from steelyard.experiments import _jobs as module
from steelyard.experiments._jobs import is_finished, run_jobs
from steelyard.runs._directory import read_config, read_log
from tests.experiments.jobs import Diary, Here, fake, job
from tests.waiting import wait_until

LONG = {"rounds": 100000}


def alive(pid):
    """Whether a process runs; one that is dead and not yet collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def free(path):
    """Whether no process has the run directory open."""
    with open(path / "lock") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def descendants(pid):
    made = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == pid:
            made += [int(stat.parent.name), *descendants(int(stat.parent.name))]
    return made


@pytest.fixture
def here(monkeypatch):
    monkeypatch.setattr(module, "Child", Here)


def test_jobs_run_in_processes_of_their_own_and_fail_alone(tmp_path):
    broken = job("fedadp", rounds=6, **{"local.lr": 1e30, "participation.patience": 2})
    diary = Diary()
    outcomes = run_jobs([broken, job("fedavg")], tmp_path, parallel=2, watch=diary)
    assert [outcome.job.name for outcome in outcomes] == ["fedadp/seed-1", "fedavg/seed-1"]
    bad, good = outcomes
    assert bad.history is None
    assert "2 rounds in a row were void" in bad.error
    assert "learning rate" in bad.error
    assert good.error is None
    assert not good.reused
    assert good.history.name == "fedavg/seed-1"
    assert [line for line in diary.lines if line[1] == "fedavg/seed-1"] == [
        (state, "fedavg/seed-1") for state in ("started", 1, 2, "finished")
    ]
    assert diary.lines[:2] == [("started", "fedadp/seed-1"), ("started", "fedavg/seed-1")]
    assert ("failed", "fedadp/seed-1") in diary.lines
    # The same bits as a run in this process, on another executor.
    here = steelyard.simulate(replace(good.job.config, execution={"executor": "serial"}))
    assert good.history.comparable() == json.loads(json.dumps(here.comparable()))


def test_short_runs_share_a_process(tmp_path, monkeypatch):
    started = []
    real = subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda *args, **how: started.append(real(*args, **how)) or started[-1]
    )
    jobs = [job("fedavg", seed) for seed in (1, 2)]
    jobs += [
        job("fedavg", 3, rounds=6, **{"local.lr": 1e30, "participation.patience": 2}),
        job("fedadp", 4),
        job("fedadp", 5),
    ]
    outcomes = run_jobs(jobs, tmp_path, parallel=1)
    assert [outcome.error is None for outcome in outcomes] == [True, True, False, True, True]
    assert len(started) == 2  # a run that failed is the last one of its process
    assert all(process.poll() is not None for process in started)
    alone = run_jobs([job("fedavg", 2, name="alone")], tmp_path)
    assert alone[0].history.comparable() == outcomes[1].history.comparable()


@pytest.mark.usefixtures("here")
def test_what_is_finished_is_reused_and_can_be_prolonged(tmp_path):
    first = run_jobs([job("fedavg"), job("fedawa")], tmp_path)
    log = first[0].path / "rounds.jsonl"
    before = log.stat().st_mtime_ns
    diary, longer = Diary(), job("fedawa", rounds=3)
    assert is_finished(job("fedavg"), tmp_path)
    assert not is_finished(longer, tmp_path)
    again = run_jobs([job("fedavg"), longer], tmp_path, watch=diary)
    assert [outcome.reused for outcome in again] == [True, False]
    assert diary.lines == [
        ("reused", "fedavg/seed-1"),
        ("started", "fedawa/seed-1"),
        (3, "fedawa/seed-1"),
        ("finished", "fedawa/seed-1"),
    ]
    assert again[0].history == first[0].history
    assert log.stat().st_mtime_ns == before
    assert again[1].history.records[:2] == first[1].history.records
    assert len(again[1].history) == 3


@pytest.mark.usefixtures("here")
def test_another_configuration_is_refused_before_anything_starts(tmp_path):
    mine = job("fedavg")
    fake(tmp_path / mine.name, job("fedavg", **{"local.lr": 0.5}).config, 2)
    diary = Diary()
    with pytest.raises(
        SteelyardError, match=r"seed-1: holds another run \(local.lr = 0.5 there, 0.1 here\)"
    ) as caught:
        run_jobs([job("fedawa"), mine], tmp_path, watch=diary)
    assert "--overwrite" in str(caught.value)
    assert "--out" in str(caught.value)
    assert diary.lines == []
    with pytest.raises(SteelyardError, match="holds another run"):
        is_finished(mine, tmp_path)
    (outcome,) = run_jobs([mine], tmp_path, overwrite=True)
    assert read_config(outcome.path)["config"]["local"]["lr"] == 0.1
    assert len(outcome.history) == 2


def test_longer_runs_and_runs_from_python_are_other_runs(tmp_path):
    fake(tmp_path / "long", job(rounds=5).config, 5)
    with pytest.raises(SteelyardError, match="5 rounds there, 3 here"):
        run_jobs([job(rounds=3, name="long")], tmp_path)
    steelyard.simulate("fedavg", load("digits"), rounds=1, executor="serial", out=tmp_path / "own")
    with pytest.raises(SteelyardError, match="started from Python"):
        run_jobs([job(name="own")], tmp_path)


def test_finished_means_all_rounds_or_the_target(tmp_path):
    whole, early, short, damaged = (
        job(rounds=4, name="whole"),
        job(rounds=40, name="early", target=0.3),
        job(rounds=40, name="short", target=0.5),
        job(rounds=4, name="damaged"),
    )
    for one in (whole, early, short, damaged):
        fake(tmp_path / one.name, one.config, 4)
    with open(tmp_path / "damaged" / "rounds.jsonl", "ab") as file:
        file.write(b"\0\0\n")
    jobs = (whole, early, short, damaged, job(name="none"))
    assert [is_finished(one, tmp_path) for one in jobs] == [True, True, False, False, False]
    (reused,) = run_jobs([early], tmp_path)
    assert reused.reused
    assert reused.history.rounds_to(0.3) == 3


def test_a_model_that_ends_without_a_finite_loss_has_failed(tmp_path):
    one = job(rounds=1)
    fake(tmp_path / one.name, one.config, 0)
    (tmp_path / one.name / "rounds.jsonl").write_text(
        '{"round": 1, "accuracy": 0.1, "loss": null}\n'
    )
    (outcome,) = run_jobs([one], tmp_path)
    assert outcome.history is None
    assert (
        outcome.error
        == "round 1: the loss of the global model is not finite: a lower local.lr helps"
    )


def test_cores_left_over_go_to_the_jobs_there_are(tmp_path, monkeypatch):
    given = []

    class Stub:
        has_ended = False

        def __init__(self, order, worker):
            given.append(order["workers"])
            self.workers = order["workers"]
            fake(Path(order["path"]), jobs[0].config, 2)
            self.output, other = os.pipe()
            os.close(other)

        def read_records(self):
            return None

        def wait(self):
            os.close(self.output)

        def release(self):
            return None

    monkeypatch.setattr(module, "Child", Stub)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    for count, parallel, expected in [
        (9, None, [1] * 8 + [8]),
        (2, None, [4, 4]),
        (3, None, [2, 3, 3]),
        (2, 1, [8, 8]),
        (3, 2, [4, 4, 8]),
        (3, 16, [2, 3, 3]),
    ]:
        given.clear()
        jobs = [job(name=f"{count}-{parallel}-{n}") for n in range(count)]
        run_jobs(jobs, tmp_path, parallel=parallel)
        assert given == expected, (count, parallel)
    given.clear()
    run_jobs([job(name="own", workers=3)], tmp_path)
    assert given == [3]
    with pytest.raises(SteelyardError, match="parallel=0: use at least 1"):
        run_jobs([], tmp_path, parallel=0)


@pytest.mark.parametrize(
    "name", ["", ".", "/tmp/x", "../x", "a/../b", "a//b", "a/", "a\nb", "a\\b"]
)
def test_names_stay_below_the_common_directory(name, tmp_path):
    bad = module.Job(name, job().config)
    with pytest.raises(SteelyardError, match="use a relative path"):
        run_jobs([bad], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_names_are_distinct_and_side_by_side(tmp_path):
    with pytest.raises(SteelyardError, match="given 2 times"):
        run_jobs([job(), job()], tmp_path)
    with pytest.raises(SteelyardError, match="within another job's directory"):
        run_jobs([job(name="a"), job(name="a/b")], tmp_path)


class Killer(Diary):
    """Sends a signal to the process of the job named `long` after its first round."""

    def on_progress(self, job, record):
        super().on_progress(job, record)
        if job.name == "long" and record["round"] == 1:
            for pid in self.pids():
                os.kill(pid, signal.SIGKILL)

    def pids(self):
        return [
            pid
            for pid in descendants(os.getpid())
            if b"experiments._worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]


def test_a_killed_process_is_a_failed_job(tmp_path):
    (outcome,) = run_jobs([job(name="long", **LONG)], tmp_path, watch=Killer())
    assert outcome.history is None
    assert (
        outcome.error == "its process was killed (out of memory? use fewer at a time, --parallel)"
    )


class Interrupt(Diary):
    def on_progress(self, job, record):
        self.pids = descendants(os.getpid())
        raise KeyboardInterrupt


def test_ctrl_c_ends_the_children(tmp_path, monkeypatch):
    """They are asked, not killed."""
    made = []

    class Spied(module.Child):
        def __init__(self, order, worker):
            super().__init__(order, worker)
            made.append(self)

    monkeypatch.setattr(module, "Child", Spied)
    monkeypatch.setattr(module, "PATIENCE", 30.0)
    watch = Interrupt()
    with pytest.raises(KeyboardInterrupt):
        run_jobs([job(**LONG)], tmp_path, watch=watch)
    assert watch.pids
    assert [one.process.returncode for one in made] == [130]
    wait_until(lambda: not any(map(alive, watch.pids)), "the workers have ended")
    assert len(read_log(tmp_path / "fedavg/seed-1")) >= 1


DEAF = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.stdout.write("{}\\n")
sys.stdout.flush()
time.sleep(60)
"""


def test_a_child_that_does_not_end_is_made_to(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.2)
    real = subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda _, **how: real([sys.executable, "-c", DEAF], **how)
    )
    deaf = module.Child({"name": "deaf", "workers": 1})
    assert deaf.read_records() == [{}]
    module.stop_children([deaf])
    assert deaf.process.returncode == -signal.SIGKILL


PARENT = """
import sys
from dataclasses import replace
from tests.experiments.jobs import job
from steelyard.experiments._jobs import run_jobs
run_jobs([job(rounds=int(sys.argv[2]))], sys.argv[1])
"""


def test_children_do_not_outlive_a_killed_parent_and_the_sweep_goes_on(tmp_path, monkeypatch):
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path), str(LONG["rounds"])])
    path = tmp_path / "fedavg/seed-1"
    wait_until((path / "checkpoints" / "last").exists, "the first checkpoint is written")
    pids = descendants(parent.pid)
    assert pids
    parent.kill()
    parent.wait()
    wait_until(
        lambda: not any(map(alive, pids)) and free(path), "the workers have ended"
    )  # a thread may be in fsync
    done = len(read_log(path))
    monkeypatch.setattr(module, "Child", Here)
    (outcome,) = run_jobs([job(rounds=done + 1)], tmp_path)
    assert outcome.error is None
    whole = steelyard.simulate(
        replace(job(rounds=done + 1).config, execution={"executor": "serial"})
    )
    assert outcome.history.comparable()[:5] == json.loads(json.dumps(whole.comparable()[:5]))
    assert outcome.history.accuracy == whole.accuracy
