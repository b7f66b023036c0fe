"""Aggregation weights: how even they are, what they correlate with, and where the mixture ends up.

    FedAWA, Fig. 3    distance of client vectors and of their mixture to the ideal vector
    FedAWA, Fig. 7    cosine of the weights to the data vector, round by round
    FedLAW, Table 11  correlation of the weights with data size, with heterogeneity, and with both

All functions take arrays, except those whose names begin with `run_`: they read a run directory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import nn

from steelyard.client._local import LocalTraining
from steelyard.core import checks
from steelyard.core._errors import SteelyardError
from steelyard.core._evidence import inner_products
from steelyard.core._gram import Array, Gram
from steelyard.core._layout import Params
from steelyard.core._state import ClientId
from steelyard.data import Federation
from steelyard.diagnostics._recorded import Run, Series, by_client, history_of
from steelyard.experiments._correlations import Correlations, weight_correlations
from steelyard.runs._directory import read_clients
from steelyard.sim._simulate import simulate
from steelyard.stores._memory import MemoryStore

Models = Mapping[ClientId, Params] | Sequence[Params] | torch.Tensor


def effective_clients(weights: ArrayLike) -> Array:
    """Return `1 / sum of squared shares` along the last axis.

    It is K for equal weights and 1 if one client has all.
    """
    sizes = np.nan_to_num(np.abs(np.asarray(weights, dtype=np.float64)))
    if not sizes.any(axis=-1).all():
        raise SteelyardError("weights: in one round all weights are 0: leave this round out")
    shares = sizes / sizes.sum(axis=-1, keepdims=True)
    count: Array = 1 / (shares**2).sum(axis=-1)
    return count


def similarity(weights: ArrayLike, vector: ArrayLike) -> Array:
    """Return the cosine between weights `[T, K]` or `[K]` and a vector `[K]`.

    Clients without a weight (NaN) do not count.
    """
    table = np.asarray(weights, dtype=np.float64)
    row = np.asarray(vector, dtype=np.float64)
    if row.shape != table.shape[-1:]:
        raise SteelyardError(
            f"weights of {table.shape[-1]} clients and a vector {list(row.shape)}: use the same "
            f"clients"
        )
    has_weight = ~np.isnan(table)
    x = np.where(has_weight, table, 0.0)
    y = np.where(has_weight, row, 0.0)
    lengths = np.linalg.norm(x, axis=-1) * np.linalg.norm(y, axis=-1)
    cosine: Array = np.divide(
        (x * y).sum(axis=-1), lengths, out=np.zeros_like(lengths), where=lengths > 0
    )
    return cosine


def run_similarity(run: Run, vector: Mapping[Any, float] | None = None) -> Series:
    """Return the similarity of a run's weights and the data vector in each round (FedAWA, Fig. 7).

    The paper's data vector is `1 / (1 + OT distance of a client's data to all data)`: see
    `data_vector`. By default the clients' sizes from the run directory are used instead. In a round
    with few clients only these count.
    """
    table = by_client(run, "weights")
    if vector is None:
        vector = dict(zip(*_read_client_counts(run, "sizes"), strict=True))
    return Series(table.rounds, similarity(table.values, table.columns(vector)))


def run_correlations(run: Run, floor: float = 0.0) -> Correlations:
    """Return the correlations of the accumulated weights of a run (FedLAW, Table 11).

    The paper speaks of "the accumulated weights during the training".
    """
    table = by_client(run, "weights")
    ids, sizes = _read_client_counts(run, "sizes")
    by_id = dict(zip(ids, _read_client_counts(run, "counts")[1], strict=True))
    counts = np.array([by_id[client] for client in table.clients])
    return weight_correlations(
        table.values, table.columns(dict(zip(ids, sizes, strict=True))), counts, floor
    )


@dataclass(frozen=True)
class IdealDistances:
    """Distances of client vectors `[K]` and their mixture to the ideal vector (FedAWA, Fig. 3)."""

    clients: Array
    merged: float


def ideal_distances(
    base: Params, clients: Models, ideal: Params, weights: ArrayLike, metric: str = "cosine"
) -> IdealDistances:
    """Return how far client vectors, and their mixture by `weights`, are from the ideal vector.

    All are models, as state dicts or flat tensors; vectors are their differences to `base`. The
    paper mixes by data size. It does not say which distance Fig. 3 shows: `cosine` is 1 - cosine,
    as in its Fig. 2, `euclidean` the norm of the difference.
    """
    checks.one_of("metric", metric, "cosine", "euclidean")
    models = list(clients.values()) if isinstance(clients, Mapping) else list(clients)
    share = np.asarray(weights, dtype=np.float64)
    if share.shape != (len(models),) or not share.sum() > 0:
        raise SteelyardError(
            f"weights={share.tolist()}: give one for each of {len(models)} clients, not all of "
            f"them 0"
        )
    # The ideal model is the last row of the Gram.
    gram = gram_of_models(base, [*models, ideal])[1]
    mixture = np.append(share / share.sum(), 0.0)[None]
    if metric == "cosine":
        distances = 1 - gram.cosines()[0, :, -1]
        merged = 1 - gram.cosines_to(mixture)[0, -1]
    else:
        distances = np.sqrt(gram.sq_distances()[0, :, -1])
        merged = np.sqrt(gram.sq_distances_to(mixture)[0, -1])
    return IdealDistances(distances[:-1], float(merged))


def ideal_model(
    data: Federation,
    model: nn.Module,
    local: LocalTraining | Mapping[str, Any] | None = None,
    seed: int = 0,
) -> Mapping[str, torch.Tensor]:
    """Return FedAWA's `theta_ideal`: the model trained on the data of all clients as one set.

    It is one round of one client with all data; `local` is as in `simulate`. The paper does not say
    how long the ideal model trains: an epoch here has about as many steps as the epochs of all
    clients together.
    """
    union = Federation(data.train, ("all",), (np.unique(np.concatenate(data.index)),))
    run = simulate(
        "uniform",
        union,
        model,
        rounds=1,
        local=local,
        seed=seed,
        executor="serial",
        evaluate_every=0,
    )
    return run.params


def gram_of_models(base: Params, clients: Models) -> tuple[tuple[ClientId, ...], Gram]:
    """Return the ids in order, and the Gram of the clients' updates and the base model."""
    store = MemoryStore.of(base, clients)
    for client, reason in store.quarantined.items():
        raise SteelyardError(f"client {client!r}: {reason}: leave it out")
    return store.ids, inner_products(store)


def _read_client_counts(run: Run, name: str) -> tuple[list[str], list[Any]]:
    """Return the ids of a run's clients, and their `sizes` or `counts`, from `clients.json`."""
    path = history_of(run).path
    clients = None if path is None else read_clients(path)
    if clients is None:
        raise SteelyardError(
            f"{path or 'a run in memory'}: has no record of its clients: give arrays of your own"
        )
    if name not in clients:
        raise SteelyardError(f"{path}: has no {name} of clients: targets are not classes")
    return [str(client) for client in clients["ids"]], clients[name]
