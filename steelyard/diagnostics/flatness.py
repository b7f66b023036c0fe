"""Flatness of the loss around a model, by the top eigenvalues of its Hessian.

FedLAW (Li et al., ICML 2023), Figure 4 and Appendix B.1, Figure 10: the greatest eigenvalue lambda_1, the ratio
lambda_1 / lambda_5, and the loss along the eigenvector of lambda_1. Small values stand for flat minima. The paper says
neither on which samples nor by which method; here it is Lanczos iteration on Hessian-vector products, so the Hessian
is never formed. "Top" is the greatest in value, not in magnitude: at a minimum the two are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from steelyard.client.flat import Loss
from steelyard.core import checks
from steelyard.core.errors import SteelyardError
from steelyard.core.gram import Array
from steelyard.diagnostics.surface import Surface


@dataclass(frozen=True)
class Spectrum:
    """The top of a Hessian's spectrum.

    Attributes:
        values: eigenvalues, the greatest first, `[k]`.
        vectors: their eigenvectors of length 1, `[k, d]`, parameters in the order of their names; 0 where frozen.
    """

    values: Array
    vectors: Array

    @property
    def top(self) -> float:
        """lambda_1: the smaller, the flatter."""
        return float(self.values[0])

    @property
    def ratio(self) -> float:
        """lambda_1 / lambda_5: the smaller, the flatter; infinite where lambda_5 is 0."""
        if len(self.values) < 5:
            raise SteelyardError(f"lambda_1 / lambda_5 of {len(self.values)} eigenvalues: ask for k=5")
        return float(self.values[0] / self.values[4]) if self.values[4] else float("inf")


def hessian_spectrum(
    model: nn.Module,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    k: int = 5,
    *,
    loss: Loss = nn.functional.cross_entropy,
    double: bool = False,
    tolerance: float = 1e-4,
    seed: int = 0,
) -> Spectrum:
    """The `k` greatest eigenvalues of the Hessian of the mean loss on these samples, and their eigenvectors.

    Args:
        model: the network, in evaluation mode; it is not changed.
        inputs: samples.
        targets: what to predict.
        k: how many, less than the number of learned parameters.
        loss: a mean over samples.
        double: compute in float64: slower by a factor of up to ten; float32 is good to about three digits.
        tolerance: relative error at which to stop.
        seed: of the vector the iteration starts from.
    """
    try:
        from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh
    except ModuleNotFoundError:
        raise SteelyardError("Hessian spectra need scipy: pip install 'steelyard[diagnostics]'") from None
    checks.integer("k", k, 1)
    checks.number("tolerance", tolerance, 0.0)
    surface = Surface(model, inputs, targets, loss, double)
    free = surface.free.cpu()
    size = int(free.sum())
    if k >= size:
        raise SteelyardError(f"k={k} eigenvalues of a model with {size} learned parameters: ask for fewer than {size}")

    def product(vector: NDArray[np.float64]) -> NDArray[np.float64]:
        whole = torch.zeros_like(surface.theta, device="cpu")
        whole[free] = torch.from_numpy(vector.reshape(-1)).to(whole.dtype)
        return surface.curvature(whole.to(surface.theta.device)).cpu()[free].double().numpy()

    start = np.random.default_rng(seed).standard_normal(size)
    bent = product(start)
    if not np.isfinite(bent).all():
        raise SteelyardError("the loss has no finite curvature: give a model and samples whose loss is finite")
    if not bent.any():
        raise SteelyardError("the loss does not bend at all around this model: give samples on which it does")
    operator = LinearOperator((size, size), matvec=product, dtype=np.float64)
    try:
        values, vectors = eigsh(operator, k=k, which="LA", tol=tolerance, v0=start)
    except ArpackError as error:
        raise SteelyardError(f"tolerance={tolerance}: use a greater one or double=True ({error})") from None
    order = np.argsort(values)[::-1]
    embedded = np.zeros((k, len(free)))
    embedded[:, free.numpy()] = vectors[:, order].T
    return Spectrum(values[order], embedded)


def losses_along(
    model: nn.Module,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    direction: Array,
    steps: Sequence[float],
    *,
    loss: Loss = nn.functional.cross_entropy,
) -> Array:
    """The loss at `theta + s v` for each step s along a direction v `[d]`, such as the top eigenvector."""
    surface = Surface(model, inputs, targets, loss)
    if np.shape(direction) != tuple(surface.theta.shape):
        raise SteelyardError(f"direction has shape {list(np.shape(direction))}: give [{surface.layout.dim}]")
    along = torch.as_tensor(direction).to(surface.theta)
    return surface.losses(surface.theta + step * along for step in steps)
