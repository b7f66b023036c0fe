"""Label skew from Dirichlet distributions: two concentrations, long tails, and control of sizes.

FedLAW's plain version is `dirichlet` in `partitions.py`. In all of them `alpha` is the parameter of
a symmetric Dirichlet distribution: per client, or per class where each client draws its classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.core import checks
from steelyard.core.errors import SteelyardError
from steelyard.core.weighting import Info
from steelyard.data.partitions import (
    PARTITIONS,
    Index,
    Partition,
    check_alpha,
    deal_samples,
    shuffle_classes,
)

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
    whole = False

    def __post_init__(self) -> None:
        checks.number("rho", self.rho, 1.0)
        check_alpha("alpha", self.alpha)

    def __call__(self, targets: Index, clients: int, rng: np.random.Generator) -> list[Index]:
        """Shuffle the classes, shorten them, draw the shares, deal the samples."""
        pools = shuffle_classes(targets, rng)
        last = max(1, len(pools) - 1)
        tail = [pool[: int(len(pool) * (1 / self.rho) ** (c / last))] for c, pool in enumerate(pools)]
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

    def _cuts(self, sizes: list[int], clients: int, rng: np.random.Generator) -> NDArray[np.int64] | None:
        """Return where to cut each class, `[C, K+1]`.

        Return None if no client has both room and a positive share for some class.
        """
        samples = np.zeros(clients, dtype=np.int64)
        cuts = np.zeros((len(sizes), clients + 1), dtype=np.int64)
        for row, size in zip(cuts, sizes, strict=True):
            shares = rng.dirichlet(np.full(clients, self.alpha)) * (samples < sum(sizes) / clients)
            if not shares.sum() > 0:  # with a tiny alpha, all shares may go to clients that are full
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
    info = Info("every client draws its classes from Dirichlet(alpha), sizes are equal", "Hsu et al., 2019")

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
            parts = [pool[at : at + count] for pool, at, count in zip(pools, start, counts, strict=True)]
            start = start + counts
            remaining = remaining - counts
            positions = np.concatenate(parts).astype(np.int64)
            rng.shuffle(positions)
            index.append(positions)
        return index


def _draw_counts(size: int, prior: NDArray[np.float64], remaining: Index, rng: np.random.Generator) -> Index:
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
            f"minimum={minimum}: {clients} clients would need {minimum * clients} samples and there are {samples}, "
            f"use at most {samples // clients}"
        )


def too_rare(option: str, minimum: int) -> SteelyardError:
    """Return the error for when no draw gives every client its minimum."""
    return SteelyardError(
        f"{option}: in {ATTEMPTS} draws there was always a client with fewer than minimum={minimum} samples, "
        "use a larger alpha, a smaller minimum or fewer clients"
    )
