"""What a rule decides: coefficients on the updates and on the global model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch

from steelyard.core.gram import Array
from steelyard.core.layout import Granularity
from steelyard.core.rows import RowMap, compose_rows


class Reducer(Protocol):
    """A coordinate-wise replacement for the weighted sum."""

    def __call__(self, updates: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """From `[n, d]` updates: the reduced vector `[d]`, and how often each row was used for it, int64 `[n]`."""


@dataclass(frozen=True)
class Mixture:
    """`target = base * theta + sum_k w_k d_k`, per layer or whole.

    `base` exists because L-DAWA's and FedLAW's coefficients on models do not sum to 1, and FedNova's coefficients
    on updates do not either (its base is 1).

    Attributes:
        weights: coefficients on the updates, `[g, K]`.
        base: coefficient on the global model, `[g]`.
        layers: what the leading axis means; None for the whole model.
        reduce: if set, the sum becomes `sum(w) * reduce({d_k : w_k != 0})`, coordinate by coordinate.
        rows: a linear map of the updates that comes before `reduce`; without one it is folded into `weights`.
        stat_scale: multiplies BatchNorm statistics; 1 in every sane rule.
        stat_clip: if set, a client's statistics may differ from the global ones by at most this many medians, and
            vectors that clients keep (SCAFFOLD's) from those they had before.
        clip_norm: if set, the length to which a guard cut the updates: the server parts of client terms and refiners
            see them cut, too.
        selects: whether zero weights are the rule's point (Krum): it picks a few clients who share the whole step.
        void: if set, the round is void for this reason: model and state stay as they were.
        notes: what the rule wants in the report.
        scale: the shrinking factor that `weights` and `base` already contain. A server optimizer acts inside it:
            `theta' = scale * optimizer(theta, target / scale)`.
    """

    weights: Array
    base: Array
    layers: Granularity | None = None
    reduce: Reducer | None = None
    rows: RowMap | None = None
    stat_scale: float = 1.0
    stat_clip: float | None = None
    clip_norm: float | None = None
    selects: bool = False
    void: str | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)
    scale: float = 1.0

    @staticmethod
    def convex(weights: Array) -> Mixture:
        """Weights that are divided by their sum, on top of the unchanged global model."""
        total = weights.sum(axis=1, keepdims=True)
        return Mixture(weights / total, np.ones(weights.shape[0]))

    @property
    def shares(self) -> Array:
        """The weights as a distribution over clients, `[g, K]`."""
        shares: Array = self.weights / self.weights.sum(axis=1, keepdims=True)
        return shares

    def reweight(self, shares: Array, **notes: Any) -> Mixture:
        """The same total and base, divided anew among the clients: how every modifier passes its result on."""
        shares = shares / shares.sum(axis=1, keepdims=True)
        base = np.broadcast_to(self.base, (shares.shape[0],))
        total = self.weights.sum(axis=1, keepdims=True)
        return replace(self, weights=shares * total, base=base, notes={**self.notes, **notes})

    def scale_by(self, factor: float) -> Mixture:
        """The mixture whose aggregated model is multiplied by `factor`, after any server optimizer."""
        weights = self.weights * factor
        base = self.base * factor
        return replace(self, weights=weights, base=base, scale=self.scale * factor)

    def with_global_lr(self, lr: float) -> Mixture:
        """The mixture whose aggregated step is multiplied by `lr`; the global model keeps its coefficient."""
        return replace(self, weights=self.weights * lr)

    def in_layers(self, layers: Granularity, count: int) -> Mixture:
        """The same mixture said once for each layer."""
        weights = np.broadcast_to(self.weights, (count, self.weights.shape[1]))
        return replace(self, weights=weights, base=np.broadcast_to(self.base, (count,)), layers=layers)

    def of_rows(self, rows: RowMap) -> Mixture:
        """A mixture of the updates `rows @ D`, written as one of `D`: how clipping and mixing wrappers pass it on."""
        if self.reduce is None:
            return replace(self, weights=self.weights @ rows)
        return replace(self, rows=rows if self.rows is None else compose_rows(self.rows, rows))

    @property
    def finite(self) -> bool:
        """Whether every coefficient is."""
        return bool(np.isfinite(self.weights).all() and np.isfinite(self.base).all())

    @property
    def client_weights(self) -> Array:
        """The weights on the clients' own updates `[g, K]`, also where they come through `rows`."""
        return self.weights if self.rows is None else self.weights @ self.rows

    def add_report(self, **notes: Any) -> Mixture:
        """The same mixture, with more to report."""
        return replace(self, notes={**self.notes, **notes})
