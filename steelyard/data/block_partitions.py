"""Partitions that cut an ordered list into blocks: by label, partly by label, by drawn sizes, or by group."""

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
    """The FedAvg paper's "pathological" split, which FedCos uses for more than ten clients.

    Samples sorted by label are cut into `per_client` times as many shards as clients, of sizes that differ by one at
    most; each client gets `per_client` of them at random. Within a label samples keep their order (FedCos's code sorts
    by an unstable argsort).
    """

    per_client: int = 2

    name = "shards"
    info = Info("sorted by label, cut into shards, some shards per client", "McMahan et al., AISTATS 2017")

    def __post_init__(self) -> None:
        checks.integer("per_client", self.per_client, 1)

    def __call__(self, targets: Index, clients: int, rng: np.random.Generator) -> list[Index]:
        """Sort, cut, deal."""
        count = clients * self.per_client
        if count > len(targets):
            found = f"{clients} clients need {count} shards and there are {len(targets)} samples"
            raise SteelyardError(f"per_client={self.per_client}: {found}, use at most {len(targets) // clients}")
        shards = np.array_split(_by_label(targets), count)
        order = rng.permutation(count).reshape(clients, self.per_client)
        return [np.concatenate([shards[shard] for shard in hand]) for hand in order]


@PARTITIONS.register
@dataclass(frozen=True)
class Sorted(Partition):
    """FedCos's "totally", "90 %" and "70 %" non-IID data and IID data: `share_iid` of 0, 0.1, 0.3 and 1.

    Of each class the first `int(share_iid N_c)` samples go to a pool that is shuffled and split equally; the others,
    sorted by label, are cut into one block per client, in order. The paper takes the pool from each client, the code
    from each class: the same where blocks end with classes. Sizes differ by two at most, and every sample is used (the
    code leaves out what division leaves). With `share_iid=0` nothing is random.
    """

    share_iid: float = 0.0

    name = "sorted"
    info = Info(
        "sorted by label, one block per client, but for a share", "Zhang et al. (FedCos), IEEE IoT Journal 2023"
    )

    def __post_init__(self) -> None:
        checks.number("share_iid", self.share_iid, 0.0, 1.0)

    def __call__(self, targets: Index, clients: int, rng: np.random.Generator) -> list[Index]:
        """Sort, set the pool aside, cut both."""
        order = _by_label(targets)
        sizes = np.unique(targets, return_counts=True)[1]
        rank = np.concatenate([np.arange(size) for size in sizes])  # of each sorted sample within its class
        pooled = rank < np.repeat((self.share_iid * sizes).astype(np.int64), sizes)
        pool = np.array_split(rng.permutation(order[pooled]), clients)
        blocks = np.array_split(order[~pooled], clients)
        return [np.concatenate(both) for both in zip(blocks, pool, strict=True)]


@PARTITIONS.register
@dataclass(frozen=True)
class Quantity(Partition):
    """Quantity skew without label skew: Li et al., "Federated Learning on Non-IID Data Silos", ICDE 2022.

    Samples are shuffled and cut by shares `q ~ Dir(alpha 1)` over clients, drawn again until every client has
    `minimum` samples. The last client takes what rounding leaves. The authors' code, NIID-Bench, has ten clients and a
    minimum of 10, which a hundred clients would reach once in ages.
    """

    alpha: float = 0.5
    minimum: int = 1

    name = "quantity"
    needs_labels = False
    info = Info("sizes by a draw from Dirichlet(alpha), labels alike", "Li et al. (NIID-Bench), ICDE 2022")

    def __post_init__(self) -> None:
        check_alpha("alpha", self.alpha)
        checks.integer("minimum", self.minimum)

    def __call__(self, targets: Index, clients: int, rng: np.random.Generator) -> list[Index]:
        """Shuffle, shares, cut."""
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
    """Natural clients: the role that speaks, the domain an image is from.

    With at least as many groups as clients, each client is one group of `minimum` samples or more, chosen at random
    (LEAF's Shakespeare: one role per client). With fewer, clients are dealt round the groups, and the samples of a
    group are split at random among its clients (digits-5: several clients per domain).
    """

    minimum: int = 1

    name = "by_group"
    info = Info("one group of samples per client: a role, a domain", "Caldas et al. (LEAF), 2018")
    by_groups = True
    whole = False

    def __post_init__(self) -> None:
        checks.integer("minimum", self.minimum, 1)

    def __call__(self, targets: Index, clients: int, rng: np.random.Generator) -> list[Index]:
        """Choose groups, or share them."""
        sizes = np.bincount(targets)
        groups = np.flatnonzero(sizes >= self.minimum)
        if len(groups) == 0:
            raise SteelyardError(f"minimum={self.minimum}: the largest group has {sizes.max()} samples, use at most so")
        if len(groups) >= clients:
            chosen = np.sort(rng.permutation(groups)[:clients])
            return [np.flatnonzero(targets == group).astype(np.int64) for group in chosen]
        out: list[Index] = [np.empty(0, dtype=np.int64)] * clients
        for at, group in enumerate(groups):
            hosts = range(at, clients, len(groups))
            parts = np.array_split(rng.permutation(np.flatnonzero(targets == group)), len(hosts))
            for host, part in zip(hosts, parts, strict=True):
                out[host] = part.astype(np.int64)
        return out


def _by_label(targets: Index) -> Index:
    """Positions sorted by label."""
    return np.argsort(targets, kind="stable").astype(np.int64)
