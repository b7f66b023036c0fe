"""How far models move and how far they part, read off the Gram.

FedCos (Zhang et al., IEEE Internet of Things Journal, 2023), Figures 3 and 12, with d_k the clients' displacements:

    |d| = |sum_k l_k d_k| = sqrt( sum_k l_k^2 |d_k|^2 + sum_{i != j} l_i l_j |d_i| |d_j| cos theta_ij )    (4)

Near-orthogonal updates move the global model by 1 / sqrt(N) of what they move the local ones.

FedAdp (Wu and Wang, IEEE TCCN, 2021), Equations (8) and (9) and Section V-C: angles of the updates to their mean, and
the divergence `(1/|S|) sum_i |grad F - grad F_i|`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from steelyard.core import checks
from steelyard.core.errors import SteelyardError
from steelyard.core.gram import Array, Gram
from steelyard.diagnostics.cohort import Updates, Weights, gram_of, shares_of
from steelyard.rules.fedadp import angles_to_mean, smooth_angles


@dataclass(frozen=True)
class Distances:
    """One round's distances (FedCos, Figure 12).

    Attributes:
        local: how far each local model moved, `|d_k|`, `[K]`.
        between: between local models, `|theta_i - theta_j|`, `[K, K]`.
        moved: how far the global model moved, Equation (4).
    """

    local: Array
    between: Array
    moved: float

    @property
    def mean_between(self) -> float:
        """The mean distance of two local models; 0 of a single one."""
        return _mean_pair(self.between)


def update_cosines(updates: Updates) -> Array:
    """`cos(d_i, d_j)` of every two clients, `[K, K]`; 0 where an update is zero (FedCos, Figure 3)."""
    cosines: Array = gram_of(updates).cosines()[0]
    return cosines


def mean_cosine(updates: Updates) -> float:
    """The mean of `cos(d_i, d_j)` over pairs of different clients; 0 of a single one."""
    return _mean_pair(update_cosines(updates))


def moving_distances(updates: Updates, weights: Weights | None = None) -> Distances:
    """How far the local models and, with these weights, the global model moved; equal weights by default."""
    gram, shares = _weighed(updates, weights)
    return Distances(
        gram.norms[0], np.sqrt(gram.sq_distances()[0]), float(np.sqrt(gram.mixture_sq_norm(shares[None])[0]))
    )


def gradient_divergence(updates: Updates, weights: Weights | None = None, lr: float = 1.0) -> float:
    """FedAdp, Section V-C: `(1/|S|) sum_i |grad F - grad F_i|`, where `grad F_i = -d_i / lr`.

    Args:
        updates: `[K, d]`, a store or a Gram.
        weights: sizes of the clients' data, which make `grad F = sum_i p_i grad F_i`; equal by default.
        lr: the local learning rate; 1 gives the divergence of the updates.
    """
    checks.number("lr", lr, 0.0, open_low=True)
    gram, shares = _weighed(updates, weights)
    return float(np.sqrt(gram.sq_distances_to(shares[None])[0]).mean() / lr)


def update_angles(updates: Updates, weights: Weights | None = None) -> Array:
    """FedAdp, Equation (8): angles of the updates to their weighted mean, in radians, `[K]`."""
    gram, shares = _weighed(updates, weights)
    found: Array = angles_to_mean(gram, shares[None])[0]
    return found


def smoothed_angles(series: Sequence[Array] | Array) -> Array:
    """FedAdp, Equation (9): for each round the mean of the angles so far, `[T, K]` from `[T, K]`."""
    found = np.asarray(series, dtype=np.float64)
    if found.ndim != 2 or not found.size:
        raise SteelyardError(f"series has shape {list(found.shape)}: give angles [rounds, clients]")
    smooth = [found[0]]
    for t, angle in enumerate(found[1:], start=2):
        smooth.append(smooth_angles(smooth[-1], angle, t))
    return np.array(smooth)


def _weighed(updates: Updates, weights: Weights | None) -> tuple[Gram, Array]:
    gram = gram_of(updates)
    return gram, shares_of(weights, gram.dots.shape[1])


def _mean_pair(matrix: Array) -> float:
    above = matrix[np.triu_indices(len(matrix), 1)]
    return float(above.mean()) if above.size else 0.0
