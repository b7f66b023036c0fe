"""Corrupt the data of some clients: FedLAW's Table 8, and two other common kinds.

FedLAW corrupts 25, 50 or 75 % of the clients "by swapping two labels". The paper does not say which
labels, nor whether all clients swap the same ones, and its code does not contain the corruption.
`swap:pair=own` and `swap:pair=common` are the two readings.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from steelyard.core import checks
from steelyard.core._errors import SteelyardError
from steelyard.core._registry import Registry
from steelyard.core._rng import data_stream
from steelyard.core._spec import parse
from steelyard.core._state import ClientId
from steelyard.core._weighting import Info
from steelyard.data._dataset import Dataset, Federation, slices
from steelyard.data._partitions import Index


@dataclass(frozen=True)
class Corruption(ABC):
    """A way to make the data of some clients wrong.

    Attributes:
        share: of the clients that have samples; rounded to a whole number of clients.
    """

    share: float = 0.5

    def __post_init__(self) -> None:
        checks.number("share", self.share, 0.0, 1.0)

    def __call__(self, federation: Federation, seed: int) -> Federation:
        """Return the federation with some of its clients corrupted."""
        clients = _choose_clients(federation, self.share, seed)
        self.check_data(federation)
        if not clients:
            return federation
        own = _copy_shared_samples(federation)
        return replace(own, train=self.corrupt_samples(own, clients, seed))

    @abstractmethod
    def check_data(self, federation: Federation) -> None:
        """Raise an error if this kind of corruption does not apply to the data."""

    @abstractmethod
    def corrupt_samples(self, federation: Federation, clients: Sequence[int], seed: int) -> Dataset:
        """Return the training samples with those of some clients corrupted.

        Args:
            federation: clients and their data; no two clients share a sample.
            clients: the numbers of the clients to corrupt.
            seed: determines how they are corrupted.
        """


class _LabelCorruption(Corruption):
    """A corruption that replaces labels by others, by a table for each client."""

    name: str

    def check_data(self, federation: Federation) -> None:
        """Raise an error if targets are not labels."""
        classes = federation.classes
        if classes is None or classes < 2 or federation.train.targets.ndim != 1:
            raise SteelyardError(
                f"corrupt={self.name}: targets are not labels of two classes or more, use 'noise'"
            )

    def corrupt_samples(self, federation: Federation, clients: Sequence[int], seed: int) -> Dataset:
        """Return the samples with the labels of some clients replaced."""
        classes = federation.classes
        targets = federation.train.targets.clone()
        for client in clients:
            positions = torch.from_numpy(federation.index[client])
            table = self.make_label_table(federation, client, seed)
            targets[positions] = torch.from_numpy(table)[targets[positions]]
        return replace(federation.train, targets=targets, classes=classes)

    @abstractmethod
    def make_label_table(self, federation: Federation, client: int, seed: int) -> Index:
        """Return the new label of each label, `[classes]`."""


CORRUPTIONS = Registry("corruption", Corruption)


@CORRUPTIONS.register
@dataclass(frozen=True)
class Swap(_LabelCorruption):
    """A corrupted client exchanges two labels.

    Attributes:
        pair: `own`: each client exchanges a pair of its own, one of its labels and any other label,
            drawn at random. `common`: all corrupted clients exchange the same pair; a client that
            has no sample of it does not change.
    """

    pair: str = "own"

    name = "swap"
    info = Info("exchanges two labels", "Li et al. (FedLAW), ICML 2023, Table 8")

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of("pair", self.pair, "own", "common")

    def make_label_table(self, federation: Federation, client: int, seed: int) -> Index:
        """Return the table of labels with two of them exchanged."""
        # Draw the first label from those that occur: otherwise nothing would change.
        if self.pair == "common":
            rng = _rng(seed, 2, 0)
            labels = np.unique(federation.train.targets.numpy())
        else:
            rng = _rng(seed, 1, client)
            labels = np.unique(federation.train.targets.numpy()[federation.index[client]])
        table = np.arange(federation.classes or 0, dtype=np.int64)
        first = int(rng.choice(labels))
        second = int(rng.choice(np.delete(table, first)))

        # Exchange the two.
        table[first] = second
        table[second] = first
        return table


@CORRUPTIONS.register
@dataclass(frozen=True)
class Flip(_LabelCorruption):
    """Label y becomes C-1-y, C the number of classes, as in the label-flipping attack."""

    name = "flip"
    info = Info("reverses the order of labels")

    def make_label_table(self, federation: Federation, client: int, seed: int) -> Index:
        """Return the labels in reverse order."""
        return np.arange(federation.classes or 0, dtype=np.int64)[::-1].copy()


@CORRUPTIONS.register
@dataclass(frozen=True)
class Noise(Corruption):
    """Gaussian noise on the inputs.

    Attributes:
        deviation: the standard deviation of the noise, in units of the inputs.
    """

    deviation: float = 1.0

    name = "noise"
    info = Info("adds Gaussian noise to the inputs")

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.number("deviation", self.deviation, 0.0)

    def check_data(self, federation: Federation) -> None:
        """Raise an error if inputs are tokens."""
        if not federation.train.inputs.is_floating_point():
            raise SteelyardError("corrupt=noise: inputs are tokens, use 'swap' or 'flip'")

    def corrupt_samples(self, federation: Federation, clients: Sequence[int], seed: int) -> Dataset:
        """Return the samples with noise added to the inputs of some clients."""
        inputs = federation.train.inputs.clone()
        for client in clients:
            positions = torch.from_numpy(federation.index[client])
            shape = (len(positions), *inputs.shape[1:])
            noise = _rng(seed, 1, client).standard_normal(shape, dtype=np.float32)
            inputs[positions] += self.deviation * torch.from_numpy(noise)
        return replace(federation.train, inputs=inputs)


def corrupt(
    federation: Federation,
    share: float | None = None,
    kind: str | Corruption = "swap",
    *,
    deviation: float | None = None,
    seed: int = 0,
) -> Federation:
    """Return the federation with some of its clients corrupted.

    The test set and the federation passed in do not change.

    Args:
        federation: clients and their data.
        share: of the clients that have samples; rounded to a whole number of clients. By default
            that of `kind`.
        kind: a corruption or its spec string: `swap` exchanges two labels, `swap:pair=common` the
            same two in all clients; `flip`: label y becomes C-1-y, C the number of classes;
            `noise:deviation=0.5` adds noise to the inputs.
        deviation: the standard deviation of the noise, for `noise`.
        seed: determines which clients are corrupted, and how.
    """
    corruption: Corruption = parse(kind, CORRUPTIONS) if isinstance(kind, str) else kind
    if share is not None:
        corruption = replace(corruption, share=share)
    if deviation is not None:
        if not isinstance(corruption, Noise):
            raise SteelyardError(f"deviation={deviation}: only kind='noise' has a deviation")
        corruption = replace(corruption, deviation=deviation)
    return corruption(federation, seed)


def find_corrupted_clients(
    federation: Federation, share: float, seed: int = 0
) -> tuple[ClientId, ...]:
    """Return the ids of the clients that `corrupt` corrupts."""
    return tuple(federation.ids[client] for client in _choose_clients(federation, share, seed))


def _choose_clients(federation: Federation, share: float, seed: int) -> list[int]:
    """Return the numbers of the corrupted clients, sorted.

    With the same seed, the clients of a smaller share are among those of a larger share.
    """
    checks.number("share", share, 0.0, 1.0)
    checks.integer("seed", seed)
    holders = np.flatnonzero(federation.sizes)
    order = _rng(seed, 0, 0).permutation(holders)
    return sorted(int(client) for client in order[: round(share * len(holders))])


def _copy_shared_samples(federation: Federation) -> Federation:
    """Return a federation in which no two clients share a sample: shared samples are copied."""
    order = np.concatenate(federation.index)
    if len(np.unique(order)) == len(order):
        return federation
    return replace(
        federation, train=federation.train.take(order), index=slices(federation.sizes.tolist())
    )


def _rng(seed: int, purpose: int, client: int) -> np.random.Generator:
    return data_stream(seed, "corruption", purpose, client)
