"""The one weighted sum in the tree, and what a plain sum gives away."""

from __future__ import annotations

import math

import numpy as np
import torch

from steelyard import threads
from steelyard.core.rows import Array, RowMap, Selection

ALIGNMENT = 64  # bytes: torch's own for fresh tensors


class WeightedSum:
    """`base * theta + sum_k w_k d_k`: one matrix-vector product, since `theta` is the last row."""

    def __init__(self, weights: Array, base: Array, dtype: torch.dtype) -> None:
        table = torch.from_numpy(np.column_stack([weights, base])).to(dtype)  # [g, K+1]
        self.coefficients = list(table)

    def __call__(self, rows: torch.Tensor, layer: int, out: torch.Tensor | None) -> torch.Tensor:
        """Of rows `[K+1, n]`, with the coefficients of a layer, in `out` if there is one."""
        if out is None or out.data_ptr() % ALIGNMENT == 0:
            return torch.mv(rows.T, self.coefficients[layer], out=out)
        # Elsewhere BLAS would begin with a few elements in another arithmetic: bits would depend on the place.
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
        """The mapped updates, `[m, n]`, in memory of their own."""
        if self.index is not None:
            return updates[self.index].mul_(self.factors)
        with threads.alone():
            return self.factors @ updates


def are_finite(values: torch.Tensor) -> bool:
    """A sum of finite numbers may overflow, but NaN and infinity never leave it: only a bad sum needs a closer look."""
    return math.isfinite(values.sum().item()) or bool(torch.isfinite(values).all())
