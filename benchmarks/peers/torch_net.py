"""The networks in torch, for every contestant that uses it."""

from functools import cache

import numpy as np
import torch
from torch import nn

from benchmarks.peers.job import LAYERS, Job


def network(model: str, shape: tuple[int, int, int] = (3, 32, 32)) -> nn.Sequential:
    """The layers of `LAYERS[model]` for images of this shape."""
    channels, side, width = shape[0], shape[1], 0
    parts: list[nn.Module] = []
    for kind, *numbers in LAYERS[model]:
        if kind == "conv":
            parts.append(nn.Conv2d(channels, numbers[0], numbers[1]))
            channels, side = numbers[0], side - numbers[1] + 1
        elif kind == "linear":
            parts.append(nn.Linear(width, numbers[0]))
            width = numbers[0]
        elif kind == "pool":
            parts.append(nn.MaxPool2d(2))
            side //= 2
        elif kind == "flatten":
            parts.append(nn.Flatten())
            width = channels * side * side
        else:
            parts.append(nn.ReLU() if kind == "relu" else nn.Dropout(*numbers))
    return nn.Sequential(*parts)


def started(job: Job) -> nn.Sequential:
    """The network with the initial parameters."""
    net = network(job.model)
    put(net, job.initial())
    return net


@torch.no_grad()
def put(net: nn.Module, values: list[np.ndarray]) -> None:
    """Takes over parameters given in order."""
    for parameter, value in zip(net.parameters(), values, strict=True):
        parameter.copy_(torch.from_numpy(value))


def taken(net: nn.Module) -> list[np.ndarray]:
    """The parameters in order."""
    return [parameter.detach().numpy().copy() for parameter in net.parameters()]


def descend(net: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, job: Job) -> int:
    """Plain local training, shuffled: the loop users write for Flower. Returns the number of steps."""
    optimizer = torch.optim.SGD(net.parameters(), lr=job.lr, momentum=job.momentum)
    net.train()
    steps = 0
    for _ in range(job.epochs):
        for index in torch.randperm(len(targets)).split(job.batch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(inputs[index]), targets[index]).backward()
            optimizer.step()
            steps += 1
    return steps


@torch.no_grad()
def measured(net: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[float, float]:
    """Mean loss and accuracy, in batches of 500."""
    net.eval()
    loss = right = 0.0
    for images, labels in zip(inputs.split(500), targets.split(500), strict=True):
        outputs = net(images)
        loss += nn.functional.cross_entropy(outputs, labels, reduction="sum").item()
        right += (outputs.argmax(dim=1) == labels).sum().item()
    return loss / len(targets), right / len(targets)


@cache
def tensors(job: Job, inputs: str, targets: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Two arrays of the data directory, without a copy, and once in each process."""
    return torch.from_numpy(job.array(inputs)), torch.from_numpy(job.array(targets))
