"""Messages between server and clients: their records, the instructions in them, and who gets one."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from logging import INFO
from typing import Any

import torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from steelyard.algorithm import Algorithm
from steelyard.core._errors import SteelyardError
from steelyard.core._rng import stream
from steelyard.core._state import sort_key
from steelyard.flower._array_records import to_state_dict
from steelyard.flower._clients import ClientIds

# Names of the records that Steelyard adds to messages and replies.
STEELYARD_RECORD = "steelyard"
SENT_VECTORS_RECORD = "steelyard.sent"  # vectors of client terms, from the server
REPORTED_VECTORS_RECORD = "steelyard.told"  # changes of vectors that a client keeps
TENSORS_RECORD = "steelyard.tensors"  # small tensors of feature terms, from and to the server


@dataclass(frozen=True)
class TrainInstructions:
    """What the server asks of a client in a round.

    Attributes:
        round: number of the round; the first round is 1.
        rounds: number of rounds of the run; 0 if the server does not specify it.
        seed: random seed of the run.
        client: the client terms to add to SGD, as a spec string.
        metrics: the metrics to report, by Steelyard's names (`num_examples` is Flower's
            `num-examples`).
        vectors: the vectors that the server sends for the terms; flat, with the parameters in the
            order of their names.
        mean_examples: mean number of examples of all clients, if the server specifies it.
        id_key: the entry of the node's configuration that contains the client id.
        examples_key: the name under which to report the number of examples.
        accepted: the last round whose reply from this node was accepted. The client continues from
            the vectors that it kept in that round, or from zero if it is 0. None if the server
            does not specify it.
        weight: the weight of this client in the last round in which it was accepted, if a metric
            needs it and there is such a round.
        tensors: the small tensors that the server sends for feature terms, by name.
        classifier: the name of the network's classifier, for feature terms; empty to find it.
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
    weight: float | None = None
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    classifier: str = ""


def read_instructions(message: Message) -> TrainInstructions:
    """Return the instructions in a message; without Steelyard at the server, those of FedAvg."""
    instructions: Mapping[str, Any] = message.content.config_records.get(STEELYARD_RECORD, {})
    flower_config: Mapping[str, Any] = next(iter(message.content.config_records.values()), {})
    vectors = message.content.array_records.get(SENT_VECTORS_RECORD)
    tensors = message.content.array_records.get(TENSORS_RECORD)
    return TrainInstructions(
        round=int(instructions.get("round", flower_config.get("server-round", 1))),
        rounds=int(instructions.get("rounds", 0)),
        seed=int(instructions.get("seed", 0)),
        client=str(instructions.get("client", "")),
        metrics=tuple(instructions.get("metrics", ("num_examples",))),
        vectors={} if vectors is None else to_state_dict(vectors),
        mean_examples=instructions.get("mean-examples"),
        id_key=str(instructions.get("id-key", "partition-id")),
        examples_key=str(instructions.get("examples-key", "num-examples")),
        accepted=instructions.get("accepted"),
        weight=instructions.get("weight"),
        tensors={} if tensors is None else to_state_dict(tensors),
        classifier=str(instructions.get("classifier", "")),
    )


def make_instructions(
    algorithm: Algorithm,
    number: int,
    rounds: int,
    seed: int,
    id_key: str,
    examples_key: str,
    mean_examples: float | None,
    classifier: str = "",
    extra_metrics: Collection[str] = (),
) -> ConfigRecord:
    """Return the record that `read_instructions` reads at the client.

    `address_messages` adds `accepted` and `weight`, which differ from client to client.

    Args:
        algorithm: the algorithm, whose client terms and metrics clients must know.
        number: number of the round.
        rounds: number of all rounds.
        seed: random seed of the run.
        id_key: where clients report their id.
        examples_key: the metric with the number of examples.
        mean_examples: mean number of examples of all clients, if known.
        classifier: the name of the last linear layer, for feature terms.
        extra_metrics: what clients report besides what the algorithm needs.
    """
    config: dict[str, Any] = {
        "round": number,
        "rounds": rounds,
        "seed": seed,
        "client": algorithm.texts["client"] or "",
        "metrics": sorted({*algorithm.needs.metrics, *extra_metrics, "num_examples"}),
        "id-key": id_key,
        "examples-key": examples_key,
    }
    if mean_examples is not None:
        config["mean-examples"] = float(mean_examples)
    if classifier:
        config["classifier"] = classifier
    return ConfigRecord(config)


def address_messages(
    content: RecordDict,
    nodes: list[int],
    message_type: str,
    number: int,
    timeout: float,
    last_accepted: Callable[[int], int],
    last_weight: Callable[[int], float | None] | None = None,
) -> list[Message]:
    """Return one message per node.

    All messages have the same content, apart from the last round whose reply was accepted, and the
    weight that it got. They expire after the timeout, so that a node that was frozen does not work
    on old rounds first.

    Args:
        content: what to send.
        nodes: the nodes to send it to.
        message_type: to train or to evaluate.
        number: number of the round.
        timeout: seconds that the server waits for replies.
        last_accepted: returns the last round in which a reply of a node was accepted.
        last_weight: returns the weight of a node in that round, or None if it need not know it.
    """
    messages: list[Message] = []
    content_by_key: dict[tuple[int, float | None], RecordDict] = {}
    for node in nodes:
        accepted = last_accepted(node)
        weight = None if last_weight is None else last_weight(node)
        key = accepted, weight
        if key not in content_by_key:
            instructions = {**content.config_records[STEELYARD_RECORD], "accepted": accepted}
            if weight is not None:
                instructions["weight"] = weight
            content_by_key[key] = RecordDict(
                {**content, STEELYARD_RECORD: ConfigRecord(instructions)}
            )
        message = Message(
            content_by_key[key],
            dst_node_id=node,
            message_type=message_type,
            ttl=max(timeout, 1.0),
            group_id=str(number),
        )
        messages.append(message)
    return messages


def wait_for_nodes(
    grid: Grid, fraction: float, minimum: int, available: int, timeout: float
) -> tuple[list[int], int]:
    """Wait until enough nodes are connected. Flower's own function waits without a limit.

    Args:
        grid: the connection to the nodes.
        fraction: the fraction of the nodes that takes part in a round.
        minimum: the minimum number of nodes in a round.
        available: the minimum number of connected nodes.
        timeout: seconds to wait.

    Returns:
        All connected nodes, and how many of them take part.

    Raises:
        SteelyardError: if there are not enough nodes after the timeout.
    """
    end = time.monotonic() + timeout
    while True:
        nodes = list(grid.get_node_ids())
        count = max(int(len(nodes) * fraction), minimum)
        needed = max(available, count)
        if len(nodes) >= needed:
            return nodes, count
        if time.monotonic() >= end:
            raise SteelyardError(
                f"{len(nodes)} of {needed} nodes are connected after {timeout:g} s: start more "
                "nodes, or lower min_available_nodes and min_train_nodes"
            )
        log(INFO, "Waiting for nodes: %d connected, %d needed", len(nodes), needed)
        time.sleep(1)


def draw_cohort(nodes: list[int], count: int, ids: ClientIds, seed: int, number: int) -> list[int]:
    """Return the nodes that take part in a round, in the order of their client ids.

    They depend on the seed, the round and the client ids, not on Flower's random node ids.
    """
    ordered = sorted(nodes, key=lambda node: sort_key(ids.of(node)))
    if count >= len(ordered):
        return ordered
    positions = stream(seed, "cohort", number).choice(len(ordered), count, replace=False)
    return [ordered[position] for position in sorted(positions)]


def find_model_record(content: RecordDict, key: str) -> str | None:
    """Return the name of the record that contains the model; None if there is none.

    It is `key`, or else the only array record that is not one of Steelyard's.
    """
    if key in content.array_records:
        return key
    prefix = f"{STEELYARD_RECORD}."
    names = [name for name in content.array_records if not name.startswith(prefix)]
    return names[0] if len(names) == 1 else None
