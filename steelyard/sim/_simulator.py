"""The rounds of a run.

select     the cohort of the round, without dropouts and stragglers
train      groups of clients, on the executor
aggregate  the core's round, on the matrix that the workers wrote
evaluate   the test set in shards and clients' own data, on the executor
record     one line of JSON
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard import threads
from steelyard.client._adapters import load_model
from steelyard.client._fisher import fisher_trace
from steelyard.core._errors import SteelyardError
from steelyard.core._rng import stream
from steelyard.core._round_gram import RoundGram
from steelyard.core._state import ClientId, sort_key
from steelyard.runs._checkpoint import Snapshot, Writer
from steelyard.runs._directory import RunDirectory
from steelyard.runs._gram_log import parse_recording
from steelyard.runs._monitor import Monitor
from steelyard.runs._record import Record, finite_or_none, make_record, to_json_record
from steelyard.sim._buffers import SHARD, Buffers
from steelyard.sim._callbacks import Callback, warn
from steelyard.sim._evaluation import (
    TestMetric,
    add_test_metrics,
    compute_heterogeneity_coherence,
    is_due,
    record_clients,
    record_groups,
    record_training,
)
from steelyard.sim._executors import (
    CLIENTS,
    TEST,
    TRAIN,
    TRAINED,
    Executor,
    Forked,
    Serial,
    Task,
    can_fork,
    one_thread,
)
from steelyard.sim._experiment import Execution
from steelyard.sim._group import FINE, REASONS
from steelyard.sim._participation import Participation
from steelyard.sim._server import SimulationServer
from steelyard.sim._work import ClientSlot, SimulationContext


class RunStopped(SteelyardError):
    """The run cannot continue; its last checkpoint is intact."""


class Simulation:
    """One run, from its first round or from a checkpoint."""

    def __init__(
        self,
        work: SimulationContext,
        participation: Participation,
        options: Execution,
        cohorts: Sequence[Sequence[int]],
        directory: RunDirectory | None,
        callbacks: Sequence[Callback],
        identity: str,
        monitor: Monitor | None = None,
        test_metrics: Mapping[str, TestMetric] | None = None,
    ) -> None:
        self.monitor = monitor or Monitor()
        self.test_metrics = test_metrics or {}
        self.work = work
        self.participation = participation
        self.options = options
        self.cohorts = cohorts
        self.directory = directory
        self.callbacks = callbacks
        self.identity = identity
        self.clients = len(work.federation.ids)
        rows = max(map(len, cohorts), default=1)
        self.buffers: Buffers = work.buffers(
            self.clients if participation.train_all else rows, rows
        )
        self.server = SimulationServer(work, self.buffers)
        self.records: list[Record] = []
        self.voids = 0
        self.best: float | None = None  # the monitor's score: more is better
        self.best_round: int | None = None
        self.best_model: Snapshot | None = None  # not on disk yet
        self.last_checkpoint = 0  # the round of it
        self.warned: set[str] = set()
        self.recording = parse_recording(options.record)
        self.round_gram: RoundGram | None = None  # the inner products of the present round
        if self.recording is not None:
            self.server.state.record_layers = self.recording.layers

    def resume(self) -> list[str]:
        """Restore the newest intact checkpoint.

        Returns:
            A warning for everything that is damaged or missing.
        """
        assert self.directory is not None
        checkpoints = self.directory.checkpoints
        snapshot, problems = checkpoints.read_newest(self.identity)
        # Without a checkpoint, the run starts over.
        if snapshot is None:
            has_rounds = self.directory.has_rounds
            self.records = self.directory.open_log(0)
            if problems:
                reason = f"checkpoint passed over ({'; '.join(problems)}), none is left"
            elif has_rounds:
                reason = f"{checkpoints.path}: holds no checkpoint of this run, although rounds are on record"
            else:
                return []  # it was stopped before its first round ended
            return [f"{reason}: the run starts over at round 1"]
        self.last_checkpoint = snapshot.round
        # The log comes first: nothing is changed where it is damaged.
        self.records = self.directory.open_log(snapshot.round, snapshot.log)
        try:
            progress = self.server.restore(snapshot)
            self.voids, self.best = progress["voids"], progress["best"]
            self.best_round = progress.get("best_round")
        except (KeyError, TypeError, AttributeError, RuntimeError) as error:
            raise SteelyardError(
                f"{checkpoints.path / snapshot.name}: does not hold the state of this run "
                f"({error}): start afresh "
                "(overwrite=True, --overwrite)"
            ) from error
        self.monitor.check_same_metric(self.directory.path, progress, self.records)
        warnings = (
            [f"checkpoint passed over ({'; '.join(problems)}), the one before is used"]
            if problems
            else []
        )
        damage = checkpoints.verify_best(snapshot, self.best_round)
        return warnings if damage is None else [*warnings, damage]

    def run(self) -> None:
        """Run all remaining rounds.

        torch and BLAS use one thread here, because their threads keep the workers' cores busy for a
        while after each call. The kernels have their own threads.
        """
        self.work.prepare()
        with one_thread(), threads.parallel(threads.cores()):
            self._run()

    def _run(self) -> None:
        executor = self._executor()
        writer = None
        try:
            if self.directory is not None:
                if self.directory.log is None:
                    self.directory.open_log(0)
                self._open_grams(self.directory)
                writer = Writer(
                    self.directory.checkpoints, self.directory.logs, self.options.checkpoint_pace
                )
            for callback in self.callbacks:
                callback.start(self)
            for number in range(len(self.records) + 1, self.work.rounds + 1):
                record = self._round(number, executor)
                if self._conclude(record, writer):
                    break
            if writer is not None and self.records:
                if self.best_model is not None or self.last_checkpoint != len(self.records):
                    self._checkpoint(writer)
                writer.flush()
            if self.directory is not None:
                self.directory.check()
        except BaseException as error:
            for callback in self.callbacks:
                try:
                    callback.failed(self, error)
                except Exception as another:  # the run's own error is the one to see
                    warnings.warn(
                        f"{type(callback).__name__}.failed: {another!r}",
                        RuntimeWarning,
                        stacklevel=2,
                    )
            raise
        finally:
            executor.close()
            if writer is not None:
                writer.close()
        for callback in self.callbacks:
            callback.end(self)

    def _open_grams(self, directory: RunDirectory) -> None:
        """Open the record of inner products, without rounds that the run will do again."""
        if self.recording is None and not directory.grams.path.exists():
            return
        is_expected = self.recording is not None and not self.recording.is_default
        warning = directory.grams.open(len(self.records), is_expected)
        if self.recording is None:
            directory.grams.close()
        elif warning is not None:
            warn(self.callbacks, warning)

    def _executor(self) -> Executor:
        options, device = self.options, self.work.model.device
        workers = options.workers or threads.cores()
        forks = can_fork() and device.type == "cpu"
        if options.executor == "process" and not forks:
            raise SteelyardError(
                "executor=process forks workers, on Linux and without a GPU: use executor=serial "
                "here"
            )
        if (
            options.executor == "serial"
            or not forks
            or (options.executor == "auto" and workers == 1)
        ):
            return Serial(self.work, self.buffers)
        return Forked(self.work, self.buffers, workers)

    def _conclude(self, record: Record, writer: Writer | None) -> bool:
        """Pass the record to the callbacks, write it, and return whether one asks to stop."""
        self.records.append(record)
        number = record["round"]
        try:
            asked_to_stop = [callback.round(self, record) for callback in self.callbacks]
        finally:  # also after an error of theirs: the round is done
            record["round"] = number
            plain_record, problems = to_json_record(record)
            for name in problems:
                self._warn_once(
                    name,
                    f"record[{name!r}] is not written to disk, only kept in memory: "
                    f"{problems[name]}",
                )
            if (
                "loss" in record
                and record.get(self.monitor.metric) is None
                and self.monitor != Monitor()
            ):
                self._warn_once(
                    "",
                    f"monitor={self.monitor.metric!r}: round {number} has no such number on record",
                )
            self._keep(record, plain_record, writer)
        return any(asked_to_stop)

    def _warn_once(self, about: str, message: str) -> None:
        if about not in self.warned:
            self.warned.add(about)
            warn(self.callbacks, message)

    def _round(self, number: int, executor: Executor) -> Record:
        started = time.perf_counter()
        work, ids = self.work, self.work.federation.ids
        cohort = list(self.cohorts[number - 1])
        steps = [float(work.num_steps(client)) for client in cohort]
        dropped, late, duration = self.participation.draw_absent(
            work.seed, number, cohort, ids, steps
        )
        absent = {*dropped, *late}
        members = self._list_members([client for client in cohort if client not in absent], absent)
        self._mutate(number, sum(member.row >= 0 for member in members))
        tasks = [
            Task(TRAIN, number, tuple(n for member in group for n in member))
            for group in work.groups(members)
        ]
        self._do(executor, tasks, number)
        trained = time.perf_counter()
        record = self._aggregate(number, members)
        aggregated = time.perf_counter()
        record["dropped_clients"] = [ids[c] for c in dropped]
        record["late_clients"] = [ids[c] for c in late]
        if self.participation.spread or self.participation.deadline is not None:
            record["simulated_duration"] = duration
        record["lr"] = work.local.rate(number, work.rounds)
        self._evaluate(record, number, executor)
        ended = time.perf_counter()
        record["timings"] = {
            "train": round(trained - started, 6),
            "sgd": round(
                float(self.buffers.seconds[: len(members)].sum()), 6
            ),  # of all workers together
            "aggregate": round(aggregated - trained, 6),
            "evaluate": round(ended - aggregated, 6),
            "total": round(ended - started, 6),
        }
        return record

    def _list_members(self, present: Sequence[int], absent: set[int]) -> list[ClientSlot]:
        """Return the slots of all clients that train, in the order of their ids."""
        ids, cohort = self.work.federation.ids, set(present)
        trained = (
            [c for c in range(self.clients) if c not in absent]
            if self.participation.train_all
            else present
        )
        order = sorted(trained, key=lambda client: sort_key(ids[client]))
        rows = {
            client: row for row, client in enumerate(client for client in order if client in cohort)
        }
        return [
            ClientSlot(client, position, rows.get(client, -1))
            for position, client in enumerate(order)
        ]

    def _mutate(self, number: int, rows: int) -> None:
        """Draw the starting points of the clients, if they are not the global model."""
        broadcast, leaves = self.work.algorithm.broadcast, self.work.model.layout.params
        if broadcast is not None and rows:
            rng = stream(self.work.seed, "broadcast", number)
            self.buffers.starts[:rows] = torch.from_numpy(
                broadcast.coefficients(rows, leaves, number, rng)
            )

    def _do(self, executor: Executor, tasks: Sequence[Task], number: int) -> None:
        finished_tasks = 0

        def step() -> None:
            nonlocal finished_tasks
            finished_tasks += 1
            for callback in self.callbacks:
                callback.progress(self, number, finished_tasks, len(tasks))

        executor.run(tasks, step if self.callbacks else None)

    def _aggregate(self, number: int, members: Sequence[ClientSlot]) -> Record:
        """Aggregate the updates; too many void rounds in a row end the run."""
        self.round_gram = None
        cohort = [member for member in members if member.row >= 0]
        valid = [member for member in cohort if int(self.buffers.status[member.position]) == FINE]
        if len(valid) < self.participation.quorum:
            record = self._void(number, cohort, valid)
        else:
            outcome = self.server.aggregate(number, members)
            record = make_record(outcome.report, outcome.client_weights, outcome.weights)
            self._add_heterogeneity(record, outcome.client_weights)
            self.round_gram = outcome.round_gram
        self.voids = self.voids + 1 if record["void"] else 0
        if self.voids >= min(self.participation.patience, self.work.rounds):
            saved = (
                ""
                if self.directory is None
                else f"; the last checkpoint is in {self.directory.checkpoints.path}"
            )
            raise RunStopped(
                f"round {number}: {self.voids} rounds in a row were void, the last because: "
                f"{record['void']}{saved}. "
                "A lower learning rate helps against NaN, participation.patience against bad luck"
            )
        return record

    def _add_heterogeneity(self, record: Record, weights: Mapping[ClientId, float]) -> None:
        """Add how similar the labels of the round's clients and of all clients are."""
        if self._label_counts is None or record["void"]:
            return
        numbers = [self._numbers[client] for client in weights]
        coherence = compute_heterogeneity_coherence(
            self._label_counts, numbers, list(weights.values())
        )
        record["heterogeneity_coherence"] = coherence

    @cached_property
    def _label_counts(self) -> NDArray[np.int64] | None:
        """The samples of each class at each client, `[n, C]`; None if targets are not labels."""
        data = self.work.federation
        if data.classes is None or data.train.targets.ndim != 1:
            return None
        return data.label_counts()

    @cached_property
    def _numbers(self) -> dict[ClientId, int]:
        """The number of each client by its id."""
        return {client: number for number, client in enumerate(self.work.federation.ids)}

    def _void(
        self, number: int, cohort: Sequence[ClientSlot], valid: Sequence[ClientSlot]
    ) -> Record:
        """Return the record of a round that was not aggregated."""
        ids = self.work.federation.ids
        reasons = {
            str(ids[member.client]): REASONS[int(self.buffers.status[member.position])]
            for member in cohort
            if member not in valid
        }
        summary = "; ".join(
            f"client {name}: {reason}" for name, reason in list(reasons.items())[:3]
        )
        quorum = self.participation.quorum
        problem = (
            f"{len(valid)} of {len(cohort)} clients were valid, fewer than the quorum of {quorum}"
        )
        reason = problem if cohort else "no client took part"
        return {
            "round": number,
            "weights": {},
            "quarantined": reasons,
            "void": f"{reason} ({summary})" if summary else reason,
        }

    def _evaluate(self, record: Record, number: int, executor: Executor) -> None:
        """Add loss, accuracy and the user's own metrics to the record where they are due."""
        options, test = self.options, self.work.federation.test
        last = number == self.work.rounds
        on_test = test is not None and is_due(number, options.evaluate_every, last)
        on_clients = is_due(number, options.evaluate_clients, last)
        on_training = is_due(number, options.evaluate_train, last)
        if is_due(number, options.evaluate_fisher, last):
            record["fisher_trace"] = self._measure_fisher_trace()
        if not on_test and not on_clients and not on_training:
            return
        self.buffers.shown.copy_(self.server.params_to_evaluate())
        tasks = [
            Task(TEST, number, (shard,))
            for shard in range(-(-len(test or ()) // SHARD) if on_test else 0)
        ]
        pieces = max(1, self.clients // 64)
        ranges = list(pairwise(self.clients * i // pieces for i in range(pieces + 1)))
        if on_clients:
            tasks += [Task(CLIENTS, number, (a, b)) for a, b in ranges]
        if on_training:
            tasks += [Task(TRAINED, number, (a, b)) for a, b in ranges]
        executor.run(tasks)
        if on_clients:
            record_clients(record, self.work.federation.ids, self.buffers.client_results)
        if on_training:
            record_training(record, self.buffers.train_results)
        if not on_test:
            return
        loss, right, count = self.buffers.test_results.sum(dim=0).tolist()
        record["loss"], record["accuracy"] = (
            finite_or_none(loss / count),
            finite_or_none(right / count),
        )
        if self.buffers.test_is_right is not None and test is not None:
            record_groups(record, test, self.buffers.test_is_right)
        if self.buffers.test_outputs is not None:
            targets = self.work.test[1].cpu()
            with torch.no_grad():
                add_test_metrics(record, self.test_metrics, self.buffers.test_outputs, targets)

    def _measure_fisher_trace(self) -> float | None:
        """Return the trace of the Fisher information of the global model, on fixed samples.

        A mean over all samples of all clients is PA3Fed's sum over clients, weighted by size.
        """
        model = copy.deepcopy(self.work.model.module)
        load_model(model, self.server.model())
        return finite_or_none(fisher_trace(model, self._fisher_inputs, len(self._fisher_inputs)))

    @cached_property
    def _fisher_inputs(self) -> torch.Tensor:
        """Samples of the clients, drawn once in a run."""
        pool = np.concatenate(self.work.federation.index)
        order = np.random.default_rng(self.work.seed).permutation(len(pool))
        positions = pool[np.sort(order[: self.options.fisher_samples])]
        return self.work.inputs[torch.from_numpy(positions).to(self.work.model.device)]

    def _is_best(self, record: Record) -> bool:
        """Return whether this is the best round so far in the monitored metric; remember its score."""
        score = self.monitor.score_record(record)
        if score is None or (self.best is not None and score <= self.best):
            return False
        self.best = score
        return True

    def _keep(self, record: Record, plain_record: Record, writer: Writer | None) -> None:
        """Write the record to disk, and the best model and a checkpoint where they are due."""
        is_best = self._is_best(record)
        if is_best:
            self.best_round = record["round"]
        if self.directory is None or writer is None:
            return
        self._write_gram(self.directory)
        self.directory.append(plain_record)
        if is_best:
            self.best_model = Snapshot(record["round"], self.server.model(), None, self.identity)
        if record["round"] % self.options.checkpoint_every == 0 and writer.is_due():
            self._checkpoint(writer)

    def _write_gram(self, directory: RunDirectory) -> None:
        """Write the inner products of the round, if they are recorded."""
        if self.recording is None or self.round_gram is None:
            return
        if self.recording.includes(self.round_gram):
            directory.grams.append(self.round_gram)

    def _checkpoint(self, writer: Writer) -> None:
        """Write the best model, then a checkpoint, which may only refer to a model that exists."""
        assert self.directory is not None
        self.directory.grams.flush()
        progress: dict[str, Any] = {
            "voids": self.voids,
            "best": self.best,
            "best_round": self.best_round,
        }
        progress |= self.monitor.to_progress()
        best = [self.best_model] if self.best_model is not None else []
        snapshot = self.server.snapshot(len(self.records), progress, self.identity)
        writer.offer(*best, replace(snapshot, log=self.directory.digest))
        self.last_checkpoint = len(self.records)
        self.best_model = None
