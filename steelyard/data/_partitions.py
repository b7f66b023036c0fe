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
from steelyard.core._errors import SteelyardError
from steelyard.core._registry import Registry
from steelyard.core._rng import data_stream
from steelyard.core._spec import parse
from steelyard.core._weighting import Info

Index = NDArray[np.int64]


class Partition(ABC):
    """Maps labels to one list of positions per client.

    Attributes:
        name: in spec strings.
        info: title and paper, for the command line.
        by_groups: whether it is called with the groups of samples instead of their labels.
        covers_all_samples: whether every sample goes to exactly one client.
        needs_labels: whether it looks at labels; if not, it works for data of any task.
    """

    name: str
    info: Info
    by_groups: bool = False
    covers_all_samples: bool = True
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
        raise SteelyardError(
            f"targets are {labels.dtype} {labels.shape}: a partition needs labels [N], 0 or more"
        )
    if clients > len(labels):
        raise SteelyardError(
            f"clients={clients}: there are only {len(labels)} samples, use at most {len(labels)}"
        )
    return rule(labels.astype(np.int64), clients, data_stream(seed, "partition"))


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
    info = Info(
        "each class is divided by a draw from Dirichlet(alpha)", "Li et al. (FedLAW), ICML 2023"
    )

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
    info = Info(
        "some clients draw from all classes, the others from x of them", "Wu & Wang, IEEE TCCN 2021"
    )
    covers_all_samples = False

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
                    f"samples={self.samples}: {count} of the {len(labels)} classes have only "
                    f"{len(pool)} samples, "
                    f"use samples={len(pool)} or less"
                )
            index.append(rng.choice(pool, self.samples, replace=False).astype(np.int64))
        return index

    def _class_counts(self, labels: int, clients: int, rng: np.random.Generator) -> list[int]:
        """Return the number of classes of each client."""
        if self.case == 1:
            if clients > labels:
                raise SteelyardError(
                    f"clients={clients}: case=1 needs distinct class counts, use at most {labels}"
                )
            return [int(count) for count in rng.permutation(labels)[:clients] + 1]
        if self.case == 2:
            half = clients // 2
            middle = max(1, labels // 2)
            low = rng.integers(1, middle + 1, half)
            high = rng.integers(min(middle + 1, labels), labels + 1, clients - half)
            return [int(count) for count in np.concatenate([low, high])]
        # Without a case: `iid` clients with all classes, the others with `classes` of them.
        if self.iid > clients:
            raise SteelyardError(
                f"iid={self.iid}: there are only {clients} clients, use at most {clients}"
            )
        skewed = clients - self.iid
        counts = self.classes if isinstance(self.classes, tuple) else (self.classes,) * skewed
        if len(counts) != skewed:
            raise SteelyardError(
                f"classes={list(counts)}: {len(counts)} numbers for the {skewed} clients that are "
                f"not IID "
                f"({clients} clients, iid={self.iid}): give one for each of them, or one number "
                f"for all"
            )
        largest = max(counts, default=0)
        if largest > labels:
            raise SteelyardError(
                f"classes={largest}: the data has only {labels} classes, use at most {labels}"
            )
        return [labels] * self.iid + list(counts)


def shuffle_classes(targets: Index, rng: np.random.Generator) -> list[Index]:
    """Return the positions of each class 0, 1, ..., shuffled."""
    pools = [np.flatnonzero(targets == label) for label in range(int(targets.max()) + 1)]
    for pool in pools:
        rng.shuffle(pool)
    return pools


def deal_samples(
    pools: list[Index], shares: NDArray[np.float64], rng: np.random.Generator
) -> list[Index]:
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


# Label skew from Dirichlet distributions: two concentrations, long tails, and control of sizes.
#
# FedLAW's plain version is `dirichlet` in `partitions.py`. In all of them `alpha` is the
# parameter of
# a symmetric Dirichlet distribution: per client, or per class where each client draws its
# classes.

ATTEMPTS = 1000  # draws until every client has its minimum; more would not help


@PARTITIONS.register
@dataclass(frozen=True)
class HybridDirichlet(Partition):
    """Half of the clients nearly IID, half of them skewed: FedLAW's Fig. 5, as its code draws it.

    Of each class c, the first half of the clients gets the shares `q_c ~ Dir(alpha1 1)`, drawn over
    all clients. The second half divides the remaining samples by `Dir(alpha2 1)`. The rest is as in
    `dirichlet`. Order of the draws: all class shuffles, all shares by alpha1, all shares by alpha2,
    all client shuffles. With an odd number of clients the second half has one client more; the
    authors' code divides by 2 and accepts even numbers only.
    """

    alpha1: float = 10.0
    alpha2: float = 0.1

    name = "hybrid_dirichlet"
    info = Info(
        "half of the clients by Dirichlet(alpha1), half by Dirichlet(alpha2)",
        "Li et al. (FedLAW), ICML 2023",
    )

    def __post_init__(self) -> None:
        check_alpha("alpha1", self.alpha1)
        check_alpha("alpha2", self.alpha2)

    def __call__(self, targets: Index, clients: int, rng: np.random.Generator) -> list[Index]:
        """Shuffle the classes, draw both kinds of shares, deal the samples."""
        pools = shuffle_classes(targets, rng)
        half = clients // 2
        first = rng.dirichlet(np.full(clients, self.alpha1), len(pools))[:, :half]  # [C, K/2]
        second = rng.dirichlet(np.full(clients - half, self.alpha2), len(pools))
        remainder = 1.0 - first.sum(axis=1, keepdims=True)
        return deal_samples(pools, np.hstack([first, remainder * second]), rng)


@PARTITIONS.register
@dataclass(frozen=True)
class LongTail(Partition):
    """Few samples of the last classes, then label skew: FedLAW's long-tailed clients.

    Drawn as in its code.

    Of class c of C, `int(N_c rho^(-c/(C-1)))` samples are used: all of class 0, and a share of
    1/rho of the last class. They are dealt as in `dirichlet`. The other samples go to no client.
    """

    rho: float = 10.0
    alpha: float = 1.0

    name = "long_tail"
    info = Info(
        "class sizes fall by a factor of rho, then Dirichlet(alpha)",
        "Li et al. (FedLAW), ICML 2023",
    )
    covers_all_samples = False

    def __post_init__(self) -> None:
        checks.number("rho", self.rho, 1.0)
        check_alpha("alpha", self.alpha)

    def __call__(self, targets: Index, clients: int, rng: np.random.Generator) -> list[Index]:
        """Shuffle the classes, shorten them, draw the shares, deal the samples."""
        pools = shuffle_classes(targets, rng)
        last = max(1, len(pools) - 1)
        tail = [
            pool[: int(len(pool) * (1 / self.rho) ** (c / last))] for c, pool in enumerate(pools)
        ]
        shares = rng.dirichlet(np.full(clients, self.alpha), len(pools))  # [C, K]
        return deal_samples(tail, shares, rng)


@PARTITIONS.register
@dataclass(frozen=True)
class CappedDirichlet(Partition):
    """Label skew with a maximum and a minimum size.

    As in the code of CriticalFL, PA3Fed, FedDisco and FedML.

    Each class is divided by `q ~ Dir(alpha 1)`, but clients that already have N/K samples or more
    get none, and the other shares are scaled up. Classes are cut at `int(cumsum(q) N_c)`.
    Everything is drawn again until every client has `minimum` samples; then each client's list is
    shuffled. As in CriticalFL's code, the samples of a class are not shuffled, so which of them a
    client gets depends on their order (FedDisco and FedML shuffle them). CriticalFL's code always
    uses seed 1; here you choose the seed.

    Attributes:
        alpha: concentration.
        minimum: samples every client must have; by default the number of classes (CriticalFL).
            FedDisco uses 10.
    """

    alpha: float = 0.5
    minimum: int | None = None

    name = "dirichlet_capped"
    info = Info(
        "Dirichlet(alpha) with a maximum and a minimum size",
        "Yan et al. (CriticalFL), KDD 2023",
    )

    def __post_init__(self) -> None:
        check_alpha("alpha", self.alpha)
        if self.minimum is not None:
            checks.integer("minimum", self.minimum)

    def __call__(self, targets: Index, clients: int, rng: np.random.Generator) -> list[Index]:
        """Draw until all clients have enough samples, then shuffle each client's samples."""
        pools = [np.flatnonzero(targets == label) for label in np.unique(targets)]
        minimum = len(pools) if self.minimum is None else self.minimum
        check_room(minimum, clients, len(targets))
        for _ in range(ATTEMPTS):
            cuts = self._cuts([len(pool) for pool in pools], clients, rng)
            if cuts is None or np.diff(cuts, axis=1).sum(axis=0).min() < minimum:
                continue
            parts = [np.split(pool, row[1:-1]) for pool, row in zip(pools, cuts, strict=True)]
            index = [np.concatenate(own).astype(np.int64) for own in zip(*parts, strict=True)]
            for positions in index:
                rng.shuffle(positions)
            return index
        raise too_rare(f"alpha={self.alpha}", minimum)

    def _cuts(
        self, sizes: list[int], clients: int, rng: np.random.Generator
    ) -> NDArray[np.int64] | None:
        """Return where to cut each class, `[C, K+1]`.

        Return None if no client has both room and a positive share for some class.
        """
        samples = np.zeros(clients, dtype=np.int64)
        cuts = np.zeros((len(sizes), clients + 1), dtype=np.int64)
        for row, size in zip(cuts, sizes, strict=True):
            shares = rng.dirichlet(np.full(clients, self.alpha)) * (samples < sum(sizes) / clients)
            if (
                not shares.sum() > 0
            ):  # with a tiny alpha, all shares may go to clients that are full
                return None
            row[1:] = (np.cumsum(shares / shares.sum()) * size).astype(np.int64)
            row[-1] = size  # the last client takes the remainder of rounding
            samples += np.diff(row)
        return cuts


@PARTITIONS.register
@dataclass(frozen=True)
class BalancedDirichlet(Partition):
    """Label skew with equal sizes.

    Hsu et al., "Measuring the Effects of Non-Identical Data Distribution", 2019.

    One client after the other draws proportions of classes `q ~ Dir(alpha C p)`, where p are the
    shares of the C classes in the data, and then its N/K samples by them, without replacement. A
    class without remaining samples is no longer drawn, so the last clients get the remaining
    classes. If all classes have the same size this is `Dir(alpha 1)`, as in the other partitions;
    the alpha of Hsu et al. is this alpha times C. Sizes differ by one at most.
    """

    alpha: float = 0.5

    name = "dirichlet_balanced"
    info = Info(
        "every client draws its classes from Dirichlet(alpha), sizes are equal", "Hsu et al., 2019"
    )

    def __post_init__(self) -> None:
        check_alpha("alpha", self.alpha)

    def __call__(self, targets: Index, clients: int, rng: np.random.Generator) -> list[Index]:
        """Shuffle the classes; then draw proportions and samples for each client."""
        pools = [pool for pool in shuffle_classes(targets, rng) if len(pool)]
        start = np.zeros(len(pools), dtype=np.int64)
        remaining = np.array([len(pool) for pool in pools])
        prior = float(self.alpha) * len(pools) * remaining / len(targets)  # [C]
        index = []
        for client in range(clients):
            # How many samples of each class.
            size = len(targets) // clients + (client < len(targets) % clients)
            counts = _draw_counts(size, prior, remaining, rng)
            # The next samples of each class.
            parts = [
                pool[at : at + count] for pool, at, count in zip(pools, start, counts, strict=True)
            ]
            start = start + counts
            remaining = remaining - counts
            positions = np.concatenate(parts).astype(np.int64)
            rng.shuffle(positions)
            index.append(positions)
        return index


def _draw_counts(
    size: int, prior: NDArray[np.float64], remaining: Index, rng: np.random.Generator
) -> Index:
    """Return how many samples of each class to take, `size` in total, in shares ~ Dir(prior).

    If a class has fewer samples than drawn, the difference is drawn from the other classes. Shares
    scaled up to some of the classes are again ~ Dir(prior) of these classes, so if a tiny alpha has
    rounded all of them to zero they are drawn again.
    """
    counts = np.zeros_like(remaining)
    shares = rng.dirichlet(prior)
    while counts.sum() < size:
        room = remaining - counts
        open_shares = np.where(room > 0, shares, 0.0)
        if not open_shares.sum() > 0:
            redrawn = rng.dirichlet(prior[room > 0])
            shares[room > 0] = redrawn
            open_shares[room > 0] = redrawn
        drawn_counts = rng.multinomial(size - int(counts.sum()), open_shares / open_shares.sum())
        counts += np.minimum(drawn_counts, room)
    return counts


def check_room(minimum: int, clients: int, samples: int) -> None:
    """Raise an error if there are not enough samples for the minimum of every client."""
    if minimum * clients > samples:
        raise SteelyardError(
            f"minimum={minimum}: {clients} clients would need {minimum * clients} samples and "
            f"there are {samples}, "
            f"use at most {samples // clients}"
        )


def too_rare(option: str, minimum: int) -> SteelyardError:
    """Return the error for when no draw gives every client its minimum."""
    return SteelyardError(
        f"{option}: in {ATTEMPTS} draws there was always a client with fewer than "
        f"minimum={minimum} samples, "
        "use a larger alpha, a smaller minimum or fewer clients"
    )


# Partitions that cut an ordered list into blocks: by label, by random sizes, or by group.


@PARTITIONS.register
@dataclass(frozen=True)
class Shards(Partition):
    """The "pathological" split of the FedAvg paper, which FedCos uses for more than ten clients.

    Samples are sorted by label and cut into `per_client` shards per client; the sizes of the shards
    differ by one at most. Each client gets `per_client` random shards. Samples of the same label
    keep their order (FedCos's code uses an unstable argsort).
    """

    per_client: int = 2

    name = "shards"
    info = Info(
        "sorted by label, cut into shards, some shards per client", "McMahan et al., AISTATS 2017"
    )

    def __post_init__(self) -> None:
        checks.integer("per_client", self.per_client, 1)

    def __call__(self, targets: Index, clients: int, rng: np.random.Generator) -> list[Index]:
        """Sort by label, cut into shards, and give random shards to each client."""
        count = clients * self.per_client
        if count > len(targets):
            raise SteelyardError(
                f"per_client={self.per_client}: {clients} clients need {count} shards and there "
                f"are "
                f"{len(targets)} samples, use at most {len(targets) // clients}"
            )
        shards = np.array_split(_by_label(targets), count)
        order = rng.permutation(count).reshape(clients, self.per_client)
        return [np.concatenate([shards[shard] for shard in own]) for own in order]


@PARTITIONS.register
@dataclass(frozen=True)
class ClassHalves(Partition):
    """Clients of three kinds and one size: FedAWA's Figs. 2, 3 and 7 (appendix A.1).

    A third of the clients has only the first half of the classes, a third only the second half, and
    the others have all classes. The paper has 12 clients, four of each kind. Samples that remain
    are not used.
    """

    name = "class_halves"
    info = Info(
        "the first half of the classes, the second half, or all of them",
        "Shi et al. (FedAWA), CVPR 2025",
    )
    covers_all_samples = False

    def __call__(self, targets: Index, clients: int, rng: np.random.Generator) -> list[Index]:
        """Shuffle both halves, deal the clients of one half, and mix what remains for the others."""
        if clients < 3:
            raise SteelyardError(f"class_halves: {clients} clients: use at least 3, one of a kind")
        classes = np.unique(targets)
        is_low = np.isin(targets, classes[: len(classes) // 2])
        low = rng.permutation(np.flatnonzero(is_low))
        high = rng.permutation(np.flatnonzero(~is_low))

        # The size of all clients: as large as the smaller half allows.
        third = clients // 3
        size = min(len(targets) // clients, len(low) // third, len(high) // third)
        if size == 0:
            raise SteelyardError(
                f"class_halves: {len(low)} and {len(high)} samples of the two halves for "
                f"{clients} clients: use fewer clients"
            )
        used = third * size
        mixed = rng.permutation(np.concatenate([low[used:], high[used:]]))
        pools = [low[:used], high[:used], mixed[: (clients - 2 * third) * size]]
        return [part for pool in pools for part in np.split(pool, len(pool) // size)]


@PARTITIONS.register
@dataclass(frozen=True)
class Sorted(Partition):
    """FedCos's splits from totally non-IID to IID.

    `share_iid` of 0, 0.1, 0.3 and 1 are the paper's "totally", "90 %" and "70 %" non-IID data and
    IID data.

    The first `int(share_iid N_c)` samples of each class go to a pool, which is shuffled and split
    equally. The other samples are sorted by label and cut into one block per client, in order. The
    paper takes the pool from each client, the code from each class: this is the same if blocks end
    where classes end. Sizes differ by two at most, and every sample is used (the authors' code
    drops the remainder of the division). With `share_iid=0` nothing is random.
    """

    share_iid: float = 0.0

    name = "sorted"
    info = Info(
        "sorted by label, one block per client, except for an IID share",
        "Zhang et al. (FedCos), IEEE IoT Journal 2023",
    )

    def __post_init__(self) -> None:
        checks.number("share_iid", self.share_iid, 0.0, 1.0)

    def __call__(self, targets: Index, clients: int, rng: np.random.Generator) -> list[Index]:
        """Sort by label, separate the pool, cut the pool and the rest into one part per client."""
        order = _by_label(targets)
        sizes = np.unique(targets, return_counts=True)[1]
        # The rank of each sorted sample within its class decides whether it belongs to the pool.
        rank = np.concatenate([np.arange(size) for size in sizes])
        is_pooled = rank < np.repeat((self.share_iid * sizes).astype(np.int64), sizes)
        pool = np.array_split(rng.permutation(order[is_pooled]), clients)
        blocks = np.array_split(order[~is_pooled], clients)
        return [np.concatenate(parts) for parts in zip(blocks, pool, strict=True)]


@PARTITIONS.register
@dataclass(frozen=True)
class Quantity(Partition):
    """Quantity skew without label skew.

    Li et al., "Federated Learning on Non-IID Data Silos", ICDE 2022.

    Samples are shuffled and cut by shares `q ~ Dir(alpha 1)` over clients; the shares are drawn
    again until every client has `minimum` samples. The last client takes the remainder of rounding.
    The authors' code, NIID-Bench, has ten clients and a minimum of 10, which a random draw for a
    hundred clients almost never reaches.
    """

    alpha: float = 0.5
    minimum: int = 1

    name = "quantity"
    needs_labels = False
    info = Info(
        "sizes drawn from Dirichlet(alpha), labels not skewed", "Li et al. (NIID-Bench), ICDE 2022"
    )

    def __post_init__(self) -> None:
        check_alpha("alpha", self.alpha)
        checks.integer("minimum", self.minimum)

    def __call__(self, targets: Index, clients: int, rng: np.random.Generator) -> list[Index]:
        """Shuffle the samples, draw shares until they are large enough, cut."""
        check_room(self.minimum, clients, len(targets))
        order = rng.permutation(len(targets)).astype(np.int64)
        for _ in range(ATTEMPTS):
            shares = rng.dirichlet(np.full(clients, self.alpha))
            parts = np.split(order, (np.cumsum(shares)[:-1] * len(order)).astype(np.int64))
            if min(map(len, parts)) >= self.minimum:
                return parts
        raise too_rare(f"alpha={self.alpha}", self.minimum)


@PARTITIONS.register
@dataclass(frozen=True)
class ByGroup(Partition):
    """Natural clients: one client per role that speaks, or per domain of images.

    With at least as many groups as clients, each client is one random group of at least `minimum`
    samples (LEAF's Shakespeare: one role per client). With fewer groups, clients are assigned to
    the groups in turn, and the samples of a group are split at random among its clients (digits-5:
    several clients per domain).
    """

    minimum: int = 1

    name = "by_group"
    info = Info("one group of samples per client: a role, a domain", "Caldas et al. (LEAF), 2018")
    by_groups = True
    covers_all_samples = False

    def __post_init__(self) -> None:
        checks.integer("minimum", self.minimum, 1)

    def __call__(self, targets: Index, clients: int, rng: np.random.Generator) -> list[Index]:
        """Choose one group per client, or split groups among clients."""
        sizes = np.bincount(targets)
        groups = np.flatnonzero(sizes >= self.minimum)
        if len(groups) == 0:
            largest = sizes.max()
            raise SteelyardError(
                f"minimum={self.minimum}: the largest group has {largest} samples, use "
                f"minimum={largest} or less"
            )
        # Enough groups: each client is one of them.
        if len(groups) >= clients:
            selected_groups = np.sort(rng.permutation(groups)[:clients])
            return [np.flatnonzero(targets == group).astype(np.int64) for group in selected_groups]
        # Fewer groups than clients: several clients share a group.
        index: list[Index] = [np.empty(0, dtype=np.int64)] * clients
        for position, group in enumerate(groups):
            hosts = range(position, clients, len(groups))
            parts = np.array_split(rng.permutation(np.flatnonzero(targets == group)), len(hosts))
            for host, part in zip(hosts, parts, strict=True):
                index[host] = part.astype(np.int64)
        return index


def _by_label(targets: Index) -> Index:
    """Return the positions of the samples, sorted by label."""
    return np.argsort(targets, kind="stable").astype(np.int64)
