"""The trace of the Fisher information, which shows critical learning periods (PA3Fed, Eq. 2 and 3).

`evaluate_fisher` records the trace of the global model while a run trains.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from steelyard.client._fisher import (
    choose_batch,
    compute_logits,
    draw_samples,
    fisher_trace,
    prepare_norms,
)
from steelyard.core._errors import SteelyardError
from steelyard.diagnostics._distances import Weights, shares_of

__all__ = ["empirical_fisher_trace", "federated_fisher_trace", "fisher_trace"]


def empirical_fisher_trace(
    model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, n: int = 10_000, seed: int = 0
) -> float:
    """Return the mean over samples of `|grad log p(y | x)|^2` with the observed labels `[N]`."""
    if len(inputs) != len(targets) or targets.is_floating_point() or targets.ndim != 1:
        raise SteelyardError(
            f"targets are {targets.dtype} {list(targets.shape)}: give {len(inputs)} class numbers"
        )
    positions = draw_samples(inputs, n, seed)
    own, squared_norms = prepare_norms(model, inputs[positions])
    classes = compute_logits(own, inputs[:1]).shape[1]
    low = int(targets.min())
    high = int(targets.max())
    if low < 0 or high >= classes:
        raise SteelyardError(
            f"targets go from {low} to {high}: the model has {classes} classes: use 0 to "
            f"{classes - 1}"
        )
    samples = torch.split(inputs[positions], choose_batch(own))
    labels = torch.split(targets[positions], choose_batch(own))
    total = sum(
        float(squared_norms(x, y).double().sum()) for x, y in zip(samples, labels, strict=True)
    )
    return total / len(positions)


def federated_fisher_trace(traces: Sequence[float], sizes: Weights | None = None) -> float:
    """Return the mean of the clients' traces, weighted by their sizes (PA3Fed, Equation 3).

    Weights are equal by default.
    """
    return float(np.dot(shares_of(sizes, len(traces)), traces))
