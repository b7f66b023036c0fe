"""The replies of a round: who answered, what of it can be used, and means of reported metrics.

A reply that cannot be used is refused with a reason, and the round continues without it.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import ERROR, WARNING
from typing import Any

import torch
from flwr.app import Message, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

from steelyard.algorithm import Algorithm
from steelyard.core._errors import MOST_CHARACTERS, SteelyardError, describe_error, escape_text
from steelyard.core._side_channel import Specs
from steelyard.core._state import ClientId, sort_key
from steelyard.flower._array_records import RecordSource
from steelyard.flower._clients import ClientIds
from steelyard.flower._messages import (
    REPORTED_VECTORS_RECORD,
    STEELYARD_RECORD,
    TENSORS_RECORD,
    find_model_record,
)
from steelyard.flower._server import TrainingResults
from steelyard.flower._streaming import ReplyStorage, call_or_refuse
from steelyard.metrics import MEANING, MOST, Table, valid_number
from steelyard.stores._slices import Source

# Matching replies with messages.

# What Flower's error codes mean.
_ERROR_CODES = {
    0: "unknown error",
    1: "the ClientApp could not be loaded",
    2: "the ClientApp raised an exception",
    3: "the message was not available",
    4: "the reply was not available",
    5: "the node is gone",
    6: "a mod refused",
    7: "the app bundle is invalid",
    8: "the ClientApp crashed",
}
_MESSAGE_UNAVAILABLE = 3


@dataclass
class RoundReplies:
    """Who answered, and who did not.

    Attributes:
        contents: the contents of the replies, by node, in the order of the nodes.
        failed: the reason for each client that answered with an error or did not answer.
        late: the clients that did not answer.
        unmatched: descriptions of replies that do not belong to a message of this round.
        messages: number of messages that were sent.
    """

    contents: dict[int, RecordDict] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    late: list[ClientId] = field(default_factory=list)
    unmatched: list[str] = field(default_factory=list)
    messages: int = 0

    @property
    def record(self) -> dict[str, Any]:
        """The entries of the round's record."""
        dropped = sorted(set(self.failed) - {str(client) for client in self.late})
        return {
            "dropped_clients": dropped,
            "late_clients": self.late,
            "failed": self.failed,
            "unmatched_replies": self.unmatched,
        }

    def by_client(self, ids: ClientIds) -> dict[ClientId, RecordDict]:
        """Return the contents by client id."""
        return {ids.of(node): content for node, content in self.contents.items()}

    def log_failures(self, number: int, phase: str = "") -> None:
        """Log who failed, and why."""
        for client, reason in self.failed.items():
            log(WARNING, "round %d%s, client %s: %s", number, phase, client, reason)
        for reply_text in self.unmatched:
            log(WARNING, "round %d%s, %s", number, phase, reply_text)


def match_replies(
    messages: Sequence[Message], replies: Iterable[Message], ids: ClientIds, timeout: float
) -> RoundReplies:
    """Match replies with the messages that they answer. Their order does not matter.

    Args:
        messages: the messages that were sent. If there are none, because a subclass sent its own,
            every node that answered is taken for one that got a message.
        replies: what came back.
        ids: the client ids of the nodes.
        timeout: seconds that the server waited, for the reasons.
    """
    # The id of the message that each node got.
    replies = list(replies)
    message_by_node = {
        message.metadata.dst_node_id: message.metadata.message_id for message in messages
    }
    if not message_by_node:
        for reply in reversed(replies):
            metadata = reply.metadata
            message_by_node[metadata.src_node_id] = metadata.reply_to_message_id
    node_by_message = {message: node for node, message in message_by_node.items() if message}

    # The first reply of each node.
    result = RoundReplies(messages=len(message_by_node))
    reply_by_node: dict[int, Message] = {}
    for reply in replies:
        source = reply.metadata.src_node_id
        node = _find_node(reply, message_by_node, node_by_message)
        if node is None:
            result.unmatched.append(
                f"node {source}: its reply does not belong to a message of this round"
            )
        elif reply.has_content() and source != node:
            result.unmatched.append(f"node {source}: it replied to a message for node {node}")
        elif node in reply_by_node:
            result.unmatched.append(f"node {node}: it replied twice; the first reply is used")
        else:
            reply_by_node[node] = reply

    # What became of each message.
    for node in sorted(message_by_node):
        client = ids.of(node)
        reply_or_none = reply_by_node.get(node)
        if reply_or_none is None or _is_expired(reply_or_none):
            result.failed[str(client)] = f"node {node} did not answer within {timeout:g} s"
            result.late.append(client)
        elif reply_or_none.has_error():
            error = reply_or_none.error
            description = f"{_ERROR_CODES.get(error.code, 'error')} (code {error.code})"
            reason = escape_text(error.reason or "no reason given", MOST_CHARACTERS)
            result.failed[str(client)] = f"node {node}: {description}: {reason}"
        else:
            result.contents[node] = reply_or_none.content
    return result


def _find_node(
    reply: Message, message_by_node: Mapping[int, str], node_by_message: Mapping[str, int]
) -> int | None:
    """Return the node whose message a reply answers; None if there is none.

    An error about a node that is gone comes from the SuperLink, so the id of the message decides.
    """
    message = reply.metadata.reply_to_message_id
    source = reply.metadata.src_node_id
    if message and node_by_message:
        return node_by_message.get(message)
    return source if source in message_by_node else None


def _is_expired(reply: Message) -> bool:
    """Return whether the SuperLink reports that the message expired, which it may do before us.

    Where a reply could not be fetched, the same error code has another reason.
    """
    return (
        reply.has_error()
        and reply.error.code == _MESSAGE_UNAVAILABLE
        and "Message Unavailable" in (reply.error.reason or "")
    )


# Reading training replies.

_UNNAMED = (
    "%d clients do not report %r: their node ids are used instead, and the state of a client is "
    "lost when its node gets another id. Start nodes with it (--node-config) and use "
    "ClientApp(mods=[steelyard.flower.reporting]); or name the entry that they report, with "
    "id_key=... in the strategy"
)
_UNCONFIRMED = (
    "did not confirm that client={} was added to the training: build the ClientApp with "
    "steelyard.flower.client, or add the term in your own code and confirm it (docs/flower.md, "
    "training code of your own)"
)
_RESTARTED = "round %d, client %s: it lost its state of earlier rounds and started from zero (a new process?)%s"
_RESTART_ADVICE = (
    ": the server's part still contains it; stop and resume the run to start all clients from zero"
)
_MAX_QUOTED = 100  # characters of the names of a reply's records


@dataclass(frozen=True)
class ReplyRequirements:
    """What a reply to a training message must contain.

    Attributes:
        arrays_key: the name of the model's record.
        examples_key: the metric that clients are weighted by.
        terms: the client terms that clients must add, as a spec string.
        is_strict: whether a reply that does not confirm the terms is refused.
        has_client_state: whether clients keep vectors of the terms.
        metrics: names of metrics to read beside the usual ones.
    """

    arrays_key: str
    examples_key: str
    terms: str = ""
    is_strict: bool = False
    has_client_state: bool = False
    metrics: frozenset[str] = frozenset()

    @staticmethod
    def of(algorithm: Algorithm, arrays_key: str, examples_key: str) -> ReplyRequirements:
        """Return the requirements of an algorithm."""
        return ReplyRequirements(
            arrays_key,
            examples_key,
            algorithm.texts["client"] or "",
            is_strict=any(term.server_slots for term in algorithm.client)
            or bool(algorithm.client.feature_terms),
            has_client_state=any(term.client_slots for term in algorithm.client),
            metrics=frozenset(algorithm.needs.metrics),
        )


@dataclass
class TrainingReplies:
    """The training replies of one round, checked and read.

    Attributes:
        results: what the server aggregates.
        contents: the contents of the usable replies, by client id.
        node_by_client: the nodes of all clients that answered.
        unconfirmed: clients that did not confirm that they added the terms.
        restarted: clients that lost the vectors that they kept.
    """

    results: TrainingResults
    contents: dict[ClientId, RecordDict] = field(default_factory=dict)
    node_by_client: dict[ClientId, int] = field(default_factory=dict)
    unconfirmed: list[ClientId] = field(default_factory=list)
    restarted: list[ClientId] = field(default_factory=list)

    @property
    def record(self) -> dict[str, Any]:
        """The entries of the round's record."""
        return {"unconfirmed": self.unconfirmed, "restarted": self.restarted}

    def log_refusals(self, number: int) -> None:
        """Log who was refused, and why."""
        for client, reason in self.results.refused.items():
            log(WARNING, "round %d, client %s: %s", number, client, reason)


def log_unnamed_nodes(ids: ClientIds) -> None:
    """Log how many clients report no id."""
    if ids.unnamed_nodes:
        log(WARNING, _UNNAMED, len(ids.unnamed_nodes), ids.key)


class TermConfirmations:
    """Checks from round to round that clients add the terms of the algorithm."""

    def __init__(self, requirements: ReplyRequirements) -> None:
        self.requirements = requirements
        self._is_confirmed = False  # by at least one client
        self._has_warned = False

    def check(self, number: int, replies: TrainingReplies) -> None:
        """Warn of clients that did not confirm the terms, or that lost their vectors.

        Raises:
            SteelyardError: if most clients did not confirm terms that have a part at the server,
                and no client ever did.
        """
        requirements = self.requirements
        unconfirmed = len(replies.unconfirmed)
        answered = len(replies.node_by_client)
        problem = _UNCONFIRMED.format(requirements.terms)
        self._is_confirmed = self._is_confirmed or unconfirmed < answered

        # If most clients do not confirm, the app is wrong, not a single client.
        is_majority = 2 * unconfirmed > replies.results.messages
        if is_majority and requirements.is_strict and not self._is_confirmed:
            raise SteelyardError(f"the clients {problem}")
        if unconfirmed and not requirements.is_strict and not self._has_warned:
            self._has_warned = True
            log(
                WARNING,
                "round %d: %d of %d clients %s. Without it, this is plain averaging",
                number,
                unconfirmed,
                answered,
                problem,
            )
        advice = _RESTART_ADVICE if requirements.has_client_state else ""
        for client in replies.restarted:
            log(WARNING, _RESTARTED, number, client, advice)


def read_training_replies(
    replies: RoundReplies,
    ids: ClientIds,
    requirements: ReplyRequirements,
    storage: ReplyStorage,
    specs: Specs,
) -> TrainingReplies:
    """Read ids, models, vectors and metrics from the replies of a round.

    Args:
        replies: the replies, by node.
        ids: the client ids of the nodes; new ids are added.
        requirements: what a reply must contain.
        storage: where arrays that are not in memory are, and which replies it refused.
        specs: the declarations of the small tensors that clients send, by name.

    Returns:
        The replies that can be used, and the reason for each client whose reply cannot be used.
    """
    models: dict[ClientId, Source] = {}
    vectors: dict[ClientId, Source] = {}
    refused: dict[ClientId, str] = {}
    has_fractions = requirements.examples_key.replace("-", "_") != "num_examples"
    metrics: Table = {}
    tensors: dict[ClientId, dict[str, torch.Tensor]] = {}
    results = TrainingResults(
        models, metrics, vectors, refused, has_fractions, replies.messages, tensors
    )
    training = TrainingReplies(results)
    refused_nodes: dict[str, str] = {}

    for node, content in replies.contents.items():
        # Which client is it?
        client, reason = call_or_refuse(ids.claim, node, content)
        if client is None:
            refused_nodes[ids.label(node, content)] = reason
            continue
        training.node_by_client[client] = node
        is_unconfirmed, reason = call_or_refuse(
            _read_confirmation, client, content, requirements, training
        )
        if reason:
            refused[client] = reason
            continue

        # What does it send?
        arrays, reason = call_or_refuse(_read_arrays, content, requirements.arrays_key, storage)
        if arrays is not None and is_unconfirmed and requirements.is_strict:
            reason = _UNCONFIRMED.format(requirements.terms)
        if arrays is None or reason:
            refused[client] = reason
            continue
        client_tensors, reason = call_or_refuse(_read_tensors, content, specs)
        if client_tensors is None:
            refused[client] = reason
            continue
        tensors[client] = client_tensors
        model, changes = arrays
        models[client] = model
        if changes is not None:
            vectors[client] = changes
        training.contents[client] = content

    # The label of a node without an id must not be the id of another client.
    for label, reason in refused_nodes.items():
        refused[f"refused: {label}" if label in training.node_by_client else label] = reason
    names = {*MEANING, *requirements.metrics}
    metrics.update(_read_reports(training.contents, requirements.examples_key, names))
    return training


def _read_confirmation(
    client: ClientId,
    content: RecordDict,
    requirements: ReplyRequirements,
    training: TrainingReplies,
) -> bool:
    """Return whether the client did not confirm the terms, and add it to the lists of such clients."""
    config: Mapping[str, Any] = content.config_records.get(STEELYARD_RECORD, {})
    if config.get("restarted") is True:
        training.restarted.append(client)
    is_unconfirmed = bool(requirements.terms) and config.get("client") != requirements.terms
    if is_unconfirmed:
        training.unconfirmed.append(client)
    return is_unconfirmed


def _read_arrays(
    content: RecordDict, arrays_key: str, storage: ReplyStorage
) -> tuple[Source, Source | None]:
    """Return the model, and the changes of the client's vectors if there are any."""
    storage.check(content)
    return _read_model(content, arrays_key, storage), _read_vectors(content, storage)


def _read_model(content: RecordDict, arrays_key: str, storage: ReplyStorage) -> Source:
    file = storage.find_file(content)
    if file is not None:
        return file
    name = find_model_record(content, arrays_key)
    if name is None:
        names = ", ".join(str(name) for name in content) or "nothing"
        raise SteelyardError(
            f"its reply has no ArrayRecord {arrays_key!r}: it has {escape_text(names, _MAX_QUOTED)}"
        )
    record = content.array_records[name]
    storage.check_model(record)
    return RecordSource(record)


def _read_vectors(content: RecordDict, storage: ReplyStorage) -> Source | None:
    record = content.array_records.get(REPORTED_VECTORS_RECORD)
    if record is None:
        return storage.find_file(content, REPORTED_VECTORS_RECORD)
    return RecordSource(record)


def _read_tensors(content: RecordDict, specs: Specs) -> dict[str, torch.Tensor]:
    """Return the small tensors of feature terms; raise an error for one that is not as declared."""
    record = content.array_records.get(TENSORS_RECORD)
    if not specs:
        return {}
    if record is None:
        raise SteelyardError(f"its reply has no ArrayRecord {TENSORS_RECORD!r}")
    source = RecordSource(record)
    tensors = {}
    for name, spec in specs.items():
        if name not in source.entries:
            raise SteelyardError(f"did not send the tensor {name!r}")
        tensor = source.load(name)
        problem = spec.find_problem(tensor)
        if problem is not None:
            raise SteelyardError(f"its tensor {name!r} {problem}")
        tensors[name] = tensor
    return tensors


def _read_reports(
    contents: Mapping[ClientId, RecordDict], examples_key: str, names: Collection[str]
) -> Table:
    """Return the metrics that clients reported, under Steelyard's names.

    On Flower, names have dashes, and the number of examples may have any name.
    """
    table: Table = {}
    for client, content in contents.items():
        reported: dict[str, Any] = {}
        for record in content.metric_records.values():
            reported.update(record)
        values = {name.replace("-", "_"): value for name, value in reported.items()}
        if examples_key in reported:
            values["num_examples"] = reported[examples_key]
        for name in sorted(values.keys() & names):
            table.setdefault(name, {})[client] = values[name]
    return table


def split_refused(
    contents: Mapping[ClientId, RecordDict], storage: ReplyStorage
) -> tuple[dict[ClientId, RecordDict], dict[ClientId, str]]:
    """Return the replies that were not refused on arrival, and the reasons for the others."""
    accepted: dict[ClientId, RecordDict] = {}
    refused: dict[ClientId, str] = {}
    for client, content in contents.items():
        _, reason = call_or_refuse(storage.check, content)
        if reason:
            refused[client] = reason
        else:
            accepted[client] = content
    return accepted, refused


# Means of the metrics that clients report.

AggregateMetrics = Callable[[list[RecordDict], str], MetricRecord]
MetricRow = dict[str, Any]

_SCALAR = -1  # stands for the length of a metric that is a single number


@dataclass(frozen=True)
class MetricMeans:
    """The metrics of all clients of a round, combined.

    Attributes:
        metrics: means by name; None if there are none.
        medians: medians over clients of the metrics that are single numbers. One client cannot
            change them much.
        refused: clients whose report contains an impossible value, with the reason.
    """

    metrics: MetricRecord | None
    medians: dict[str, float] = field(default_factory=dict)
    refused: dict[ClientId, str] = field(default_factory=dict)


def compute_means(
    contents: Mapping[ClientId, RecordDict],
    aggregate: AggregateMetrics,
    weight: str,
    id_key: str,
    cap: float = math.inf,
) -> MetricMeans:
    """Return the means of the metrics that clients report, or what the user's function returns.

    The user's function gets the replies as they arrived. For Flower's function, a reply with an
    impossible value is refused, NaN is left out, and a metric has a mean if more than half of the
    clients report it.

    Args:
        contents: the replies, by client.
        aggregate: the function; Flower's `aggregate_metricrecords` by default.
        weight: the name of the metric that clients are weighted by.
        id_key: the name of the client id, which has no mean.
        cap: a weight counts as at most this many medians of the weights.
    """
    if not contents:
        return MetricMeans(None)
    ordered = {client: contents[client] for client in sorted(contents, key=sort_key)}
    if aggregate is not aggregate_metricrecords:
        return MetricMeans(_call_users_function(aggregate, list(ordered.values()), weight))

    # The rows without impossible values.
    rows, refused = _read_metric_rows(ordered, weight)
    if not rows:
        return MetricMeans(None, {}, refused)

    # Limit the weight of each client.
    largest_weight = cap * statistics.median_low(row[weight] for row in rows)
    for row in rows:
        row[weight] = min(row[weight], largest_weight)

    # Means of the metrics that most clients report.
    metrics = MetricRecord()
    medians: dict[str, float] = {}
    counts = Counter(name for row in rows for name in row)
    for name in sorted(counts.keys() - {id_key, weight}):
        if 2 * counts[name] <= len(rows):
            continue
        similar_rows, length = _select_usual_length(rows, name)
        if not similar_rows:
            continue
        pairs = [MetricRecord({name: row[name], weight: row[weight]}) for row in similar_rows]
        contents_of_metric = [RecordDict({"metrics": pair}) for pair in pairs]
        metrics[name] = aggregate_metricrecords(contents_of_metric, weight)[name]
        if length == _SCALAR:
            medians[name] = float(statistics.median(row[name] for row in similar_rows))
    return MetricMeans(metrics, medians, refused)


def _read_metric_rows(
    contents: Mapping[ClientId, RecordDict], weight: str
) -> tuple[list[MetricRow], dict[ClientId, str]]:
    """Return the metrics of each client, and the reasons for the clients that are refused."""
    rows: dict[ClientId, MetricRow] = {}
    refused: dict[ClientId, str] = {}
    for client, content in contents.items():
        row, reason = call_or_refuse(_read_metrics, content, weight)
        if row is None:
            refused[client] = reason
        else:
            rows[client] = row

    # Accuracies are at most 1, or 100 if most clients report percentages.
    maximum = _find_largest_accuracy(rows.values())
    for client, row in list(rows.items()):
        if not _is_accuracy_valid(row.get("accuracy", 0.0), maximum):
            value = escape_text(repr(row["accuracy"]), 40)
            refused[client] = f"invalid accuracy={value}: report a number from 0 to {maximum:g}"
            del rows[client]
    return list(rows.values()), refused


def _read_metrics(content: RecordDict, weight: str) -> MetricRow:
    """Return all metrics of a reply; raise an error if one of them is impossible."""
    row: MetricRow = {}
    for record in content.metric_records.values():
        row.update(record)
    if weight not in row:
        raise SteelyardError(f"did not report {weight!r}")
    is_size = weight.replace("-", "_") == "num_examples"
    if valid_number("num_examples", row[weight], needs_whole_examples=is_size) is None:
        raise SteelyardError(f"invalid {weight}={escape_text(repr(row[weight]), 40)}")
    for name, value in row.items():
        if not all(_is_plausible(number) for number in _as_list(value)):
            raise SteelyardError(f"invalid {name}={escape_text(repr(value), 40)}")
    return row


def _select_usual_length(rows: Sequence[MetricRow], name: str) -> tuple[list[MetricRow], int]:
    """Return the rows in which a metric is finite and as long as in most rows, and this length.

    Return no rows if no length has a majority.
    """
    finite_rows = [
        row
        for row in rows
        if name in row and all(math.isfinite(number) for number in _as_list(row[name]))
    ]
    lengths = Counter(_length(row[name]) for row in finite_rows)
    if not lengths:
        return [], _SCALAR
    length, count = max(lengths.items(), key=lambda item: (item[1], item[0]))
    if 2 * count <= len(finite_rows):
        return [], length
    return [row for row in finite_rows if _length(row[name]) == length], length


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list) else _SCALAR


def _find_largest_accuracy(rows: Iterable[MetricRow]) -> float:
    """Return 100 if most clients report their accuracy in percent, else 1."""
    accuracies = [row["accuracy"] for row in rows if isinstance(row.get("accuracy"), (int, float))]
    finite = [accuracy for accuracy in accuracies if math.isfinite(accuracy)]
    return 100.0 if finite and statistics.median_low(finite) > 1 else 1.0


def _is_accuracy_valid(value: Any, maximum: float) -> bool:
    """Return whether an accuracy, or a list of them, is in range; means leave out NaN."""
    return all(0 <= number <= maximum for number in _as_list(value) if math.isfinite(number))


def _is_plausible(value: Any) -> bool:
    """Return whether a client can measure this number.

    It can measure infinity and NaN, if its training diverged.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    if isinstance(value, float) and not math.isfinite(value):
        return True
    return abs(value) <= MOST


def _call_users_function(
    aggregate: AggregateMetrics, contents: list[RecordDict], weight: str
) -> MetricRecord | None:
    """Call the user's function. If it raises an error, the round has no means."""
    try:
        return aggregate(contents, weight)
    except Exception as error:  # the error may come from what clients sent
        name = getattr(aggregate, "__name__", type(aggregate).__name__)
        log(
            ERROR,
            "%s raised an error, so this round has no means of metrics: %s",
            name,
            describe_error(error),
        )
        return None
