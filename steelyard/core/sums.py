"""The weighted sum of updates, linear maps of updates, and a fast check for finite values."""

from __future__ import annotations

import math

import numpy as np
import torch

from steelyard import threads
from steelyard.core.rows import Array, RowMap, Selection

ALIGNMENT = 64  # bytes: the alignment of new tensors in torch


class WeightedSum:
    """Computes `base * theta + sum_k w_k d_k` as one matrix-vector product: `theta` is the last row."""

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
