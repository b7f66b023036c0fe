"""What is measured: three workloads, their bars, and the files they are read from."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.peers.job import Job, write_parameters
from benchmarks.peers.torch_net import network, taken


@dataclass(frozen=True)
class Workload:
    """A job on `clients` clients, `cohort` of them in each round; who must be beaten, and by how much.

    Attributes:
        name: in tables.
        clients: how many there are.
        cohort: how many take part in a round.
        job: all else, without paths.
        tests: samples of the test set.
        whole: compare whole processes, start-up included, instead of rounds.
        bars: the least ratio to each contestant; others have none.
    """

    name: str
    clients: int
    cohort: int
    job: Job
    tests: int
    whole: bool
    bars: dict[str, float]


BLANK = Job(data="", result="", model="lenet", size=0, train=0, rounds=0, batch=0, epochs=1, lr=0.1)
EVERYONE = ("flower", "pfl", "pfl-1", "fedjax")


def quickstart(size: int, rounds: int = 10, tests: int = 10_000) -> Workload:
    """Flower's quickstart: ten clients, 80 % of their images to train on, SGD with momentum, evaluation each round."""
    job = replace(
        BLANK,
        size=size,
        train=size * 4 // 5,
        rounds=rounds,
        batch=32,
        momentum=0.9,
        lr=0.01,
        evaluate=True,
    )
    return Workload(
        f"quickstart, {size} images per client", 10, 10, job, tests, True, {"flower": 10.0}
    )


def published(clients: int = 1000, cohort: int = 50, rounds: int = 4) -> Workload:
    """The CIFAR-10 benchmark of pfl: 50 images per client, batches of 10, evaluation off."""
    job = replace(BLANK, model="pfl_cnn", size=50, train=50, rounds=rounds, batch=10)
    return Workload(
        "pfl's CIFAR-10 set-up", clients, cohort, job, 500, False, dict.fromkeys(EVERYONE, 2.0)
    )


def same_work() -> Workload:
    """Every client's data in one batch, three passes, two rounds: no order to differ in, so the models must agree."""
    job = replace(BLANK, size=40, train=40, rounds=2, batch=40, epochs=3)
    return Workload("same parameters", 6, 6, job, 500, False, {})


def images(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Synthetic images of CIFAR-10's shape that can be learned: a pattern for each class, and noise."""
    rng = np.random.default_rng(seed)
    patterns = np.random.default_rng(7).standard_normal((10, 3, 32, 32), dtype=np.float32)
    targets = rng.integers(10, size=count)
    inputs = rng.standard_normal((count, 3, 32, 32), dtype=np.float32)
    for start in range(0, count, 1000):
        inputs[start : start + 1000] += 0.3 * patterns[targets[start : start + 1000]]
    return inputs, targets


def write(
    workload: Workload, directory: Path, source: dict[str, tuple[np.ndarray, np.ndarray]] | None
) -> Job:
    """Writes the arrays of a workload, from `source["train"]` and `source["test"]` or made up; returns its job."""
    directory.mkdir(parents=True)
    count = workload.clients * workload.job.size
    for name, wanted, prefix, seed in (
        ("train", count, "", 0),
        ("test", workload.tests, "test_", 1),
    ):
        inputs, targets = source[name] if source is not None else images(wanted, seed)
        np.save(directory / f"{prefix}inputs.npy", inputs[:wanted])
        np.save(directory / f"{prefix}targets.npy", targets[:wanted])
    rng = np.random.default_rng(2)
    rounds = range(workload.job.rounds)
    cohorts = [rng.choice(workload.clients, workload.cohort, replace=False) for _ in rounds]
    np.save(directory / "cohorts.npy", np.stack(cohorts))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        write_parameters(directory / "initial.npz", taken(network(workload.job.model)))
    return replace(workload.job, data=str(directory))
