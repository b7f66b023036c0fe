"""Who was asked, who answered, and what of it can be used.

A bad reply is set aside by name; the round goes on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import WARNING
from typing import Any

from flwr.app import Message, RecordDict
from flwr.common.logger import log

from steelyard.core.errors import MOST_CHARACTERS, SteelyardError, escape_text
from steelyard.core.state import ClientId
from steelyard.flower.handler import call_or_refuse
from steelyard.flower.identity import ClientIds
from steelyard.flower.records import RecordSource
from steelyard.flower.server import Replies
from steelyard.flower.streaming_grid import TOLD, Spool, array_name
from steelyard.metrics import MEANING, Table
from steelyard.stores.slices import Source

_SHOWN = 100  # characters of the names of a reply's records
OURS = "steelyard"  # the records we add to messages and replies
UNNAMED = (
    "%d clients do not report %r: their node ids stand in for it, and what is remembered of a "
    "client is lost when its "
    "node gets another id. To report it, start nodes with it (--node-config) and use "
    "ClientApp(mods=[steelyard.flower.reporting]); or name what they report, with id_key=... in "
    "the strategy"
)
UNCONFIRMED = (
    "did not confirm that client={} was added to the training: build the ClientApp with "
    "steelyard.flower.client, or "
    "add it in your own code and say so (docs/flower.md, training code of your own)"
)
CODES = {
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


@dataclass
class RoundReplies:
    """Who answered, and who did not.

    Attributes:
        contents: by node, in order.
        failed: clients that answered with an error, and those that did not answer, with the reason.
        late: the latter.
        strays: replies that belong to no question of this round.
        asked: how many clients were asked.
    """

    contents: dict[int, RecordDict] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    late: list[ClientId] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)
    asked: int = 0

    @property
    def record(self) -> dict[str, Any]:
        """What is put on record of it."""
        dropped = sorted(set(self.failed) - {str(client) for client in self.late})
        return {
            "dropped_clients": dropped,
            "late_clients": self.late,
            "failed": self.failed,
            "unmatched_replies": self.strays,
        }

    def by_name(self, names: ClientIds) -> dict[ClientId, RecordDict]:
        """The contents by client id."""
        return {names.of(node): content for node, content in self.contents.items()}

    def warn(self, number: int, phase: str = "") -> None:
        """Logs who failed, and why."""
        for client, reason in self.failed.items():
            log(WARNING, "round %d%s, client %s: %s", number, phase, client, reason)
        for stray in self.strays:
            log(WARNING, "round %d%s, %s", number, phase, stray)


def match_replies(
    messages: Sequence[Message], replies: Iterable[Message], names: ClientIds, timeout: float
) -> RoundReplies:
    """Matches replies with the messages they answer.

    Results do not depend on the order they come in.

    Where somebody else sent them, as a subclass may, those who answered were asked.
    """
    replies = list(replies)
    expected = {message.metadata.dst_node_id: message.metadata.message_id for message in messages}
    expected = expected or {
        answer.metadata.src_node_id: answer.metadata.reply_to_message_id
        for answer in reversed(replies)
    }
    by_message = {name: node for node, name in expected.items() if name}
    reply_by_node: dict[int, Message] = {}
    round_replies = RoundReplies(asked=len(expected))
    for reply in replies:
        to, source = reply.metadata.reply_to_message_id, reply.metadata.src_node_id
        node = by_message.get(to) if to and by_message else source if source in expected else None
        if node is None:
            round_replies.strays.append(f"node {source}: answers no question of this round (late?)")
        elif reply.has_content() and source != node:
            round_replies.strays.append(
                f"node {source}: answers a question that node {node} was asked"
            )
        elif node in reply_by_node:
            round_replies.strays.append(f"node {node}: answered twice; the first reply counts")
        else:
            reply_by_node[node] = reply
    for node in sorted(expected):
        if node not in reply_by_node or _expired(reply_by_node[node]):
            round_replies.failed[str(names.of(node))] = (
                f"node {node} did not answer within {timeout:g} s"
            )
            round_replies.late.append(names.of(node))
        elif reply_by_node[node].has_error():
            error = reply_by_node[node].error
            description = f"{CODES.get(error.code, 'error')} (code {error.code})"
            reason = escape_text(error.reason or "no reason given", MOST_CHARACTERS)
            round_replies.failed[str(names.of(node))] = f"node {node}: {description}: {reason}"
        else:
            round_replies.contents[node] = reply_by_node[node].content
    return round_replies


def _expired(reply: Message) -> bool:
    """A message lives as long as the round waits: the SuperLink's clock may run out before ours.

    Its error 3 has another reason where a reply could not be fetched.
    """
    return (
        reply.has_error()
        and reply.error.code == 3
        and "Message Unavailable" in (reply.error.reason or "")
    )


@dataclass(frozen=True)
class ReplyRequirements:
    """What a reply to a training message holds.

    Attributes:
        arrays: the name of the model's record.
        examples: the metric to weigh by.
        client: the terms that clients are to add, as text.
        strict: whether a reply that does not confirm them is refused.
    """

    arrays: str
    examples: str
    client: str
    strict: bool


@dataclass
class Inbox:
    """The replies of one round, sorted out.

    Attributes:
        replies: what the server aggregates.
        contents: of replies that hold a model, by client id.
        nodes: of all clients that answered.
        unconfirmed: clients that do not say that they added the terms.
        restarted: clients that say that what they kept is lost.
    """

    replies: Replies
    contents: dict[ClientId, RecordDict]
    nodes: dict[ClientId, int]
    unconfirmed: list[ClientId]
    restarted: list[ClientId]

    def warn(self, number: int, names: ClientIds, first: bool) -> None:
        """Logs who was refused, and why; in the first round also who has no name of its own."""
        for client, reason in self.replies.refused.items():
            log(WARNING, "round %d, client %s: %s", number, client, reason)
        if names.unnamed and first:
            log(WARNING, UNNAMED, len(names.unnamed), names.key)


def split_refused(
    contents: Mapping[ClientId, RecordDict], spool: Spool
) -> tuple[dict[ClientId, RecordDict], dict[ClientId, str]]:
    """Return the replies that were not refused when they came, and the reasons for the others."""
    accepted: dict[ClientId, RecordDict] = {}
    reasons: dict[ClientId, str] = {}
    for client, content in contents.items():
        _, reason = call_or_refuse(spool.check, content)
        if reason:
            reasons[client] = reason
        else:
            accepted[client] = content
    return accepted, reasons


def sort_out(
    answers: RoundReplies,
    names: ClientIds,
    requirements: ReplyRequirements,
    spool: Spool,
    metrics: Collection[str] = (),
) -> Inbox:
    """Read ids, models and reports off the replies of a round.

    Args:
        answers: the replies, by node.
        names: the nodes' client ids; ids that are new are added.
        requirements: what a reply has to hold.
        spool: where the arrays are that are not in memory, and why it refused replies.
        metrics: names of metrics to read beside the known ones: what the rule needs.

    Returns:
        The replies that can be used, and the reason for each client whose reply cannot.
    """
    models: dict[ClientId, Source] = {}
    term_vectors: dict[ClientId, Source] = {}
    reasons: dict[ClientId, str] = {}
    box = Inbox(Replies(models, {}, term_vectors, reasons), {}, {}, [], [])
    strangers: dict[str, str] = {}  # nodes without an id of their own, with the reason
    for node, content in answers.contents.items():
        # Who is it?
        client, reason = call_or_refuse(names.claim, node, content)
        if client is None:
            strangers[names.label(node, content)] = reason
            continue
        box.nodes[client] = node
        # What does it say?
        _, reason = call_or_refuse(
            _read_reply, client, content, requirements, spool, box, models, term_vectors
        )
        if reason:
            reasons[client] = reason
            box.contents.pop(client, None)
    # A label must not be another client's id.
    for label, reason in strangers.items():
        reasons[f"refused: {label}" if label in box.nodes else label] = reason
    fractions = requirements.examples.replace("-", "_") != "num_examples"
    table = _table(box.contents, requirements.examples, {*MEANING, *metrics})
    box.replies = Replies(models, table, term_vectors, reasons, fractions, answers.asked)
    return box


def _read_reply(
    client: ClientId,
    content: RecordDict,
    requirements: ReplyRequirements,
    spool: Spool,
    box: Inbox,
    models: dict[ClientId, Source],
    term_vectors: dict[ClientId, Source],
) -> None:
    """Read one client's reply into the inbox.

    Raise an error with the reason if it cannot be used.
    """
    reply_config: Mapping[str, Any] = content.config_records.get(OURS, {})
    if reply_config.get("restarted") is True:
        box.restarted.append(client)
    is_unconfirmed = bool(requirements.client) and reply_config.get("client") != requirements.client
    if is_unconfirmed:
        box.unconfirmed.append(client)
    spool.check(content)
    model = _model(content, requirements.arrays, spool)
    changes = _find_term_vectors(content, spool)
    if is_unconfirmed and requirements.strict:
        raise SteelyardError(UNCONFIRMED.format(requirements.client))
    models[client] = model
    if changes is not None:
        term_vectors[client] = changes
    box.contents[client] = content


def _model(content: RecordDict, key: str, spool: Spool) -> Source:
    aside = spool.find(content)
    if aside is not None:
        return aside
    name = array_name(content, key)
    if name is None:
        record_names = escape_text(", ".join(str(name) for name in content) or "nothing", _SHOWN)
        raise SteelyardError(f"its reply has no ArrayRecord {key!r}: it has {record_names}")
    record = content.array_records[name]
    spool.check_model(record)
    return RecordSource(record)


def _find_term_vectors(content: RecordDict, spool: Spool) -> Source | None:
    record = content.array_records.get(TOLD)
    return spool.find(content, TOLD) if record is None else RecordSource(record)


def _table(contents: dict[ClientId, RecordDict], examples: str, names: Collection[str]) -> Table:
    """What clients reported, under our names.

    Flower's have dashes, and the number of examples may have any.
    """
    table: Table = {}
    for client, content in contents.items():
        metrics = {
            name: value
            for record in content.metric_records.values()
            for name, value in record.items()
        }
        values = {name.replace("-", "_"): value for name, value in metrics.items()}
        if examples in metrics:
            values["num_examples"] = metrics[examples]
        for name in sorted(values.keys() & names):
            table.setdefault(name, {})[client] = values[name]
    return table
