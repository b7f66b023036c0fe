"""A Flower run's directory: the simulator's, with checkpoints to go on from.

Flower itself has no resume.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from logging import WARNING
from pathlib import Path
from typing import Any

import flwr
import torch
from flwr.app import ArrayRecord, MetricRecord
from flwr.common.logger import log

from steelyard.core.errors import SteelyardError
from steelyard.core.layout import Layout
from steelyard.core.state import ClientId, sort_key
from steelyard.flower.server import StateDict
from steelyard.metrics import Table
from steelyard.runs.checkpoint import Checkpoints, Snapshot
from steelyard.runs.directory import COHORTS, RunDirectory, read_config, write_json
from steelyard.runs.monitor import Monitor
from steelyard.runs.record import Record, finite_or_none

_SCORES = ("accuracy", "loss")
_PLACES = ("client_evaluation", "evaluation", "server_evaluation")  # of what others find
Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]
Where = str | os.PathLike[str] | None


class RunLog:
    """What is written down of a run, and what it goes on from. Without a directory, nothing."""

    def __init__(
        self,
        out: Where,
        checkpoint_dir: Where,
        resume: bool,
        every: int,
        keep: int,
        monitor: str = "accuracy",
        mode: str = "auto",
    ) -> None:
        if resume and out is None and checkpoint_dir is None:
            raise SteelyardError("resume=True: say from where, with checkpoint_dir=... or out=...")
        self.path = (
            None if out is None and checkpoint_dir is None else Path(out or checkpoint_dir or "")
        )
        self.apart = (
            Path(checkpoint_dir) if out is not None and checkpoint_dir is not None else None
        )
        self.resume, self.every, self.keep = resume, every, keep
        self.monitor = Monitor.from_options(monitor.replace("-", "_"), mode)
        self.directory: RunDirectory | None = None
        self.identity = ""
        self.cohorts: list[list[ClientId]] = []
        self.best: float | None = None  # the monitor's score: more is better
        self.rounds = 0
        self.record: Record | None = None  # of the round that is not on record yet
        self.cohort: list[ClientId] = []
        self.began = 0.0
        self.sizes: dict[str, Any] = {}
        self.labels: dict[str, Any] = {}

    def open(
        self, described: Mapping[str, Any], rounds: int, initial: StateDict
    ) -> Snapshot | None:
        """Starts the run, or says where the one in the directory stopped.

        Its model has the initial one's order.
        """
        self.record = None
        if self.path is None:
            return None
        # Not the initial model: one that is drawn anew at every start is not used when a run goes
        # on.
        fixed_parts = {name: described[name] for name in ("algorithm", "seed")} | {
            "parameters": described["model"]["parameters"]
        }
        self.identity, self.rounds = (
            hashlib.sha256(json.dumps(fixed_parts, sort_keys=True).encode()).hexdigest(),
            rounds,
        )
        self.directory = RunDirectory(self.path, self.keep)
        if self.apart is not None:
            self.directory.checkpoints = Checkpoints(self.apart, self.keep)
        snapshot = None
        if self.directory.has_run:
            if not self.resume:
                self.close()
                raise SteelyardError(
                    f"{self.path}: holds a run: go on with it (resume=True), or choose another "
                    f"directory"
                )
            before = read_config(self.path).get("resolved", {})
            self._check_same(
                {**before, "parameters": before.get("model", {}).get("parameters")}, fixed_parts
            )
            snapshot = self._read_checkpoint(self.directory.checkpoints)
            snapshot = None if snapshot is None else self._in_order(snapshot, initial)
            self.cohorts = self._read_cohorts(self.path / COHORTS)
        num_rounds = 0 if snapshot is None else snapshot.round
        self.cohorts = self.cohorts[:num_rounds]
        config = {"resolved": {**described, "rounds": rounds}, "monitor": self.monitor.to_dict()}
        self.directory.begin(config, self.cohorts, None)
        self.best = None
        for record in self.directory.open_log(
            num_rounds, None if snapshot is None else snapshot.log
        ):
            self._improves(record)
        return snapshot

    def _read_checkpoint(self, checkpoints: Checkpoints) -> Snapshot | None:
        """The newest checkpoint that verifies; warns of what is damaged."""
        snapshot, problems = checkpoints.read_newest(self.identity)
        damage = None if snapshot is None else checkpoints.verify_best(snapshot, None)
        for problem in [*problems, *([] if damage is None else [damage])]:
            log(WARNING, "Damaged checkpoint in %s: %s", checkpoints.path, problem)
        return snapshot

    def _check_same(self, before: Mapping[str, Any], fixed_parts: Mapping[str, Any]) -> None:
        changed = [
            name
            for name, value in fixed_parts.items()
            if before.get(name) != json.loads(json.dumps(value))
        ]
        if changed:
            differences = "; ".join(
                f"{name}: {before.get(name)!r} then, {fixed_parts[name]!r} now" for name in changed
            )
            self.close()
            raise SteelyardError(
                f"{self.path}: the run in it is another one ({differences}): choose another "
                f"directory"
            )

    def _in_order(self, snapshot: Snapshot, initial: StateDict) -> Snapshot:
        """Checkpoints list tensors in an order of their own, and some clients go by position."""
        shapes = {
            name: (tuple(tensor.shape), tensor.dtype) for name, tensor in snapshot.model.items()
        }
        reason = Layout.of(initial).mismatch(shapes)
        if reason is not None:
            self.close()
            raise SteelyardError(
                f"{self.path}: the model in it is not that of initial_arrays ({reason}): pass the "
                f"same one, or choose "
                "another directory"
            )
        return replace(snapshot, model={name: snapshot.model[name] for name in initial})

    def _read_cohorts(self, path: Path) -> list[list[ClientId]]:
        try:
            cohorts: list[list[ClientId]] = json.loads(path.read_bytes())
        except (OSError, ValueError):
            self.close()
            raise SteelyardError(
                f"{path}: missing or damaged: bring it back, or choose another directory"
            ) from None
        return cohorts

    def note(self, record: Record, cohort: list[ClientId]) -> None:
        """A round that is aggregated; evaluations may follow."""
        self.record, self.cohort = record, cohort

    def holds(self, metrics: Table) -> None:
        """Who holds what, as far as clients have told."""
        before = len(self.sizes), len(self.labels)
        self.sizes |= {
            str(client): value for client, value in metrics.get("num_examples", {}).items()
        }
        self.labels |= {
            str(client): value for client, value in metrics.get("label_hist", {}).items()
        }
        if self.directory is None or before == (len(self.sizes), len(self.labels)):
            return
        ids = sorted(self.sizes, key=sort_key)
        clients = {"ids": ids, "sizes": [self.sizes[client] for client in ids]}
        if self.labels.keys() >= self.sizes.keys():
            clients["counts"] = [self.labels[client] for client in ids]
        self.directory.write_clients(clients)

    def judging(self, evaluate: Evaluate | None, finished_rounds: int) -> Evaluate | None:
        """The server's evaluation, with rounds counted from the run's first, on record."""
        if evaluate is None:
            return None

        def judge(number: int, arrays: ArrayRecord) -> MetricRecord | None:
            metrics = evaluate(number + finished_rounds, arrays)
            self.add_evaluation(metrics)
            return metrics

        return judge

    def add_evaluation(self, metrics: MetricRecord | None, by: str = "") -> None:
        """Adds what an evaluation found.

        The server's own under the metrics' names, the clients' under theirs.
        """
        if metrics is None or self.record is None:
            return
        plain: Record = {
            name.replace("-", "_"): _to_plain(value) for name, value in metrics.items()
        }
        if not by:
            reserved = {*self.record, *_PLACES} - {*_SCORES, self.monitor.metric}
            lists = {
                name
                for name in (*_SCORES, self.monitor.metric)
                if isinstance(plain.get(name), list)
            }
            separate = {name: value for name, value in plain.items() if name in reserved | lists}
            own = {name: value for name, value in plain.items() if name not in separate}
            self.record |= own
            # The server's own evaluation counts, not the clients'.
            medians = self.record.get("evaluation", {}).get("median", {})
            for name in own.keys() & medians.keys():
                del medians[name]
            by, plain = "server_evaluation", separate
        if plain:
            self.record[by] = plain

    def answered(self, replies: Record) -> None:
        """Adds who did not answer when clients were to evaluate."""
        if self.record is not None:
            self.record["evaluation"] = replies

    def settle(self, state: Callable[[], tuple[StateDict, dict[str, Any]]]) -> None:
        """Puts the round on record, and a checkpoint beside it if one is due.

        `state` gives model and state.
        """
        record, self.record = self.record, None
        if record is None or self.directory is None:
            return
        # Where the server did not evaluate, the clients' means stand under their names.
        for name, value in record.get("client_evaluation", {}).items():
            if not isinstance(value, list) and name not in _PLACES:
                record.setdefault(name, value)
        for name in _SCORES:
            record.setdefault(name, None)
        total, measured = time.perf_counter() - self.began, sum(record["timings"].values())
        record["timings"] |= {
            "evaluate": round(max(0.0, total - measured), 6),
            "total": round(total, 6),
        }
        self.directory.append(record)
        self.cohorts.append(self.cohort)
        number = record["round"]
        write_json(self.directory.path / COHORTS, self.cohorts, compact=True)
        better = self._improves(record)
        due = number % self.every == 0 or number == self.rounds
        if better or due:
            model, run_state = state()
            if better:
                self.directory.checkpoints.save(Snapshot(number, model, None, self.identity))
            if due:
                self.directory.checkpoints.save(
                    Snapshot(number, model, run_state, self.identity, self.directory.digest),
                    self.directory.log,
                )

    def _improves(self, record: Record) -> bool:
        """Return whether a round's model is the best so far, and remember it.

        What clients report counts by its median: one client cannot decide which model is the best.
        """
        medians = record.get("evaluation", {}).get("median", {})
        score = self.monitor.score_record({**record, **medians})
        if score is None or (self.best is not None and score <= self.best):
            return False
        self.best = score
        return True

    def close(self) -> None:
        """Gives the directory free."""
        if self.directory is not None:
            self.directory.close()
            self.directory = None


def _to_plain(value: Any) -> Any:
    return (
        [finite_or_none(float(item)) for item in value]
        if isinstance(value, list)
        else finite_or_none(float(value))
    )


def describe_run(
    algorithm: Mapping[str, str | None],
    seed: int,
    model: StateDict,
    clients: int,
    name: str,
    metrics: list[str],
) -> dict[str, Any]:
    """What a run is, as far as its server knows, in the simulator's words."""
    digest = hashlib.sha256()
    for key, tensor in model.items():
        digest.update(
            key.encode() + tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        )
    parameters = sum(tensor.numel() for tensor in model.values() if tensor.is_floating_point())
    return {
        "algorithm": {part: text for part, text in algorithm.items() if text},
        "engine": f"flower {flwr.__version__}",
        "seed": seed,
        "metrics": metrics,
        "data": {"name": name, "clients": clients, "fingerprint": None},
        "model": {"parameters": parameters, "initial": digest.hexdigest()},
        "device": "cpu",
    }
