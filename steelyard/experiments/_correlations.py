"""Correlation of the aggregation weights with the clients' data: FedLAW, Table 11."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from steelyard.core._errors import SteelyardError
from steelyard.core._gram import Array
from steelyard.runs._directory import read_clients
from steelyard.runs._history import History

FACTORS = {
    "size": "size of a client's data",
    "heterogeneity": "heterogeneity degree of a client's data",
    "product": "size times the heterogeneity degree",
}


def heterogeneity(counts: ArrayLike, floor: float = 0.0) -> Array:
    """Return FedLAW's heterogeneity degree, `1 / variance of the class distribution`, `[K]`.

    `counts` are samples per client and class, `[K, C]`.

    Despite its name it is large for a client whose classes are balanced. Literally it would be
    infinite for perfectly balanced classes, which is an error here: variances below `floor` count
    as `floor`. The paper does not say whether the distribution is in counts or in shares; here it
    is in shares, so that the degree does not depend on the size.
    """
    samples = np.asarray(counts, dtype=np.float64)
    sizes = samples.sum(axis=1)
    if not sizes.all():
        raise SteelyardError(f"counts: client {int(np.argmin(sizes))} has no samples: leave it out")
    variance = np.maximum((samples / sizes[:, None]).var(axis=1), floor)
    if not variance.all():
        balanced = int(np.argmin(variance))
        raise SteelyardError(
            f"counts: the classes of client {balanced} are balanced, 1 / variance is infinite: "
            f"give e.g. floor=1e-6"
        )
    degree: Array = 1 / variance
    return degree


@dataclass(frozen=True)
class Correlations:
    """Pearson's correlations of the weights (FedLAW, Table 11).

    With the size, with the heterogeneity degree, and with their product.

    None if it is undefined, for example if all sizes are the same.
    """

    size: float | None
    heterogeneity: float | None
    product: float | None


def weight_correlations(
    weights: ArrayLike, sizes: ArrayLike, counts: ArrayLike, floor: float = 0.0
) -> Correlations:
    """Return the correlations of weights `[T, K]` or `[K]`, summed over rounds.

    `floor` is that of `heterogeneity`.
    """
    total = np.nansum(np.atleast_2d(np.asarray(weights, dtype=np.float64)), axis=0)
    size = np.asarray(sizes, dtype=np.float64)
    degree = heterogeneity(counts, floor)
    return Correlations(pearson(total, size), pearson(total, degree), pearson(total, size * degree))


def pool_runs(histories: Sequence[History]) -> tuple[Array, Array, Array]:
    """Return the accumulated weights, the sizes and the class counts of the clients of all runs.

    Clients that never had a weight are left out. A client of two runs counts twice.
    """
    weights = []
    sizes = []
    counts = []
    for history in histories:
        # The sum of each client's weights over rounds.
        totals: dict[str, float] = {}
        for record in history:
            for client, weight in record.get("weights", {}).items():
                totals[str(client)] = totals.get(str(client), 0.0) + weight

        # Its data.
        clients = None if history.path is None else read_clients(history.path)
        if clients is None or "counts" not in clients:
            raise SteelyardError(f"{history.name}: has no record of its clients' data")
        for client, size, row in zip(
            clients["ids"], clients["sizes"], clients["counts"], strict=True
        ):
            if str(client) in totals:
                weights.append(totals[str(client)])
                sizes.append(size)
                counts.append(row)
    return np.array(weights), np.array(sizes), np.array(counts)


def pearson(a: ArrayLike, b: ArrayLike) -> float | None:
    """Return Pearson's correlation coefficient; None if either side is constant."""
    x = np.asarray(a, dtype=np.float64).ravel()
    y = np.asarray(b, dtype=np.float64).ravel()
    if x.shape != y.shape:
        raise SteelyardError(f"{len(x)} and {len(y)} numbers: give equally many to correlate")
    if _is_constant(x) or _is_constant(y):
        return None
    x = x - x.mean()
    y = y - y.mean()
    return float(x @ y) / float(np.linalg.norm(x) * np.linalg.norm(y))


def _is_constant(values: Array) -> bool:
    """Return whether numbers differ only by rounding, or cannot be compared."""
    return not values.size or not np.ptp(values) > 1e-12 * np.abs(values).max()
