"""Differences between clients: of their data, of their updates, of their models (FedAWA, Fig. 2).

Shi et al., "FedAWA", CVPR 2025, appendix A.1: distances between client vectors are similar to
distances between client data, those between client models are not. Vectors and models are compared
by 1 - cosine, data "via optimal transport", with reference to Alvarez-Melis & Fusi (NeurIPS 2020).
The paper does not say

    the ground cost     that reference adds a distance between labels to that between samples:
                        `cost="labels"`; `cost="features"` is the plain Wasserstein distance
    the features        a pre-trained ResNet-20's for Fig. 7, not given for Fig. 2a: `features`, else
                        the inputs
    the exponent        2 here, and the root is taken: the 2-Wasserstein distance, in the unit of the
                        features
    how many samples    `samples` of each client here, drawn with `seed`

Two samples of the same distribution have a distance too, which falls slowly with their number:
compare distances with each other, and do not read them as absolute. Transport is solved exactly, by
the network simplex of POT.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from steelyard.core import checks
from steelyard.core._errors import SteelyardError
from steelyard.core._gram import Array, Gram
from steelyard.core._layout import Params
from steelyard.core._state import ClientId
from steelyard.data import Federation
from steelyard.data._partitions import Index
from steelyard.diagnostics._weights import Models, gram_of_models
from steelyard.experiments._correlations import pearson

Data = Federation | Mapping[Any, Any]
Features = Callable[[torch.Tensor], torch.Tensor]
_ITERATIONS = 10_000_000  # of the simplex, which ends long before, at the optimum


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
    """Return distances between clients' updates and between their models, both from one Gram.

    Args:
        base: the model they started from: a state dict, or one flat tensor.
        clients: their models, by id or by position.
        metric: `cosine`, that is 1 - cosine, or `euclidean`, which is the same for updates and
            models.
    """
    checks.one_of("metric", metric, "cosine", "euclidean")
    ids, gram = gram_of_models(base, clients)
    if metric == "euclidean":
        distances = np.sqrt(gram.sq_distances()[0])
        return ClientDistances(ids, distances, distances)
    # <theta + d_i, theta + d_j> = |theta|^2 + <theta, d_i> + <theta, d_j> + <d_i, d_j>
    along = gram.theta_dots[:, :, None] + gram.theta_dots[:, None, :]
    dots = gram.theta_sq[:, None, None] + along + gram.dots
    model_gram = Gram(dots, gram.theta_dots, gram.theta_sq, gram.dims)
    return ClientDistances(
        ids, _zero_diagonal(1 - gram.cosines()[0]), _zero_diagonal(1 - model_gram.cosines()[0])
    )


def data_distances(
    data: Data,
    samples: int = 200,
    seed: int = 0,
    cost: str = "features",
    features: Features | None = None,
) -> Array:
    """Return optimal-transport distances between the data sets of clients, `[K, K]` (Fig. 2a).

    Args:
        data: a `Federation`, or one data set per client as in `Federation.of`.
        samples: the maximum per client, drawn with `seed`.
        seed: of the draw.
        cost: `features`: squared Euclidean distance; `labels`: plus the squared distance between
            the distributions of the two labels, each over all clients. (The reference has one for
            each data set; clients share labels.)
        features: maps a batch of inputs to vectors `[n, d]`, such as a network without its head; by
            default the inputs.
    """
    federation = _as_federation(data)
    clouds, label_cost = _clouds(federation, federation.index, samples, seed, cost, features)
    distances = np.zeros((len(clouds), len(clouds)))
    for i in range(len(clouds)):
        for j in range(i):
            distances[i, j] = distances[j, i] = _transport(clouds[i], clouds[j], label_cost)
    return distances


def data_vector(
    data: Data,
    samples: int = 200,
    seed: int = 0,
    cost: str = "features",
    features: Features | None = None,
) -> dict[ClientId, float]:
    """Return FedAWA's data vector (Eq. 5).

    It is the similarity `1 / (1 + d_OT)` of each client's data to all data.

    The arguments are those of `data_distances`; `samples` are also drawn from all data. The unit of
    the features matters: if features are large, the similarity is near 0 for all clients.
    """
    federation = _as_federation(data)
    all_positions = np.unique(np.concatenate(federation.index))
    index = (*federation.index, all_positions)
    clouds, label_cost = _clouds(federation, index, samples, seed, cost, features)
    distances = [_transport(cloud, clouds[-1], label_cost) for cloud in clouds[:-1]]
    return {
        client: 1 / (1 + distance)
        for client, distance in zip(federation.ids, distances, strict=True)
    }


def matrix_correlation(a: ArrayLike, b: ArrayLike) -> float | None:
    """Return Pearson's correlation of two symmetric matrices above the diagonal.

    Return None if either is constant.
    """
    x = np.asarray(a, dtype=np.float64)
    y = np.asarray(b, dtype=np.float64)
    if x.ndim != 2 or x.shape[0] != x.shape[1] or x.shape != y.shape or len(x) < 3:
        shapes = f"{list(x.shape)} and {list(y.shape)}"
        raise SteelyardError(
            f"matrices are {shapes}: give two of the same clients, at least 3 of them"
        )
    above = np.triu_indices(len(x), 1)
    return pearson(x[above], y[above])


@dataclass(frozen=True)
class _Cloud:
    """Samples of one client or label, as points with their labels."""

    points: Array  # [n, d]
    labels: Index | None  # [n]


def _clouds(
    federation: Federation,
    index: Sequence[Index],
    samples: int,
    seed: int,
    cost: str,
    features: Features | None,
) -> tuple[list[_Cloud], Array | None]:
    """Return the samples at each list of positions, and the cost of labels.

    The cost is the squared distance between every two labels, or None for `cost="features"`.
    """
    checks.one_of("cost", cost, "features", "labels")
    checks.integer("samples", samples, 1)
    needs_labels = cost == "labels"
    if needs_labels and (federation.classes is None or federation.train.targets.ndim != 1):
        raise SteelyardError("cost='labels': targets are not classes: use cost='features'")
    for client, size in zip(federation.ids, federation.sizes.tolist(), strict=True):
        if not size:
            raise SteelyardError(f"client {client!r} has no samples: leave it out")

    def draw_cloud(positions: Index, number: int) -> _Cloud:
        subset = np.random.default_rng([seed, number]).permutation(positions)[:samples]
        part = federation.train.take(np.sort(subset))
        points = part.inputs if features is None else features(part.inputs)
        flat = points.detach().reshape(len(points), -1).double().cpu().numpy()
        return _Cloud(flat, part.targets.numpy() if needs_labels else None)

    # One cloud per list of positions.
    clouds = [draw_cloud(positions, number) for number, positions in enumerate(index)]
    if not needs_labels:
        return clouds, None

    # One cloud per label, of the samples of all clients.
    all_positions = np.unique(np.concatenate(federation.index))
    labels = federation.train.targets.numpy()[all_positions]
    label_clouds = {}
    for label in np.unique(labels).tolist():
        label_clouds[label] = draw_cloud(all_positions[labels == label], len(clouds) + int(label))

    # The squared distance between every two labels.
    classes = federation.classes or 0
    label_cost = np.zeros((classes, classes))
    for a in label_clouds:
        for b in label_clouds:
            if b < a:
                square = _transport(label_clouds[a], label_clouds[b], None) ** 2
                label_cost[a, b] = label_cost[b, a] = square
    return clouds, label_cost


def _transport(a: _Cloud, b: _Cloud, label_cost: Array | None) -> float:
    """Return the 2-Wasserstein distance of two clouds.

    All points of a cloud have the same weight.
    """
    ot = _pot()
    squares = (a.points**2).sum(axis=1)[:, None] + (b.points**2).sum(axis=1)
    cost = np.maximum(squares - 2 * a.points @ b.points.T, 0.0)
    if label_cost is not None and a.labels is not None and b.labels is not None:
        cost += label_cost[np.ix_(a.labels, b.labels)]
    weights = [np.full(len(cloud.points), 1 / len(cloud.points)) for cloud in (a, b)]
    return float(np.sqrt(max(ot.emd2(*weights, cost, numItermax=_ITERATIONS), 0.0)))


def _pot() -> Any:
    """Return the module `ot` of POT."""
    try:
        import ot
    except ModuleNotFoundError:
        raise SteelyardError(
            "distances between data sets need POT, which is not installed: pip install "
            "'steelyard[diagnostics]'"
        ) from None
    return ot


def _as_federation(data: Data) -> Federation:
    return data if isinstance(data, Federation) else Federation.of(data)


def _zero_diagonal(matrix: Array) -> Array:
    """Set the diagonal of a distance matrix to exactly 0, which is 1 - 1 up to rounding."""
    np.fill_diagonal(matrix, 0.0)
    return matrix
