"""`Steelyard`: any algorithm as a Flower strategy that replaces Flower's FedAvg."""

from __future__ import annotations

import inspect
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from logging import INFO, WARNING
from typing import Any

import flwr
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common.logger import FLOWER_LOGGER, log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from steelyard.algorithm import Algorithm
from steelyard.core._errors import SteelyardError
from steelyard.core._state import ClientId
from steelyard.core._term import FeatureTerm
from steelyard.flower._array_records import RecordSource, num_bytes, to_record, to_state_dict
from steelyard.flower._clients import AcceptedRounds, ClientIds
from steelyard.flower._messages import (
    SENT_VECTORS_RECORD,
    STEELYARD_RECORD,
    TENSORS_RECORD,
    address_messages,
    draw_cohort,
    make_instructions,
    wait_for_nodes,
)
from steelyard.flower._replies import (
    AggregateMetrics,
    MetricMeans,
    ReplyRequirements,
    RoundReplies,
    TermConfirmations,
    compute_means,
    log_unnamed_nodes,
    match_replies,
    read_training_replies,
    split_refused,
)
from steelyard.flower._run_log import RunLog, describe_run
from steelyard.flower._server import FlowerServer, RoundResult, StateDict
from steelyard.flower._streaming import ReplyStorage, StreamingGrid, parse_memory
from steelyard.metrics import METRICS, needs_evaluation
from steelyard.recorder._shadow import ShadowRules, parse_shadow
from steelyard.rules._guard import Guard
from steelyard.runs._gram_log import parse_recording
from steelyard.server._probe import Probe
from steelyard.sim._simulator import RunStopped
from steelyard.stores._slices import layout_of

_TIMEOUT = 3600.0  # Flower's default, in seconds
_CLIENT_STATE_LOST = (
    "the vectors that clients keep (client=%s) start from zero in a new Flower run, and so do the "
    "server's vectors that belong to them"
)
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class Steelyard(FedAvg):
    """An algorithm as a Flower strategy: `Steelyard("feddisco|fedawa", ...)`.

    Args:
        algorithm: a rule as a spec string, or an `Algorithm` with a rule, client terms, a server
            optimizer and a refiner.
        fraction_train: this and the next nine arguments are those of Flower's FedAvg.
        fraction_evaluate: see Flower's FedAvg.
        min_train_nodes: see Flower's FedAvg.
        min_evaluate_nodes: see Flower's FedAvg.
        min_available_nodes: see Flower's FedAvg.
        weighted_by_key: the metric with the number of examples. Under another name, it may be any
            positive weight.
        arrayrecord_key: see Flower's FedAvg.
        configrecord_key: see Flower's FedAvg.
        train_metrics_aggr_fn: see Flower's FedAvg.
        evaluate_metrics_aggr_fn: see Flower's FedAvg.
        guard: whether to limit the effect of each client (`steelyard.guard`), whatever the rule.
        proxy: the server's proxy data, for rules that need it.
        id_key: the metric or the entry of a config record in which clients report their id.
            Without it, the node id is used.
        population: number of all clients, for SCAFFOLD and FedDyn; by default, the largest number
            of nodes that were connected.
        mean_examples: mean number of examples of all clients, for FedDyn.
        seed: random seed of cohorts, of the order of batches in clients built by
            `steelyard.flower.client`, and of mutated models.
        out: the run directory: one line per round, and checkpoints. `steelyard compare` and
            `steelyard report` read it.
        checkpoint_dir: where checkpoints are written, if not to `out`. Without `out`, it is the
            run directory.
        resume: whether to resume the run in the directory, if there is one, from its last
            checkpoint.
        checkpoint_every: number of rounds between checkpoints.
        patience: the run ends after this many rounds in a row without a valid reply.
        memory: memory budget for replies, in bytes or as text ("2 GB"). Replies that exceed it are
            written to disk. By default, half of the machine's memory.
        data_name: what records call the data.
        monitor: the metric that decides which model is the best one: a metric of `evaluate_fn`, or
            else the median of the clients' metric.
        mode: `"max"`, `"min"`, or `"auto"`: smaller is better for losses and errors, larger for all
            other metrics.
        record: inner products of the updates to write to the run directory, for `steelyard
            replay`: `"auto"` (rounds of up to 100 clients), `"gram"`, `"gram:layers=tensor"`, or
            `"none"`.
        shadow: rules to compute beside the real one and to record; they do not change the run.
        lora: what to return for LoRA adapters: `"svd"` (the best approximation of the clients'
            rank, the default) or `"factors"`.
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
        train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None,
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
        record: str = "auto",
        shadow: tuple[str, ...] | list[str] = (),
        lora: str | None = None,
    ) -> None:
        super().__init__(
            fraction_train,
            fraction_evaluate,
            min_train_nodes,
            min_evaluate_nodes,
            min_available_nodes,
            weighted_by_key,
            arrayrecord_key,
            configrecord_key,
            train_metrics_aggr_fn,
            evaluate_metrics_aggr_fn,
        )
        # The algorithm, with a guard unless it has one.
        if not isinstance(algorithm, Algorithm):
            algorithm = Algorithm(algorithm)
        if guard and not isinstance(algorithm.weighting, Guard):
            algorithm = algorithm.replace_parts(weighting=Guard(algorithm.weighting))
        self.algorithm = algorithm

        # Options.
        self.probe = None if proxy is None else proxy.resident()
        self.seed = seed
        self.patience = patience
        self.data_name = data_name
        self.population = population
        self.mean_examples = mean_examples
        self.id_key = id_key

        # Replies and the run directory.
        terms = algorithm.client
        self.storage = ReplyStorage(
            parse_memory(memory),
            sent_vectors=sum(len(term.server_slots) for term in terms),
            reported_vectors=sum(len(term.tags.reported_slots) for term in terms),
        )
        self.recording = parse_recording(record)
        self.lora = lora
        self.shadow = parse_shadow(shadow, record)
        if self.shadow is not None:
            self.shadow.check_metrics(algorithm.needs.metrics)
        self.run_log = RunLog(
            out, checkpoint_dir, resume, checkpoint_every, monitor, mode, self.recording
        )
        self.rounds = 0
        self.timeout = _TIMEOUT
        self.is_started = False  # whether `start` of this class runs the rounds
        self._reset()

    def _reset(self) -> None:
        """Drop the state of an earlier run."""
        has_directory = self.run_log.path is not None
        self.server = FlowerServer(self.algorithm, self.probe, self.seed, diagnose=has_directory)
        if self.recording is not None:
            self.server.state.record_layers = self.recording.layers
        if self.shadow is not None:
            self.server.state.observer = ShadowRules(list(self.shadow.specs))
        self.client_ids = ClientIds(self.id_key)
        self.accepted_rounds = AcceptedRounds()
        self.requirements = ReplyRequirements.of(
            self.algorithm, self.arrayrecord_key, self.weighted_by_key
        )
        self.confirmations = TermConfirmations(self.requirements)
        self.finished_rounds = 0  # of the run that is resumed
        self.void_rounds = 0  # in a row
        self.max_connected = 0
        self.model: ArrayRecord | None = None  # the global model, as clients receive it
        self.model_to_evaluate: ArrayRecord | None = None  # if it is not the same
        self.train_messages: list[Message] = []
        self.evaluate_messages: list[Message] = []

    def summary(self) -> None:
        """Log the settings."""
        super().summary()
        log(INFO, "\t└──> Steelyard: %s", self.algorithm)
        metrics = sorted({"num_examples", *self.algorithm.needs.metrics})
        names = ", ".join(name.replace("_", "-") for name in metrics)
        log(INFO, "\t└──> Clients must report: %s", names)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = _TIMEOUT,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
        **options: Any,
    ) -> Result:
        """Run the remaining rounds in Flower's own loop, and write the run directory.

        The arguments are those of Flower's `Strategy.start`. `options` are arguments that a newer
        Flower adds, such as `should_stop` in 1.43. They are passed on if the installed Flower has
        them.
        """
        options = _select_options(super().start, options)
        self.rounds = num_rounds
        self.timeout = timeout
        self.is_started = True
        self._reset()
        try:
            arrays = self._open_run(initial_arrays)
            model_bytes = num_bytes(arrays)
            streaming_grid: Any = StreamingGrid(
                grid, timeout, self._receive, lambda: self.storage.count_free_places(model_bytes)
            )
            with _adapt_log(self.finished_rounds, has_evaluation=evaluate_fn is not None):
                result = super().start(
                    streaming_grid,
                    arrays,
                    max(0, num_rounds - self.finished_rounds),
                    timeout,
                    train_config,
                    evaluate_config,
                    self._make_round_end(evaluate_fn),
                    **options,
                )
        finally:
            self.storage.clear()
            self.run_log.close()
        if not result.arrays:  # all rounds were finished before
            result.arrays = arrays
        return _renumber_rounds(result, self.finished_rounds)

    def _open_run(self, initial: ArrayRecord) -> ArrayRecord:
        """Open the run directory.

        Returns:
            The model to start from: that of the last checkpoint if the run is resumed.
        """
        # Open the directory.
        self.server.prepare_tensors(RecordSource(initial))
        model = to_state_dict(initial)
        description = describe_run(
            {**self.algorithm.texts, "lora": self.lora},
            self.seed,
            model,
            self.population or max(self.min_available_nodes, self.min_train_nodes),
            self.data_name,
            sorted(self.algorithm.needs.metrics),
        )
        snapshot = self.run_log.open(description, self.rounds, model)
        if self.run_log.path is not None:
            self.storage.use_folder(self.run_log.path / "spool")
        if snapshot is None or snapshot.state is None:
            return initial

        # Continue from the checkpoint.
        state = snapshot.state
        self.finished_rounds = snapshot.round
        self.void_rounds = state["voids"]
        self.client_ids.restore(dict(zip(state["nodes"], state["names"], strict=True)))
        self.server.restore(state["server"])
        log(INFO, "Resuming after round %d, from %s", self.finished_rounds, self.run_log.path)
        arrays = to_record(snapshot.model)
        if self.requirements.has_client_state:
            log(WARNING, _CLIENT_STATE_LOST, self.requirements.terms)
        elif state["theta"]:
            self.model = to_record({name: state["theta"][name] for name in snapshot.model})
            self.model_to_evaluate = arrays
        return arrays

    def _take_snapshot(self) -> tuple[StateDict, dict[str, Any]]:
        """Return the model to evaluate, and everything else that `_open_run` restores."""
        assert self.model is not None
        state = {
            "server": self.server.snapshot(),
            "theta": {} if self.model_to_evaluate is None else to_state_dict(self.model),
            "voids": self.void_rounds,
            "nodes": list(self.client_ids.id_by_node),
            "names": list(self.client_ids.id_by_node.values()),
        }
        return to_state_dict(self.model_to_evaluate or self.model), state

    def _make_round_end(self, evaluate_fn: EvaluateFn | None) -> EvaluateFn:
        """Return the function that Flower's loop calls at the end of each round.

        It calls the user's `evaluate_fn`, if any, with the number of the round in the whole run.
        Then it writes the round to the run directory.
        """

        def end_round(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            metrics = None
            if evaluate_fn is not None:
                metrics = evaluate_fn(server_round + self.finished_rounds, arrays)
            self.run_log.add_server_evaluation(metrics)
            self.run_log.write_round(self._take_snapshot)
            return metrics

        return end_round

    def _receive(self, reply: Message, is_training: bool) -> None:
        """Store a reply when it arrives."""
        self.storage.add(reply, self.arrayrecord_key if is_training else None)

    def _make_content(self, number: int, arrays: ArrayRecord, config: ConfigRecord) -> RecordDict:
        """Return the content of a message: model, Flower's configuration, and instructions."""
        config["server-round"] = number
        instructions = make_instructions(
            self.algorithm,
            number,
            self.rounds,
            self.seed,
            self.id_key,
            self.weighted_by_key,
            self.mean_examples,
            "" if self.server.state.classifier is None else self.server.state.classifier.name,
            extra_metrics=() if self.shadow is None else self.shadow.needs.metrics,
        )
        return RecordDict(
            {
                self.arrayrecord_key: arrays,
                self.configrecord_key: config,
                STEELYARD_RECORD: instructions,
            }
        )

    def _draw_nodes(self, grid: Grid, fraction: float, minimum: int, number: int) -> list[int]:
        """Wait for enough nodes, and return those that take part in a round."""
        nodes, count = wait_for_nodes(
            grid, fraction, minimum, self.min_available_nodes, self.timeout
        )
        # A node that is not connected in this round is still one of the clients.
        self.max_connected = max(self.max_connected, len(nodes))
        self.client_ids.add_connected(nodes)
        return draw_cohort(nodes, count, self.client_ids, self.seed, number)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages of a round: the global model, vectors of terms, and instructions."""
        number = server_round + self.finished_rounds
        if self.fraction_train == 0.0:
            return []
        if not self.is_started:
            self._check_other_driver()

        # Flower passes the model to evaluate. Clients get the global model.
        if self.model is None or arrays is not self.model_to_evaluate:
            self.model = arrays
        source = RecordSource(self.model)
        layout = layout_of(source)
        self.server.choose_lora(self.lora, layout)
        content = self._make_content(number, self.model, config)
        vectors = self.server.prepare_vectors(layout)
        if vectors:
            content[SENT_VECTORS_RECORD] = to_record(vectors)
        tensors = self.server.state.sent_tensors
        if tensors:
            content[TENSORS_RECORD] = to_record(tensors)

        # Choose the clients.
        nodes = self._draw_nodes(grid, self.fraction_train, self.min_train_nodes, number)
        self.storage.begin_round(
            len(nodes), layout, self.server.reported_vectors, self.server.client_tensors
        )
        self.run_log.begin_round()

        # One message for each of them, with its own model if there is a broadcast.
        self.train_messages = address_messages(
            content,
            nodes,
            MessageType.TRAIN,
            number,
            self.timeout,
            self.accepted_rounds.of,
            self._find_last_weight,
        )
        clients = [self.client_ids.of(node) for node in nodes]
        models = self.server.mutate_model(source, clients, number)
        for message, model in zip(self.train_messages, models, strict=False):
            message.content = RecordDict(
                {**message.content, self.arrayrecord_key: to_record(model)}
            )
        log(INFO, "configure_train: sent messages to %d nodes", len(nodes))
        return self.train_messages

    def _find_last_weight(self, node: int) -> float | None:
        """Return the weight of a node in its last accepted round, if a metric needs it."""
        needs = self.algorithm.needs
        if self.shadow is not None:
            needs = needs | self.shadow.needs
        if not needs_evaluation(needs.metrics & METRICS.keys(), "without"):
            return None
        return self.accepted_rounds.weight_of(node)

    def _check_other_driver(self) -> None:
        """Raise an error for terms that do not work if another strategy runs the rounds.

        It may change replies and the model, on which the server's part of these terms relies.
        """
        for term in self.algorithm.client:
            is_feature_term = isinstance(term, FeatureTerm)
            if term.tags.reported_slots or term.tags.changes_model or is_feature_term:
                raise SteelyardError(
                    f"client={term.name} does not work inside another strategy: call its own "
                    "start, or use client=fedprox"
                )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate the replies; if none is valid, the model does not change."""
        number = server_round + self.finished_rounds
        start = time.perf_counter()
        if self.model is None or not self.train_messages:
            return None, None

        # Check and read the replies.
        matched = match_replies(self.train_messages, replies, self.client_ids, self.timeout)
        training = read_training_replies(
            matched,
            self.client_ids,
            self.requirements,
            self.storage,
            self.server.client_tensors,
        )
        matched.log_failures(number)
        training.log_refusals(number)
        if server_round == 1:
            log_unnamed_nodes(self.client_ids)
        self.confirmations.check(number, training)

        # Aggregate.
        population = self.population or self.max_connected
        source = RecordSource(self.model)
        result = self.server.aggregate(number, source, training.results, population)
        weights = {
            training.node_by_client[client]: weight for client, weight in result.counted.items()
        }
        self.accepted_rounds.add(number, weights)

        # Record the round; `write_round` writes the record after the evaluation.
        self.run_log.add_client_sizes(result.metrics or {})
        record = {**result.record, **matched.record, **training.record}
        nodes = [message.metadata.dst_node_id for message in self.train_messages]
        cohort = [self.client_ids.of(node) for node in nodes]
        self.run_log.add_training(record, cohort, start, result.round_gram)

        # Keep the new model.
        arrays = self._keep_model(number, result, matched)
        accepted = {client: training.contents[client] for client in result.accepted}
        self.storage.clear()
        return arrays, self._compute_means(accepted, self.train_metrics_aggr_fn).metrics

    def _keep_model(self, number: int, result: RoundResult, replies: RoundReplies) -> ArrayRecord:
        """Keep the new model, and return the one to evaluate. Too many void rounds end the run."""
        assert self.model is not None
        if result.model is None or result.model_to_evaluate is None:
            self.void_rounds += 1
            reason = f"{result.record['void']} {replies.failed or ''}".strip()
            log(WARNING, "round %d is void, the model does not change: %s", number, reason)
            if self.void_rounds >= self.patience:
                self.run_log.write_round(self._take_snapshot)
                raise RunStopped(
                    f"round {number}: {self.void_rounds} rounds in a row were void, the last "
                    f"because: {reason}: check the clients, or raise patience={self.patience}"
                )
            return self.model_to_evaluate or self.model
        self.void_rounds = 0
        self.model = to_record(result.model)
        self.model_to_evaluate = None
        if result.model_to_evaluate is not result.model:
            self.model_to_evaluate = to_record(result.model_to_evaluate)
        return self.model_to_evaluate or self.model

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages that ask a cohort to evaluate the model."""
        if self.fraction_evaluate == 0.0:
            return []
        number = server_round + self.finished_rounds
        content = self._make_content(number, arrays, config)
        nodes = self._draw_nodes(grid, self.fraction_evaluate, self.min_evaluate_nodes, number)
        self.storage.begin_round(len(nodes))
        self.evaluate_messages = address_messages(
            content, nodes, MessageType.EVALUATE, number, self.timeout, self.accepted_rounds.of
        )
        return self.evaluate_messages

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the means of the clients' metrics; impossible values are quarantined."""
        # Check the replies, and compute the means.
        number = server_round + self.finished_rounds
        matched = match_replies(self.evaluate_messages, replies, self.client_ids, self.timeout)
        self.evaluate_messages = []
        contents, refused = split_refused(matched.by_client(self.client_ids), self.storage)
        means = self._compute_means(contents, self.evaluate_metrics_aggr_fn)
        self.storage.clear()

        # Log and record who failed.
        quarantined = {str(client): reason for client, reason in (refused | means.refused).items()}
        matched.log_failures(number, ", evaluation")
        for client, reason in quarantined.items():
            log(WARNING, "round %d, evaluation, client %s: %s", number, client, reason)
        record = {**matched.record, "quarantined": quarantined, "median": means.medians}
        self.run_log.add_client_evaluation(record, means.metrics)
        return means.metrics

    def _compute_means(
        self, contents: Mapping[ClientId, RecordDict], aggregate: AggregateMetrics
    ) -> MetricMeans:
        """Return means of the clients' metrics; the guard, if any, limits their weights."""
        rule = self.algorithm.weighting
        cap = rule.metric_cap if isinstance(rule, Guard) else math.inf
        return compute_means(contents, aggregate, self.weighted_by_key, self.id_key, cap)


# What depends on how Flower's own `Strategy.start` is written.

_ROUND_LINE = "[ROUND %s/%s]"
_EVALUATION_LINES = (
    "Initial global evaluation results: %s",
    "Global evaluation",
    "\t└──> MetricRecord: %s",
)


def _select_options(start: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that the installed Flower's `start` has; warn of the others."""
    parameters = inspect.signature(start).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(options)
    unknown = sorted(options.keys() - parameters.keys())
    if unknown:
        log(
            WARNING,
            "start(%s) is ignored: flwr %s does not have it; install a version that does",
            ", ".join(f"{name}=" for name in unknown),
            flwr.__version__,
        )
    return {name: value for name, value in options.items() if name in parameters}


@contextmanager
def _adapt_log(finished_rounds: int, has_evaluation: bool) -> Iterator[None]:
    """Adapt Flower's log to the run while its loop runs.

    Args:
        finished_rounds: rounds of a resumed run, which are added to the numbers of rounds.
        has_evaluation: whether the user evaluates at the server. If not, the lines about it are
            left out: Flower's loop calls our function for the end of a round instead.
    """

    def adapt(record: logging.LogRecord) -> bool:
        if record.msg == _ROUND_LINE and isinstance(record.args, tuple):
            numbers = [number for number in record.args if isinstance(number, int)]
            record.args = tuple(number + finished_rounds for number in numbers)
        return has_evaluation or record.msg not in _EVALUATION_LINES

    FLOWER_LOGGER.addFilter(adapt)
    try:
        yield
    finally:
        FLOWER_LOGGER.removeFilter(adapt)


def _renumber_rounds(result: Result, finished_rounds: int) -> Result:
    """Count the rounds of a resumed run from the first round of the run."""
    for name in (
        "train_metrics_clientapp",
        "evaluate_metrics_clientapp",
        "evaluate_metrics_serverapp",
    ):
        metrics = getattr(result, name)
        renumbered = {number + finished_rounds: value for number, value in metrics.items()}
        setattr(result, name, renumbered)
    return result
