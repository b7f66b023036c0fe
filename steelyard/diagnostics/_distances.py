"""How far models move and how far they diverge, computed from the Gram.

FedCos (Zhang et al., IEEE Internet of Things Journal, 2023), Figures 3 and 12, with d_k the
clients' displacements:

    |d| = |sum_k l_k d_k| = sqrt( sum_k l_k^2 |d_k|^2 + sum_{i != j} l_i l_j |d_i| |d_j| cos theta_ij )    (4)

If updates are nearly orthogonal, the global model moves by 1 / sqrt(N) of the distance of the local
ones.

FedAdp (Wu and Wang, IEEE TCCN, 2021), Equations (8) and (9) and Section V-C: angles of the updates
to their mean, and the divergence `(1/|S|) sum_i |grad F - grad F_i|`. Theorems 1 and 2: the sum of
weight times cosine, of a rule and of FedAvg.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard.core import checks
from steelyard.core._errors import SteelyardError
from steelyard.core._evidence import inner_products
from steelyard.core._gram import Array, Gram
from steelyard.core._store import UpdateStore
from steelyard.rules._fedadp import angles_to_mean, smooth_angles
from steelyard.stores._memory import MemoryStore

# The arguments of diagnostics of updates: a tensor, a store or a Gram, and weights.

Updates = torch.Tensor | UpdateStore | Gram
Weights = Sequence[float] | NDArray[np.floating] | NDArray[np.integer] | torch.Tensor


def gram_of(updates: Updates) -> Gram:
    """Return the Gram over the whole model.

    `updates` are a tensor `[K, d]`, a store or a Gram.
    """
    if isinstance(updates, Gram):
        return updates.merge_layers()
    if isinstance(updates, torch.Tensor):
        updates = _store_updates(updates)
    return inner_products(updates)


def _store_updates(updates: torch.Tensor) -> MemoryStore:
    """Return a store of updates `[K, d]`; raise an error if they are not finite floats."""
    if updates.ndim != 2 or 0 in updates.shape or not updates.is_floating_point():
        raise SteelyardError(
            f"updates are {updates.dtype} {list(updates.shape)}: give floats [clients, parameters]"
        )
    store = MemoryStore.of(torch.zeros_like(updates[0]), updates)
    if store.quarantined:
        client, reason = next(iter(store.quarantined.items()))
        raise SteelyardError(f"updates: client {client} has {reason}: leave it out")
    return store


def shares_of(weights: Weights | None, count: int) -> Array:
    """Return the weights of `count` clients divided by their sum, float64 `[K]`.

    Equal ones for None.
    """
    shares = np.ones(count) if weights is None else np.asarray(weights, dtype=np.float64)
    if shares.shape != (count,):
        raise SteelyardError(
            f"weights have shape {list(shares.shape)}: give one for each of the {count} clients"
        )
    if not np.isfinite(shares).all() or shares.min() < 0 or shares.sum() == 0:
        raise SteelyardError(f"weights={shares.tolist()}: use numbers >= 0, not all of them 0")
    normalised: Array = shares / shares.sum()
    return normalised


@dataclass(frozen=True)
class Distances:
    """Distances of one round (FedCos, Figure 12).

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
        """The mean distance between two local models; 0 for a single one."""
        return _mean_pair(self.between)


def update_cosines(updates: Updates) -> Array:
    """Return `cos(d_i, d_j)` of every two clients, `[K, K]`.

    0 where an update is zero (FedCos, Figure 3).
    """
    cosines: Array = gram_of(updates).cosines()[0]
    return cosines


def mean_cosine(updates: Updates) -> float:
    """Return the mean of `cos(d_i, d_j)` over pairs of different clients; 0 for a single client."""
    return _mean_pair(update_cosines(updates))


def moving_distances(updates: Updates, weights: Weights | None = None) -> Distances:
    """Return how far the local models and, with these weights, the global model moved.

    Weights are equal by default.
    """
    gram, shares = _gram_and_shares(updates, weights)
    return Distances(
        local=gram.norms[0],
        between=np.sqrt(gram.sq_distances()[0]),
        moved=float(np.sqrt(gram.mixture_sq_norm(shares[None])[0])),
    )


def gradient_divergence(updates: Updates, weights: Weights | None = None, lr: float = 1.0) -> float:
    """Return `(1/|S|) sum_i |grad F - grad F_i|` with `grad F_i = -d_i / lr` (FedAdp, Section V-C).

    Args:
        updates: `[K, d]`, a store or a Gram.
        weights: sizes of the clients' data, for `grad F = sum_i p_i grad F_i`; equal by default.
        lr: the local learning rate; 1 gives the divergence of the updates.
    """
    checks.number("lr", lr, 0.0, open_low=True)
    gram, shares = _gram_and_shares(updates, weights)
    return float(np.sqrt(gram.sq_distances_to(shares[None])[0]).mean() / lr)


def update_angles(updates: Updates, weights: Weights | None = None) -> Array:
    """Return the angles of the updates to their weighted mean, `[K]` (FedAdp, Equation 8).

    They are in radians.
    """
    gram, shares = _gram_and_shares(updates, weights)
    angles: Array = angles_to_mean(gram, shares[None])[0]
    return angles


@dataclass(frozen=True)
class WeightedCosines:
    """The sum of FedAdp's Theorem 1, for a rule and for FedAvg.

    Attributes:
        rule: `sum_i psi_i cos theta_i` with the rule's weights: the larger, the faster the bound on
            the loss falls.
        fedavg: the same sum with weights by size.
    """

    rule: float
    fedavg: float

    @property
    def gain(self) -> float:
        """The difference; Theorem 2 says that it is positive for FedAdp."""
        return self.rule - self.fedavg


def weighted_cosines(
    updates: Updates, weights: Weights, sizes: Weights | None = None
) -> WeightedCosines:
    """Return `sum_i psi_i cos(grad F, grad F_i)`, FedAdp's Theorem 1, and FedAvg's sum beside it.

    The paper's proof of Theorem 2 is for weights of the current angles. With smoothed angles (Eq.
    9), a round may have a negative gain.

    Args:
        updates: `[K, d]`, a store or a Gram.
        weights: the rule's weights psi.
        sizes: of the clients' data, for `grad F = sum_i p_i grad F_i`; equal by default.
    """
    gram, psi = _gram_and_shares(updates, weights)
    shares = shares_of(sizes, len(psi))
    cosines = gram.cosines_to(shares[None])[0]
    return WeightedCosines(float(psi @ cosines), float(shares @ cosines))


def smoothed_angles(series: Sequence[Array] | Array) -> Array:
    """Return for each round the mean of the angles so far, `[T, K]` (FedAdp, Equation 9)."""
    angles = np.asarray(series, dtype=np.float64)
    if angles.ndim != 2 or not angles.size:
        raise SteelyardError(
            f"series has shape {list(angles.shape)}: give angles [rounds, clients]"
        )
    smooth = [angles[0]]
    for t, angle in enumerate(angles[1:], start=2):
        smooth.append(smooth_angles(smooth[-1], angle, t))
    return np.array(smooth)


def _gram_and_shares(updates: Updates, weights: Weights | None) -> tuple[Gram, Array]:
    gram = gram_of(updates)
    return gram, shares_of(weights, gram.dots.shape[1])


def _mean_pair(matrix: Array) -> float:
    """Return the mean of a symmetric matrix above the diagonal."""
    above = matrix[np.triu_indices(len(matrix), 1)]
    return float(above.mean()) if above.size else 0.0
