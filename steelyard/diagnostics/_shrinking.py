"""FedLAW's global weight shrinking: learning against regularisation, and small parameters.

Li et al., ICML 2023, Section 4. With theta the global model, m = sum_k lambda_k d_k the aggregated
update, and gamma:

    theta' = gamma (theta + m) = theta + gamma m - (1 - gamma) theta                           (4)
    r      = |gamma m| / |(1 - gamma) theta|                                                   (Figures 3 and 11)

`gamma m` is the paper's `-gamma eta_g g_g`, the global gradient, and `(1 - gamma) theta` the
pseudo-gradient of shrinking. In the paper r stays near 19 in a run and about 20.5 over all runs,
whatever gamma is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from steelyard.client._flat import Loss
from steelyard.core import checks
from steelyard.core._errors import SteelyardError
from steelyard.core._evidence import inner_products
from steelyard.core._gram import Array
from steelyard.core._layout import Params
from steelyard.diagnostics._landscape import Surface
from steelyard.stores._memory import MemoryStore


@dataclass(frozen=True)
class Shrinking:
    """The two terms of Equation (4) in one round.

    Attributes:
        gradient: `|gamma m|`, the norm of the global gradient.
        pseudo_gradient: `|(1 - gamma) theta|`, the norm of the pseudo-gradient of shrinking.
    """

    gradient: float
    pseudo_gradient: float

    @property
    def ratio(self) -> float:
        """r: the first divided by the second; infinite if gamma is 1."""
        return self.gradient / self.pseudo_gradient if self.pseudo_gradient else float("inf")


@dataclass(frozen=True)
class Histogram:
    """Counts of parameters by value: `counts[i]` of them lie from `edges[i]` to `edges[i + 1]`."""

    edges: Array
    counts: NDArray[np.int64]


def shrinking_terms(theta: Params, update: Params, gamma: float) -> Shrinking:
    """Return the norms of the global gradient and the shrinking pseudo-gradient (Equation 4).

    Args:
        theta: the global model the round started from, a vector or a state dict.
        update: the aggregated update before shrinking, `sum_k lambda_k d_k`, in the same form.
        gamma: the factor on the model.
    """
    checks.number("gamma", gamma, 0.0, open_low=True)
    size = _store_params(theta).layout.dim
    update_size = _store_params(update).layout.dim
    if size != update_size:
        raise SteelyardError(
            f"theta has {size} parameters and update {update_size}: give both of one model"
        )
    return Shrinking(gamma * parameter_norm(update), abs(1 - gamma) * parameter_norm(theta))


def parameter_norm(params: Params) -> float:
    """Return `|theta|` without running statistics and counters (FedLAW, Figure 10)."""
    return float(np.sqrt(inner_products(_store_params(params)).theta_sq[0]))


def parameter_histogram(params: Params, bins: int = 100, limit: float | None = None) -> Histogram:
    """Count parameters by value in equal bins from `-limit` to `limit`.

    Others are left out (FedLAW, Figure 4).

    The default limit is the largest magnitude. Use the same limit to compare models.
    """
    checks.integer("bins", bins, 1)
    values = _store_params(params).matrix[-1].numpy()
    if limit is None:
        limit = float(np.abs(values).max(initial=0.0)) or 1.0
    checks.number("limit", limit, 0.0, open_low=True)
    counts, edges = np.histogram(values.astype(np.float64), bins=bins, range=(-limit, limit))
    return Histogram(edges, counts)


def share_near_zero(params: Params, width: float) -> float:
    """Return the share of parameters with magnitude at most `width`.

    In the paper adaptive GWS has about twice as many as FedAvg.
    """
    checks.number("width", width, 0.0)
    return float((_store_params(params).matrix[-1].abs() <= width).double().mean())


def rescaled_losses(
    model: nn.Module,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    factors: Sequence[float],
    *,
    loss: Loss = nn.functional.cross_entropy,
) -> Array:
    """Return the loss at `c theta` for each factor c (FedLAW, Figure 4).

    It is flat if the network is scale invariant.

    The running statistics of BatchNorm do not change, so a network with BatchNorm is only invariant
    after they have been measured again.
    """
    surface = Surface(model, inputs, targets, loss)
    return surface.losses(factor * surface.theta for factor in factors)


def _store_params(params: Params) -> MemoryStore:
    """Return a store without clients: its last row is the vector of parameters."""
    try:
        return MemoryStore.of(params, {})
    except SteelyardError as error:
        raise SteelyardError(
            f"params are not valid ({error}): give a model with parameters, all finite"
        ) from None
