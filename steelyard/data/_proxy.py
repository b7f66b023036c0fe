"""The server's proxy data: a few samples per class, from the test set or the user's own data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from steelyard.core._errors import SteelyardError
from steelyard.core._options import check_options, option
from steelyard.core._rng import data_stream
from steelyard.data._dataset import Dataset
from steelyard.data._partitions import Index


@dataclass(frozen=True)
class Proxy:
    """Which proxy data the server has, and how it uses them.

    By default they are taken from the test set, and the rest of it is for testing, as FedLAW's
    authors do.

    Examples:
        >>> import steelyard
        >>> steelyard.Proxy(per_class=100, rho=10).quotas(classes=3)
        [100, 31, 10]
    """

    per_class: int | None = option(
        None, "samples of each class, taken from the test set; no proxy data without", low=1
    )
    rho: float | None = option(
        None, "a long tail: the last class has per_class / rho samples", low=1.0
    )
    data: Any = option(
        None, "your own samples, anything that `Dataset.of` accepts", is_python_only=True
    )
    batch_size: int = option(128, "samples per step", low=1)
    shuffle: bool = option(True, "a new order in every epoch")
    balanced: bool = option(
        False, "draw the same number of samples of every class, with repetition if necessary"
    )
    bn: str = option(
        "proxy",
        "BatchNorm statistics on the proxy data: proxy, average or frozen (see `steelyard.Probe`)",
        choices=("proxy", "average", "frozen"),
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.rho is not None and self.per_class is None:
            raise SteelyardError(
                f"rho={self.rho}: a long tail needs per_class, its largest class: give per_class"
            )

    @property
    def has_samples(self) -> bool:
        """Whether there is any proxy data."""
        return self.per_class is not None or self.data is not None

    def split(self, test: Dataset | None, seed: int) -> tuple[Dataset, Dataset | None, str | None]:
        """Return the proxy data, the remaining test set, and a warning if samples are missing."""
        own = None if self.data is None else Dataset.of(self.data, "proxy")
        pool = own if own is not None else test
        if pool is None:
            raise SteelyardError(
                "proxy.per_class: there is no test set to take proxy data from: give test=, or "
                "data="
            )
        if self.per_class is None:
            return pool, test, None
        # Draw the samples, from the user's data or from the test set.
        positions, warning = self.choose_samples(pool, seed)
        proxy = pool.take(positions)
        if own is not None:
            return proxy, test, warning
        # Samples from the test set are no longer for testing.
        rest = np.setdiff1d(np.arange(len(pool)), positions)
        if len(rest) == 0:
            raise SteelyardError(
                f"proxy.per_class={self.per_class}: takes all {len(pool)} test samples: use fewer"
            )
        return proxy, pool.take(rest), warning

    def choose_samples(self, pool: Dataset, seed: int) -> tuple[Index, str | None]:
        """Draw proxy samples class by class.

        Returns:
            Their positions, sorted, and a warning if a class has fewer samples than its quota.
        """
        assert self.per_class is not None
        if pool.classes is None or pool.targets.ndim != 1:
            raise SteelyardError(
                "proxy.per_class: the targets are not classes: give proxy data without per_class"
            )
        # Shuffle the samples.
        order = data_stream(seed, "proxy").permutation(len(pool))
        labels = pool.targets.numpy()[order]
        # Take the first of each class.
        parts = []
        shortages = []
        for label, quota in enumerate(self.quotas(pool.classes)):
            part = order[labels == label][:quota]
            parts.append(part)
            if len(part) < quota:
                shortages.append(f"class {label} has {len(part)} of {quota}")
        # Warn about classes with fewer samples.
        warning = None
        if shortages:
            details = ", ".join(shortages[:3]) + (", ..." if len(shortages) > 3 else "")
            warning = f"proxy data is short: {details}; use a smaller proxy.per_class"
        return np.sort(np.concatenate(parts)).astype(np.int64), warning

    def quotas(self, classes: int) -> list[int]:
        """Return the number of samples of each class."""
        assert self.per_class is not None
        rho = 1.0 if self.rho is None else self.rho
        return [int(self.per_class * rho ** (-c / max(classes - 1, 1))) for c in range(classes)]


def balanced_order(targets: torch.Tensor, rng: np.random.Generator) -> Index:
    """Return the positions of one epoch with equally many samples of each class, shuffled.

    The numbers differ by one at most.

    The epoch has as many positions as there are samples.
    """
    labels = targets.numpy()
    classes = np.unique(labels)
    counts = np.full(len(classes), len(labels) // len(classes))
    counts[rng.permutation(len(classes))[: len(labels) % len(classes)]] += 1
    parts = []
    for label, count in zip(classes, counts, strict=True):
        own = np.flatnonzero(labels == label)
        rounds = -(-count // len(own))
        parts.append(np.concatenate([rng.permutation(own) for _ in range(rounds)] or [own])[:count])
    return rng.permutation(np.concatenate(parts)).astype(np.int64)
