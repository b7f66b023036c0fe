"""A grid without Ray, network or processes: messages run through a ClientApp here and now."""

import random
import uuid

import pytest

flwr = pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict  # noqa: E402
from flwr.serverapp import Grid  # noqa: E402

SERVER = 1  # what Flower gives as the source of an error about a node that is gone


def identify():
    """Messages want to know who sends them, since Flower 1.39."""
    try:
        from flwr.supercore.task_identity import TaskIdentity
    except ImportError:
        return
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, SERVER


class LocalGrid(Grid):
    """Nodes with partition ids 0, 1, ...; node ids are in another order.

    Args:
        app: the ClientApp all nodes run.
        nodes: how many.
        gone: node numbers that answer with Flower's error 5.
        silent: node numbers that never answer.
        change: `change(number, reply)` may return another reply, a list of them, or raise.
        shuffle: seed of the order in which replies come in; None for the order they were asked.
        named: whether nodes have a partition id.
    """

    def __init__(self, app, nodes=3, *, gone=(), silent=(), change=None, shuffle=None, named=True):
        identify()
        self.app, self.gone, self.silent, self.change = app, set(gone), set(silent), change
        self.order = None if shuffle is None else random.Random(shuffle)
        self.ids = {1000 - 7 * number: number for number in range(nodes)}
        config = {"num-partitions": nodes}
        self.contexts = {
            node: Context(
                1, node, {**config, "partition-id": k} if named else config, RecordDict(), {}
            )
            for node, k in self.ids.items()
        }
        self.replies, self.asked, self.ttl = {}, [], []

    # The interface has these; no strategy may call them (the last is deprecated).

    def set_run(self, run):
        raise AssertionError("a strategy set the run")

    @property
    def run(self):
        raise AssertionError("a strategy asked for the run")

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None):
        raise AssertionError("a strategy used a deprecated call")

    def get_node_ids(self):
        return list(self.ids)

    def push_messages(self, messages):
        names = []
        for message in messages:
            name = str(uuid.uuid4())
            message.metadata.__dict__["_message_id"] = name
            self.asked.append(
                (message.metadata.message_type, self.ids[message.metadata.dst_node_id])
            )
            self.ttl.append(message.metadata.ttl)
            self.replies[name] = self._answers(message)
            names.append(name)
        return names

    def _answers(self, message):
        node = message.metadata.dst_node_id
        number = self.ids[node]
        if number in self.silent:
            return []
        if number in self.gone:
            reply = Message(Error(code=5, reason="Node unavailable"), reply_to=message)
            reply.metadata.__dict__["_src_node_id"] = SERVER
            return [reply]
        try:
            reply = self.app(message, self.contexts[node])
            made = reply if self.change is None else self.change(number, reply)
        except Exception as error:
            made = Message(Error(code=2, reason=f"{type(error)}:<'{error}'>"), reply_to=message)
        return made if isinstance(made, list) else [made]

    def pull_messages(self, message_ids):
        found = [reply for name in message_ids for reply in self.replies.pop(name, [])]
        if self.order is not None:
            self.order.shuffle(found)
        return found

    def send_and_receive(self, messages, *, timeout=None):
        return self.pull_messages(self.push_messages(messages))


def config(**values):
    return ConfigRecord(values)
