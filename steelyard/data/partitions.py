"""How one data set is spread over clients.

A partition is a frozen dataclass, called with labels, a number of clients and a random generator; it looks at nothing
else. Clients may end up empty, and `x_class` lets them share samples.
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

_STREAM = int.from_bytes(b"part", "big")  # keeps these draws apart from all others of the same seed


class Partition(ABC):
    """From labels to one list of positions per client.

    Attributes:
        name: the key in text form.
        info: what the command line says of it.
        by_groups: whether it is called with the groups of samples instead of their labels.
        whole: whether every sample goes to one client, and to no other.
        needs_labels: whether it looks at labels; if not, it spreads data of any task.
    """

    name: str
    info: Info
    by_groups: bool = False
    whole: bool = True
    needs_labels: bool = True

    @abstractmethod
    def __call__(self, targets: Index, clients: int, rng: np.random.Generator) -> list[Index]:
        """Positions in `targets` of each client; a pure function of its arguments."""


PARTITIONS = Registry("partition", Partition, "steelyard.partitions")


def partition(spec: str | Partition, targets: Index, clients: int, seed: int) -> list[Index]:
    """Spreads labelled samples over clients by a partition or its text form, e.g. `dirichlet:alpha=0.1`.

    Examples:
        >>> labels = np.array([0, 0, 1, 1, 2, 2])
        >>> sorted(len(positions) for positions in partition("iid", labels, clients=3, seed=0))
        [2, 2, 2]
    """
    made: Partition = parse(spec, PARTITIONS) if isinstance(spec, str) else spec
    checks.integer("clients", clients, 1)
    checks.integer("seed", seed)
    labels = np.asarray(targets)
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or (len(labels) and labels.min() < 0):
        raise SteelyardError(f"targets are {labels.dtype} {labels.shape}: a partition needs labels [N], 0 or more")
    if clients > len(labels):
        raise SteelyardError(f"clients={clients}: there are only {len(labels)} samples, use at most as many clients")
    sequence = np.random.SeedSequence(entropy=seed, spawn_key=(_STREAM,))
    return made(labels.astype(np.int64), clients, np.random.Generator(np.random.Philox(sequence)))


def check_alpha(name: str, value: float) -> None:
    """Refuse what is no concentration of a Dirichlet distribution, or one whose draws would overflow."""
    checks.number(name, value, 0.0, 1e100, open_low=True)


@PARTITIONS.register
@dataclass(frozen=True)
class IID(Partition):
    """A random split into parts that differ by one sample at most."""

    name = "iid"
    needs_labels = False
    info = Info("random parts of equal size", "McMahan et al., AISTATS 2017")

    def __call__(self, targets: Index, clients: int, rng: np.random.Generator) -> list[Index]:
        """Shuffle, then cut."""
        return np.array_split(rng.permutation(len(targets)).astype(np.int64), clients)


@PARTITIONS.register
@dataclass(frozen=True)
class Dirichlet(Partition):
    """Label skew as FedLAW's and FedAWA's code draws it.

    Each class is shuffled; of class c client i gets `round(q_ci N_c)` samples, `q_c ~ Dir(alpha 1)`, in consecutive
    slices, and the last client the rest; at last each client's list is shuffled. Draws come in this order: all class
    shuffles, all `q_c`, all client shuffles. Sizes differ, and nothing keeps a client from being empty.
    """

    alpha: float = 0.5

    name = "dirichlet"
    info = Info("each class is shared out by a draw from Dirichlet(alpha)", "Li et al. (FedLAW), ICML 2023")

    def __post_init__(self) -> None:
        check_alpha("alpha", self.alpha)

    def __call__(self, targets: Index, clients: int, rng: np.random.Generator) -> list[Index]:
        """Class shuffles, proportions, slices, client shuffles."""
        pools = shuffled_classes(targets, rng)
        shares = rng.dirichlet(np.full(clients, self.alpha), len(pools))  # [C, K]
        return deal_samples(pools, shares, rng)


@PARTITIONS.register
@dataclass(frozen=True)
class XClass(Partition):
    """FedAdp's "X IID + Y non-IID(x)" nodes: each client has `samples` samples.

    The first `iid` clients draw from all data, the others from the data of `classes` classes chosen at random. With a
    list, `classes=[1,1,1,2,2]`, each of the others has its own number: one entry per client that is not IID. Draws are
    without replacement within a client; clients choose independently, so classes and samples may be shared.

    The paper's section V-A has two further cases in which every client has its own number of classes x_i, out of C;
    `classes` and `iid` then mean nothing. `case=1`: the x_i are distinct, drawn from 1..C. `case=2`: x_i is uniform on
    1..C/2 for the first half of the clients, on C/2+1..C for the others.
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
        """Choose how many classes, which, and the samples of these."""
        labels = np.unique(targets)
        out = []
        for count in self._class_counts(len(labels), clients, rng):
            chosen = rng.choice(labels, count, replace=False)
            pool = np.flatnonzero(np.isin(targets, chosen))
            if len(pool) < self.samples:
                found = f"{count} of the {len(labels)} classes hold only {len(pool)} samples"
                raise SteelyardError(f"samples={self.samples}: {found}, use at most as many")
            out.append(rng.choice(pool, self.samples, replace=False).astype(np.int64))
        return out

    def _class_counts(self, labels: int, clients: int, rng: np.random.Generator) -> list[int]:
        if self.case == 1:
            if clients > labels:
                raise SteelyardError(f"clients={clients}: case=1 needs distinct class counts, use at most {labels}")
            return [int(count) for count in rng.permutation(labels)[:clients] + 1]
        if self.case == 2:
            few, middle = clients // 2, max(1, labels // 2)
            low, high = (
                rng.integers(1, middle + 1, few),
                rng.integers(min(middle + 1, labels), labels + 1, clients - few),
            )
            return [int(count) for count in np.concatenate([low, high])]
        if self.iid > clients:
            raise SteelyardError(f"iid={self.iid}: there are only {clients} clients, use at most as many")
        others = clients - self.iid
        counts = self.classes if isinstance(self.classes, tuple) else (self.classes,) * others
        if len(counts) != others:
            raise SteelyardError(
                f"classes={list(counts)}: {len(counts)} numbers for the {others} clients that are not IID "
                f"({clients} clients, iid={self.iid}): give one for each of them, or one number for all"
            )
        most = max(counts, default=0)
        if most > labels:
            raise SteelyardError(f"classes={most}: the labels show only {labels}, use at most as many")
        return [labels] * self.iid + list(counts)


def shuffled_classes(targets: Index, rng: np.random.Generator) -> list[Index]:
    """Positions of each class 0, 1, ..., shuffled."""
    pools = [np.flatnonzero(targets == label) for label in range(int(targets.max()) + 1)]
    for pool in pools:
        rng.shuffle(pool)
    return pools


def deal_samples(pools: list[Index], shares: NDArray[np.float64], rng: np.random.Generator) -> list[Index]:
    """Deals each class by its row of `shares [C, K]`: rounded slices, the last client takes the rest."""
    clients = shares.shape[1]
    hands: list[list[Index]] = [[] for _ in range(clients)]
    for pool, share in zip(pools, shares, strict=True):
        cuts = np.cumsum(np.round(share[:-1] * len(pool)).astype(np.int64))  # past the end is an empty slice
        for hand, part in zip(hands, np.split(pool, cuts), strict=True):
            hand.append(part)
    out = [np.concatenate(hand).astype(np.int64) for hand in hands]
    for positions in out:
        rng.shuffle(positions)
    return out
