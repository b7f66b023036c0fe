"""The result of a rule: coefficients on the updates and on the global model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch

from steelyard.core._gram import Array
from steelyard.core._layout import Granularity
from steelyard.core._sums import RowMap, compose_rows


class Reducer(Protocol):
    """A coordinate-wise replacement for the weighted sum."""

    def __call__(self, updates: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Reduce updates `[n, d]`.

        Returns:
            The reduced vector `[d]`, and how often each row was used for it, int64 `[n]`.
        """


@dataclass(frozen=True)
class Mixture:
    """The aggregated model `target = base * theta + sum_k w_k d_k`, per layer or for the whole model.

    With `step_weight`, `step_weight * s` is added, where s is the aggregated step of the previous
    round.

    `base` exists because the coefficients of L-DAWA and FedLAW on models do not sum to 1. Neither
    do FedNova's coefficients on updates (its base is 1).

    Attributes:
        weights: coefficients on the updates, `[g, K]`.
        base: coefficient on the global model, `[g]`.
        layers: the granularity of the leading axis; None for the whole model.
        reduce: if set, the sum becomes `sum(w) * reduce({d_k : w_k != 0})`, coordinate by
            coordinate.
        rows: a linear map that is applied to the updates before `reduce`. Without `reduce`, such
            a map is part of `weights`.
        stat_scale: factor of the BatchNorm statistics; 1 for nearly all rules.
        stat_clip: if set, limits how far a client's statistics may be from the global ones, and
            vectors that clients keep (as SCAFFOLD's) from their old values, as a multiple of the
            median.
        clip_norm: if set, the norm to which a guard clipped the updates. Server parts of client
            terms and refiners see the clipped updates, too.
        selects: whether the rule selects a few clients on purpose (Krum), so that weights of zero
            are expected.
        void: if set, the round is void for this reason: model and state do not change.
        notes: entries for the report.
        scale: the shrinking factor that `weights` and `base` already contain. A server optimizer
            acts before it: `theta' = scale * optimizer(theta, target / scale)`.
        step_weight: coefficient on the previous round's step, `[g]`, for a rule that needs it; None
            for 0.
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
    step_weight: Array | None = None

    @staticmethod
    def convex(weights: Array) -> Mixture:
        """Return a mixture with these weights divided by their sum; `base` is 1."""
        total = weights.sum(axis=1, keepdims=True)
        return Mixture(weights / total, np.ones(weights.shape[0]))

    @property
    def shares(self) -> Array:
        """The weights as a distribution over clients, `[g, K]`."""
        shares: Array = self.weights / self.weights.sum(axis=1, keepdims=True)
        return shares

    def reweight(self, shares: Array, **notes: Any) -> Mixture:
        """Return a mixture with the same total weight and base, but these shares of the clients."""
        shares = shares / shares.sum(axis=1, keepdims=True)
        base = np.broadcast_to(self.base, (shares.shape[0],))
        total = self.weights.sum(axis=1, keepdims=True)
        return replace(self, weights=shares * total, base=base, notes={**self.notes, **notes})

    def scale_by(self, factor: float) -> Mixture:
        """Return a mixture whose model is multiplied by `factor`, after any server optimizer."""
        mixture = self.scale_step(factor)
        return replace(mixture, base=self.base * factor, scale=self.scale * factor)

    def scale_step(self, factor: float) -> Mixture:
        """Return a mixture whose step is multiplied by `factor`; `base` does not change."""
        step_weight = None if self.step_weight is None else self.step_weight * factor
        return replace(self, weights=self.weights * factor, step_weight=step_weight)

    def in_layers(self, layers: Granularity, count: int) -> Mixture:
        """Return the same mixture with its coefficients repeated for each layer."""
        weights = np.broadcast_to(self.weights, (count, self.weights.shape[1]))
        base = np.broadcast_to(self.base, (count,))
        step_weight = self.step_weight
        if step_weight is not None:
            step_weight = np.broadcast_to(step_weight, (count,))
        return replace(self, weights=weights, base=base, layers=layers, step_weight=step_weight)

    def of_rows(self, rows: RowMap) -> Mixture:
        """Return this mixture of the updates `rows @ D` as a mixture of the updates `D`.

        Rules that clip or mix updates return their result this way.
        """
        if self.reduce is None:
            return replace(self, weights=self.weights @ rows)
        if self.rows is not None:
            rows = compose_rows(self.rows, rows)
        return replace(self, rows=rows)

    @property
    def finite(self) -> bool:
        """Whether every coefficient is finite."""
        coefficients = [self.weights, self.base]
        if self.step_weight is not None:
            coefficients.append(self.step_weight)
        return all(bool(np.isfinite(values).all()) for values in coefficients)

    @property
    def client_weights(self) -> Array:
        """The weights on the clients' own updates, `[g, K]`, with `rows` included."""
        return self.weights if self.rows is None else self.weights @ self.rows

    def add_report(self, **notes: Any) -> Mixture:
        """Return the same mixture with these entries added to the report."""
        return replace(self, notes={**self.notes, **notes})
