"""T12 and T13: nothing of the environment, and no order of replies, changes a bit."""

import os
import random
import subprocess
import sys

import pytest

from steelyard.client._dense import DenseModels
from steelyard.sim import _executors as executors
from tests.sim.runs import ALGORITHMS, clients, same, simulate

STEELYARD = [sys.executable, "-c", "from steelyard.cli import main; main()"]


def test_threads_and_hash_seeds_of_the_environment_do_not_matter(tmp_path):
    """Whole runs of the real command under other environments."""
    environments = [
        {},
        {
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0",
        },
        {
            "OMP_NUM_THREADS": "4",
            "OPENBLAS_NUM_THREADS": "2",
            "MKL_NUM_THREADS": "4",
            "PYTHONHASHSEED": "1",
        },
    ]
    found = set()
    settings = [
        "weighting=fedawa_l:steps=5",
        "client=fedcos:mu=0.01",
        "server=yogi",
        "rounds=4",
        "seed=5",
    ]
    for number, extra in enumerate(environments):
        out = tmp_path / str(number)
        arguments = [part for setting in settings for part in ("--set", setting)]
        command = [
            *STEELYARD,
            "run",
            *arguments,
            "--set",
            f"workers={number + 1}",
            "--out",
            str(out),
            "-q",
        ]
        subprocess.run(command, check=True, env={**os.environ, **extra})
        last = out / "checkpoints" / "last"
        found.add(
            (last / "model.safetensors").read_bytes() + (last / "state.safetensors").read_bytes()
        )
    assert len(found) == 1


@pytest.mark.parametrize("name", ["fedadp", "layers", "scaffold"])
def test_the_order_in_which_clients_reply_does_not_matter(name, monkeypatch):
    options = {"rounds": 3, "test": clients(1, seed=9, size=1200)["client-0"]}
    plain = simulate(ALGORITHMS[name], **options)
    real = executors.Serial.run
    rng = random.Random(0)

    def permuted(self, tasks, done=None):
        real(self, rng.sample(list(tasks), len(tasks)), done)

    monkeypatch.setattr(executors.Serial, "run", permuted)
    for _ in range(17):
        assert same(plain, simulate(ALGORITHMS[name], **options))


@pytest.mark.parametrize("name", ["fedavg", "fedcos", "scaffold"])
def test_a_client_trains_alike_in_any_company(name, monkeypatch):
    """Alone, as on Flower, or beside others in one stack of dense networks."""
    plain = simulate(ALGORITHMS[name], rounds=2)
    for most in (1, 2):
        monkeypatch.setattr(DenseModels, "count", most)
        assert same(plain, simulate(ALGORITHMS[name], rounds=2))
