"""Small jobs to try the laboratory on."""

import json
import os

from steelyard.experiments import _worker
from steelyard.experiments._jobs import Child, Job, Silent
from steelyard.sim._experiment import read_experiment


def job(weighting="fedavg", seed=1, rounds=2, name=None, **settings):
    keys = {
        "weighting": f"'{weighting}'",
        "seed": seed,
        "rounds": rounds,
        "data.clients": 4,
        **settings,
    }
    config = read_experiment(None, [f"{key}={value}" for key, value in keys.items()])
    return Job(
        name or f"{weighting}/seed-{seed}", config, {"weighting": weighting, "seed": str(seed)}
    )


class Diary(Silent):
    """Writes down what it hears."""

    def __init__(self):
        self.lines = []

    def on_start(self, job):
        self.lines.append(("started", job.name))

    def on_progress(self, job, record):
        self.lines.append((record["round"], job.name))
        assert set(record) == {"round", "accuracy", "loss"}

    def on_finish(self, outcome):
        self.lines.append(
            (
                "reused" if outcome.reused else "failed" if outcome.error else "finished",
                outcome.job.name,
            )
        )


class Here(Child):
    """A child that is this process: a fresh one needs seconds to load torch."""

    def __init__(self, order, worker=None):
        self.name, self.workers, self.error, self.unfinished_line = (
            order["name"],
            order["workers"],
            None,
            b"",
        )
        self.output, other = os.pipe()
        plain = {**order, "config": {**order["config"], "executor": "serial"}}
        with os.fdopen(other, "w") as channel:
            self.exit_code = _worker.perform(plain, channel)
        self.code = None

    @property
    def has_ended(self):
        return False

    def wait(self):
        os.close(self.output)
        return self.error if self.exit_code else None

    def release(self):
        return None


class Interrupted(Here):
    """A child that raises Ctrl-C at the start of every run with another seed than 1."""

    def __init__(self, order, worker=None):
        if order["config"]["seed"] != 1:
            raise KeyboardInterrupt
        super().__init__(order, worker)


def fake(path, config, rounds):
    """A run directory without the run."""
    path.mkdir(parents=True)
    data = {"name": "digits", "clients": 4, "fingerprint": "0"}
    resolved = {
        "algorithm": {},
        "seed": config.seed,
        "rounds": config.rounds,
        "data": data,
        "model": {"parameters": 650},
    }
    (path / "config.json").write_text(
        json.dumps({"config": config.to_stored(), "resolved": resolved})
    )
    (path / "rounds.jsonl").write_text(
        "".join(
            json.dumps({"round": n, "accuracy": 0.1 * n, "loss": 1.0}) + "\n"
            for n in range(1, rounds + 1)
        )
    )
