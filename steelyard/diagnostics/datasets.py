"""Differences between clients: of their data, of their updates, of their models (FedAWA, Fig. 2).

Shi et al., "FedAWA", CVPR 2025, appendix A.1: distances between client vectors look like distances between client data,
those between client models do not. Vectors and models are compared by 1 - cosine, data "via optimal transport", with
reference to Alvarez-Melis & Fusi (NeurIPS 2020). The paper leaves open

    the ground cost     that reference adds a distance between labels to that between samples: `cost="labels"`;
                        `cost="features"` is the plain Wasserstein distance
    the features        a pre-trained ResNet-20's for Fig. 7, not said for Fig. 2a: `features`, else the inputs
    the exponent        2 here, and the root is taken: the 2-Wasserstein distance, in the unit of the features
    how many samples    `samples` of each client here, drawn by `seed`

Two samples of one distribution are at some distance, too, which falls slowly with their number: compare distances, and
do not read them as absolute. Transport is solved exactly, by the network simplex of POT.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from steelyard.core import checks
from steelyard.core.client_state import ClientId
from steelyard.core.errors import SteelyardError
from steelyard.core.gram import Array, Gram
from steelyard.core.layout import Params
from steelyard.data import Federation
from steelyard.data.partitions import Index
from steelyard.diagnostics.weights import Models, gram_of_models, pearson

Data = Federation | Mapping[Any, Any]
Features = Callable[[torch.Tensor], torch.Tensor]
_ITERATIONS = 10_000_000  # of the simplex: it ends long before, at the optimum


@dataclass(frozen=True)
class ClientDistances:
    """Matrices `[K, K]` of distances between clients, in the order of `ids`.

    Attributes:
        ids: the clients.
        vectors: between client vectors `tau_k = theta_k - theta` (Fig. 2b).
        models: between client models `theta_k` (Fig. 2c).
    """

    ids: tuple[ClientId, ...]
    vectors: Array
    models: Array


def client_distances(base: Params, clients: Models, metric: str = "cosine") -> ClientDistances:
    """Distances between clients' updates and between their models, both off one Gram.

    Args:
        base: the model they started from: a state dict, or one flat tensor.
        clients: their models, by id or by position.
        metric: `cosine`, that is 1 - cosine, or `euclidean`, which is the same for updates and models.
    """
    checks.one_of("metric", metric, "cosine", "euclidean")
    ids, gram = gram_of_models(base, clients)
    if metric == "euclidean":
        distances = np.sqrt(gram.sq_distances()[0])
        return ClientDistances(ids, distances, distances)
    along = gram.theta_dots[:, :, None] + gram.theta_dots[:, None, :]
    models = Gram(gram.theta_sq[:, None, None] + along + gram.dots, gram.theta_dots, gram.theta_sq, gram.dims)
    return ClientDistances(ids, *(_zero_diagonal(1 - one.cosines()[0]) for one in (gram, models)))


def data_distances(
    data: Data, samples: int = 200, seed: int = 0, cost: str = "features", features: Features | None = None
) -> Array:
    """Optimal transport between the data sets of clients, `[K, K]` (Fig. 2a).

    Args:
        data: a `Federation`, or one data set per client as `Federation.of` takes them.
        samples: of each client at most, drawn by `seed`.
        seed: of the draw.
        cost: `features`: squared Euclidean distance; `labels`: plus the squared distance between the two labels' own
            distributions, each taken over all clients. (The reference has one for each data set; clients share labels.)
        features: from a batch of inputs to vectors `[n, d]`, such as a network without its head; by default the inputs.
    """
    federation = _federated(data)
    clouds, between = _clouds(federation, federation.index, samples, seed, cost, features)
    distances = np.zeros((len(clouds), len(clouds)))
    for i, one in enumerate(clouds):
        for j, other in enumerate(clouds[:i]):
            distances[i, j] = distances[j, i] = _transport(one, other, between)
    return distances


def data_vector(
    data: Data, samples: int = 200, seed: int = 0, cost: str = "features", features: Features | None = None
) -> dict[ClientId, float]:
    """FedAWA's data vector: by client, the similarity `1 / (1 + d_OT)` of its data to that of all (Eq. 5).

    Arguments as of `data_distances`; of all data, `samples` are drawn as well. The unit of the features matters: a
    similarity is near 0 for all clients if features are large.
    """
    federation = _federated(data)
    everything = np.unique(np.concatenate(federation.index))
    clouds, between = _clouds(federation, (*federation.index, everything), samples, seed, cost, features)
    far = [_transport(cloud, clouds[-1], between) for cloud in clouds[:-1]]
    return {client: 1 / (1 + distance) for client, distance in zip(federation.ids, far, strict=True)}


def matrix_correlation(a: ArrayLike, b: ArrayLike) -> float | None:
    """Pearson's correlation of two symmetric matrices above the diagonal; None if either is constant there."""
    one, other = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if one.ndim != 2 or one.shape[0] != one.shape[1] or one.shape != other.shape or len(one) < 3:
        shapes = f"{list(one.shape)} and {list(other.shape)}"
        raise SteelyardError(f"matrices are {shapes}: give two of the same clients, at least 3 of them")
    above = np.triu_indices(len(one), 1)
    return pearson(one[above], other[above])


@dataclass(frozen=True)
class _Cloud:
    points: Array  # [n, d]
    labels: Index | None  # [n]


def _clouds(
    federation: Federation, index: Sequence[Index], samples: int, seed: int, cost: str, features: Features | None
) -> tuple[list[_Cloud], Array | None]:
    """Samples at each list of positions, and squared distances between labels if the cost asks for them."""
    checks.one_of("cost", cost, "features", "labels")
    checks.integer("samples", samples, 1)
    labelled = cost == "labels"
    if labelled and (federation.classes is None or federation.train.targets.ndim != 1):
        raise SteelyardError("cost='labels': targets are no classes: use cost='features'")
    for client, size in zip(federation.ids, federation.sizes.tolist(), strict=True):
        if not size:
            raise SteelyardError(f"client {client!r} has no sample: leave it out")

    def cloud(positions: Index, number: int) -> _Cloud:
        few = np.random.default_rng([seed, number]).permutation(positions)[:samples]
        taken = federation.train.take(np.sort(few))
        points = taken.inputs if features is None else features(taken.inputs)
        flat = points.detach().reshape(len(points), -1).double().cpu().numpy()
        return _Cloud(flat, taken.targets.numpy() if labelled else None)

    clouds = [cloud(positions, number) for number, positions in enumerate(index)]
    if not labelled:
        return clouds, None
    held = np.unique(np.concatenate(federation.index))
    labels = federation.train.targets.numpy()[held]
    present = np.unique(labels)
    classes = {label: cloud(held[labels == label], len(clouds) + int(label)) for label in present.tolist()}
    between = np.zeros((federation.classes or 0, federation.classes or 0))
    for a in classes:
        for b in classes:
            if b < a:
                between[a, b] = between[b, a] = _transport(classes[a], classes[b], None) ** 2
    return clouds, between


def _transport(one: _Cloud, other: _Cloud, between: Array | None) -> float:
    """The 2-Wasserstein distance of two clouds, all points of one alike."""
    ot = _pot()
    squares = (one.points**2).sum(axis=1)[:, None] + (other.points**2).sum(axis=1)
    cost = np.maximum(squares - 2 * one.points @ other.points.T, 0.0)
    if between is not None and one.labels is not None and other.labels is not None:
        cost += between[np.ix_(one.labels, other.labels)]
    even = [np.full(len(cloud.points), 1 / len(cloud.points)) for cloud in (one, other)]
    return float(np.sqrt(max(ot.emd2(*even, cost, numItermax=_ITERATIONS), 0.0)))


def _pot() -> Any:
    try:
        import ot
    except ModuleNotFoundError:
        raise SteelyardError(
            "distances between data sets need POT, which is not installed: pip install 'steelyard[diagnostics]'"
        ) from None
    return ot


def _federated(data: Data) -> Federation:
    return data if isinstance(data, Federation) else Federation.of(data)


def _zero_diagonal(matrix: Array) -> Array:
    np.fill_diagonal(matrix, 0.0)  # 1 - 1 up to rounding
    return matrix
