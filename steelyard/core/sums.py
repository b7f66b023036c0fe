"""The one weighted sum in the tree."""

from __future__ import annotations

import numpy as np
import torch

from steelyard.core.gram import Array

ALIGNMENT = 64  # bytes: torch's own for fresh tensors


class WeightedSum:
    """`base * theta + sum_k w_k d_k`: one matrix-vector product, since `theta` is the last row."""

    def __init__(self, weights: Array, base: Array, dtype: torch.dtype) -> None:
        table = torch.from_numpy(np.column_stack([weights, base])).to(dtype)  # [g, K+1]
        self.coefficients = list(table)

    def __call__(self, rows: torch.Tensor, layer: int, out: torch.Tensor | None) -> torch.Tensor:
        """Of rows `[K+1, n]`, with the coefficients of a layer, into `out` if its memory is aligned.

        Where it is not, BLAS would begin with a few elements in another arithmetic: bits would depend on the place.
        """
        return torch.mv(rows.T, self.coefficients[layer], out=out if out is not None and aligned(out) else None)


def aligned(values: torch.Tensor) -> bool:
    """Whether the values begin where fresh memory would."""
    return values.data_ptr() % ALIGNMENT == 0
