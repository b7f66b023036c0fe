"""Linear maps of a round's updates, `rows @ D`; selections need no matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray

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
        """Return `other @ self`: from coefficients on the rows `[..., n]` to those on updates `[..., K]`."""
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
