"""The server's proxy data: a few samples per class, from the test set or from data of the user's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from steelyard.core import checks
from steelyard.core.errors import SteelyardError
from steelyard.data.dataset import Dataset
from steelyard.data.partitions import Index

_STREAM = int.from_bytes(b"prox", "big")  # keeps these draws apart from all others of the same seed


@dataclass(frozen=True)
class Proxy:
    """Which proxy data the server has, and how it goes through it.

    Attributes:
        per_class: samples of each class; None for all of `data`.
        rho: if given, a long tail: class c of C has `int(per_class rho^(-c / (C - 1)))` samples.
        data: samples of your own (anything `Dataset.of` takes); by default they are taken from the test set, and
            testing uses the rest, as FedLAW's authors do.
        batch_size: samples per step.
        shuffle: a new order for every epoch.
        balanced: draw as many samples of every class, again and again if need be.
        bn: BatchNorm on the proxy: `proxy`, `average` or `frozen` (see `steelyard.Probe`).
    """

    per_class: int | None = None
    rho: float | None = None
    data: Any = None
    batch_size: int = 128
    shuffle: bool = True
    balanced: bool = False
    bn: str = "proxy"

    def __post_init__(self) -> None:
        if self.per_class is not None:
            checks.integer("per_class", self.per_class, 1)
        if self.rho is not None:
            checks.number("rho", self.rho, 1.0)
            if self.per_class is None:
                raise SteelyardError(f"rho={self.rho}: a long tail starts from per_class samples: give per_class")
        checks.integer("batch_size", self.batch_size, 1)
        checks.one_of("bn", self.bn, "proxy", "average", "frozen")

    @property
    def given(self) -> bool:
        """Whether there is any proxy data."""
        return self.per_class is not None or self.data is not None

    def split(self, test: Dataset | None, seed: int) -> tuple[Dataset, Dataset | None, str | None]:
        """Proxy data, what is left to test on, and a warning if a class has too few samples."""
        own = None if self.data is None else Dataset.of(self.data, "proxy")
        pool = own if own is not None else test
        if pool is None:
            raise SteelyardError("proxy.per_class: there is no test set to take proxy data from: give test=, or data=")
        if self.per_class is None:
            return pool, test, None
        chosen, short = self.choose_samples(pool, seed)
        proxy = pool.take(chosen)
        if own is not None:
            return proxy, test, short
        rest = np.setdiff1d(np.arange(len(pool)), chosen)
        if len(rest) == 0:
            raise SteelyardError(f"proxy.per_class={self.per_class}: takes all {len(pool)} test samples: use fewer")
        return proxy, pool.take(rest), short

    def choose_samples(self, pool: Dataset, seed: int) -> tuple[Index, str | None]:
        """Positions of the proxy samples, sorted, drawn class by class; and a warning where a quota is not met."""
        assert self.per_class is not None
        if pool.classes is None or pool.targets.ndim != 1:
            raise SteelyardError("proxy.per_class: the targets are no classes: give proxy data without per_class")
        sequence = np.random.SeedSequence(entropy=seed, spawn_key=(_STREAM,))
        order = np.random.Generator(np.random.Philox(sequence)).permutation(len(pool))
        labels = pool.targets.numpy()[order]
        parts, short = [], []
        for label, quota in enumerate(self.quotas(pool.classes)):
            found = order[labels == label][:quota]
            parts.append(found)
            if len(found) < quota:
                short.append(f"class {label} has {len(found)} of {quota}")
        shown = ", ".join(short[:3]) + (", ..." if len(short) > 3 else "")
        warning = f"proxy data is short: {shown}; use a smaller proxy.per_class" if short else None
        return np.sort(np.concatenate(parts)).astype(np.int64), warning

    def quotas(self, classes: int) -> list[int]:
        """Samples per class."""
        assert self.per_class is not None
        tail = 1.0 if self.rho is None else self.rho
        return [int(self.per_class * tail ** (-c / max(classes - 1, 1))) for c in range(classes)]


def balanced_order(targets: torch.Tensor, rng: np.random.Generator) -> Index:
    """Positions of one epoch: as many as there are samples, equally many of each class (within one), shuffled."""
    labels = targets.numpy()
    classes = np.unique(labels)
    counts = np.full(len(classes), len(labels) // len(classes))
    counts[rng.permutation(len(classes))[: len(labels) % len(classes)]] += 1
    drawn = []
    for label, count in zip(classes, counts, strict=True):
        own = np.flatnonzero(labels == label)
        rounds = -(-count // len(own))
        drawn.append(np.concatenate([rng.permutation(own) for _ in range(rounds)] or [own])[:count])
    return rng.permutation(np.concatenate(drawn)).astype(np.int64)
