"""The adapter: any algorithm as a Flower strategy, a drop-in for Flower's own FedAvg."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from logging import INFO, WARNING
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from steelyard.algorithm import Algorithm
from steelyard.core.errors import SteelyardError
from steelyard.core.layout import Layout
from steelyard.core.table import sort_key
from steelyard.flower.courier import Courier, Spool, budget
from steelyard.flower.inbox import OURS, Inbox, Names, common_metrics, sort_out
from steelyard.flower.journal import Journal, described
from steelyard.flower.records import RecordSource, num_bytes, to_record, to_state_dict
from steelyard.flower.server import Made, Server
from steelyard.server.probe import Probe
from steelyard.sim.record import Record, finite
from steelyard.sim.simulator import RunStopped
from steelyard.sim.streams import stream
from steelyard.weightings.guard import Guard

Aggregate = Callable[[list[RecordDict], str], MetricRecord]
Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]
_TIMEOUT = 3600.0  # Flower's


class Steelyard(FedAvg):
    """An algorithm on Flower: `Steelyard("feddisco|fedawa", ...)`, or an `Algorithm`.

    Args:
        algorithm: a rule as text, or an `Algorithm` of rule, client terms, server optimizer and refiner.
        fraction_train: as in Flower's FedAvg, and so are the next nine.
        fraction_evaluate: see there.
        min_train_nodes: see there.
        min_evaluate_nodes: see there.
        min_available_nodes: see there.
        weighted_by_key: the metric that holds the number of examples.
        arrayrecord_key: see there.
        configrecord_key: see there.
        train_metrics_aggr_fn: see there.
        evaluate_metrics_aggr_fn: see there.
        guard: bound what one client can do (`steelyard.guard`), whatever the rule.
        proxy: the server's proxy data, for rules that look at it.
        id_key: what clients report as their id, in a metric or a config record; else it is the node's.
        population: number of all clients, for SCAFFOLD and FedDyn; the connected ones if left out.
        mean_examples: mean number of examples of all clients, for FedDyn.
        seed: of cohorts, of the order of batches at `steelyard.flower.client`s, of mutated starts.
        out: the run directory: one line per round, checkpoints; for `steelyard compare` and `steelyard report`.
        checkpoint_dir: where checkpoints go, if not into `out`; alone, it is the run directory.
        resume: go on with the run in there, if there is one, from its last checkpoint.
        checkpoint_every: rounds between checkpoints.
        patience: so many rounds in a row without a valid reply end the run.
        memory: budget for replies, in bytes or as text ("2 GB"): more goes to disk. Half of the memory if left out.
        data_name: what records call the data.
    """

    def __init__(
        self,
        algorithm: str | Algorithm = "fedavg",
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: Aggregate | None = None,
        evaluate_metrics_aggr_fn: Aggregate | None = None,
        *,
        guard: bool = True,
        proxy: Probe | None = None,
        id_key: str = "partition-id",
        population: int | None = None,
        mean_examples: float | None = None,
        seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        resume: bool = False,
        checkpoint_every: int = 1,
        patience: int = 5,
        memory: int | str | None = None,
        data_name: str = "flower",
    ) -> None:
        nodes = (min_train_nodes, min_evaluate_nodes, min_available_nodes)
        keys = (weighted_by_key, arrayrecord_key, configrecord_key)
        super().__init__(
            fraction_train, fraction_evaluate, *nodes, *keys, train_metrics_aggr_fn, evaluate_metrics_aggr_fn
        )
        made = algorithm if isinstance(algorithm, Algorithm) else Algorithm(algorithm)
        if guard and not isinstance(made.weighting, Guard):
            made = replaced(made, weighting=Guard(made.weighting))
        probe = None if proxy is None else proxy.resident()
        self.algorithm, self.seed, self.patience, self.data_name = made, seed, patience, data_name
        self.population, self.mean_examples = population, mean_examples
        self.journal = Journal(out, checkpoint_dir, resume, checkpoint_every, keep=2)
        self.server = Server(made, probe, seed, diagnose=self.journal.path is not None)
        self.names, self.spool = Names(id_key), Spool(budget(memory))
        self.rounds, self.done, self.voids, self.timeout, self.started = 0, 0, 0, _TIMEOUT, False
        self.model: ArrayRecord | None = None  # as sent
        self.shown: ArrayRecord | None = None  # as returned, if it is another one
        self.sent: list[Message] = []
        self.record: Record | None = None  # of the round that is not on record yet
        self.clock = 0.0

    def summary(self) -> None:
        """Logs the settings."""
        super().summary()
        log(INFO, "\t└──> Steelyard: %s", self.algorithm)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = _TIMEOUT,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """Runs all rounds that are left, as Flower's own does, and writes the run directory on the way."""
        self.rounds, self.timeout, self.started = num_rounds, timeout, True
        state = to_state_dict(initial_arrays)
        metrics = sorted(self.algorithm.needs.metrics)
        clients = self.population or max(self.min_available_nodes, self.min_train_nodes)
        about = described(self.algorithm.texts, self.seed, state, clients, self.data_name, metrics)
        found = self.journal.open(about, num_rounds)
        if found is not None:
            initial_arrays = self._go_on(found.round, found.model, found.state or {})
        courier: Any = Courier(grid, timeout, self._receive, lambda: self.spool.room(num_bytes(initial_arrays)))
        judge = None if evaluate_fn is None else lambda number, arrays: self._judged(evaluate_fn, number, arrays)
        try:
            left = max(0, num_rounds - self.done)
            result = super().start(courier, initial_arrays, left, timeout, train_config, evaluate_config, judge)
            self._close_round()
        finally:
            self.spool.clear()
            self.journal.close()
        if not result.arrays:  # no round was left, or none had a valid reply
            result.arrays = initial_arrays
        return _renumbered(result, self.done)

    def _go_on(self, done: int, model: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> ArrayRecord:
        """Takes up a checkpoint; returns the model to look at."""
        self.done, self.voids = done, state["voids"]
        self.names.known = dict(zip(state["nodes"], state["names"], strict=True))
        self.server.restore(state["server"])
        log(INFO, "Going on after round %d, from %s", done, self.journal.path)
        shown = to_record(model)
        if state["theta"]:
            self.model, self.shown = to_record(state["theta"]), shown
        return shown

    def _ask(self, grid: Grid, number: int, share: float, least: int, kind: str, content: RecordDict) -> list[Message]:
        """Messages to a cohort drawn from seed and round."""
        wanted = max(int(len(list(grid.get_node_ids())) * share), least)
        needed, end = max(self.min_available_nodes, wanted), time.monotonic() + self.timeout
        while len(nodes := list(grid.get_node_ids())) < needed:
            if time.monotonic() >= end:
                raise SteelyardError(
                    f"round {number}: {len(nodes)} of {needed} nodes are connected after {self.timeout:g} s: "
                    "start more, or lower min_available_nodes and min_train_nodes"
                )
            log(INFO, "Waiting for nodes: %d connected, %d needed", len(nodes), needed)
            time.sleep(1)
        nodes.sort(key=lambda node: sort_key(self.names.of(node)))
        if wanted < len(nodes):
            chosen = stream(self.seed, "cohort", number).choice(len(nodes), wanted, replace=False)
            nodes = [nodes[at] for at in sorted(chosen)]
        self.clock = time.perf_counter()
        return [
            Message(content, dst_node_id=node, message_type=kind, ttl=max(self.timeout, 1.0), group_id=str(number))
            for node in nodes
        ]

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The global model, what the terms send, and what to report."""
        self._close_round()
        if self.fraction_train == 0.0:
            return []
        number = server_round + self.done
        self.model = self.model if arrays is self.shown and self.model is not None else arrays
        config["server-round"] = number
        source = RecordSource(self.model)
        shapes = {
            name: torch.empty(shape, dtype=dtype, device="meta") for name, (shape, dtype) in source.shapes.items()
        }
        content = RecordDict(
            {self.arrayrecord_key: self.model, self.configrecord_key: config, OURS: self._told(number)}
        )
        vectors = self.server.vectors(Layout.of(shapes))
        if vectors:
            content[f"{OURS}.sent"] = to_record(vectors)
        self.sent = self._ask(grid, number, self.fraction_train, self.min_train_nodes, MessageType.TRAIN, content)
        clients = [self.names.of(message.metadata.dst_node_id) for message in self.sent]
        for message, start in zip(self.sent, self.server.starts(source, clients, number) or (), strict=False):
            message.content = RecordDict({**content, self.arrayrecord_key: to_record(start)})
        log(INFO, "configure_train: asked %d nodes", len(self.sent))
        return self.sent

    def _told(self, number: int) -> ConfigRecord:
        told: dict[str, Any] = {
            "round": number,
            "rounds": self.rounds,
            "seed": self.seed,
            "client": self.algorithm.texts["client"] or "",
            "metrics": sorted({*self.algorithm.needs.metrics, "num_examples"}),
            "id-key": self.names.key,
            "examples-key": self.weighted_by_key,
        }
        return ConfigRecord(told | ({"mean-examples": self.mean_examples} if self.mean_examples else {}))

    def _receive(self, reply: Message) -> None:
        if reply.metadata.message_type.startswith(MessageType.TRAIN):
            self.spool.take(reply, self.arrayrecord_key)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Weighs the replies; if none is valid, the model stays."""
        number, waited = server_round + self.done, time.perf_counter() - self.clock
        if self.model is None or not self.sent:
            return None, None
        box = sort_out(self.sent, replies, self.names, self.arrayrecord_key, self.timeout)
        self._warn(number, box)
        population = self.population or max(len(self.names.known), len(self.sent))
        began = time.perf_counter()
        made = self.server.aggregate(number, RecordSource(self.model), box.replies, population)
        self.record = {
            **made.record,
            "dropped": sorted(set(box.failed) - {str(client) for client in box.late}),
            "late": box.late,
            "failed": box.failed,
            "strays": box.strays,
            "timings": {"train": round(waited, 6), "aggregate": round(time.perf_counter() - began, 6)},
        }
        arrays = self._adopt(number, made)
        rows = common_metrics((box.contents[c] for c in made.accepted), self.weighted_by_key, self.names.key)
        self.spool.clear()
        if not self.started:  # somebody else drives the rounds: there may be no later moment
            self._close_round()
        return arrays, self._mean(self.train_metrics_aggr_fn, rows)

    def _adopt(self, number: int, made: Made) -> ArrayRecord:
        """Keeps the new model; returns the one to look at."""
        assert self.model is not None
        assert self.record is not None
        self.voids = self.voids + 1 if made.model is None else 0
        if made.model is None or made.shown is None:
            log(WARNING, "round %d is void, the model stays: %s", number, self.record["void"])
            if self.voids >= self.patience:
                self._close_round()
                raise RunStopped(
                    f"round {number}: {self.voids} rounds in a row were void, the last because: {self.record['void']} "
                    f"{self.record['failed'] or ''}: look at the clients, or raise patience={self.patience}"
                )
            return self.shown or self.model
        self.model, self.shown = to_record(made.model), None
        if made.shown is not made.model:
            self.shown = to_record(made.shown)
        return self.shown or self.model

    def _warn(self, number: int, box: Inbox) -> None:
        for who, reason in [*box.failed.items(), *((str(c), r) for c, r in box.replies.refused.items())]:
            log(WARNING, "round %d, client %s: %s", number, who, reason)
        for stray in box.strays:
            log(WARNING, "round %d, %s", number, stray)
        if self.names.unnamed and number == self.done + 1:
            log(
                WARNING,
                "%d clients do not report %r: their node ids stand in for it, and memory of a client is lost when its "
                "node gets another id. Report it as a metric, or set id_key",
                len(self.names.unnamed),
                self.names.key,
            )

    def _mean(self, fold: Aggregate, rows: list[dict[str, Any]]) -> MetricRecord | None:
        return (
            fold([RecordDict({"metrics": MetricRecord(row)}) for row in rows], self.weighted_by_key) if rows else None
        )

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As Flower's, with a cohort drawn from seed and round."""
        if self.fraction_evaluate == 0.0:
            return []
        number = config["server-round"] = server_round + self.done
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config, OURS: self._told(number)})
        share, least = self.fraction_evaluate, self.min_evaluate_nodes
        return self._ask(grid, number, share, least, MessageType.EVALUATE, content)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The mean of what clients report, of those who report it."""
        fine, failed = self._check_and_log_replies(list(replies), is_train=False, validate=False)
        del failed  # logged
        mean = self._mean(
            self.evaluate_metrics_aggr_fn, common_metrics([r.content for r in fine], self.weighted_by_key, "")
        )
        if mean is not None and self.record is not None:
            self.record["client_evaluation"] = _plain(mean)
        return mean

    def _judged(self, evaluate_fn: Evaluate, number: int, arrays: ArrayRecord) -> MetricRecord | None:
        found = evaluate_fn(number + self.done, arrays)
        if found is not None and self.record is not None:
            self.record |= _plain(found)
        return found

    def _close_round(self) -> None:
        """Puts the last round on record, with whatever evaluations came after it."""
        record, self.record = self.record, None
        if record is None or self.model is None:
            return
        for name in ("accuracy", "loss"):
            record.setdefault(name, record.get("client_evaluation", {}).get(name))
        record["timings"]["total"] = round(time.perf_counter() - self.clock + record["timings"]["train"], 6)
        if self.journal.directory is None:
            return
        state = {
            "server": self.server.snapshot(),
            "theta": {} if self.shown is None else to_state_dict(self.model),
            "voids": self.voids,
            "nodes": list(self.names.known),
            "names": list(self.names.known.values()),
        }
        cohort = [self.names.of(message.metadata.dst_node_id) for message in self.sent]
        self.journal.write(record, cohort, to_state_dict(self.shown or self.model), state)


def replaced(algorithm: Algorithm, **parts: Any) -> Algorithm:
    """The algorithm with other parts."""
    names = ("weighting", "client", "server", "broadcast", "refine")
    return Algorithm(**{name: parts.get(name, getattr(algorithm, name)) for name in names})


def _plain(record: MetricRecord) -> dict[str, Any]:
    found = {name.replace("-", "_"): value for name, value in record.items()}
    return {name: finite(float(value)) if not isinstance(value, list) else value for name, value in found.items()}


def _renumbered(result: Result, done: int) -> Result:
    for name in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"):
        setattr(result, name, {number + done: value for number, value in getattr(result, name).items()})
    return result
