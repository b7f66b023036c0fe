"""What the server knows of its clients: their ids, and the rounds in which they were accepted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import RecordDict

from steelyard.core._errors import SteelyardError, escape_text
from steelyard.core._state import ClientId

MAX_ID_LENGTH = 128  # characters
_MAX_QUOTED = 40  # characters of a refused id that messages quote


class RefusedId(SteelyardError):
    """A node reports an id that it cannot have."""


@dataclass
class ClientIds:
    """The client ids of nodes: what clients report under a key, or else the node id.

    The first node that reports an id keeps it for the run. After a resume it keeps the id as long
    as it is connected, because Flower may give nodes other node ids in another run.

    Attributes:
        key: the name of the entry that contains the id.
        id_by_node: the ids that nodes reported.
        unnamed_nodes: nodes that reported no id.
        connected_nodes: nodes that are or were connected in this run.
    """

    key: str
    id_by_node: dict[int, ClientId] = field(default_factory=dict)
    unnamed_nodes: set[int] = field(default_factory=set)
    connected_nodes: set[int] = field(default_factory=set)
    # By the text of the id: in records, 0 and "0" are the same name.
    _node_by_id: dict[str, int] = field(default_factory=dict)

    def of(self, node: int) -> ClientId:
        """Return the client id of a node, or the node id if it reported none so far."""
        return self.id_by_node.get(node, node)

    def restore(self, id_by_node: Mapping[int, ClientId]) -> None:
        """Take over the ids of the run that is resumed."""
        self.id_by_node = dict(id_by_node)
        self._node_by_id = {str(client): node for node, client in id_by_node.items()}

    def add_connected(self, nodes: Iterable[int]) -> None:
        """Remember that these nodes are connected."""
        self.connected_nodes.update(nodes)

    def claim(self, node: int, content: RecordDict) -> ClientId:
        """Read the id in a reply and give it to the node.

        Raises:
            RefusedId: if the id is too long or not printable, if another node has it, or if this
                node had another id before.
        """
        self.connected_nodes.add(node)
        client = _read_id(content, self.key)
        if client is None:
            if node not in self.id_by_node:
                self.unnamed_nodes.add(node)
            return self.of(node)
        self._check_text(node, client)
        self._check_owner(node, client)
        self.id_by_node[node] = client
        self._node_by_id[str(client)] = node
        self.unnamed_nodes.discard(node)
        return client

    def _check_text(self, node: int, client: ClientId) -> None:
        """Raise an error if the id is too long or not printable."""
        text = str(client)
        if len(text) > MAX_ID_LENGTH:
            raise RefusedId(
                f"node {node} reports an id of {len(text)} characters, "
                f"{escape_text(text, _MAX_QUOTED)!r}: use at most {MAX_ID_LENGTH}"
            )
        if not text.strip() or not text.isprintable():
            raise RefusedId(
                f"node {node} reports the id '{escape_text(text)}': use printable characters"
            )

    def _check_owner(self, node: int, client: ClientId) -> None:
        """Raise an error if the id belongs to another node, or if the node had another id."""
        text = str(client)
        owner = self._node_by_id.get(text)
        if owner is not None and owner != node and owner in self.connected_nodes:
            raise RefusedId(
                f"node {node} reports the id of another node, {client!r}, which node {owner} "
                "has: give each node its own id; if the client moved to another node, stop the "
                "run and resume it"
            )
        if text != str(node) and _is_node_id(text, self.connected_nodes):
            raise RefusedId(
                f"node {node} reports the id of another node, {client!r}: give each node its own id"
            )
        previous = self.id_by_node.get(node)
        if previous is not None and str(previous) != text:
            raise RefusedId(
                f"node {node} reports the id {client!r}, but it was {previous!r} before: a node "
                "keeps its id for the run"
            )
        # The owner belongs to the run that was resumed, and is no longer connected.
        if owner is not None and owner != node:
            del self.id_by_node[owner]

    def label(self, node: int, content: RecordDict) -> str:
        """Return the name that records use for a node whose id was refused."""
        client = _read_id(content, self.key)
        if client is None:
            client = self.of(node)
        return f"{escape_text(client, _MAX_QUOTED)} (node {node})"


def _is_node_id(text: str, nodes: set[int]) -> bool:
    """Return whether the text is the id of one of these nodes, which serves as a client id."""
    return text.isascii() and text.isdecimal() and str(int(text)) == text and int(text) in nodes


def _read_id(content: RecordDict, key: str) -> ClientId | None:
    """Return the client id in the config or metric records of a reply; None if there is none."""
    records: list[Mapping[str, Any]] = [
        *content.config_records.values(),
        *content.metric_records.values(),
    ]
    for name in (key, key.replace("-", "_")):
        for record in records:
            value = record.get(name)
            if isinstance(value, (int, str)) and not isinstance(value, bool):
                return value
            if isinstance(value, float) and value.is_integer():
                return int(value)
    return None


class AcceptedRounds:
    """The last round in which the reply of each node was accepted.

    Clients keep vectors of their own, such as SCAFFOLD's control variates. If a reply is lost or
    set aside, the client must undo the changes of that round. Every message therefore names the
    last accepted round, and the client continues from the vectors that it kept then. Like these
    vectors, the rounds are not kept after the end of a Flower run.
    """

    def __init__(self) -> None:
        self._round_by_node: dict[int, int] = {}
        self._weight_by_node: dict[int, float] = {}

    def of(self, node: int) -> int:
        """Return the last accepted round of a node; 0 if there is none."""
        return self._round_by_node.get(node, 0)

    def weight_of(self, node: int) -> float | None:
        """Return the weight of a node in its last accepted round; None if there is none."""
        return self._weight_by_node.get(node)

    def add(self, number: int, weights: Mapping[int, float]) -> None:
        """Remember that replies were accepted in this round.

        Args:
            number: number of the round.
            weights: the weight of each accepted node.
        """
        for node, weight in weights.items():
            self._round_by_node[node] = number
            self._weight_by_node[node] = weight
