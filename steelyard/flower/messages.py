"""What the server says to clients, and to which of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from logging import INFO
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from steelyard.algorithm import Algorithm
from steelyard.core.errors import SteelyardError
from steelyard.core.rng import stream
from steelyard.core.state import sort_key
from steelyard.flower.identity import ClientIds
from steelyard.flower.replies import OURS


def wait_for_nodes(
    grid: Grid, share: float, minimum: int, available: int, timeout: float
) -> tuple[list[int], int]:
    """All nodes, once there are enough, and how many to ask; Flower's own waits for ever."""
    end = time.monotonic() + timeout
    while True:
        nodes = list(grid.get_node_ids())
        count = max(int(len(nodes) * share), minimum)
        needed = max(available, count)
        if len(nodes) >= needed:
            return nodes, count
        if time.monotonic() >= end:
            raise SteelyardError(
                f"{len(nodes)} of {needed} nodes are connected after {timeout:g} s: start more, or "
                f"lower "
                "min_available_nodes and min_train_nodes"
            )
        log(INFO, "Waiting for nodes: %d connected, %d needed", len(nodes), needed)
        time.sleep(1)


def cohort(nodes: list[int], count: int, names: ClientIds, seed: int, number: int) -> list[int]:
    """Whom to ask in a round.

    A function of seed, round and clients' ids, as far as they are known.
    """
    order = sorted(nodes, key=lambda node: sort_key(names.of(node)))
    if count >= len(order):
        return order
    positions = stream(seed, "cohort", number).choice(len(order), count, replace=False)
    return [order[at] for at in sorted(positions)]


def messages(
    content: RecordDict,
    nodes: list[int],
    kind: str,
    number: int,
    timeout: float,
    accepted: Callable[[int], int],
) -> list[Message]:
    """The same content to each, and the last round that counted.

    A frozen node will not work off old rounds first.
    """
    ttl = max(timeout, 1.0)
    outgoing: list[Message] = []
    contents: dict[int, RecordDict] = {}
    for node in nodes:
        last = accepted(node)
        if last not in contents:
            config = ConfigRecord({**content.config_records[OURS], "accepted": last})
            contents[last] = RecordDict({**content, OURS: config})
        outgoing.append(
            Message(
                contents[last], dst_node_id=node, message_type=kind, ttl=ttl, group_id=str(number)
            )
        )
    return outgoing


def instructions(
    algorithm: Algorithm,
    names: ClientIds,
    number: int,
    rounds: int,
    seed: int,
    examples_key: str,
    mean_examples: float | None,
) -> ConfigRecord:
    """What `steelyard.flower.asked` reads at the client."""
    config: dict[str, Any] = {
        "round": number,
        "rounds": rounds,
        "seed": seed,
        "client": algorithm.texts["client"] or "",
        "metrics": sorted({*algorithm.needs.metrics, "num_examples"}),
        "id-key": names.key,
        "examples-key": examples_key,
    }
    return ConfigRecord(
        config | ({} if mean_examples is None else {"mean-examples": float(mean_examples)})
    )
