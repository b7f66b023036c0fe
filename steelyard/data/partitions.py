"""Partitions: how one data set is distributed over clients.

A partition is a frozen dataclass that is called with labels, a number of clients and a random
generator, and depends on nothing else. Clients may end up without samples, and `x_class` lets them
share samples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.core import checks
from steelyard.core.errors import SteelyardError
from steelyard.core.registry import Registry
from steelyard.core.spec import parse
from steelyard.core.weighting import Info

Index = NDArray[np.int64]

_STREAM = int.from_bytes(b"part", "big")  # separates these draws from others of the same seed


class Partition(ABC):
    """Maps labels to one list of positions per client.

    Attributes:
        name: in spec strings.
        info: title and paper, for the command line.
        by_groups: whether it is called with the groups of samples instead of their labels.
        whole: whether every sample goes to exactly one client.
        needs_labels: whether it looks at labels; if not, it works for data of any task.
    """

    name: str
    info: Info
    by_groups: bool = False
    whole: bool = True
    needs_labels: bool = True

    @abstractmethod
    def __call__(self, targets: Index, clients: int, rng: np.random.Generator) -> list[Index]:
        """Return the positions in `targets` of each client; a pure function of its arguments."""


PARTITIONS = Registry("partition", Partition, "steelyard.partitions")


def partition(spec: str | Partition, targets: Index, clients: int, seed: int) -> list[Index]:
    """Distribute labelled samples over clients.

    Args:
        spec: a partition or its spec string, e.g. `dirichlet:alpha=0.1`.
        targets: the labels `[N]`.
        clients: the number of clients.
        seed: of the random draws.

    Returns:
        The positions of each client's samples.

    Examples:
        >>> labels = np.array([0, 0, 1, 1, 2, 2])
        >>> sorted(len(positions) for positions in partition("iid", labels, clients=3, seed=0))
        [2, 2, 2]
    """
    rule: Partition = parse(spec, PARTITIONS) if isinstance(spec, str) else spec
    checks.integer("clients", clients, 1)
    checks.integer("seed", seed)
    labels = np.asarray(targets)
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or (len(labels) and labels.min() < 0):
        raise SteelyardError(f"targets are {labels.dtype} {labels.shape}: a partition needs labels [N], 0 or more")
    if clients > len(labels):
        raise SteelyardError(f"clients={clients}: there are only {len(labels)} samples, use at most {len(labels)}")
    sequence = np.random.SeedSequence(entropy=seed, spawn_key=(_STREAM,))
    return rule(labels.astype(np.int64), clients, np.random.Generator(np.random.Philox(sequence)))


def check_alpha(name: str, value: float) -> None:
    """Raise an error if a value is not positive, or too large for a Dirichlet distribution."""
    checks.number(name, value, 0.0, 1e100, open_low=True)


@PARTITIONS.register
@dataclass(frozen=True)
class IID(Partition):
    """A random split into parts whose sizes differ by one sample at most."""

    name = "iid"
    needs_labels = False
    info = Info("random parts of equal size", "McMahan et al., AISTATS 2017")

    def __call__(self, targets: Index, clients: int, rng: np.random.Generator) -> list[Index]:
        """Shuffle the samples and cut them into equal parts."""
        return np.array_split(rng.permutation(len(targets)).astype(np.int64), clients)


@PARTITIONS.register
@dataclass(frozen=True)
class Dirichlet(Partition):
    """Label skew as the code of FedLAW and FedAWA draws it.

    Each class is shuffled. Of class c, client i gets `round(q_ci N_c)` samples in consecutive
    slices, `q_c ~ Dir(alpha 1)`, and the last client gets the rest. At the end each client's list
    is shuffled. Order of the draws: all class shuffles, all `q_c`, all client shuffles. Sizes
    differ, and a client may get no samples.
    """

    alpha: float = 0.5

    name = "dirichlet"
    info = Info("each class is divided by a draw from Dirichlet(alpha)", "Li et al. (FedLAW), ICML 2023")

    def __post_init__(self) -> None:
        check_alpha("alpha", self.alpha)

    def __call__(self, targets: Index, clients: int, rng: np.random.Generator) -> list[Index]:
        """Shuffle the classes, draw the shares, deal the samples."""
        pools = shuffle_classes(targets, rng)
        shares = rng.dirichlet(np.full(clients, self.alpha), len(pools))  # [C, K]
        return deal_samples(pools, shares, rng)


@PARTITIONS.register
@dataclass(frozen=True)
class XClass(Partition):
    """FedAdp's "X IID + Y non-IID(x)" nodes: each client has `samples` samples.

    The first `iid` clients draw from all data, the others from the data of `classes` random
    classes. With a list, `classes=[1,1,1,2,2]`, each of the others has its own number: one entry
    per client that is not IID. Draws are without replacement within a client. Clients draw
    independently, so they may share classes and samples.

    The paper's section V-A has two further cases in which every client has its own number of
    classes x_i, out of C; `classes` and `iid` are then ignored. `case=1`: the x_i are distinct,
    drawn from 1..C. `case=2`: x_i is uniform on 1..C/2 for the first half of the clients, on
    C/2+1..C for the others.
    """

    classes: int | tuple[int, ...] = 1
    iid: int = 5
    samples: int = 600
    case: int | None = None

    name = "x_class"
    info = Info("some clients draw from all classes, the others from x of them", "Wu & Wang, IEEE TCCN 2021")
    whole = False

    def __post_init__(self) -> None:
        if isinstance(self.classes, (list, tuple)):
            object.__setattr__(self, "classes", tuple(self.classes))
            for count in self.classes:
                checks.integer("classes", count, 1)
        else:
            checks.integer("classes", self.classes, 1)
        checks.integer("iid", self.iid)
        checks.integer("samples", self.samples, 1)
        checks.one_of("case", self.case, None, 1, 2)

    def __call__(self, targets: Index, clients: int, rng: np.random.Generator) -> list[Index]:
        """For each client choose the number of classes, the classes and the samples."""
        labels = np.unique(targets)
        index = []
        for count in self._class_counts(len(labels), clients, rng):
            own_labels = rng.choice(labels, count, replace=False)
            pool = np.flatnonzero(np.isin(targets, own_labels))
            if len(pool) < self.samples:
                raise SteelyardError(
                    f"samples={self.samples}: {count} of the {len(labels)} classes have only {len(pool)} samples, "
                    f"use samples={len(pool)} or less"
                )
            index.append(rng.choice(pool, self.samples, replace=False).astype(np.int64))
        return index

    def _class_counts(self, labels: int, clients: int, rng: np.random.Generator) -> list[int]:
        """Return the number of classes of each client."""
        if self.case == 1:
            if clients > labels:
                raise SteelyardError(f"clients={clients}: case=1 needs distinct class counts, use at most {labels}")
            return [int(count) for count in rng.permutation(labels)[:clients] + 1]
        if self.case == 2:
            half = clients // 2
            middle = max(1, labels // 2)
            low = rng.integers(1, middle + 1, half)
            high = rng.integers(min(middle + 1, labels), labels + 1, clients - half)
            return [int(count) for count in np.concatenate([low, high])]
        # Without a case: `iid` clients with all classes, the others with `classes` of them.
        if self.iid > clients:
            raise SteelyardError(f"iid={self.iid}: there are only {clients} clients, use at most {clients}")
        skewed = clients - self.iid
        counts = self.classes if isinstance(self.classes, tuple) else (self.classes,) * skewed
        if len(counts) != skewed:
            raise SteelyardError(
                f"classes={list(counts)}: {len(counts)} numbers for the {skewed} clients that are not IID "
                f"({clients} clients, iid={self.iid}): give one for each of them, or one number for all"
            )
        largest = max(counts, default=0)
        if largest > labels:
            raise SteelyardError(f"classes={largest}: the data has only {labels} classes, use at most {labels}")
        return [labels] * self.iid + list(counts)


def shuffle_classes(targets: Index, rng: np.random.Generator) -> list[Index]:
    """Return the positions of each class 0, 1, ..., shuffled."""
    pools = [np.flatnonzero(targets == label) for label in range(int(targets.max()) + 1)]
    for pool in pools:
        rng.shuffle(pool)
    return pools


def deal_samples(pools: list[Index], shares: NDArray[np.float64], rng: np.random.Generator) -> list[Index]:
    """Return the positions of each client: each class is cut by its row of `shares [C, K]`.

    The sizes of the slices are rounded; the last client gets the rest. Each client's list is
    shuffled.
    """
    clients = shares.shape[1]
    parts: list[list[Index]] = [[] for _ in range(clients)]
    for pool, share in zip(pools, shares, strict=True):
        # A cut beyond the end makes an empty slice.
        cuts = np.cumsum(np.round(share[:-1] * len(pool)).astype(np.int64))
        for own, part in zip(parts, np.split(pool, cuts), strict=True):
            own.append(part)
    index = [np.concatenate(own).astype(np.int64) for own in parts]
    for positions in index:
        rng.shuffle(positions)
    return index
