"""Which client a node is: the first node that claims an id keeps it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import RecordDict

from steelyard.core.errors import SteelyardError, escape_text
from steelyard.core.state import ClientId

MOST_CHARACTERS = 128  # of an id
_SHOWN = 40  # characters of a refused id


class RefusedId(SteelyardError):
    """A node claims an id that it cannot have."""


@dataclass
class ClientIds:
    """Client ids of nodes: what clients report under a key, else the node's own id.

    The first binding of an id to a node holds for the run. After a resume it holds as long as the
    node is connected, since Flower may give nodes other ids in another run.

    Attributes:
        key: the name of the entry that holds the id.
        known: ids by node.
        unnamed: nodes that reported no id.
        connected: nodes that are there, and nodes that were there in an earlier round of this run.
    """

    key: str
    known: dict[int, ClientId] = field(default_factory=dict)
    unnamed: set[int] = field(default_factory=set)
    connected: set[int] = field(default_factory=set)
    _holders: dict[str, int] = field(
        default_factory=dict
    )  # by id as text: records have 0 and "0" under one name

    def of(self, node: int) -> ClientId:
        """Return the client id of a node, or the node's own id while none is known."""
        return self.known.get(node, node)

    def restore(self, ids: Mapping[int, ClientId]) -> None:
        """Take over the bindings of the run that is resumed."""
        self.known = dict(ids)
        self._holders = {str(client): node for node, client in ids.items()}

    def see(self, nodes: Iterable[int]) -> None:
        """Note which nodes are connected."""
        self.connected.update(nodes)

    def claim(self, node: int, content: RecordDict) -> ClientId:
        """Read the id off a reply and bind it to the node.

        Raises:
            RefusedId: if the id is too long or not printable, another node's, or not the one that
                this node had.
        """
        self.connected.add(node)
        claimed = _reported_id(content, self.key)
        if claimed is None:
            if node not in self.known:
                self.unnamed.add(node)
            return self.of(node)
        self._check_text(node, claimed)
        self._check_holder(node, claimed)
        self.known[node] = claimed
        self._holders[str(claimed)] = node
        self.unnamed.discard(node)
        return claimed

    def _check_text(self, node: int, claimed: ClientId) -> None:
        text = str(claimed)
        if len(text) > MOST_CHARACTERS:
            raise RefusedId(
                f"node {node} reports an id of {len(text)} characters, "
                f"{escape_text(text, _SHOWN)!r}: at most "
                f"{MOST_CHARACTERS} are allowed"
            )
        if not text.strip() or not text.isprintable():
            raise RefusedId(
                f"node {node} reports the id '{escape_text(text)}': use printable characters"
            )

    def _check_holder(self, node: int, claimed: ClientId) -> None:
        text = str(claimed)
        holder = self._holders.get(text)
        if holder is not None and holder != node and holder in self.connected:
            raise RefusedId(
                f"node {node} reports the id of another node, {claimed!r}, which node {holder} "
                f"has: give each node an "
                "id of its own; if the client moved to another node, stop the run and resume it"
            )
        if text != str(node) and _is_node(text, self.connected):
            raise RefusedId(
                f"node {node} reports the id of another node, {claimed!r}: give each node an id of "
                f"its own"
            )
        before = self.known.get(node)
        if before is not None and str(before) != text:
            raise RefusedId(
                f"node {node} reports the id {claimed!r}, and was {before!r} before: an id holds "
                f"for the run"
            )
        if holder is not None and holder != node:  # of the run before, and gone
            del self.known[holder]

    def label(self, node: int, content: RecordDict) -> str:
        """Return how records call a node whose id was refused."""
        claimed = _reported_id(content, self.key)
        return f"{escape_text(self.of(node) if claimed is None else claimed, _SHOWN)} (node {node})"


def _is_node(text: str, nodes: set[int]) -> bool:
    """Return whether the text is the id of one of these nodes, which stands in for a client id."""
    return text.isascii() and text.isdecimal() and str(int(text)) == text and int(text) in nodes


def _reported_id(content: RecordDict, key: str) -> ClientId | None:
    """Return the id that a reply holds in a config record or a metric record, None if there is none."""
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
