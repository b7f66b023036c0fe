"""One small part of each kind, for Steelyard to find by name."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

import steelyard
from steelyard.core import ClientTerm, Info, Needs, Refiner, ServerOptimizer, Weighting
from steelyard.data import Dataset, Partition, Source
from steelyard.models import Architecture
from steelyard.rules import Detector


@dataclass(frozen=True)
class ExampleRule(Weighting):
    """Shares to a power: 0 weighs all clients the same."""

    power: float = 2.0

    name = "example_rule"
    modifies = True
    info = Info("shares to a power")

    @property
    def needs(self) -> Needs:
        return Needs()

    def apply(self, prior, view, state):
        return prior.reweight(prior.shares**self.power), state


@dataclass(frozen=True)
class ExampleWrapper(Weighting):
    """A rule around another one; the parameter that holds it is found by its type."""

    inner: Weighting
    unused: int = 1

    name = "example_wrapper"
    modifies = True
    info = Info("the rule inside")

    @property
    def needs(self) -> Needs:
        return self.inner.needs

    @property
    def parts(self):
        return (self.inner,)

    def apply(self, prior, view, state):
        return self.inner.apply(prior, view, state)


def example_chain(power: float = 2.0) -> Weighting:
    """FedAdp, then shares to a power."""
    return steelyard.chain("fedadp", ExampleRule(power))


@dataclass(frozen=True)
class ExampleDetector(Detector):
    """Critical in odd rounds."""

    name = "example_detector"
    info = Info("critical in odd rounds")

    @property
    def needs(self) -> Needs:
        return Needs()

    def critical(self, view, state):
        return view.round % 2 == 1, {}


@dataclass(frozen=True)
class ExampleTerm(ClientTerm):
    """Weight decay towards the model that clients received."""

    mu: float = 0.1

    name = "example_term"
    info = Info("pulls clients back to their start")

    def add(self, grad, x, at):
        grad.add_(x - at.start, alpha=self.mu)


@dataclass(frozen=True)
class ExampleStep(ServerOptimizer):
    """A part of the step."""

    lr: float = 0.5

    name = "example_step"
    info = Info("a part of the step")
    slots = ()

    def update(self, theta, step, slots, t):
        return theta + self.lr * step


@dataclass(frozen=True)
class ExampleRefiner(Refiner):
    """Leaves the model as it is."""

    name = "example_refiner"
    info = Info("leaves the model as it is")

    def refine(self, at, state):
        return state


@dataclass(frozen=True)
class ExampleBlocks(Partition):
    """Consecutive samples."""

    name = "example_blocks"
    info = Info("consecutive samples")
    needs_labels = False

    def __call__(self, targets, clients, rng):
        return np.array_split(np.arange(len(targets)), clients)


@dataclass(frozen=True)
class ExampleBlobs(Source):
    """Points around three centres."""

    samples: int = 120

    name = "example_blobs"
    info = Info("points around three centres")

    def __call__(self, directory: Path | None):
        g = torch.Generator().manual_seed(0)
        targets = torch.arange(self.samples) % 3
        inputs = torch.randn(self.samples, 4, generator=g) + 3 * targets[:, None]
        half = self.samples // 2
        parts = (slice(0, half), slice(half, None))
        train, test = (Dataset(inputs[part], targets[part], 3, self.name) for part in parts)
        return train, test


@dataclass(frozen=True)
class ExampleNet(Architecture):
    """One linear layer."""

    name = "example_net"
    info = Info("one linear layer")

    def __call__(self, input_shape, classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), classes))
