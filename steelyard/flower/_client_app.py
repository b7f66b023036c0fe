"""The client: a ClientApp that trains as simulated clients do, and a mod for your own training code."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from logging import WARNING
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.logger import log
from torch import nn

from steelyard.algorithm import Algorithm
from steelyard.client._adapters import load_model
from steelyard.client._adapters import state_to_send as state_to_send
from steelyard.client._flat import FlatModel, Loss
from steelyard.client._local import LocalTraining
from steelyard.client._losses import check_targets
from steelyard.core._errors import SteelyardError
from steelyard.core._state import ClientId
from steelyard.data import Dataset, Federation, load
from steelyard.data._adapters import is_empty
from steelyard.flower._array_records import to_record, to_state_dict
from steelyard.flower._messages import (
    REPORTED_VECTORS_RECORD,
    STEELYARD_RECORD,
    TENSORS_RECORD,
    TrainInstructions,
    find_model_record,
    read_instructions,
)
from steelyard.metrics import MEANING
from steelyard.sim._executors import one_thread
from steelyard.sim._group import train_group
from steelyard.sim._work import ClientSlot, SimulationContext

ModelFn = Callable[[Context], nn.Module]
DataFn = Callable[[Context], Any]
CallNext = Callable[[Message, Context], Message]
TestMetric = Callable[[torch.Tensor, torch.Tensor], float]

_EVALUATION_BATCH = 512  # samples at a time, for the user's own metrics
_STEPS_TAKEN = "steps_taken"  # the entry of a client's state with its number of local steps


def client(
    model_fn: ModelFn,
    data_fn: DataFn,
    *,
    test_fn: DataFn | None = None,
    local: LocalTraining | Mapping[str, Any] | None = None,
    loss: str | Loss = "cross_entropy",
    arrays: str = "arrays",
    test_metrics: Mapping[str, TestMetric] | None = None,
) -> ClientApp:
    """Return a ClientApp that trains in the same way as simulated clients.

    It adds the client terms that the server's algorithm needs, and reports the metrics that the
    rule needs.

    Args:
        model_fn: returns the network; its parameters are overwritten.
        data_fn: returns the client's data: anything that `steelyard.Dataset.of` accepts, such as a
            pair (inputs, targets).
        test_fn: returns the data to evaluate on; by default the client's own data.
        local: how to train: a `LocalTraining`, or its options as a dict.
        loss: `"cross_entropy"`, `"mse"`, `"bce"`, or a function `loss(outputs, targets)` that
            returns the mean over the batch.
        arrays: the name of the record that contains the model.
        test_metrics: your own metrics of an evaluation: functions `metric(outputs, targets)` by
            name, which get all samples and return a number.
    """
    local_training = local if isinstance(local, LocalTraining) else LocalTraining(**(local or {}))
    app = ClientApp()

    @app.train()  # type: ignore[untyped-decorator, unused-ignore]
    def train(message: Message, context: Context) -> Message:
        """Train for one round."""
        instructions = read_instructions(message)
        key, model = _find_model(message.content, arrays)
        with one_thread():
            data = _load_data(data_fn, context, instructions)
            name = _client_id(instructions, context)
            job = _Job(model_fn(context), data, instructions, local_training, loss, name)
            return Message(job.train(model, context, key), reply_to=message)

    @app.evaluate()  # type: ignore[untyped-decorator, unused-ignore]
    def evaluate(message: Message, context: Context) -> Message:
        """Evaluate the received model: loss, accuracy if the task has classes, own metrics."""
        instructions = read_instructions(message)
        _, model = _find_model(message.content, arrays)
        with one_thread():
            data = _load_data(test_fn or data_fn, context, instructions)
            job = _Job(model_fn(context), data, instructions, local_training, loss, 0)
            metrics = job.evaluate(model)
            if test_metrics and data.targets.numel():
                metrics |= _compute_test_metrics(test_metrics, model_fn(context), data, model)
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    return app


def _compute_test_metrics(
    metrics: Mapping[str, TestMetric], module: nn.Module, data: Dataset, model: ArrayRecord
) -> dict[str, float]:
    """Return the user's metrics of the received model on all samples, by name."""
    load_model(module, to_state_dict(model))
    module.eval()
    with torch.no_grad():
        outputs = torch.cat(
            [module(batch) for batch in torch.split(data.inputs, _EVALUATION_BATCH)]
        )
    return {
        name: float(metric(outputs.clone(), data.targets.clone()))
        for name, metric in metrics.items()
    }


def _load_data(data_fn: DataFn, context: Context, instructions: TrainInstructions) -> Dataset:
    """Return the client's data; errors name the client, because the server logs them."""
    name = _client_id(instructions, context)
    data = data_fn(context)
    if is_empty(data):
        raise SteelyardError(f"client {name!r} has no data: data_fn returned an empty data set")
    try:
        return Dataset.of(data, "data")
    except SteelyardError as error:
        raise SteelyardError(f"client {name!r}: {error}") from error


def _find_model(content: RecordDict, arrays_key: str) -> tuple[str, ArrayRecord]:
    """Return the name and the content of the record with the model."""
    key = find_model_record(content, arrays_key)
    if key is None:
        raise SteelyardError(
            f"the message has no ArrayRecord {arrays_key!r}: pass the server's arrayrecord_key as "
            "client(arrays=...)"
        )
    return key, content.array_records[key]


def _client_id(instructions: TrainInstructions, context: Context) -> ClientId:
    """Return the id in the node's configuration, or else the node id."""
    return _configured_id(instructions, context).get(instructions.id_key, context.node_id)


def _configured_id(instructions: TrainInstructions, context: Context) -> dict[str, ClientId]:
    """Return the entry of the reply with the client id; empty if the node's configuration has none."""
    client = context.node_config.get(instructions.id_key)
    return {instructions.id_key: client} if isinstance(client, (int, str)) else {}


class _Job:
    """The work of one client in a round: a simulation with a single client."""

    def __init__(
        self,
        module: nn.Module,
        data: Dataset,
        instructions: TrainInstructions,
        local: LocalTraining,
        loss: str | Loss,
        name: ClientId,
    ) -> None:
        # Check that the client can do what the server asks for.
        unknown = sorted(set(instructions.metrics) - set(MEANING))
        network = FlatModel(module, loss, data.inputs, torch.device("cpu"))
        check_targets(network.loss, data.targets)
        if unknown:
            names = ", ".join(repr(metric) for metric in unknown)
            raise SteelyardError(
                f"the server asks for {names}, which a steelyard client does not report"
            )
        algorithm = Algorithm(client=instructions.client)
        local.check_terms(algorithm.client)

        self.instructions = instructions
        self.work = SimulationContext(
            algorithm,
            Federation.of({name: data}),
            network,
            local,
            max(instructions.rounds, instructions.round),
            instructions.seed,
            tuple(sorted(instructions.metrics)),
            mean_examples=instructions.mean_examples,
            classifier_name=instructions.classifier,
        )
        self.buffers = self.work.buffers(1, 1)
        self.examples = int(self.work.sizes[0])

    def train(self, received: ArrayRecord, context: Context, key: str) -> RecordDict:
        """Train the received model.

        Args:
            received: the model from the server.
            context: contains the client's state of earlier rounds, which is updated.
            key: the name of the record with the model.

        Returns:
            The content of the reply.
        """
        work = self.work
        buffers = self.buffers
        instructions = self.instructions

        # Load the model, the server's vectors, and the client's vectors.
        self._load_model(received)
        self._load_sent_vectors()
        self._load_sent_tensors()
        state: ArrayRecord | None = None
        is_lost = False
        if buffers.tables:
            state, is_lost = read_client_state(context.state, instructions.accepted)
        if state is not None:
            self._load_client_state(state)
            if instructions.weight is not None:
                buffers.last_weights[0] = instructions.weight
        vectors_before = {name: table[0].clone() for name, table in buffers.tables.items()}

        # Train. A client without examples returns the model that it received.
        train_group(work, buffers, instructions.round, [ClientSlot(0, 0, 0)])
        model = received
        if self.examples:
            params = work.model.usual((work.dense or work.model).params[0]).detach()
            model = to_record(
                work.model.state_dict(params, buffers.row_stats[0], buffers.row_counts[0])
            )

        # Keep the new vectors.
        if buffers.tables:
            new_state = self._make_client_state()
            write_client_state(
                context.state, instructions.round, new_state, instructions.accepted, state
            )

        # Build the reply.
        config: dict[str, Any] = {
            **_configured_id(instructions, context),
            "client": instructions.client,
        }
        if is_lost:
            config["restarted"] = True
        reply = RecordDict({key: model})
        reply["metrics"] = MetricRecord(self._make_metrics())
        reply[STEELYARD_RECORD] = ConfigRecord(config)
        changes = {}
        for term in work.algorithm.client:
            for slot in term.tags.reported_slots:
                name = term.key(slot)
                changes[name] = buffers.staged[name][0] - vectors_before[name]
        if changes:
            reply[REPORTED_VECTORS_RECORD] = to_record(changes)
        if buffers.client_tensors:
            tensors = {name: rows[0] for name, rows in buffers.client_tensors.items()}
            reply[TENSORS_RECORD] = to_record(tensors)
        return reply

    def evaluate(self, received: ArrayRecord) -> dict[str, Any]:
        """Return the loss on all samples, and the accuracy if the task has classes."""
        self._load_model(received)
        buffers = self.buffers
        self.work.model.load(buffers.theta, buffers.stats, buffers.counts)
        loss, accuracy = self.work.evaluate_client(0)
        metrics: dict[str, Any] = {"loss": loss, self.instructions.examples_key: self.examples}
        if not math.isnan(accuracy):
            metrics["accuracy"] = accuracy
        return metrics

    def _load_model(self, received: ArrayRecord) -> None:
        """Copy the received model to the buffers."""
        model = self.work.model
        state = to_state_dict(received)
        shapes = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in state.items()}
        reason = model.layout.mismatch(shapes)
        if reason is not None and model.layout.pairs:
            reason += " (start with the tensors of steelyard.flower.state_to_send(model))"
        if reason is not None:
            raise SteelyardError(f"the received model is not that of model_fn: {reason}")
        params, stats, counts = model.vectors(state)
        self.buffers.theta.copy_(params)
        self.buffers.stats.copy_(stats)
        self.buffers.counts.copy_(counts)

    def _load_sent_vectors(self) -> None:
        """Copy the vectors of the terms that the server sent to the buffers."""
        for name, vector in self.buffers.sent.items():
            if name not in self.instructions.vectors:
                raise SteelyardError(
                    f"client={self.instructions.client}: the server did not send {name!r}: use a "
                    "strategy of steelyard.flower at the server"
                )
            vector.copy_(self.instructions.vectors[name])

    def _load_sent_tensors(self) -> None:
        """Copy the small tensors of feature terms that the server sent to the buffers."""
        instructions = self.instructions
        specs = self.work.algorithm.client.server_tensors(self.work.classifier)
        for name, spec in specs.items():
            if not spec.is_sent:
                continue
            if name not in instructions.tensors:
                raise SteelyardError(
                    f"client={instructions.client}: the server did not send {name!r}: use a "
                    "strategy of steelyard.flower at the server"
                )
            problem = spec.find_problem(instructions.tensors[name])
            if problem is not None:
                raise SteelyardError(
                    f"client={instructions.client}: {name!r} from the server {problem}: use the "
                    "network of the server in model_fn"
                )
            self.buffers.server_tensors[name].copy_(instructions.tensors[name])

    def _load_client_state(self, state: ArrayRecord) -> None:
        """Copy the client's vectors of an earlier round to the buffers."""
        for name, tensor in to_state_dict(state).items():
            if name in self.buffers.tables:
                self.buffers.tables[name][0].copy_(tensor)
            elif name == _STEPS_TAKEN:
                self.buffers.steps_taken.copy_(tensor)

    def _make_client_state(self) -> ArrayRecord:
        """Return the client's vectors after the training."""
        vectors = {name: rows[0] for name, rows in self.buffers.staged.items()}
        steps = self.buffers.steps_taken + self.buffers.steps
        return to_record({**vectors, _STEPS_TAKEN: steps})

    def _make_metrics(self) -> dict[str, Any]:
        """Return the metrics that the server asks for, under Flower's names."""
        metrics: dict[str, Any] = {}
        if self.examples:
            values = self.buffers.reports[0].tolist()
            for name, value in zip(self.work.metrics, values, strict=True):
                metrics[name.replace("_", "-")] = value
            for name, counts in self.buffers.class_reports.items():
                if name in self.work.metrics:
                    metrics[name.replace("_", "-")] = counts[0].tolist()
        metrics["num-examples"] = self.examples
        metrics[self.instructions.examples_key] = self.examples
        return metrics


# What a client keeps from round to round: its vectors as they are now, and as they were before,
# until the server says whether its last reply was accepted.

_PREVIOUS_STATE = f"{STEELYARD_RECORD}.before"
_STATE_ROUNDS = f"{STEELYARD_RECORD}.rounds"


def read_client_state(state: RecordDict, accepted: int | None) -> tuple[ArrayRecord | None, bool]:
    """Return the vectors of the last accepted round.

    Args:
        state: the client's state, which Flower keeps.
        accepted: the last accepted round; None if the server does not specify it. Then the newest
            vectors are valid.

    Returns:
        The vectors, or None; and whether vectors that should be there are lost.
    """
    rounds: Mapping[str, Any] = state.config_records.get(_STATE_ROUNDS, {})
    if accepted is None:
        accepted = int(rounds.get(STEELYARD_RECORD, 0))
    if accepted == 0:
        return None, False
    for name in (STEELYARD_RECORD, _PREVIOUS_STATE):
        if rounds.get(name) == accepted:
            return state.array_records[name], False
    return None, True


def write_client_state(
    state: RecordDict,
    number: int,
    vectors: ArrayRecord,
    accepted: int | None,
    previous: ArrayRecord | None,
) -> None:
    """Keep the new and the previous vectors, with their rounds.

    Args:
        state: the client's state, which Flower keeps.
        number: number of the round.
        vectors: the vectors after this round.
        accepted: the last accepted round, to which `previous` belongs. If the server does not
            specify it, the previous vectors are not needed.
        previous: the vectors before this round, if any.
    """
    if not accepted or previous is None:
        accepted = 0
        previous = ArrayRecord()
    state[STEELYARD_RECORD] = vectors
    state[_PREVIOUS_STATE] = previous
    state[_STATE_ROUNDS] = ConfigRecord({STEELYARD_RECORD: number, _PREVIOUS_STATE: accepted})


def reporting(message: Message, context: Context, call_next: CallNext) -> Message:
    """A mod for your own training code: `ClientApp(mods=[steelyard.flower.reporting])`.

    It checks that a reply contains the metrics that the server's rule needs, and adds the client
    id. The error names all missing metrics; the server logs it with the client.
    """
    instructions = read_instructions(message)
    reply = call_next(message, context)
    if not message.metadata.message_type.startswith("train") or not reply.has_content():
        return reply

    # Check the metrics.
    names = {
        name.replace("-", "_")
        for record in reply.content.metric_records.values()
        for name in record
    }
    if instructions.examples_key.replace("-", "_") in names:
        names.add("num_examples")
    missing = [name for name in instructions.metrics if name not in names]
    if missing:
        descriptions = "; ".join(
            f"{name.replace('_', '-')!r}, the {MEANING.get(name, 'metric')}" for name in missing
        )
        raise SteelyardError(
            f"the server's rule needs {descriptions}: put the missing metrics into the "
            "MetricRecord of the reply"
        )

    # Remind the user of the client terms, and add the id.
    config: Mapping[str, Any] = reply.content.config_records.get(STEELYARD_RECORD, {})
    is_unconfirmed = bool(instructions.client) and config.get("client") != instructions.client
    if is_unconfirmed and instructions.round == 1:
        log(
            WARNING,
            "the server asks for client=%s: your training code must add it, and confirm this "
            "(docs/flower.md, training code of your own)",
            instructions.client,
        )
    reply.content[STEELYARD_RECORD] = ConfigRecord(
        {**_configured_id(instructions, context), **config}
    )
    return reply


def partitioned(
    data: Any = "digits",
    partition: str = "iid",
    *,
    clients: int | None = None,
    seed: int = 0,
    data_dir: str | None = None,
) -> DataFn:
    """Return a `data_fn` that partitions a data set as the simulator does.

    Each node gets the part of its `partition-id`.

    Args:
        data: the name of a data set, or anything that `steelyard.Dataset.of` accepts.
        partition: the partition, such as `iid` or `dirichlet:alpha=0.3`.
        clients: number of parts; by default the node's `num-partitions`.
        seed: random seed of the partition.
        data_dir: the folder with the files of named data sets.
    """

    def data_fn(context: Context) -> Dataset:
        """Return the data of a node."""
        config = context.node_config
        if "partition-id" not in config or (clients is None and "num-partitions" not in config):
            raise SteelyardError(
                "the node has no partition-id or num-partitions: start it with "
                '--node-config "partition-id=0 num-partitions=3"'
            )
        count = clients or int(config["num-partitions"])
        position = int(config["partition-id"])
        train = load(data, data_dir)[0] if isinstance(data, str) else Dataset.of(data, "data")
        federation = Federation.partitioned(train, None, partition, count, seed)
        if not 0 <= position < count:
            raise SteelyardError(f"partition-id={position}: use one of 0 to {count - 1}")
        return federation.train.take(federation.index[position])

    return data_fn
