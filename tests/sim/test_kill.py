"""SIGKILL at random moments, then resume: the same bytes as if nothing had happened.

Processes are forked from this one, which has torch loaded: a hundred starts would take longer than
the runs.
"""

import os
import random
import signal
import time
import traceback
import warnings

import pytest
import torch

import steelyard
from steelyard.runs._checkpoint import Checkpoints
from steelyard.runs._directory import RunDirectory
from steelyard.sim._server import SimulationServer
from tests.sim.runs import ALGORITHMS
from tests.sim.test_resume import files

RULES = ["fedavg", "fedadp", "fedawa", "fedcos", "scaffold"]
ROUNDS = 20


def run(algorithm, path, resume):
    steelyard.simulate(
        ALGORITHMS[algorithm],
        rounds=ROUNDS,
        clients=8,
        local={"lr": 0.1, "epochs": 2, "momentum": 0.9, "persistent": algorithm != "scaffold"},
        participation={"share": 0.75},
        executor="process",
        workers=2,
        out=path,
        resume=resume,
        checkpoint_pace=1.0,
    )


def forked(*arguments):
    child = os.fork()
    if not child:
        code = 1
        try:
            torch.set_num_threads(1)  # torch's own threads do not survive a fork
            # One that was killed before its first checkpoint starts over, and says so.
            warnings.filterwarnings(
                "ignore", message=".*although rounds are on record: the run starts over"
            )
            run(*arguments)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run of every rule, and how long it took."""
    made = {}
    for rule in RULES:
        path = tmp_path_factory.mktemp("whole") / rule
        began = time.monotonic()
        _, status = os.waitpid(forked(rule, path, False), 0)
        assert status == 0
        made[rule] = (files(path), time.monotonic() - began)
    return made


def kill_and_resume(rule, seed, whole, tmp_path):
    """Kills a run, and perhaps its resumption too, at random moments; returns in which round."""
    expected, seconds = whole[rule]
    rng = random.Random(f"{rule} {seed}")
    path = tmp_path / "run"
    kills = rng.choice([1, 1, 2])
    for attempt in range(kills):
        child = forked(rule, path, attempt > 0)
        time.sleep(rng.uniform(0.0, seconds))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    died = (
        len((path / "rounds.jsonl").read_bytes().splitlines())
        if (path / "rounds.jsonl").exists()
        else 0
    )
    _, status = os.waitpid(forked(rule, path, True), 0)
    assert status == 0
    assert files(path) == expected
    return died


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rule", RULES)
def test_killed_and_resumed(rule, seed, whole, tmp_path):
    assert 0 <= kill_and_resume(rule, seed, whole, tmp_path) <= ROUNDS


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_killed_and_resumed_twenty_times(rule, whole, tmp_path):
    died = [kill_and_resume(rule, seed, whole, tmp_path / str(seed)) for seed in range(100, 120)]
    assert len(set(died)) > 3  # the moments were spread over the run


def at_call(home, name, count, after):
    def patch(monkeypatch):
        real, calls = getattr(home, name), []

        def deadly(*args, **kwargs):
            calls.append(1)
            if len(calls) == count and not after:
                os._exit(9)
            result = real(*args, **kwargs)
            if len(calls) == count:
                os._exit(9)
            return result

        monkeypatch.setattr(home, name, deadly)

    return patch


MOMENTS = {
    "before aggregation": at_call(SimulationServer, "aggregate", 5, False),
    "between the sum and what clients keep": at_call(SimulationServer, "_finish_round", 5, False),
    "after aggregation": at_call(SimulationServer, "aggregate", 5, True),
    "before the log": at_call(RunDirectory, "append", 6, False),
    "between log and checkpoint": at_call(RunDirectory, "append", 6, True),
    "while a checkpoint is written": at_call(Checkpoints, "_publish", 3, False),
    "between rename and link": at_call(Checkpoints, "_publish", 3, True),
    "while old ones are removed": at_call(Checkpoints, "_prune", 3, False),
    "before anything": at_call(RunDirectory, "begin", 1, False),
    "while the configuration is written": at_call(RunDirectory, "begin", 1, True),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_a_chosen_moment(moment, whole, tmp_path, monkeypatch):
    path = tmp_path / "run"
    child = os.fork()
    if not child:
        MOMENTS[moment](monkeypatch)
        torch.set_num_threads(1)
        run("scaffold", path, False)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 9  # it did die there
    _, status = os.waitpid(forked("scaffold", path, True), 0)
    assert status == 0
    assert files(path) == whole["scaffold"][0]
