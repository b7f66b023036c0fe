"""The weighted sum of updates, linear maps of updates, and a fast check for finite values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard import threads

# Linear maps of a round's updates, `rows @ D`; selections need no matrix.

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Selection:
    """Some of the updates, each times a factor: row `i` is `factors[i] * D[index[i]]`.

    With `@` it acts like the matrix it represents, at a cost linear in the size of the operand.

    Attributes:
        index: position of the update of each row, `[n]`, ascending.
        factors: factor of each row, `[n]`.
        count: number of updates K.
    """

    index: NDArray[np.intp]
    factors: Array
    count: int

    __array_ufunc__ = None  # `array @ selection` calls `__rmatmul__`

    @staticmethod
    def of(keep: Sequence[int] | NDArray[np.intp], factors: Array) -> Selection:
        """Return the selection of the updates `keep`, each times its entry of `factors` `[K]`."""
        index = np.asarray(keep, dtype=np.intp)
        return Selection(index, factors[index], len(factors))

    @property
    def is_identity(self) -> bool:
        """Whether the selection holds every update with the factor 1."""
        return len(self.index) == self.count and bool((self.factors == 1.0).all())

    @overload
    def __matmul__(self, other: Selection) -> Selection: ...

    @overload
    def __matmul__(self, other: Array) -> Array: ...

    def __matmul__(self, other: Array | Selection) -> Array | Selection:
        """Return `self @ other`: selected rows of a vector, a matrix or another selection."""
        if isinstance(other, Selection):
            factors = self.factors * other.factors[self.index]
            return Selection(other.index[self.index], factors, other.count)
        factors = self.factors.reshape(-1, *[1] * (other.ndim - 1))
        selected: Array = factors * other[self.index]
        return selected

    def __rmatmul__(self, other: Array) -> Array:
        """Return `other @ self`.

        From coefficients on the rows `[..., n]` to those on updates `[..., K]`.
        """
        coefficients = np.zeros((*other.shape[:-1], self.count))
        coefficients[..., self.index] = other * self.factors
        return coefficients


RowMap = Array | Selection


def compose_rows(rows: RowMap, inner: RowMap | None) -> RowMap:
    """Return the map that applies `inner` first, if there is one, and then `rows`."""
    if inner is None:
        return rows
    composed: RowMap = rows @ inner
    return composed


ALIGNMENT = 64  # bytes: the alignment of new tensors in torch


class WeightedSum:
    """Computes `base * theta + sum_k w_k d_k` as one matrix-vector product.

    `theta` is the last row.
    """

    def __init__(self, weights: Array, base: Array, dtype: torch.dtype) -> None:
        table = torch.from_numpy(np.column_stack([weights, base])).to(dtype)  # [g, K+1]
        self.coefficients = list(table)

    def __call__(self, rows: torch.Tensor, layer: int, out: torch.Tensor | None) -> torch.Tensor:
        """Return the sum of rows `[K+1, n]` with a layer's coefficients, in `out` if it is set."""
        if out is None or out.data_ptr() % ALIGNMENT == 0:
            return torch.mv(rows.T, self.coefficients[layer], out=out)
        # BLAS computes the first elements of an unaligned output differently: bits would depend on
        # the address.
        return out.copy_(torch.mv(rows.T, self.coefficients[layer]))


class UpdateMap:
    """Applies a linear map to chunks of updates `[K, n]`."""

    def __init__(self, rows: RowMap, dtype: torch.dtype) -> None:
        self.index: torch.Tensor | None = None
        if isinstance(rows, Selection):
            self.index = torch.from_numpy(rows.index)
            rows = rows.factors[:, None]
        self.factors = torch.from_numpy(rows).to(dtype)

    def __call__(self, updates: torch.Tensor) -> torch.Tensor:
        """Return the mapped updates, `[m, n]`, in new memory."""
        if self.index is not None:
            return updates[self.index].mul_(self.factors)
        with threads.alone():
            return self.factors @ updates


def are_finite(values: torch.Tensor) -> bool:
    """Return whether all values are finite.

    A finite sum has only finite terms. The sum of finite numbers may overflow, so that every value
    is checked if the sum is not finite.
    """
    return math.isfinite(values.sum().item()) or bool(torch.isfinite(values).all())
