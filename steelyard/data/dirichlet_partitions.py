"""Label skew drawn from Dirichlet distributions, other than FedLAW's plain one: two concentrations, long tails, sizes.

`alpha` is the parameter per client (per class, where clients draw) of a symmetric Dirichlet distribution throughout.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.core import checks
from steelyard.core.errors import SteelyardError
from steelyard.core.weighting import Info
from steelyard.data.partitions import PARTITIONS, Index, Partition, check_alpha, deal_samples, shuffled_classes

ATTEMPTS = 1000  # draws until every client has its minimum: beyond this, options ask for the all but impossible


@PARTITIONS.register
@dataclass(frozen=True)
class HybridDirichlet(Partition):
    """Half of the clients nearly IID, half of them skewed: FedLAW's Fig. 5, as its code draws it.

    Of class c the first half of the clients gets the shares `q_c ~ Dir(alpha1 1)` drawn over all clients; what these
    leave is shared out among the others by `Dir(alpha2 1)`. Then as in `dirichlet`. Draws come in this order: all class
    shuffles, all shares by alpha1, all by alpha2, all client shuffles. Of an odd number of clients the second half has
    one more; the code divides by 2 and takes even numbers only.
    """

    alpha1: float = 10.0
    alpha2: float = 0.1

    name = "hybrid_dirichlet"
    info = Info("half of the clients by Dirichlet(alpha1), half by Dirichlet(alpha2)", "Li et al. (FedLAW), ICML 2023")

    def __post_init__(self) -> None:
        check_alpha("alpha1", self.alpha1)
        check_alpha("alpha2", self.alpha2)

    def __call__(self, targets: Index, clients: int, rng: np.random.Generator) -> list[Index]:
        """Class shuffles, both proportions, slices, client shuffles."""
        pools = shuffled_classes(targets, rng)
        half = clients // 2
        first = rng.dirichlet(np.full(clients, self.alpha1), len(pools))[:, :half]  # [C, K/2]
        second = rng.dirichlet(np.full(clients - half, self.alpha2), len(pools))
        left = 1.0 - first.sum(axis=1, keepdims=True)
        return deal_samples(pools, np.hstack([first, left * second]), rng)


@PARTITIONS.register
@dataclass(frozen=True)
class LongTail(Partition):
    """Few samples of late classes, then label skew: FedLAW's long-tailed clients, as its code draws them.

    Of class c, of C, `int(N_c rho^(-c/(C-1)))` samples are kept, so class 0 keeps all and the last class a share of
    1/rho; these are dealt as in `dirichlet`. The other samples go to no client.
    """

    rho: float = 10.0
    alpha: float = 1.0

    name = "long_tail"
    info = Info("class sizes fall by a factor of rho, then Dirichlet(alpha)", "Li et al. (FedLAW), ICML 2023")
    whole = False

    def __post_init__(self) -> None:
        checks.number("rho", self.rho, 1.0)
        check_alpha("alpha", self.alpha)

    def __call__(self, targets: Index, clients: int, rng: np.random.Generator) -> list[Index]:
        """Class shuffles, cuts, proportions, slices, client shuffles."""
        pools = shuffled_classes(targets, rng)
        last = max(1, len(pools) - 1)
        kept = [pool[: int(len(pool) * (1 / self.rho) ** (c / last))] for c, pool in enumerate(pools)]
        shares = rng.dirichlet(np.full(clients, self.alpha), len(pools))  # [C, K]
        return deal_samples(kept, shares, rng)


@PARTITIONS.register
@dataclass(frozen=True)
class CappedDirichlet(Partition):
    """Label skew with a ceiling and a floor on sizes: CriticalFL's code, and so PA3Fed; FedDisco's and FedML's too.

    Class after class is shared out by `q ~ Dir(alpha 1)`, but clients that hold N/K samples or more get none and the
    other shares are scaled up. Classes are cut at `int(cumsum(q) N_c)`. All is drawn again until every client has
    `minimum` samples; then each client's list is shuffled. As in CriticalFL's code the samples of a class are not
    shuffled, so which of them a client gets depends on their order (FedDisco and FedML shuffle them). The code draws
    with the seed 1 always; here the seed decides.

    Attributes:
        alpha: concentration.
        minimum: samples every client must have: by default as many as there are classes (CriticalFL); FedDisco has 10.
    """

    alpha: float = 0.5
    minimum: int | None = None

    name = "dirichlet_capped"
    info = Info(
        "Dirichlet(alpha), full clients get no more, small ones are redrawn", "Yan et al. (CriticalFL), KDD 2023"
    )

    def __post_init__(self) -> None:
        check_alpha("alpha", self.alpha)
        if self.minimum is not None:
            checks.integer("minimum", self.minimum)

    def __call__(self, targets: Index, clients: int, rng: np.random.Generator) -> list[Index]:
        """Proportions and slices until all is well, then client shuffles."""
        pools = [np.flatnonzero(targets == label) for label in np.unique(targets)]
        minimum = len(pools) if self.minimum is None else self.minimum
        check_room(minimum, clients, len(targets))
        for _ in range(ATTEMPTS):
            cuts = self._cuts([len(pool) for pool in pools], clients, rng)
            if cuts is None or np.diff(cuts, axis=1).sum(axis=0).min() < minimum:
                continue
            parts = [np.split(pool, cut[1:-1]) for pool, cut in zip(pools, cuts, strict=True)]
            out = [np.concatenate(hand).astype(np.int64) for hand in zip(*parts, strict=True)]
            for positions in out:
                rng.shuffle(positions)
            return out
        raise too_rare(f"alpha={self.alpha}", minimum)

    def _cuts(self, sizes: list[int], clients: int, rng: np.random.Generator) -> NDArray[np.int64] | None:
        """Where each class is cut, `[C, K+1]`; None where a class finds no client with room and a share."""
        held = np.zeros(clients, dtype=np.int64)
        cuts = np.zeros((len(sizes), clients + 1), dtype=np.int64)
        for row, size in zip(cuts, sizes, strict=True):
            shares = rng.dirichlet(np.full(clients, self.alpha)) * (held < sum(sizes) / clients)
            if not shares.sum() > 0:  # a tiny alpha: all of the draw is with clients that are full
                return None
            row[1:] = (np.cumsum(shares / shares.sum()) * size).astype(np.int64)
            row[-1] = size  # the last client takes what rounding leaves
            held += np.diff(row)
        return cuts


@PARTITIONS.register
@dataclass(frozen=True)
class BalancedDirichlet(Partition):
    """Label skew with equal sizes: Hsu et al., "Measuring the Effects of Non-Identical Data Distribution", 2019.

    Client after client draws its classes' proportions `q ~ Dir(alpha C p)`, p the shares of the C classes in the data,
    and then its N/K samples by them, without replacement; a class that is used up leaves the draw, so late clients get
    what is left. Where classes are of one size this is `Dir(alpha 1)`, as elsewhere; the alpha of Hsu et al. is ours
    times C. Sizes differ by one at most.
    """

    alpha: float = 0.5

    name = "dirichlet_balanced"
    info = Info("every client draws its classes from Dirichlet(alpha), sizes are equal", "Hsu et al., 2019")

    def __post_init__(self) -> None:
        check_alpha("alpha", self.alpha)

    def __call__(self, targets: Index, clients: int, rng: np.random.Generator) -> list[Index]:
        """Class shuffles, then proportions, counts and a shuffle per client."""
        pools = [pool for pool in shuffled_classes(targets, rng) if len(pool)]
        used = np.zeros(len(pools), dtype=np.int64)
        left = np.array([len(pool) for pool in pools])
        prior = float(self.alpha) * len(pools) * left / len(targets)  # [C]
        out = []
        for client in range(clients):
            size = len(targets) // clients + (client < len(targets) % clients)
            counts = _draw_samples(size, prior, left, rng)
            taken = [pool[at : at + count] for pool, at, count in zip(pools, used, counts, strict=True)]
            used, left = used + counts, left - counts
            positions = np.concatenate(taken).astype(np.int64)
            rng.shuffle(positions)
            out.append(positions)
        return out


def _draw_samples(size: int, prior: NDArray[np.float64], left: Index, rng: np.random.Generator) -> Index:
    """So many samples by class, in shares ~ Dir(prior): those a class has no more of are drawn from the others.

    Shares scaled up to the classes that are left are Dir(prior) of these, so where a tiny alpha has rounded all of them
    to zero they are drawn anew.
    """
    counts, shares = np.zeros_like(left), rng.dirichlet(prior)
    while counts.sum() < size:
        room = left - counts
        open_shares = np.where(room > 0, shares, 0.0)
        if not open_shares.sum() > 0:
            open_shares[room > 0] = shares[room > 0] = rng.dirichlet(prior[room > 0])
        wanted = rng.multinomial(size - int(counts.sum()), open_shares / open_shares.sum())
        counts += np.minimum(wanted, room)
    return counts


def check_room(minimum: int, clients: int, samples: int) -> None:
    """Whether all clients can have the minimum at once."""
    if minimum * clients > samples:
        found = f"{clients} clients would need {minimum * clients} samples and there are {samples}"
        raise SteelyardError(f"minimum={minimum}: {found}, use at most {samples // clients}")


def too_rare(option: str, minimum: int) -> SteelyardError:
    """The error if redrawing does not help."""
    found = f"in {ATTEMPTS} draws some client always had fewer than minimum={minimum} samples"
    return SteelyardError(f"{option}: {found}, use a larger alpha, a smaller minimum or fewer clients")
