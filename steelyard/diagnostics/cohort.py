"""The arguments of diagnostics of updates: a tensor, a store or a Gram, and weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard.core.errors import SteelyardError
from steelyard.core.evidence import inner_products
from steelyard.core.gram import Array, Gram
from steelyard.core.store import UpdateStore
from steelyard.stores.memory import MemoryStore

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
        raise SteelyardError(f"updates are {updates.dtype} {list(updates.shape)}: give floats [clients, parameters]")
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
        raise SteelyardError(f"weights have shape {list(shares.shape)}: give one for each of the {count} clients")
    if not np.isfinite(shares).all() or shares.min() < 0 or shares.sum() == 0:
        raise SteelyardError(f"weights={shares.tolist()}: use numbers >= 0, not all of them 0")
    normalised: Array = shares / shares.sum()
    return normalised
