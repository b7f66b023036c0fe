"""Partitions that cut an ordered list into blocks: by label, by random sizes, or by group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steelyard.core import checks
from steelyard.core.errors import SteelyardError
from steelyard.core.weighting import Info
from steelyard.data.dirichlet_partitions import ATTEMPTS, check_room, too_rare
from steelyard.data.partitions import PARTITIONS, Index, Partition, check_alpha


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
    info = Info("sorted by label, cut into shards, some shards per client", "McMahan et al., AISTATS 2017")

    def __post_init__(self) -> None:
        checks.integer("per_client", self.per_client, 1)

    def __call__(self, targets: Index, clients: int, rng: np.random.Generator) -> list[Index]:
        """Sort by label, cut into shards, and give random shards to each client."""
        count = clients * self.per_client
        if count > len(targets):
            raise SteelyardError(
                f"per_client={self.per_client}: {clients} clients need {count} shards and there are "
                f"{len(targets)} samples, use at most {len(targets) // clients}"
            )
        shards = np.array_split(_by_label(targets), count)
        order = rng.permutation(count).reshape(clients, self.per_client)
        return [np.concatenate([shards[shard] for shard in own]) for own in order]


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
    info = Info("sizes drawn from Dirichlet(alpha), labels not skewed", "Li et al. (NIID-Bench), ICDE 2022")

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
    whole = False

    def __post_init__(self) -> None:
        checks.integer("minimum", self.minimum, 1)

    def __call__(self, targets: Index, clients: int, rng: np.random.Generator) -> list[Index]:
        """Choose one group per client, or split groups among clients."""
        sizes = np.bincount(targets)
        groups = np.flatnonzero(sizes >= self.minimum)
        if len(groups) == 0:
            largest = sizes.max()
            raise SteelyardError(
                f"minimum={self.minimum}: the largest group has {largest} samples, use minimum={largest} or less"
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
