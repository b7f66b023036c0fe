"""The run directory of a Flower run: records, checkpoints and resume, as in the simulator.

Flower itself cannot resume a run.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from logging import WARNING
from pathlib import Path
from typing import Any

import flwr
import torch
from flwr.app import MetricRecord
from flwr.common.logger import log

from steelyard.core._errors import SteelyardError
from steelyard.core._layout import Layout
from steelyard.core._round_gram import RoundGram
from steelyard.core._state import ClientId, sort_key
from steelyard.flower._server import StateDict
from steelyard.metrics import Table
from steelyard.runs._checkpoint import Checkpoints, Snapshot
from steelyard.runs._directory import COHORTS, RunDirectory, read_config, write_json
from steelyard.runs._gram_log import Recording
from steelyard.runs._monitor import Monitor
from steelyard.runs._record import Record, finite_or_none

_SCORES = ("accuracy", "loss")
# Entries of a record that contain what evaluations return.
_EVALUATION_KEYS = ("client_evaluation", "evaluation", "server_evaluation")
PathLike = str | os.PathLike[str]


@dataclass
class _Round:
    """The round that is not in the directory yet."""

    record: Record
    cohort: list[ClientId]
    round_gram: RoundGram | None = None


class RunLog:
    """Writes the records and checkpoints of a run. Without a directory, it writes nothing.

    In each round, call `begin_round`, `add_training`, the functions that add evaluations, and at
    the end `write_round`, the only function that writes a record.

    Attributes:
        path: the run directory, if any.
        max_checkpoints: number of checkpoints in the directory, beside the best model.
        cohorts: the clients of each written round.
    """

    def __init__(
        self,
        out: PathLike | None,
        checkpoint_dir: PathLike | None,
        resume: bool,
        checkpoint_every: int,
        monitor: str = "accuracy",
        mode: str = "auto",
        recording: Recording | None = None,
    ) -> None:
        """Check the options; `open` opens the directory.

        Args:
            out: the run directory.
            checkpoint_dir: where checkpoints are written, if not to `out`. Without `out`, it is
                the run directory.
            resume: whether to resume the run in the directory, if there is one.
            checkpoint_every: number of rounds between checkpoints.
            monitor: the metric that decides which model is the best one.
            mode: `"max"`, `"min"` or `"auto"`.
            recording: which inner products to record, if any.
        """
        if resume and out is None and checkpoint_dir is None:
            raise SteelyardError(
                "resume=True: specify the run directory, with out=... or checkpoint_dir=..."
            )
        self.path: Path | None = None
        self._checkpoint_path: Path | None = None  # if it is not in the run directory
        if out is not None:
            self.path = Path(out)
            self._checkpoint_path = None if checkpoint_dir is None else Path(checkpoint_dir)
        elif checkpoint_dir is not None:
            self.path = Path(checkpoint_dir)
        self.max_checkpoints = 2
        self.cohorts: list[list[ClientId]] = []
        self._resume = resume
        self._checkpoint_every = checkpoint_every
        self._monitor = Monitor.from_options(monitor.replace("-", "_"), mode)
        self._recording = recording
        self._directory: RunDirectory | None = None
        self._identity = ""
        self._rounds = 0
        self._best_score: float | None = None  # larger is better, whatever the metric
        self._round: _Round | None = None
        self._round_start = 0.0
        self._sizes: dict[str, Any] = {}
        self._label_counts: dict[str, Any] = {}

    # Opening a directory.

    def open(
        self, description: Mapping[str, Any], rounds: int, initial: StateDict
    ) -> Snapshot | None:
        """Start a run, or resume the run in the directory.

        Args:
            description: what `describe_run` returns.
            rounds: number of rounds of the run.
            initial: the initial model.

        Returns:
            The last checkpoint, with tensors in the order of `initial`; None for a new run.
        """
        self._round = None
        if self.path is None:
            return None

        # What must be the same in a resumed run. The initial model may differ: it is not used
        # then, and it may be a new random one at every start.
        fixed = {
            "algorithm": description["algorithm"],
            "seed": description["seed"],
            "parameters": description["model"]["parameters"],
        }
        text = json.dumps(fixed, sort_keys=True)
        self._identity = hashlib.sha256(text.encode()).hexdigest()
        self._rounds = rounds

        # Lock the directory, and read what is in it.
        self._directory = RunDirectory(self.path, self.max_checkpoints)
        if self._checkpoint_path is not None:
            self._directory.checkpoints = Checkpoints(self._checkpoint_path, self.max_checkpoints)
        snapshot = None
        cohorts: list[list[ClientId]] = []
        try:
            if self._directory.has_run:
                self._check_resumable(self.path, fixed)
                snapshot = self._read_checkpoint(self._directory.checkpoints)
                if snapshot is not None:
                    snapshot = self._sort_tensors(snapshot, initial)
                cohorts = _read_cohorts(self.path / COHORTS)
        except SteelyardError:
            self.close()
            raise

        # Continue after the round of the checkpoint.
        finished_rounds = 0 if snapshot is None else snapshot.round
        self.cohorts = cohorts[:finished_rounds]
        config = {
            "resolved": {**description, "rounds": rounds},
            "monitor": self._monitor.to_dict(),
        }
        self._directory.begin(config, self.cohorts, None)
        digest = None if snapshot is None else snapshot.log
        self._best_score = None
        for record in self._directory.open_log(finished_rounds, digest):
            self._update_best_score(record)
        if self._recording is not None:
            is_expected = not self._recording.is_default
            warning = self._directory.grams.open(finished_rounds, is_expected)
            if warning is not None:
                log(WARNING, "%s", warning)
        return snapshot

    def _check_resumable(self, path: Path, fixed: Mapping[str, Any]) -> None:
        """Raise an error if the run in the directory must not be resumed, or is another run."""
        if not self._resume:
            raise SteelyardError(
                f"{path} contains a run: resume it (resume=True), or choose another directory"
            )
        stored = read_config(path).get("resolved", {})
        stored = {**stored, "parameters": stored.get("model", {}).get("parameters")}
        differences = [
            f"{name}: {stored.get(name)!r} in the directory, {value!r} now"
            for name, value in fixed.items()
            if stored.get(name) != json.loads(json.dumps(value))
        ]
        if differences:
            raise SteelyardError(
                f"{path} contains another run ({'; '.join(differences)}): choose another directory"
            )

    def _read_checkpoint(self, checkpoints: Checkpoints) -> Snapshot | None:
        """Return the newest checkpoint that is not damaged; warn of damaged ones."""
        snapshot, problems = checkpoints.read_newest(self._identity)
        if snapshot is not None:
            damage = checkpoints.verify_best(snapshot, None)
            if damage is not None:
                problems = [*problems, damage]
        for problem in problems:
            log(WARNING, "Damaged checkpoint in %s: %s", checkpoints.path, problem)
        return snapshot

    def _sort_tensors(self, snapshot: Snapshot, initial: StateDict) -> Snapshot:
        """Return the checkpoint with tensors in the order of the initial model.

        Files have another order, and some clients use tensors by position.
        """
        shapes = {
            name: (tuple(tensor.shape), tensor.dtype) for name, tensor in snapshot.model.items()
        }
        reason = Layout.of(initial).mismatch(shapes)
        if reason is not None:
            raise SteelyardError(
                f"{self.path}: its model is not that of initial_arrays ({reason}): pass the same "
                "model, or choose another directory"
            )
        return replace(snapshot, model={name: snapshot.model[name] for name in initial})

    def close(self) -> None:
        """Release the lock of the directory."""
        if self._directory is not None:
            self._directory.close()
            self._directory = None

    # The record of a round.

    def begin_round(self) -> None:
        """Start the clock of a round."""
        self._round = None
        self._round_start = time.perf_counter()

    def add_training(
        self,
        record: Record,
        cohort: list[ClientId],
        aggregate_start: float,
        round_gram: RoundGram | None = None,
    ) -> None:
        """Start the record of a round, after the aggregation.

        Args:
            record: what is known of the round so far.
            cohort: the clients that got a message.
            aggregate_start: when the aggregation started, as `time.perf_counter`.
            round_gram: the inner products of the round, if they were computed.
        """
        timings = {
            "train": round(aggregate_start - self._round_start, 6),
            "aggregate": round(time.perf_counter() - aggregate_start, 6),
        }
        self._round = _Round({**record, "timings": timings}, cohort, round_gram)

    @property
    def record(self) -> Record | None:
        """The record of the round that is not written yet, if any."""
        return None if self._round is None else self._round.record

    def add_client_evaluation(self, replies: Record, metrics: MetricRecord | None) -> None:
        """Add the evaluation by clients.

        Args:
            replies: who did not answer or was quarantined, and the medians.
            metrics: the means of the clients' metrics, if any.
        """
        if self._round is None:
            return
        self._round.record["evaluation"] = replies
        if metrics:
            self._round.record["client_evaluation"] = _to_plain(metrics)

    def add_server_evaluation(self, metrics: MetricRecord | None) -> None:
        """Add what the user's `evaluate_fn` returned.

        Metrics are entries of the record under their names. Those whose name is already used, and
        scores that are lists, go to the entry `server_evaluation`.
        """
        if metrics is None or self._round is None:
            return
        record = self._round.record
        values = _to_plain(metrics)
        scores = {*_SCORES, self._monitor.metric}
        reserved = {*record, *_EVALUATION_KEYS} - scores
        separate = {}
        for name, value in values.items():
            if name in reserved or (name in scores and isinstance(value, list)):
                separate[name] = value
            else:
                record[name] = value
        if separate:
            record["server_evaluation"] = separate

        # The server's value decides which model is the best one, not the clients' median.
        medians = record.get("evaluation", {}).get("median", {})
        for name in values.keys() - separate.keys():
            medians.pop(name, None)

    def write_round(self, take_snapshot: Callable[[], tuple[StateDict, dict[str, Any]]]) -> None:
        """Write the record of the round, and a checkpoint if one is due. Call it once per round.

        Args:
            take_snapshot: returns the model to evaluate and the state of the run.
        """
        current = self._round
        self._round = None
        if current is None or self._directory is None:
            return

        # Complete the record: without an evaluation at the server, use the clients' means.
        record = current.record
        for name, value in record.get("client_evaluation", {}).items():
            if not isinstance(value, list) and name not in _EVALUATION_KEYS:
                record.setdefault(name, value)
        for name in _SCORES:
            record.setdefault(name, None)
        total = time.perf_counter() - self._round_start
        evaluate = max(0.0, total - sum(record["timings"].values()))
        record["timings"] |= {"evaluate": round(evaluate, 6), "total": round(total, 6)}

        # Write it.
        round_gram = current.round_gram
        if (
            self._recording is not None
            and round_gram is not None
            and self._recording.includes(round_gram)
        ):
            self._directory.grams.append(round_gram)
            self._directory.grams.flush()
        self._directory.append(record)
        self.cohorts.append(current.cohort)
        write_json(self._directory.path / COHORTS, self.cohorts, compact=True)

        # Write the best model and the checkpoint.
        number = record["round"]
        is_best = self._update_best_score(record)
        is_due = number % self._checkpoint_every == 0 or number == self._rounds
        if not is_best and not is_due:
            return
        model, state = take_snapshot()
        checkpoints = self._directory.checkpoints
        if is_best:
            checkpoints.save(Snapshot(number, model, None, self._identity))
        if is_due:
            snapshot = Snapshot(number, model, state, self._identity, self._directory.digest)
            checkpoints.save(snapshot, self._directory.logs)

    def _update_best_score(self, record: Record) -> bool:
        """Return whether the model of a round is the best so far, and remember its score.

        Of a metric that clients report, the median is used: one client cannot decide which model
        is the best.
        """
        medians = record.get("evaluation", {}).get("median", {})
        score = self._monitor.score_record({**record, **medians})
        if score is None or (self._best_score is not None and score <= self._best_score):
            return False
        self._best_score = score
        return True

    # The data of the clients.

    def add_client_sizes(self, metrics: Table) -> None:
        """Write the numbers of examples and the label counts that clients reported so far."""
        before = (len(self._sizes), len(self._label_counts))
        for client, size in metrics.get("num_examples", {}).items():
            self._sizes[str(client)] = size
        for client, counts in metrics.get("label_hist", {}).items():
            self._label_counts[str(client)] = counts
        is_unchanged = before == (len(self._sizes), len(self._label_counts))
        if self._directory is None or is_unchanged:
            return
        ids = sorted(self._sizes, key=sort_key)
        clients = {"ids": ids, "sizes": [self._sizes[client] for client in ids]}
        if self._label_counts.keys() >= self._sizes.keys():
            clients["counts"] = [self._label_counts[client] for client in ids]
        self._directory.write_clients(clients)


def _read_cohorts(path: Path) -> list[list[ClientId]]:
    try:
        cohorts: list[list[ClientId]] = json.loads(path.read_bytes())
    except (OSError, ValueError):
        raise SteelyardError(
            f"{path}: missing or damaged: restore it, or choose another directory"
        ) from None
    return cohorts


def _to_plain(metrics: MetricRecord) -> Record:
    """Return metrics with Steelyard's names and values that JSON can contain."""
    plain: Record = {}
    for name, value in metrics.items():
        if isinstance(value, list):
            plain[name.replace("-", "_")] = [finite_or_none(float(item)) for item in value]
        else:
            plain[name.replace("-", "_")] = finite_or_none(float(value))
    return plain


def describe_run(
    algorithm: Mapping[str, str | None],
    seed: int,
    model: StateDict,
    clients: int,
    data_name: str,
    metrics: list[str],
) -> dict[str, Any]:
    """Return the description of a run in `config.json`, as far as the server knows it.

    Args:
        algorithm: the spec string of every part.
        seed: random seed of the run.
        model: the initial model.
        clients: number of clients.
        data_name: what to call the data.
        metrics: the metrics that the algorithm needs.
    """
    digest = hashlib.sha256()
    for name, tensor in model.items():
        values = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
        digest.update(name.encode() + values.tobytes())
    parameters = sum(tensor.numel() for tensor in model.values() if tensor.is_floating_point())
    return {
        "algorithm": {part: text for part, text in algorithm.items() if text},
        "engine": f"flower {flwr.__version__}",
        "seed": seed,
        "metrics": metrics,
        "data": {"name": data_name, "clients": clients, "fingerprint": None},
        "model": {"parameters": parameters, "initial": digest.hexdigest()},
        "device": "cpu",
    }
