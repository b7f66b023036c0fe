"""Rounds to try rules on: models, clients and everything clients can report."""

from dataclasses import dataclass, replace

import numpy as np
import torch

import steelyard
from steelyard.core.needs import Needs
from steelyard.core.registry import RULES
from steelyard.core.weighting import Info, Weighting
from steelyard.rules.detectors import DETECTORS, Detector

REQUIRED = {"gamma": 0.9, "max_weight": 0.5}
SHORT = {"fedlaw": 3, "gws": 3, "law": 3, "fedlaw_swa": 14}  # epochs: their defaults would take minutes here


def every_rule():
    """Every registered rule, found by itself: wrappers around FedAdp, detectors as gates."""
    made = {}
    inner = {RULES: steelyard.fedadp(), DETECTORS: steelyard.eq6()}
    for entry in sorted([*RULES, *DETECTORS], key=lambda entry: entry.name):
        required = [name for name, p in entry.parameters.items() if p.default is p.empty]
        given = {name: inner[entry.slots[name]] if name in entry.slots else REQUIRED[name] for name in required}
        given |= {"epochs": SHORT[entry.name]} if entry.name in SHORT else {}
        part = entry.make(**given)
        made[entry.name] = steelyard.gate(part, steelyard.fedadp()) if isinstance(part, Detector) else part
        assert isinstance(made[entry.name], Weighting)
    return made


def model(seed=0, around=None, step=0.01, wide=90, dtype=torch.float32):
    """A small network with BatchNorm, a scalar parameter and integer buffers; `wide` sets its size."""
    g = torch.Generator().manual_seed(seed)
    shapes = {
        "conv.weight": (wide, 3, 3),
        "conv.bias": (wide,),
        "bn.weight": (wide,),
        "bn.bias": (wide,),
        "bn.running_mean": (wide,),
        "bn.running_var": (wide,),
        "scale": (),
        "fc.weight": (wide, 30),
    }
    made = {name: torch.randn(shape, generator=g, dtype=torch.float64) for name, shape in shapes.items()}
    if around is not None:
        made = {name: around[name].double() + step * value for name, value in made.items()}
    made["bn.running_var"] = made["bn.running_var"].abs() + 0.1
    made = {name: value.to(dtype) for name, value in made.items()}
    made["bn.num_batches_tracked"] = torch.tensor(seed)
    return made


def cohort(count=6, seed=0, **options):
    """A base model and its clients by id."""
    base = model(1000 + seed, **options)
    return base, {f"client-{k}": model(seed + k + 1, around=base, **options) for k in range(count)}


def reports(ids, seed=0):
    """Every metric a rule can ask for, by id."""
    g = torch.Generator().manual_seed(seed)

    def draw(low, high):
        return {c: low + (high - low) * torch.rand((), generator=g).item() for c in ids}

    return {
        "num_examples": {c: 10 + 7 * k for k, c in enumerate(ids)},
        "num_steps": {c: 3 + k for k, c in enumerate(ids)},
        "normalizer": draw(2, 9),
        "label_hist": {c: torch.randint(1, 50, (10,), generator=g).tolist() for c in ids},
        "loss": draw(0.5, 2.5),
        "accuracy": draw(0.1, 0.9),
        "grad_norm": draw(0.1, 1.0),
        "loss_before": draw(0.5, 2.5),
        "accuracy_before": draw(0.1, 0.9),
    }


@dataclass(frozen=True)
class Broken(Weighting):
    """A rule whose weights are all this number."""

    weight: float

    name = "broken"
    modifies = True
    info = Info("no weights at all")

    @property
    def needs(self):
        return Needs()

    def apply(self, prior, view, state):
        return replace(prior, weights=prior.weights * self.weight), {"poisoned": True}


class Quadratic:
    """A stand-in for proxy data that fits any model: sample j pulls every coordinate towards 0.1 j."""

    def open(self, layout, number, buffers, state):
        return _Pull(layout)


class _Pull:
    def __init__(self, layout):
        self.params = torch.zeros(layout.dim, dtype=layout.row_dtype)
        self.grad = torch.zeros_like(self.params)
        self.rng = np.random.default_rng(0)

    def epoch(self):
        return iter(torch.split(torch.arange(3), 2))

    def backward(self, batch, objective=None):
        self.grad.zero_()
        for sample in batch.tolist():
            away = self.params - 0.1 * sample
            self.grad += away / (1 + away.square()).sqrt() / (len(batch) * len(away))
        return float(self.grad[0])

    def slopes(self):
        return [(0, self.grad)]

    def close(self):
        """Nothing to give back."""

    def buffers(self):
        return None


def equal(a, b):
    """Whether two models hold the same bits."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    return a.keys() == b.keys() and all(a[name].dtype == b[name].dtype and torch.equal(a[name], b[name]) for name in a)
