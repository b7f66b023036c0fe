"""Estimates how long a run will take on this machine.

torch counts the multiplications and additions of one sample; a backward pass counts as two forward
passes. What torch does not count is added: recurrent layers, and the gradients of whole tables of
embeddings. The sum is divided by the measured speed of a matrix product. Small networks are slower
than that, so the estimate is only right within a factor of two or three.
"""

from __future__ import annotations

import time
from functools import cache, lru_cache

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from steelyard import threads
from steelyard.algorithm import parse_refiner
from steelyard.core._errors import SteelyardError
from steelyard.core._spec import parse
from steelyard.core._weighting import Weighting
from steelyard.data._partitions import PARTITIONS
from steelyard.data._sources import SOURCES, Size
from steelyard.models import build
from steelyard.models._registry import Shape
from steelyard.rules._combinators import parse_rule
from steelyard.sim._experiment import Experiment

SIZES: dict[str, Size] = {
    entry.name: size
    for entry in SOURCES
    if isinstance(size := getattr(entry.make, "published_size", None), Size)
}
TABLE_COST = 500.0  # of a number in a table of embeddings, per step: operations that take as long
EFFICIENCY = 0.6  # speed of convolutions and small products, relative to one large product


def estimate_seconds(config: Experiment) -> float | None:
    """Return the estimated seconds of a run on all cores; None for a data set of unknown size."""
    sizes = find_size(config.data.name)
    if sizes is None:
        return None
    train, test, shape, classes = sizes
    local = config.local
    participation = config.participation

    # Clients per round.
    clients = participation.count or max(1, int(participation.share * config.data.clients))
    if participation.train_all:
        clients = config.data.clients

    # Samples that a client trains on in a round.
    if local.steps is not None:
        client_samples: float = local.steps * local.batch_size
    else:
        partition = parse(config.data.partition, PARTITIONS)
        size = getattr(partition, "samples", train / config.data.clients)
        passes = local.train_share * (local.num_epochs or 1)
        client_samples = size * passes

    # Samples per round: training, evaluation, and the server's proxy data (on one core only).
    trained = clients * client_samples
    execution = config.execution
    evaluated = test / execution.evaluate_every if execution.evaluate_every else 0.0
    if execution.evaluate_clients:
        evaluated += train / execution.evaluate_clients
    cores = threads.cores()
    proxy = cores * _proxy_epochs(config) * (config.proxy.per_class or 0) * classes

    # Operations divided by speed.
    model = config.model or "mlp"
    forward = _count_operations(model, shape, classes)
    step = _count_table_operations(model, shape, classes)
    samples = 3 * (trained + proxy) + evaluated
    operations = config.rounds * (forward * samples + step * trained / local.batch_size)
    return operations / (measure_speed() * EFFICIENCY * cores)


def find_size(data: str) -> Size | None:
    """Return the published size of a data set, with its options; None if it is not known."""
    name = data.partition(":")[0]
    if name in SIZES:
        return SIZES[name]
    try:
        size: Size | None = parse(data, SOURCES).published_size
    except SteelyardError:  # an unknown name: the run will raise an error
        return None
    return size


def _proxy_epochs(config: Experiment) -> int:
    """Return the number of passes over the server's proxy data in one round."""

    def count_epochs(rule: Weighting) -> int:
        return getattr(rule, "epochs", 0) + sum(count_epochs(part) for part in rule.parts)

    refiner = parse_refiner(config.refine)
    return count_epochs(parse_rule(config.weighting)) + getattr(refiner, "epochs", 0)


@cache
def measure_speed() -> float:
    """Return the operations per second of one core in a 512 x 512 matrix product.

    It is the highest speed of the products within 0.2 seconds.
    """
    thread_count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        matrix = torch.ones(512, 512)
        highest = 0.0
        end = time.perf_counter() + 0.2
        while time.perf_counter() < end:
            start = time.perf_counter()
            matrix @ matrix
            highest = max(highest, 2 * 512**3 / (time.perf_counter() - start))
    finally:
        torch.set_num_threads(thread_count)
    return highest


@cache
def _count_operations(model: str, shape: Shape, classes: int) -> float:
    """Return the floating-point operations of a forward pass of one sample."""
    network = _build_network(model, shape, classes)
    sample = torch.zeros(1, *shape, dtype=torch.int64 if _is_text(shape) else torch.float32)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(sample)

    # A recurrent layer multiplies all its weights at every time step.
    recurrent = 0
    for layer in network.modules():
        if isinstance(layer, nn.RNNBase):
            recurrent += 2 * shape[0] * sum(weights.numel() for weights in layer.parameters())
    return float(counter.get_total_flops() + recurrent)


@cache
def _count_table_operations(model: str, shape: Shape, classes: int) -> float:
    """Return what an optimizer step on the tables of embeddings costs, in operations.

    Gradient, weight decay, momentum and the step each pass over the whole table in memory.
    """
    network = _build_network(model, shape, classes)
    kinds = (nn.Embedding, nn.EmbeddingBag)
    tables = [layer for layer in network.modules() if isinstance(layer, kinds)]
    return TABLE_COST * sum(table.weight.numel() for table in tables)


@lru_cache(maxsize=1)
def _build_network(model: str, shape: Shape, classes: int) -> nn.Module:
    """Return a network; it is kept for the next question about it."""
    return build(model, shape, classes, seed=0).eval()


def _is_text(shape: Shape) -> bool:
    """Return whether samples are sequences of tokens, not images."""
    return len(shape) == 1


def format_duration(value: float | None) -> str:
    """Return seconds as text: `40 s`, `12 min`, `3.5 h`, `4 days`; `?` for None."""
    if value is None:
        return "?"
    if value < 90:
        return f"{value:.0f} s"
    if value < 5400:
        return f"{value / 60:.0f} min"
    if value < 129_600:
        return f"{value / 3600:.1f} h"
    return f"{value / 86_400:.0f} days"
