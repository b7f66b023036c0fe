"""Contestants in turns, each in a process and a venv of its own, and what comes out of it."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.peers.job import Job
from benchmarks.peers.torch_net import measured, network, put, tensors
from benchmarks.peers.workloads import Workload

ROOT = Path(__file__).parents[2]
OURS = "steelyard"


@dataclass(frozen=True)
class Contestant:
    """A module of this package, the venv it runs in (None for this one), torch's threads if set, its environment."""

    module: str
    venv: str | None = None
    threads: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return (
            Path(sys.executable)
            if self.venv is None
            else ROOT / ".venv-peers" / self.venv / "bin" / "python"
        )


_QUIET = {  # one thread for each of Flower's actors; nothing asks the network for anything
    "OMP_NUM_THREADS": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
CONTESTANTS = {
    OURS: Contestant("steelyard_peer"),
    "bare": Contestant("bare_peer"),
    "flower": Contestant("flower_peer", "flower", environment=_QUIET),
    "pfl": Contestant("pfl_peer", "pfl"),
    "pfl-1": Contestant("pfl_peer", "pfl", threads=1),
    "fedjax": Contestant("fedjax_peer", "fedjax"),
}


@dataclass(frozen=True)
class Run:
    """One turn of one contestant.

    Attributes:
        seconds: of the whole process, from its start to its end.
        start: seconds until it was ready for the first round.
        rounds: seconds of each round.
        steps: SGD steps of each round.
        versions: of what it is made of.
        result: file with its final parameters.
    """

    seconds: float
    start: float
    rounds: tuple[float, ...]
    steps: tuple[int, ...]
    versions: dict[str, str] = field(default_factory=dict)
    result: Path | None = None

    @property
    def per_round(self) -> float:
        """Median of the rounds after the first, which may compile, allocate or start processes."""
        return statistics.median(self.rounds[1:] or self.rounds)


class Failed(Exception):
    """A contestant did not come to the end."""


def turn(name: str, job: Job, directory: Path) -> Run:
    """Runs a contestant once; its own chatter goes to a log file."""
    chosen = CONTESTANTS[name]
    result = directory / f"{name}.npz"
    job = replace(job, result=str(result), threads=chosen.threads)
    log = directory / f"{name}.log"
    result.unlink(missing_ok=True)
    command = [str(chosen.python), "-m", f"benchmarks.peers.{chosen.module}", job.text()]
    with log.open("w") as errors:
        began = time.time()
        process = subprocess.run(
            command,
            cwd=ROOT,
            env={
                **os.environ,
                **chosen.environment,
                "PYTHONPATH": str(ROOT),
                "FLWR_HOME": str(directory / "flower"),
            },
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            check=False,
        )
        ended = time.time()
    if process.returncode or not result.exists():
        last = [line for line in log.read_text().splitlines() if line.strip()][-1:]
        raise Failed(
            f"{name} ended with code {process.returncode}: {' '.join(last)[:300]} (all of it: "
            f"{log})"
        )
    return replace(parsed(process.stdout.splitlines(), began, ended), result=result)


def parsed(lines: Iterable[str], began: float, ended: float) -> Run:
    """What a contestant said, among anything else it printed."""
    events = [json.loads(line) for line in lines if line.startswith('{"event"')]
    starts = [event for event in events if event["event"] == "start"]
    ends = [event for event in events if event["event"] == "round"]
    if not starts or not ends:
        raise Failed(f"no start and rounds among {len(events)} events")
    times = [starts[0]["at"], *(event["at"] for event in ends)]
    return Run(
        seconds=ended - began,
        start=times[0] - began,
        rounds=tuple(after - before for before, after in pairwise(times)),
        steps=tuple(event["steps"] for event in ends),
        versions=starts[0]["versions"],
    )


def compared(workload: Workload, runs: dict[str, Sequence[Run]]) -> dict[str, dict[str, Any]]:
    """A row for each contestant; a ratio is the median over turns of theirs by ours, neighbours in time."""

    def taken(run: Run) -> float:
        return run.seconds if workload.whole else run.per_round

    rows = {}
    for name, turns in runs.items():
        ratios = [
            taken(theirs) / taken(ours) for theirs, ours in zip(turns, runs[OURS], strict=True)
        ]
        bar = workload.bars.get(name)
        ratio = statistics.median(ratios)
        rows[name] = {
            "seconds": statistics.median(taken(run) for run in turns),
            "start": statistics.median(run.start for run in turns),
            "per_round": statistics.median(run.per_round for run in turns),
            "steps": list(turns[0].steps),
            "ratio": ratio,
            "range": [min(ratios), max(ratios)],
            "bar": bar,
            "holds": None if bar is None else ratio >= bar,
            "versions": turns[0].versions,
        }
    return rows


def agreement(job: Job, runs: dict[str, Run]) -> dict[str, dict[str, float]]:
    """Of each final model: loss and accuracy on the test set, and how far its parameters are from ours.

    Distance is relative to how far our own training moved.
    """
    net, test = network(job.model), tensors(job, "test_inputs", "test_targets")
    first = np.concatenate([value.ravel() for value in job.initial()])
    ours = np.concatenate([value.ravel() for value in _parameters(runs[OURS])])
    found = {}
    for name, run in runs.items():
        values = _parameters(run)
        put(net, values)
        with torch.inference_mode():
            loss, accuracy = measured(net, *test)
        flat = np.concatenate([value.ravel() for value in values])
        distance = float(np.linalg.norm(flat - ours) / np.linalg.norm(ours - first))
        found[name] = {"loss": loss, "accuracy": accuracy, "distance": distance}
    return found


def _parameters(run: Run) -> list[np.ndarray]:
    assert run.result is not None
    with np.load(run.result, allow_pickle=False) as file:
        return [file[name] for name in sorted(file.files)]
