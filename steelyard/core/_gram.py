"""The Gram matrix of a round's updates, and the cosines, norms and distances that follow from it.

Every direction-based rule uses the updates only through their inner products, so it works on this
small float64 object, whatever the model's size. The leading axis `g` has length 1 for the whole
model and one entry per layer otherwise; rules are written for `[g, K]` and cover both cases.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from steelyard.core._sums import Array as Array
from steelyard.core._sums import RowMap, Selection

# Squared distances below this share of the sum of the squared norms are rounding errors of the
# Gram.
_NOISE = 4e-15


@dataclass(frozen=True)
class StepProducts:
    """Inner products of s, the aggregated step of the previous round, in float64.

    Attributes:
        dots: `<s, d_k>`, `[g, K]`.
        theta_dot: `<s, theta>`, `[g]`.
        square: `|s|^2`, `[g]`; 0 in the first round.
    """

    dots: Array
    theta_dot: Array
    square: Array


@dataclass(frozen=True)
class Gram:
    """Inner products of K updates `d_k` and the global parameters `theta`, in float64.

    Attributes:
        dots: `<d_i, d_j>`, `[g, K, K]`.
        theta_dots: `<theta, d_k>`, `[g, K]`.
        theta_sq: `|theta|^2`, `[g]`.
        dims: number of coordinates, `[g]`.
        last_step: the products of the previous round's step, if the rule needs them.
    """

    dots: Array
    theta_dots: Array
    theta_sq: Array
    dims: Array
    last_step: StepProducts | None = None

    @staticmethod
    def of_rows(products: Array, dims: Array) -> Gram:
        """Return the Gram from the products `[g, K+1, K+1]` of a store's rows.

        `theta` is the last.
        """
        return Gram(products[:, :-1, :-1], products[:, -1, :-1], products[:, -1, -1], dims)

    @cached_property
    def sq_norms(self) -> Array:
        """`|d_k|^2`, `[g, K]`."""
        return np.maximum(np.diagonal(self.dots, axis1=1, axis2=2), 0.0)

    @cached_property
    def norms(self) -> Array:
        """`|d_k|`, `[g, K]`."""
        return np.sqrt(self.sq_norms)

    @cached_property
    def model_sq_norms(self) -> Array:
        """`|theta_k|^2 = |theta + d_k|^2`, `[g, K]`."""
        return np.maximum(self.theta_sq[:, None] + 2 * self.theta_dots + self.sq_norms, 0.0)

    def apply(self, weights: Array, step_weight: Array | None = None) -> Array:
        """Return `<d_k, m>` for the mixture `m = sum_j w_j d_j + c s`, `[g, K]`.

        Args:
            weights: the coefficients w on the updates, `[g, K]`.
            step_weight: the coefficient c on the previous round's step, `[g]`; None for 0.
        """
        dots: Array = np.matmul(self.dots, weights[:, :, None])[:, :, 0]
        if step_weight is not None and self.last_step is not None:
            dots = dots + step_weight[:, None] * self.last_step.dots
        return dots

    def mixture_sq_norm(self, weights: Array, step_weight: Array | None = None) -> Array:
        """Return `|sum_k w_k d_k + c s|^2`, `[g]`; see `apply`."""
        square: Array = (weights * self.apply(weights, step_weight)).sum(axis=1)
        if step_weight is not None and self.last_step is not None:
            along = (weights * self.last_step.dots).sum(axis=1)
            square = square + step_weight * (along + step_weight * self.last_step.square)
        return np.maximum(square, 0.0)

    def cosines(self) -> Array:
        """Return the pairwise `cos(d_i, d_j)`, `[g, K, K]`; 0 where an update is zero."""
        return _cosine(self.dots, self.norms[:, :, None] * self.norms[:, None, :])

    def cosines_to(self, weights: Array) -> Array:
        """Return `cos(d_k, sum_j w_j d_j)`, `[g, K]`; 0 where either is zero."""
        norm = np.sqrt(self.mixture_sq_norm(weights))
        return _cosine(self.apply(weights), self.norms * norm[:, None])

    def cosines_to_others(self, weights: Array) -> Array:
        """Return `cos(d_k, sum_{j != k} w_j d_j)`, `[g, K]`; 0 where either is zero."""
        dots = self.apply(weights)
        total = (weights * dots).sum(axis=1)[:, None]
        # Remove the client's own part from the mixture: m - w_k d_k.
        own = weights * self.sq_norms
        square = total - 2 * weights * dots + weights * own
        # If the mixture consists of one client, the remainder is only a rounding error.
        terms = np.abs(total) + 2 * np.abs(weights * dots) + weights * own
        noise = np.finfo(np.float64).eps * len(dots[0]) * terms
        lengths = self.norms * np.sqrt(np.where(square > noise, square, 0.0))
        return _cosine(dots - own, lengths)

    def model_cosines(self, eps: float = 0.0) -> Array:
        """Return `cos(theta_k, theta)`, `[g, K]`; 0 where either is zero.

        Norms are at least `eps`, as in torch.
        """
        model_norms = np.maximum(np.sqrt(self.model_sq_norms), eps)
        theta_norms = np.maximum(np.sqrt(self.theta_sq), eps)
        lengths = model_norms * theta_norms[:, None]
        return _cosine(self.theta_sq[:, None] + self.theta_dots, lengths)

    def sq_distances(self) -> Array:
        """Return the pairwise `|d_i - d_j|^2`, `[g, K, K]`.

        They are never negative, and exactly zero between identical updates.
        """
        squares = self.sq_norms[:, :, None] + self.sq_norms[:, None, :]
        return _clamp_distances(squares - 2 * self.dots, squares)

    def sq_distances_to(self, weights: Array) -> Array:
        """Return `|d_k - sum_j w_j d_j|^2`, `[g, K]`."""
        dots = self.apply(weights)
        square = np.maximum((weights * dots).sum(axis=1), 0.0)[:, None]
        return _clamp_distances(self.sq_norms - 2 * dots + square, self.sq_norms + square)

    def transform(self, rows: RowMap) -> Gram:
        """Return the Gram of the updates `rows @ D`, without reading the updates again."""
        if isinstance(rows, Selection):
            return self._select_rows(rows)
        dots = rows @ self.dots @ rows.T
        last_step = self.last_step
        if last_step is not None:
            last_step = replace(last_step, dots=last_step.dots @ rows.T)
        return Gram(
            (dots + dots.transpose(0, 2, 1)) / 2,
            self.theta_dots @ rows.T,
            self.theta_sq,
            self.dims,
            last_step,
        )

    def _select_rows(self, rows: Selection) -> Gram:
        """Return the Gram of some updates, each times a factor, without a matrix product."""
        if rows.is_identity:
            return self
        everyone = len(rows.index) == rows.count
        dots = self.dots.copy() if everyone else self.dots[:, rows.index[:, None], rows.index]
        scaled = np.flatnonzero(rows.factors != 1.0)
        factors = rows.factors[scaled]
        dots[:, scaled, :] *= factors[:, None]
        dots[:, :, scaled] *= factors
        # Rounding depends on the order of the two products: make both triangles equal.
        pairs = np.ix_(scaled, scaled)
        block = dots[:, pairs[0], pairs[1]]
        dots[:, pairs[0], pairs[1]] = (block + block.transpose(0, 2, 1)) / 2
        theta_dots = self.theta_dots[:, rows.index] * rows.factors
        last_step = self.last_step
        if last_step is not None:
            last_step = replace(last_step, dots=last_step.dots[:, rows.index] * rows.factors)
        return Gram(dots, theta_dots, self.theta_sq, self.dims, last_step)

    def merge_layers(self) -> Gram:
        """Return the Gram of the whole model."""
        if self.dots.shape[0] == 1:
            return self
        return self.group_layers(np.zeros(self.dots.shape[0], dtype=np.intp), 1)

    def group_layers(self, index: NDArray[np.intp], groups: int) -> Gram:
        """Return the Gram with the blocks of each group added.

        `index[i]` is the group of block `i`.
        """

        def add(blocks: Array) -> Array:
            out = np.zeros((groups, *blocks.shape[1:]))
            np.add.at(out, index, blocks)
            return out

        last_step = self.last_step
        if last_step is not None:
            last_step = StepProducts(
                add(last_step.dots), add(last_step.theta_dot), add(last_step.square)
            )
        return Gram(
            add(self.dots), add(self.theta_dots), add(self.theta_sq), add(self.dims), last_step
        )


def _cosine(dots: Array, lengths: Array) -> Array:
    """Return `dots / lengths`, limited to [-1, 1]; 0 where a length is zero."""
    cosines = np.divide(dots, lengths, out=np.zeros_like(dots), where=lengths > 0)
    return np.clip(cosines, -1.0, 1.0)


def _clamp_distances(distances: Array, squares: Array) -> Array:
    """Return the squared distances, with those that are only rounding errors set to zero."""
    return np.where(distances > _NOISE * squares, distances, 0.0)
