"""The one weighted sum in the tree."""

from __future__ import annotations

import numpy as np
import torch

from steelyard.core.gram import Array


class WeightedSum:
    """`base * theta + sum_k w_k d_k`: one matrix-vector product, since `theta` is the last row."""

    def __init__(self, weights: Array, base: Array, dtype: torch.dtype) -> None:
        table = torch.from_numpy(np.column_stack([weights, base])).to(dtype)  # [g, K+1]
        self.coefficients = list(table)

    def __call__(self, rows: torch.Tensor, layer: int, out: torch.Tensor | None) -> torch.Tensor:
        """Of rows `[K+1, n]`, with the coefficients of a layer."""
        return torch.mv(rows.T, self.coefficients[layer], out=out)
