"""The adapter: any algorithm as a Flower strategy, a drop-in for Flower's own FedAvg."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Mapping
from logging import INFO, WARNING
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from steelyard.algorithm import Algorithm
from steelyard.core.state import ClientId
from steelyard.flower.compat import accepted_options, count_rounds_from, renumber_rounds
from steelyard.flower.identity import ClientIds
from steelyard.flower.messages import cohort, instructions, messages, wait_for_nodes
from steelyard.flower.metrics import Aggregate, MetricMeans, mean
from steelyard.flower.records import RecordSource, num_bytes, to_record, to_state_dict
from steelyard.flower.replies import OURS, RoundReplies, match_replies, sort_out, split_refused
from steelyard.flower.run_log import Evaluate, RunLog, describe_run
from steelyard.flower.server import FlowerServer, RoundResult, StateDict
from steelyard.flower.streaming_grid import Spool, StreamingGrid, budget
from steelyard.flower.term_sync import TermSync
from steelyard.rules.guard import Guard
from steelyard.server.probe import Probe
from steelyard.sim.simulator import RunStopped
from steelyard.stores.slices import layout_of

_TIMEOUT = 3600.0  # Flower's
KEPT = "what clients keep (client=%s) begins at zero in a new Flower run, and so does what the server keeps of it"


class Steelyard(FedAvg):
    """An algorithm on Flower: `Steelyard("feddisco|fedawa", ...)`, or an `Algorithm`.

    Args:
        algorithm: a rule as text, or an `Algorithm` of rule, client terms, server optimizer and
            refiner.
        fraction_train: as in Flower's FedAvg, and so are the next nine.
        fraction_evaluate: see there.
        min_train_nodes: see there.
        min_evaluate_nodes: see there.
        min_available_nodes: see there.
        weighted_by_key: the metric that holds the number of examples; under another name, it is any
            positive weight.
        arrayrecord_key: see there.
        configrecord_key: see there.
        train_metrics_aggr_fn: see there.
        evaluate_metrics_aggr_fn: see there.
        guard: bound what one client can do (`steelyard.guard`), whatever the rule.
        proxy: the server's proxy data, for rules that look at it.
        id_key: what clients report as their id, in a metric or a config record; else it is the
            node's.
        population: number of all clients, for SCAFFOLD and FedDyn; the most ever connected if left
            out.
        mean_examples: mean number of examples of all clients, for FedDyn.
        seed: of cohorts, of the order of batches at `steelyard.flower.client`s, of mutated starts.
        out: the run directory: one line per round, checkpoints; for `steelyard compare` and
            `steelyard report`.
        checkpoint_dir: where checkpoints go, if not into `out`; alone, it is the run directory.
        resume: go on with the run in there, if there is one, from its last checkpoint.
        checkpoint_every: rounds between checkpoints.
        patience: so many rounds in a row without a valid reply end the run.
        memory: budget for replies, in bytes or as text ("2 GB"): more goes to disk. Half of the
            memory if left out.
        data_name: what records call the data.
        monitor: the metric that decides which model is the best one: of `evaluate_fn`, or else of
            the clients, whose median counts.
        mode: `"max"`, `"min"`, or `"auto"`: less is better for losses and errors, more for all
            others.
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
        monitor: str = "accuracy",
        mode: str = "auto",
    ) -> None:
        nodes = (min_train_nodes, min_evaluate_nodes, min_available_nodes)
        keys = (weighted_by_key, arrayrecord_key, configrecord_key)
        super().__init__(
            fraction_train,
            fraction_evaluate,
            *nodes,
            *keys,
            train_metrics_aggr_fn,
            evaluate_metrics_aggr_fn,
        )
        parsed_algorithm = algorithm if isinstance(algorithm, Algorithm) else Algorithm(algorithm)
        if guard and not isinstance(parsed_algorithm.weighting, Guard):
            parsed_algorithm = parsed_algorithm.replace_parts(
                weighting=Guard(parsed_algorithm.weighting)
            )
        self.probe = None if proxy is None else proxy.resident()
        self.algorithm, self.seed, self.patience, self.data_name = (
            parsed_algorithm,
            seed,
            patience,
            data_name,
        )
        self.population, self.mean_examples, self.id_key = population, mean_examples, id_key
        self.journal = RunLog(out, checkpoint_dir, resume, checkpoint_every, 2, monitor, mode)
        terms = parsed_algorithm.client
        vectors = (
            sum(len(term.server_slots) for term in terms),
            sum(len(term.told_slots) for term in terms),
        )
        self.spool = Spool(budget(memory), *vectors)
        self.rounds, self.timeout, self.started = 0, _TIMEOUT, False
        self._forget()

    def _forget(self) -> None:
        """Begins anew: nothing is left of a run before."""
        self.server = FlowerServer(
            self.algorithm, self.probe, self.seed, diagnose=self.journal.path is not None
        )
        self.names = ClientIds(self.id_key)
        self.ledger = TermSync(self.algorithm, self.arrayrecord_key, self.weighted_by_key)
        self.done, self.voids, self.connected = 0, 0, 0
        self.model: ArrayRecord | None = None  # as sent
        self.shown: ArrayRecord | None = None  # as returned, where that is another one
        self.sent: list[Message] = []
        self.judges: list[Message] = []

    def summary(self) -> None:
        """Logs the settings."""
        super().summary()
        log(INFO, "\t└──> Steelyard: %s", self.algorithm)
        metrics = sorted({"num_examples", *self.algorithm.needs.metrics})
        log(
            INFO,
            "\t└──> Clients have to report: %s",
            ", ".join(name.replace("_", "-") for name in metrics),
        )

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = _TIMEOUT,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
        **options: Any,
    ) -> Result:
        """Runs all rounds that are left, as Flower's own does, and writes the run directory on the way.

        The arguments are those of Flower's `Strategy.start`. `options` are those that a newer
        Flower adds, such as `should_stop` in 1.43: they are passed on if the installed Flower takes
        them.
        """
        options = accepted_options(super().start, options)
        self.rounds, self.timeout, self.started = num_rounds, timeout, True
        self._forget()
        try:
            arrays = self._enter(initial_arrays)
            courier: Any = StreamingGrid(
                grid, timeout, self._receive, lambda: self.spool.room(num_bytes(arrays))
            )
            remaining = max(0, num_rounds - self.done)
            judging = self.journal.judging(evaluate_fn, self.done)
            with count_rounds_from(self.done):
                result = super().start(
                    courier,
                    arrays,
                    remaining,
                    timeout,
                    train_config,
                    evaluate_config,
                    judging,
                    **options,
                )
            self.journal.settle(self._state)
        finally:
            self.spool.clear()
            self.journal.close()
        if not result.arrays:  # no round was left
            result.arrays = arrays
        return renumber_rounds(result, self.done)

    def _enter(self, initial: ArrayRecord) -> ArrayRecord:
        """Opens the run directory.

        Returns the model to begin with, that of the last checkpoint if the run goes on.
        """
        clients = self.population or max(self.min_available_nodes, self.min_train_nodes)
        metrics, model = sorted(self.algorithm.needs.metrics), to_state_dict(initial)
        about = describe_run(
            self.algorithm.texts, self.seed, model, clients, self.data_name, metrics
        )
        snapshot = self.journal.open(about, self.rounds, model)
        if self.journal.path is not None:
            self.spool.live_in(self.journal.path / "spool")
        if snapshot is None or snapshot.state is None:
            return initial
        state = snapshot.state
        self.done, self.voids = snapshot.round, state["voids"]
        self.names.restore(dict(zip(state["nodes"], state["names"], strict=True)))
        self.server.restore(state["server"])
        log(INFO, "Going on after round %d, from %s", self.done, self.journal.path)
        model_record = to_record(snapshot.model)
        if self.ledger.keeps:
            log(WARNING, KEPT, self.algorithm.texts["client"])
        elif state["theta"]:
            self.model, self.shown = (
                to_record({name: state["theta"][name] for name in snapshot.model}),
                model_record,
            )
        return model_record

    def _state(self) -> tuple[StateDict, dict[str, Any]]:
        """The model to look at, and all else that `_enter` takes up."""
        assert self.model is not None
        state = {
            "server": self.server.snapshot(),
            "theta": {} if self.shown is None else to_state_dict(self.model),
            "voids": self.voids,
            "nodes": list(self.names.known),
            "names": list(self.names.known.values()),
        }
        return to_state_dict(self.shown or self.model), state

    def _receive(self, reply: Message, is_training: bool) -> None:
        self.spool.take(reply, self.arrayrecord_key if is_training else None)

    def _content(self, number: int, arrays: ArrayRecord, config: ConfigRecord) -> RecordDict:
        config["server-round"] = number
        settings = (self.rounds, self.seed, self.weighted_by_key, self.mean_examples)
        instructions_record = instructions(self.algorithm, self.names, number, *settings)
        return RecordDict(
            {self.arrayrecord_key: arrays, self.configrecord_key: config, OURS: instructions_record}
        )

    def _cohort(self, grid: Grid, share: float, minimum: int, number: int) -> list[int]:
        nodes, count = wait_for_nodes(grid, share, minimum, self.min_available_nodes, self.timeout)
        self.connected = max(
            self.connected, len(nodes)
        )  # a node that is away for a round is still one of them
        self.names.see(nodes)
        return cohort(nodes, count, self.names, self.seed, number)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The global model, what the terms send, and what to report, to a cohort drawn from seed and round."""
        self.journal.settle(self._state)
        number = server_round + self.done
        if self.fraction_train == 0.0:
            return []
        if not self.started:
            self.ledger.check_driver()
        self.model = self.model if arrays is self.shown and self.model is not None else arrays
        source = RecordSource(self.model)
        content = self._content(number, self.model, config)
        vectors = self.server.vectors(source)
        if vectors:
            content[f"{OURS}.sent"] = to_record(vectors)
        nodes = self._cohort(grid, self.fraction_train, self.min_train_nodes, number)
        self.spool.expect(len(nodes), layout_of(source), self.server.told_names)
        self.journal.began = time.perf_counter()
        self.sent = messages(
            content, nodes, MessageType.TRAIN, number, self.timeout, self.ledger.accepted
        )
        starts = self.server.starts(source, [self.names.of(node) for node in nodes], number)
        for message, start in zip(self.sent, starts, strict=False):
            message.content = RecordDict(
                {**message.content, self.arrayrecord_key: to_record(start)}
            )
        log(INFO, "configure_train: asked %d nodes", len(nodes))
        return self.sent

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Weighs the replies; if none is valid, the model stays."""
        number, began = server_round + self.done, time.perf_counter()
        if self.model is None or not self.sent:
            return None, None
        answers = match_replies(self.sent, replies, self.names, self.timeout)
        box = sort_out(
            answers, self.names, self.ledger.wanted, self.spool, self.algorithm.needs.metrics
        )
        answers.warn(number)
        box.warn(number, self.names, first=number == self.done + 1)
        halves = self.ledger.check(number, box)
        result = self.server.aggregate(
            number, RecordSource(self.model), box.replies, self.population or self.connected
        )
        self.ledger.settle(number, result.settled, box)
        timings = {"train": began - self.journal.began, "aggregate": time.perf_counter() - began}
        timings = {name: round(seconds, 6) for name, seconds in timings.items()}
        self.journal.holds(result.told)
        record = {**result.record, **answers.record, **halves, "timings": timings}
        self.journal.note(
            record, [self.names.of(message.metadata.dst_node_id) for message in self.sent]
        )
        arrays = self._adopt(number, result, answers)
        accepted = {client: box.contents[client] for client in result.accepted}
        self.spool.clear()
        if not self.started:  # somebody else drives the rounds: there may be no later moment
            self.journal.settle(self._state)
        return arrays, self._mean(accepted, self.train_metrics_aggr_fn).metrics

    def _adopt(self, number: int, result: RoundResult, answers: RoundReplies) -> ArrayRecord:
        """Keeps the new model; returns the one to look at."""
        assert self.model is not None
        self.voids = self.voids + 1 if result.model is None else 0
        if result.model is None or result.shown is None:
            reason = f"{result.record['void']} {answers.failed or ''}".strip()
            log(WARNING, "round %d is void, the model stays: %s", number, reason)
            if self.voids >= self.patience:
                self.journal.settle(self._state)
                raise RunStopped(
                    f"round {number}: {self.voids} rounds in a row were void, the last because: "
                    f"{reason}: look at the "
                    f"clients, or raise patience={self.patience}"
                )
            return self.shown or self.model
        self.model = to_record(result.model)
        self.shown = None if result.shown is result.model else to_record(result.shown)
        return self.shown or self.model

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As Flower's, to a cohort drawn from seed and round."""
        if self.fraction_evaluate == 0.0:
            return []
        number = server_round + self.done
        content = self._content(number, arrays, config)
        nodes = self._cohort(grid, self.fraction_evaluate, self.min_evaluate_nodes, number)
        self.spool.expect(len(nodes))
        self.judges = messages(
            content, nodes, MessageType.EVALUATE, number, self.timeout, self.ledger.accepted
        )
        return self.judges

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """The mean of what clients report.

        A reply that cannot be right is quarantined, with the reason.
        """
        answers = match_replies(self.judges, replies, self.names, self.timeout)
        self.judges = []
        number = server_round + self.done
        contents, reasons = split_refused(answers.by_name(self.names), self.spool)
        means = self._mean(contents, self.evaluate_metrics_aggr_fn)
        self.spool.clear()
        quarantined = {str(client): reason for client, reason in (reasons | means.refused).items()}
        answers.warn(number, ", evaluation")
        for client_id, reason in quarantined.items():
            log(WARNING, "round %d, evaluation, client %s: %s", number, client_id, reason)
        self.journal.answered(
            {**answers.record, "quarantined": quarantined, "median": means.medians}
        )
        self.journal.add_evaluation(means.metrics, "client_evaluation")
        return means.metrics

    def _mean(self, contents: Mapping[ClientId, RecordDict], fold: Aggregate) -> MetricMeans:
        """Means of the clients' metrics, with weights that are bounded if the rule is guarded."""
        rule = self.algorithm.weighting
        cap = rule.metric_cap if isinstance(rule, Guard) else math.inf
        return mean(contents, fold, self.weighted_by_key, self.id_key, cap)
