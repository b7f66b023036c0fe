"""What server and clients share: a network, and each node's part of the data."""

import torch
from flwr.app import Context

from steelyard.data import load, partition
from steelyard.models import build


def network() -> torch.nn.Module:
    """The same initial parameters everywhere."""
    return build("mlp:hidden=[32]", (1, 8, 8), classes=10, seed=0)


def local_data(context: Context) -> tuple[torch.Tensor, torch.Tensor]:
    """The part of the digits that this node holds. A real node would read its own files here."""
    train, _ = load("digits")
    node, nodes = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    parts = partition(str(context.run_config["partition"]), train.targets.numpy(), nodes, seed=0)
    mine = train.take(parts[node])
    return mine.inputs, mine.targets
