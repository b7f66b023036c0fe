"""The client half: a ClientApp that trains with the simulator's loop, and a mod for people with loops of their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from logging import WARNING
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.logger import log
from torch import nn

from steelyard.algorithm import Algorithm
from steelyard.client.flat import FlatModel, Loss
from steelyard.client.local import LocalTraining
from steelyard.client.losses import check_targets
from steelyard.core.errors import SteelyardError
from steelyard.core.state import ClientId
from steelyard.data import Dataset, Federation, load
from steelyard.data.adapters import is_empty
from steelyard.flower.client_state import recall, remember
from steelyard.flower.records import to_record, to_state_dict
from steelyard.flower.replies import OURS
from steelyard.flower.streaming_grid import TOLD, array_name
from steelyard.metrics import MEANING
from steelyard.sim.executors import one_thread
from steelyard.sim.group import train_group
from steelyard.sim.work import ClientSlot, SimulationContext

ModelFn = Callable[[Context], nn.Module]
DataFn = Callable[[Context], Any]
Call = Callable[[Message, Context], Message]
TestMetric = Callable[[torch.Tensor, torch.Tensor], float]
_BATCH = 512  # samples at a time, for metrics of the user's own


@dataclass(frozen=True)
class TrainInstructions:
    """What the server wants of a client in this round.

    Attributes:
        round: its number, from 1.
        rounds: how many there are in all; 0 if the server does not say.
        seed: of the run.
        client: terms to add to SGD, as text.
        metrics: what to report, by our names (`num_examples` is Flower's `num-examples`).
        vectors: what the terms are sent, flat, parameters in the order of their names.
        mean_examples: mean number of examples of all clients, if the server knows.
        id_key: the entry of the node's configuration that names the client.
        examples_key: the metric to report the number of examples under.
        accepted: the last round whose reply from this node counted: what the node kept then is what
            it goes on from. 0: there is none, begin at zero. None: the server does not say.
    """

    round: int
    rounds: int
    seed: int
    client: str
    metrics: tuple[str, ...]
    vectors: Mapping[str, torch.Tensor]
    mean_examples: float | None
    id_key: str
    examples_key: str
    accepted: int | None


def read_instructions(message: Message) -> TrainInstructions:
    """Reads a message. One from a server without Steelyard asks for FedAvg."""
    server_config: Mapping[str, Any] = message.content.config_records.get(OURS, {})
    vectors_record = message.content.array_records.get(f"{OURS}.sent")
    config: Mapping[str, Any] = next(iter(message.content.config_records.values()), {})
    return TrainInstructions(
        round=int(server_config.get("round", config.get("server-round", 1))),
        rounds=int(server_config.get("rounds", 0)),
        seed=int(server_config.get("seed", 0)),
        client=str(server_config.get("client", "")),
        metrics=tuple(server_config.get("metrics", ("num_examples",))),
        vectors={} if vectors_record is None else to_state_dict(vectors_record),
        mean_examples=server_config.get("mean-examples"),
        id_key=str(server_config.get("id-key", "partition-id")),
        examples_key=str(server_config.get("examples-key", "num-examples")),
        accepted=server_config.get("accepted"),
    )


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
    """A ClientApp that trains as simulated clients do, with the terms the server asks for, and reports what it needs.

    Args:
        model_fn: makes the network; its parameters are overwritten.
        data_fn: the client's data: anything `steelyard.Dataset.of` takes, such as a pair (inputs,
            targets).
        test_fn: what to evaluate on; the client's own data if left out.
        local: how to train: a `Local`, or its options as a dict.
        loss: `"cross_entropy"`, `"mse"`, `"bce"`, or a function `loss(outputs, targets)`, a mean
            over the batch.
        arrays: the record that holds the model.
        test_metrics: metrics of your own to report of an evaluation: functions `metric(outputs,
            targets)` by name, which get all samples and return a number.
    """
    options = local if isinstance(local, LocalTraining) else LocalTraining(**(local or {}))
    app = ClientApp()

    @app.train()  # type: ignore[untyped-decorator, unused-ignore]
    def train(message: Message, context: Context) -> Message:
        """One round of local work."""
        want = read_instructions(message)
        with one_thread():
            job = _Job(
                model_fn(context),
                _data(data_fn, context, want),
                want,
                options,
                loss,
                _name(want, context),
            )
            key, received = _received(message.content, arrays)
            return Message(job.train(received, context, key), reply_to=message)

    @app.evaluate()  # type: ignore[untyped-decorator, unused-ignore]
    def evaluate(message: Message, context: Context) -> Message:
        """Loss and accuracy of the model received; a task without classes has no accuracy."""
        want = read_instructions(message)
        with one_thread():
            job = _Job(
                model_fn(context), _data(test_fn or data_fn, context, want), want, options, loss, 0
            )
            received = _received(message.content, arrays)[1]
            result = job.evaluate(received)
            if test_metrics and job.data.targets.numel():
                result |= _compute_metrics(test_metrics, model_fn(context), job.data, received)
        return Message(RecordDict({"metrics": MetricRecord(result)}), reply_to=message)

    return app


def _compute_metrics(
    metrics: Mapping[str, TestMetric], module: nn.Module, data: Dataset, received: ArrayRecord
) -> dict[str, float]:
    """Return the user's metrics of the received model on all samples, by name."""
    module.load_state_dict(to_state_dict(received))
    module.eval()
    with torch.no_grad():
        outputs = torch.cat([module(batch) for batch in torch.split(data.inputs, _BATCH)])
    return {
        name: float(metric(outputs.clone(), data.targets.clone()))
        for name, metric in metrics.items()
    }


def _data(data_fn: DataFn, context: Context, want: TrainInstructions) -> Dataset:
    """Return the client's data.

    An error, which the server logs as this client's, names the client.
    """
    data = data_fn(context)
    if is_empty(data):
        raise SteelyardError(
            f"client {_name(want, context)!r} has no data: data_fn returned an empty data set"
        )
    try:
        return Dataset.of(data, "data")
    except SteelyardError as error:
        raise SteelyardError(f"client {_name(want, context)!r}: {error}") from error


def _received(content: RecordDict, arrays: str) -> tuple[str, ArrayRecord]:
    key = array_name(content, arrays)
    if key is None:
        raise SteelyardError(
            f"the message has no ArrayRecord {arrays!r}: call client(arrays=...) as the server does"
        )
    return key, content.array_records[key]


def _name(want: TrainInstructions, context: Context) -> ClientId:
    """The client's id: the node's configuration has it, or its own id stands in."""
    return _configured(want, context).get(want.id_key, context.node_id)


def _configured(want: TrainInstructions, context: Context) -> dict[str, ClientId]:
    """The id to report; nothing where the node has none, for a metric may have it, or the server warns."""
    name = context.node_config.get(want.id_key)
    return {want.id_key: name} if isinstance(name, (int, str)) else {}


class _Job:
    """One client's work of a round: a federation of one."""

    def __init__(
        self,
        module: nn.Module,
        data: Dataset,
        want: TrainInstructions,
        local: LocalTraining,
        loss: str | Loss,
        name: ClientId,
    ) -> None:
        self.want = want
        self.data = data
        alone = Federation.of({name: data})
        network = FlatModel(module, loss, data.inputs, torch.device("cpu"))
        check_targets(network.loss, data.targets)
        unknown = sorted(set(want.metrics) - set(MEANING))
        if unknown:
            names = ", ".join(repr(name) for name in unknown)
            raise SteelyardError(
                f"the server asks for {names}, which a steelyard client does not report"
            )
        algorithm = Algorithm(client=want.client)
        local.check_terms(algorithm.client)
        metrics = tuple(sorted(want.metrics))
        rounds = max(want.rounds, want.round)
        self.work = SimulationContext(
            algorithm,
            alone,
            network,
            local,
            rounds,
            want.seed,
            metrics,
            mean_examples=want.mean_examples,
        )
        self.buffers = self.work.buffers(1, 1)

    def train(self, received: ArrayRecord, context: Context, key: str) -> RecordDict:
        """Trains, keeps what the client keeps, and makes the reply."""
        work, buffers = self.work, self.buffers
        self._take(received)
        client_record, lost = (
            recall(context.state, self.want.accepted) if buffers.tables else (None, False)
        )
        self._recall(client_record)
        before = {name: table[0].clone() for name, table in buffers.tables.items()}
        train_group(work, buffers, self.want.round, [ClientSlot(0, 0, 0)])
        params = work.model.usual((work.dense or work.model).params[0]).detach()
        model = work.model.state_dict(params, buffers.row_stats[0], buffers.row_counts[0])
        empty = int(work.sizes[0]) == 0
        reply = RecordDict({key: received if empty else to_record(model)})
        reply["metrics"] = MetricRecord(self._metrics())
        reply_config: dict[str, Any] = {
            **_configured(self.want, context),
            "client": self.want.client,
        }
        reply[OURS] = ConfigRecord({**reply_config, "restarted": True} if lost else reply_config)
        if buffers.tables:
            remember(
                context.state,
                self.want.round,
                self._make_client_record(),
                self.want.accepted,
                client_record,
            )
        slot_keys = [term.key(slot) for term in work.algorithm.client for slot in term.told_slots]
        if slot_keys:
            reply[TOLD] = to_record(
                {name: buffers.staged[name][0] - before[name] for name in slot_keys}
            )
        return reply

    def evaluate(self, received: ArrayRecord) -> dict[str, Any]:
        """Return the loss on all samples, and the accuracy where the task has one."""
        self._take(received)
        buffers, count = self.buffers, int(self.work.sizes[0])
        self.work.model.load(buffers.theta, buffers.stats, buffers.counts)
        loss, accuracy = self.work.evaluate_client(0)
        measured: dict[str, Any] = {"loss": loss, self.want.examples_key: count}
        return measured if math.isnan(accuracy) else measured | {"accuracy": accuracy}

    def _take(self, received: ArrayRecord) -> None:
        buffers, work = self.buffers, self.work
        state = to_state_dict(received)
        reason = work.model.layout.mismatch(
            {name: (tuple(t.shape), t.dtype) for name, t in state.items()}
        )
        if reason is not None:
            raise SteelyardError(f"the model received is not the one model_fn makes: {reason}")
        params, stats, counts = work.model.vectors(state)
        buffers.theta.copy_(params)
        buffers.stats.copy_(stats)
        buffers.counts.copy_(counts)

    def _recall(self, client_record: ArrayRecord | None) -> None:
        """Vectors that the server sent, and those that the client kept."""
        for name, vector in self.buffers.sent.items():
            if name not in self.want.vectors:
                raise SteelyardError(
                    f"client={self.want.client}: the server sent no {name!r}: let steelyard drive "
                    f"it"
                )
            vector.copy_(self.want.vectors[name])
        for name, tensor in (
            to_state_dict(client_record).items() if client_record is not None else ()
        ):
            if name in self.buffers.tables:
                self.buffers.tables[name][0].copy_(tensor)
            elif name == "steps_taken":
                self.buffers.steps_taken.copy_(tensor)

    def _make_client_record(self) -> ArrayRecord:
        vectors = {name: rows[0] for name, rows in self.buffers.staged.items()}
        return to_record(vectors | {"steps_taken": self.buffers.steps_taken + self.buffers.steps})

    def _metrics(self) -> dict[str, Any]:
        row = self.buffers.reports[0].tolist()
        values = dict(zip(self.work.metrics, row, strict=True)) if int(self.work.sizes[0]) else {}
        metrics: dict[str, Any] = {name.replace("_", "-"): value for name, value in values.items()}
        for name in values.keys() & self.buffers.class_reports.keys():
            metrics[name.replace("_", "-")] = self.buffers.class_reports[name][0].tolist()
        return {
            **metrics,
            "num-examples": int(self.work.sizes[0]),
            self.want.examples_key: int(self.work.sizes[0]),
        }


def reporting(message: Message, context: Context, call_next: Call) -> Message:
    """A mod for your own training code.

    Checks that a reply reports what the server's rule needs, and adds the id.

    Use it as `ClientApp(mods=[steelyard.flower.reporting])`. All metrics that are missing are named
    in the error, which the server logs as this client's.
    """
    want = read_instructions(message)
    reply = call_next(message, context)
    if not message.metadata.message_type.startswith("train") or not reply.has_content():
        return reply
    metric_names = {
        name.replace("-", "_")
        for record in reply.content.metric_records.values()
        for name in record
    }
    metric_names |= (
        {"num_examples"} if want.examples_key.replace("-", "_") in metric_names else set()
    )
    missing = [name for name in want.metrics if name not in metric_names]
    if missing:
        descriptions = "; ".join(
            f"{name.replace('_', '-')!r}, the {MEANING.get(name, 'metric')}" for name in missing
        )
        raise SteelyardError(
            f"the server's rule needs {descriptions}: put what is missing into the MetricRecord of "
            f"the reply"
        )
    reply_config: Mapping[str, Any] = reply.content.config_records.get(OURS, {})
    if want.client and reply_config.get("client") != want.client and want.round == 1:
        log(
            WARNING,
            "the server asks for client=%s: your training code has to add it, and say so "
            "(steelyard.flower.asked)",
            want.client,
        )
    reply.content[OURS] = ConfigRecord({**_configured(want, context), **reply_config})
    return reply


def partitioned(
    data: Any = "digits",
    partition: str = "iid",
    *,
    clients: int | None = None,
    seed: int = 0,
    data_dir: str | None = None,
) -> DataFn:
    """A `data_fn` that spreads a data set as the simulator does, and gives each node the part of its `partition-id`.

    Args:
        data: a name, or anything `steelyard.Dataset.of` takes.
        partition: how: `iid`, `dirichlet:alpha=0.3`.
        clients: how many; the node's `num-partitions` if left out.
        seed: of the partition.
        data_dir: where the files of named data sets are.
    """

    def data_fn(context: Context) -> Dataset:
        config = context.node_config
        if "partition-id" not in config or (clients is None and "num-partitions" not in config):
            raise SteelyardError(
                'the node has no partition-id or num-partitions: start it with --node-config "partition-id=0 '
                'num-partitions=3"'
            )
        count, at = clients or int(config["num-partitions"]), int(config["partition-id"])
        train = load(data, data_dir)[0] if isinstance(data, str) else Dataset.of(data, "data")
        federation = Federation.partitioned(train, None, partition, count, seed)
        if not 0 <= at < count:
            raise SteelyardError(f"partition-id={at}: use one of 0 to {count - 1}")
        return federation.train.take(federation.index[at])

    return data_fn
