"""Who was asked, who answered, and what of it can be used. A bad reply is set aside by name; the round goes on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from logging import WARNING
from typing import Any

from flwr.app import Message, RecordDict
from flwr.common.logger import log

from steelyard.core.errors import SteelyardError
from steelyard.core.table import ClientId
from steelyard.flower.courier import SPOOLED_TOLD, TOLD, array_name, spooled
from steelyard.flower.records import RecordSource
from steelyard.flower.server import Replies
from steelyard.metrics import MEANING, Table
from steelyard.stores.slices import Source

OURS = "steelyard"  # the records we add to messages and replies
UNNAMED = (
    "%d clients do not report %r: their node ids stand in for it, and what is remembered of a client is lost when its "
    "node gets another id. Report it as a metric, or set id_key"
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
class Names:
    """Logical ids of nodes: what clients report under a key, else the node's own id."""

    key: str
    known: dict[int, ClientId] = field(default_factory=dict)
    unnamed: set[int] = field(default_factory=set)

    def of(self, node: int) -> ClientId:
        """The best that is known of a node."""
        return self.known.get(node, node)

    def learn(self, node: int, content: RecordDict) -> ClientId:
        """Reads the id off a reply."""
        records: list[Any] = [*content.config_records.values(), *content.metric_records.values()]
        for name in (self.key, self.key.replace("-", "_")):
            for record in records:
                value = record.get(name)
                if isinstance(value, (int, str)) and not isinstance(value, bool):
                    self.known[node] = value
                    return value
                if isinstance(value, float) and value.is_integer():
                    self.known[node] = int(value)
                    return int(value)
        self.unnamed.add(node)
        return self.of(node)


@dataclass
class Inbox:
    """The replies of one round, sorted out.

    Attributes:
        replies: what the server aggregates.
        contents: of replies that hold a model, by client id.
        failed: clients that answered with an error, and those that did not answer, with the reason.
        late: the latter.
        strays: replies that belong to no question of this round.
    """

    replies: Replies
    contents: dict[ClientId, RecordDict]
    failed: dict[str, str]
    late: list[ClientId]
    strays: list[str]

    @property
    def record(self) -> dict[str, Any]:
        """What is put on record of it."""
        dropped = sorted(set(self.failed) - {str(client) for client in self.late})
        return {"dropped": dropped, "late": self.late, "failed": self.failed, "strays": self.strays}

    def warn(self, number: int, names: Names, first: bool) -> None:
        """Logs who failed or was refused, and why; in the first round also who has no name of its own."""
        for who, reason in [*self.failed.items(), *self.replies.refused.items()]:
            log(WARNING, "round %d, client %s: %s", number, who, reason)
        for stray in self.strays:
            log(WARNING, "round %d, %s", number, stray)
        if names.unnamed and first:
            log(WARNING, UNNAMED, len(names.unnamed), names.key)


def sort_out(
    sent: Sequence[Message], replies: Iterable[Message], names: Names, key: str, examples: str, timeout: float
) -> Inbox:
    """Matches replies with the messages they answer; results do not depend on the order they come in."""
    asked = {message.metadata.dst_node_id: message.metadata.message_id for message in sent}
    by_message = {name: node for node, name in asked.items() if name}
    answers: dict[int, Message] = {}
    strays: list[str] = []
    for reply in replies:
        to, source = reply.metadata.reply_to_message_id, reply.metadata.src_node_id
        node = by_message.get(to) if to and by_message else source if source in asked else None
        if node is None:
            strays.append(f"node {source}: answers no question of this round (late?)")
        elif node in answers:
            strays.append(f"node {node}: answered twice; the first reply counts")
        else:
            answers[node] = reply
    box = Inbox(Replies({}, {}, {}, {}), {}, {}, [], strays)
    models: dict[ClientId, Source] = {}
    told: dict[ClientId, Source] = {}
    refused: dict[ClientId, str] = {}
    for node in sorted(asked):
        if node not in answers or _expired(answers[node]):
            box.failed[str(names.of(node))] = f"node {node} did not answer within {timeout:g} s"
            box.late.append(names.of(node))
            continue
        reply = answers[node]
        if reply.has_error():
            said = f"{CODES.get(reply.error.code, 'error')} (code {reply.error.code})"
            box.failed[str(names.of(node))] = f"node {node}: {said}: {reply.error.reason or 'no reason given'}"
            continue
        client = names.learn(node, reply.content)
        if client in models or client in refused:
            refused[f"{client} (node {node})"] = f"node {node} reports the id of another node, {client!r}"
            continue
        try:
            models[client] = _model(reply.content, key)
            changes = _told(reply.content)
            if changes is not None:
                told[client] = changes
            box.contents[client] = reply.content
        except SteelyardError as error:
            refused[client] = str(error)
    box.replies = Replies(models, _table(box.contents, examples), told, refused)
    return box


def _expired(reply: Message) -> bool:
    """A message lives as long as the round waits: the SuperLink's clock may run out before ours (its error 3)."""
    return reply.has_error() and reply.error.code == 3


def _model(content: RecordDict, key: str) -> Source:
    aside = spooled(content)
    if aside is not None:
        return aside
    name = array_name(content, key)
    if name is None:
        raise SteelyardError(f"its reply has no ArrayRecord {key!r}: it has {', '.join(content) or 'nothing'}")
    return RecordSource(content.array_records[name])


def _told(content: RecordDict) -> Source | None:
    record = content.array_records.get(TOLD)
    return spooled(content, SPOOLED_TOLD) if record is None else RecordSource(record)


def _table(contents: dict[ClientId, RecordDict], examples: str) -> Table:
    """What clients reported, under our names: Flower's have dashes, and the number of examples may have any."""
    table: Table = {}
    for client, content in contents.items():
        for record in content.metric_records.values():
            for name, value in record.items():
                ours = "num_examples" if name == examples else name.replace("-", "_")
                if ours in MEANING:
                    table.setdefault(ours, {})[client] = value
    return table


def common_metrics(contents: Iterable[RecordDict], weight: str, but: str) -> list[dict[str, Any]]:
    """Each reply's metrics, less those that not all report, those of a reply without a weight, and the id."""
    rows: list[dict[str, Any]] = [
        {name: value for record in one.metric_records.values() for name, value in record.items()} for one in contents
    ]
    rows = [row for row in rows if isinstance(row.get(weight), (int, float)) and row[weight] > 0]
    shared = set.intersection(*(set(row) for row in rows)) if rows else set()
    kinds = {name: {len(row[name]) if isinstance(row[name], list) else -1 for row in rows} for name in shared}
    kept = sorted(name for name in shared - {but} if len(kinds[name]) == 1)
    return [{name: row[name] for name in kept} for row in rows]
