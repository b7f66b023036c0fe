"""Aggregation on Flower's server: 50 replies of 11 million parameters, ours beside Flower's own FedAvg: `make bench`.

The same replies, in one process, in turn. A ratio is the median over rounds of the ratio of
neighbouring calls. Memory is what a call adds to the process beyond the replies it is given. With a
budget, replies come in one by one through a grid, as they do from SuperNodes: each is made when it
is pulled, and what the process holds at most is measured.
"""

import argparse
import json
import logging
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

import steelyard
from benchmarks.aggregation import take_turns
from benchmarks.memory import peak_during
from benchmarks.models import eleven_million, random_model
from steelyard.flower import Steelyard, to_record
from steelyard.flower._messages import REPORTED_VECTORS_RECORD

BAR, MEMORY, BUDGET = 8.0, 2.5e9, "1 GB"


class Nodes:
    """A grid of so many nodes; a reply is the global model with noise on it, made when it is pulled."""

    def __init__(self, count: int, model: dict[str, torch.Tensor]) -> None:
        identify()
        self.count, self.model, self.waiting = count, model, dict[str, Message]()

    def get_node_ids(self) -> list[int]:
        """Numbers from 1."""
        return list(range(1, self.count + 1))

    def push_messages(self, messages: list[Message]) -> list[str]:
        """Names the messages after their nodes."""
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(message.metadata.dst_node_id)
            self.waiting[message.metadata.message_id] = message
        return list(self.waiting)

    def pull_messages(self, names: list[str]) -> list[Message]:
        """Makes the replies."""
        return [self.reply(self.waiting.pop(name)) for name in names]

    def reply(self, message: Message) -> Message:
        """A model of its own, a function of the node."""
        node = message.metadata.dst_node_id
        noise = torch.Generator().manual_seed(node)
        noisy = {
            name: tensor + 0.01 * torch.randn(tensor.shape, generator=noise)
            for name, tensor in self.model.items()
        }
        content = RecordDict(
            {"arrays": to_record(noisy), "metrics": MetricRecord({"num-examples": 100 + node})}
        )
        terms = message.content.config_records["steelyard"]["client"]
        content["steelyard"] = ConfigRecord({"partition-id": node, "client": terms})
        if (
            "steelyard.sent" in message.content
        ):  # a client term's vectors: the client tells how its own has changed
            total = sum(tensor.numel() for tensor in self.model.values())
            content[REPORTED_VECTORS_RECORD] = to_record(
                {"scaffold.control": 0.01 * torch.randn(total, generator=noise)}
            )
        return Message(content, reply_to=message)


def identify() -> None:
    """Messages want to know who sends them, since Flower 1.39."""
    try:
        from flwr.supercore.task_identity import TaskIdentity
    except ImportError:
        return
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1


def in_hand(clients: int, rounds: int) -> dict[str, Any]:
    """Times and memory of `aggregate_train` on replies that are all there."""
    nodes = Nodes(clients, random_model(eleven_million(), 0))
    model = to_record(nodes.model)
    options = {"min_train_nodes": clients, "min_available_nodes": clients}
    calls: dict[str, Callable[[], Any]] = {}
    strategies: dict[str, FedAvg] = {
        "Flower's FedAvg": FedAvg(**options),
        "ours, unguarded": Steelyard("fedavg", guard=False, **options),
        "ours": Steelyard("fedavg", **options),
        "ours, FedAWA": Steelyard("fedawa:steps=10", **options),
    }
    sent = list(strategies["ours"].configure_train(1, model, ConfigRecord(), nodes))  # type: ignore[arg-type]
    nodes.push_messages(sent)
    replies = [nodes.reply(message) for message in sent]

    def call(strategy: FedAvg) -> Callable[[], Any]:
        def aggregate() -> Any:
            if isinstance(strategy, Steelyard):
                strategy.model = model
                strategy.model_to_evaluate = None
                strategy.train_messages = sent
            return strategy.aggregate_train(1, replies)

        return aggregate

    calls = {name: call(strategy) for name, strategy in strategies.items()}
    memory = {name: peak_during(aggregate) for name, aggregate in calls.items()}
    times = take_turns(calls, rounds)
    stock = times["Flower's FedAvg"]
    return {
        name: {
            "seconds": statistics.median(taken),
            "times faster": statistics.median(
                theirs / own for theirs, own in zip(stock, taken, strict=True)
            ),
            "memory": memory[name],
        }
        for name, taken in times.items()
    }


def spooled(clients: int, term: str) -> None:
    """One round under the budget, in a process of its own; prints what the process held at most beyond its start."""
    nodes = Nodes(clients, random_model(eleven_million(), 0))
    algorithm = steelyard.Algorithm("fedawa", client=term or None)
    strategy = Steelyard(algorithm, min_train_nodes=clients, fraction_evaluate=0.0, memory=BUDGET)
    model = to_record(nodes.model)
    most = peak_during(lambda: strategy.start(nodes, model, num_rounds=1, timeout=600))  # type: ignore[arg-type]
    print(json.dumps(most))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--spooled", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=Path("out/bench-flower.json"))
    chosen = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    if chosen.spooled is not None:
        return spooled(chosen.clients, chosen.spooled)
    found = in_hand(chosen.clients, chosen.rounds)
    for name, one in found.items():
        print(
            f"{name:18s} {one['seconds']:7.3f} s   {one['times faster']:5.1f}x   "
            f"{one['memory'] / 1e9:5.2f} GB more"
        )
    held = {}
    for term in ("", "scaffold"):
        command = [
            sys.executable,
            "-m",
            "benchmarks.flower",
            "--clients",
            str(chosen.clients),
            "--spooled",
            term,
        ]
        held[term or "fedawa"] = float(
            subprocess.run(command, check=True, capture_output=True, text=True).stdout
        )
    for name, most in held.items():
        print(f"with a budget of {BUDGET}, {name}: {most / 1e9:.2f} GB at most, replies included")
    ours = found["ours, unguarded"]
    print(
        f"bars: {BAR:g}x (unguarded: the same work) "
        f"{'holds' if ours['times faster'] >= BAR else 'MISSED'}, ",
        end="",
    )
    print(f"{MEMORY / 1e9:g} GB {'holds' if ours['memory'] <= MEMORY else 'MISSED'}, ", end="")
    print(f"budget {'holds' if max(held.values()) <= 1e9 else 'MISSED'}")
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps({"in hand": found, "spooled": held}, indent=1))
    return None


if __name__ == "__main__":
    main()
