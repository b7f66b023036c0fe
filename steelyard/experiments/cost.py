"""What a cell will cost on this machine, before anything starts.

Multiplications and additions are counted by torch for one sample (backward is taken as twice forward), and divided by
the speed of a matrix product measured here and now. Small networks run below that speed, so this is a rough guide:
right within a factor of two or three.
"""

from __future__ import annotations

import time
from functools import cache

import torch
from torch.utils.flop_counter import FlopCounterMode

from steelyard import threads
from steelyard.algorithm import parse_refiner
from steelyard.core.spec import parse
from steelyard.core.weighting import Weighting
from steelyard.data.partitions import PARTITIONS
from steelyard.data.sources import SOURCES, Size
from steelyard.models import build
from steelyard.models.registry import Shape
from steelyard.rules.chain import parse_rule
from steelyard.sim.config import Config

SIZES: dict[str, Size] = {
    entry.name: size for entry in SOURCES if (size := getattr(entry.make, "published_size", None)) is not None
}
EFFICIENCY = 0.6  # of convolutions and small products, against one large product


def seconds(config: Config) -> float | None:
    """Estimated seconds of a run on all cores; None if the data set's size is not known here."""
    known = SIZES.get(config.data.name.partition(":")[0])
    if known is None:
        return None
    train, test, shape, classes = known
    forward = _operations(config.model or "mlp", shape, classes)
    asked = config.participation.count or max(1, int(config.participation.share * config.data.clients))
    if config.participation.train_all:
        asked = config.data.clients
    own = getattr(parse(config.data.partition, PARTITIONS), "samples", train / config.data.clients)
    local = config.local
    passes = local.train_share * (local.epochs or 1)
    trained: float = asked * (own * passes if local.steps is None else local.steps * local.batch_size)
    evaluated = test / config.evaluate_every if config.evaluate_every else 0.0
    cores = threads.cores()
    proxy = cores * _proxy_epochs(config) * (config.proxy.per_class or 0) * classes  # the server works on one core
    return config.rounds * forward * (3 * (trained + proxy) + evaluated) / (speed() * EFFICIENCY * cores)


def _proxy_epochs(config: Config) -> int:
    """Passes over the server's proxy data in one round."""

    def epochs(rule: Weighting) -> int:
        return getattr(rule, "epochs", 0) + sum(epochs(part) for part in rule.parts)

    refiner = parse_refiner(config.refine)
    return epochs(parse_rule(config.weighting)) + getattr(refiner, "epochs", 0)


@cache
def speed() -> float:
    """Floating-point operations per second of one core, on a matrix product of 512 x 512."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        left, best, began = torch.ones(512, 512), 0.0, time.perf_counter()
        while time.perf_counter() - began < 0.2:
            start = time.perf_counter()
            left @ left
            best = max(best, 2 * 512**3 / (time.perf_counter() - start))
    finally:
        torch.set_num_threads(threads)
    return best


@cache
def _operations(model: str, shape: Shape, classes: int) -> float:
    """Floating-point operations of one sample, forward."""
    network = build(model, shape, classes, seed=0).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(torch.zeros(1, *shape))
    return float(counter.get_total_flops())


def duration(value: float | None) -> str:
    """Seconds in words: `40 s`, `12 min`, `3.5 h`, `4 days`."""
    if value is None:
        return "?"
    for limit, unit, size in ((90, "s", 1), (5400, "min", 60), (129_600, "h", 3600)):
        if value < limit:
            return f"{value / size:.0f} {unit}" if unit != "h" else f"{value / size:.1f} h"
    return f"{value / 86_400:.0f} days"
