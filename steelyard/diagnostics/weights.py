"""Aggregation weights: how even they are, what they follow, and where they lead.

    FedAWA, Fig. 3    distance of client vectors and of their mixture to the ideal vector
    FedAWA, Fig. 7    cosine of the weights to the data vector, round by round
    FedLAW, Table 11  correlation of the weights with data size, with heterogeneity, and with both

All take arrays; those whose names begin with `run_` read a run directory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import nn

from steelyard.client.local import LocalTraining
from steelyard.core import checks
from steelyard.core.client_state import ClientId
from steelyard.core.errors import SteelyardError
from steelyard.core.evidence import inner_products
from steelyard.core.gram import Array, Gram
from steelyard.core.layout import Params
from steelyard.data import Federation
from steelyard.diagnostics.recorded import Run, Series, by_client, history_of
from steelyard.runs.directory import read_clients
from steelyard.sim.simulate import simulate
from steelyard.stores.memory import MemoryStore

Models = Mapping[ClientId, Params] | Sequence[Params] | torch.Tensor


def effective_clients(weights: ArrayLike) -> Array:
    """`1 / sum of squared shares` along the last axis: K for equal weights, 1 if one client has all."""
    size = np.nan_to_num(np.abs(np.asarray(weights, dtype=np.float64)))
    if not size.any(axis=-1).all():
        raise SteelyardError("weights: a round has none but 0: leave it out")
    shares = size / size.sum(axis=-1, keepdims=True)
    count: Array = 1 / (shares**2).sum(axis=-1)
    return count


def similarity(weights: ArrayLike, vector: ArrayLike) -> Array:
    """Cosine between weights `[T, K]` or `[K]` and a vector `[K]`, over the clients that have a weight (not NaN)."""
    given = np.asarray(weights, dtype=np.float64)
    other = np.asarray(vector, dtype=np.float64)
    if other.shape != given.shape[-1:]:
        raise SteelyardError(f"weights of {given.shape[-1]} clients and a vector {list(other.shape)}: give one of each")
    seen = ~np.isnan(given)
    left, right = np.where(seen, given, 0.0), np.where(seen, other, 0.0)
    lengths = np.linalg.norm(left, axis=-1) * np.linalg.norm(right, axis=-1)
    cosine: Array = np.divide((left * right).sum(axis=-1), lengths, out=np.zeros_like(lengths), where=lengths > 0)
    return cosine


def run_similarity(run: Run, vector: Mapping[Any, float] | None = None) -> Series:
    """FedAWA, Fig. 7: how near a run's weights are to the data vector, round by round.

    The paper's data vector is `1 / (1 + OT distance of a client's data to all data)`: see `data_vector`. Without one,
    the clients' sizes stand in for it, read from the run directory. In a round of few clients only theirs count.
    """
    table = by_client(run, "weights")
    by_id = dict(zip(*_read_client_counts(run, "sizes"), strict=True)) if vector is None else vector
    return Series(table.rounds, similarity(table.values, table.columns(by_id)))


def heterogeneity(counts: ArrayLike, floor: float = 0.0) -> Array:
    """FedLAW's heterogeneity degree, `1 / variance of a client's class distribution`, from counts `[K, C]`.

    Despite its name it is large for a client whose classes are balanced. Taken literally it is infinite for one that is
    perfectly so, which is an error here: variances below `floor` count as `floor`. The paper does not say whether the
    distribution is in counts or in shares: in shares here, so that the degree does not follow the size.
    """
    samples = np.asarray(counts, dtype=np.float64)
    sizes = samples.sum(axis=1)
    if not sizes.all():
        raise SteelyardError(f"counts: client {int(np.argmin(sizes))} has no sample: leave it out")
    variance = np.maximum((samples / sizes[:, None]).var(axis=1), floor)
    if not variance.all():
        balanced = int(np.argmin(variance))
        raise SteelyardError(
            f"counts: the classes of client {balanced} are balanced, 1 / variance is infinite: give floor=1e-6 or so"
        )
    degree: Array = 1 / variance
    return degree


@dataclass(frozen=True)
class Correlations:
    """FedLAW, Table 11: Pearson's coefficient of the weights with size, with heterogeneity degree, and their product.

    None where it is undefined, as for sizes that are all the same.
    """

    size: float | None
    heterogeneity: float | None
    product: float | None


def weight_correlations(weights: ArrayLike, sizes: ArrayLike, counts: ArrayLike, floor: float = 0.0) -> Correlations:
    """What weights `[T, K]` or `[K]`, added up over rounds, follow; `floor` is that of `heterogeneity`."""
    total = np.nansum(np.atleast_2d(np.asarray(weights, dtype=np.float64)), axis=0)
    size, degree = np.asarray(sizes, dtype=np.float64), heterogeneity(counts, floor)
    return Correlations(pearson(total, size), pearson(total, degree), pearson(total, size * degree))


def run_correlations(run: Run, floor: float = 0.0) -> Correlations:
    """FedLAW, Table 11, of a run directory: "the accumulated weights during the training"."""
    table = by_client(run, "weights")
    ids, sizes = _read_client_counts(run, "sizes")
    counts = dict(zip(ids, _read_client_counts(run, "counts")[1], strict=True))
    held = np.array([counts[client] for client in table.clients])
    return weight_correlations(table.values, table.columns(dict(zip(ids, sizes, strict=True))), held, floor)


def pearson(a: ArrayLike, b: ArrayLike) -> float | None:
    """Pearson's correlation coefficient; None if either side is constant."""
    x, y = (np.asarray(side, dtype=np.float64).ravel() for side in (a, b))
    if x.shape != y.shape:
        raise SteelyardError(f"{len(x)} and {len(y)} numbers: give equally many to correlate")
    if _constant(x) or _constant(y):
        return None
    x, y = x - x.mean(), y - y.mean()
    return float(x @ y) / float(np.linalg.norm(x) * np.linalg.norm(y))


def _constant(values: Array) -> bool:
    """Whether numbers differ by no more than rounding makes them, or cannot be compared."""
    return not values.size or not np.ptp(values) > 1e-12 * np.abs(values).max()


@dataclass(frozen=True)
class IdealDistances:
    """FedAWA, Fig. 3: distances to the ideal vector, of each client vector `[K]` and of their mixture."""

    clients: Array
    merged: float


def ideal_distances(
    base: Params, clients: Models, ideal: Params, weights: ArrayLike, metric: str = "cosine"
) -> IdealDistances:
    """How far client vectors, and their mixture by `weights`, are from the ideal vector.

    All are models, as state dicts or flat tensors; vectors are their differences to `base`. The paper mixes by data
    size. It does not say which distance Fig. 3 shows: `cosine` is 1 - cosine, as in its Fig. 2, `euclidean` the norm of
    the difference.
    """
    checks.one_of("metric", metric, "cosine", "euclidean")
    models = list(clients.values()) if isinstance(clients, Mapping) else list(clients)
    share = np.asarray(weights, dtype=np.float64)
    if share.shape != (len(models),) or not share.sum() > 0:
        raise SteelyardError(f"weights={share.tolist()}: give one for each of {len(models)} clients, not all of them 0")
    gram = gram_of_models(base, [*models, ideal])[1]
    mixture = np.append(share / share.sum(), 0.0)[None]
    if metric == "cosine":
        far, merged = 1 - gram.cosines()[0, :, -1], 1 - gram.cosines_to(mixture)[0, -1]
    else:
        far, merged = np.sqrt(gram.sq_distances()[0, :, -1]), np.sqrt(gram.sq_distances_to(mixture)[0, -1])
    return IdealDistances(far[:-1], float(merged))


def ideal_model(
    data: Federation, model: nn.Module, local: LocalTraining | Mapping[str, Any] | None = None, seed: int = 0
) -> Mapping[str, torch.Tensor]:
    """FedAWA's `theta_ideal`: the model trained on all clients' data as one set.

    One round of one client that holds the union; `local` is as in `simulate`. The paper does not say for how long the
    ideal model trains: an epoch here has about as many steps as all clients' epochs together.
    """
    union = Federation(data.train, ("all",), (np.unique(np.concatenate(data.index)),))
    run = simulate("uniform", union, model, rounds=1, local=local, seed=seed, executor="serial", evaluate_every=0)
    return run.params


def gram_of_models(base: Params, clients: Models) -> tuple[tuple[ClientId, ...], Gram]:
    """Ids in order, and the Gram of the clients' updates and the base model."""
    store = MemoryStore.of(base, clients)
    for client, reason in store.quarantined.items():
        raise SteelyardError(f"client {client!r}: {reason}: leave it out")
    return store.ids, inner_products(store)


def _read_client_counts(run: Run, what: str) -> tuple[list[str], list[Any]]:
    """Ids of a run's clients, and what each holds, from `clients.json`."""
    path = history_of(run).path
    held = None if path is None else read_clients(path)
    if held is None:
        raise SteelyardError(f"{path or 'a run in memory'}: does not say what clients hold: give arrays of your own")
    if what not in held:
        raise SteelyardError(f"{path}: has no {what} of clients: targets are no classes")
    return [str(client) for client in held["ids"]], held[what]
