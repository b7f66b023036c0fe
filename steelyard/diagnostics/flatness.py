"""Flatness of the loss around a model, measured by the largest eigenvalues of its Hessian.

FedLAW (Li et al., ICML 2023), Figure 4 and Appendix B.1, Figure 10: the largest eigenvalue
lambda_1, the ratio lambda_1 / lambda_5, and the loss along the eigenvector of lambda_1. Small
values mean flat minima. The paper gives neither the samples nor the method; here it is Lanczos
iteration on Hessian-vector products, so the Hessian is never formed. "Top" means the largest in
value, not in magnitude: at a minimum the two are the same.
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
    """The largest eigenvalues of a Hessian.

    Attributes:
        values: eigenvalues, the largest first, `[k]`.
        vectors: their eigenvectors of length 1, `[k, d]`, parameters in the order of their names; 0
            for frozen parameters.
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
    """Return the `k` largest eigenvalues of the Hessian of the mean loss, and their eigenvectors.

    Args:
        model: the network, in evaluation mode; it is not changed.
        inputs: samples.
        targets: what to predict.
        k: how many eigenvalues; less than the number of learned parameters.
        loss: a mean over samples.
        double: compute in float64: up to ten times slower; float32 is accurate to about three
            digits.
        tolerance: relative error at which to stop.
        seed: of the start vector of the iteration.
    """
    try:
        from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh
    except ModuleNotFoundError:
        raise SteelyardError("Hessian spectra need scipy: pip install 'steelyard[diagnostics]'") from None
    checks.integer("k", k, 1)
    checks.number("tolerance", tolerance, 0.0)
    surface = Surface(model, inputs, targets, loss, double)
    is_learned = surface.free.cpu()
    size = int(is_learned.sum())
    if k >= size:
        raise SteelyardError(f"k={k} eigenvalues of a model with {size} learned parameters: use k less than {size}")

    def product(vector: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the Hessian times a vector of the learned parameters."""
        direction = torch.zeros_like(surface.theta, device="cpu")
        direction[is_learned] = torch.from_numpy(vector.reshape(-1)).to(direction.dtype)
        curvature = surface.curvature(direction.to(surface.theta.device))
        return curvature.cpu()[is_learned].double().numpy()

    # Try one product, to explain what is wrong before the iteration starts.
    start = np.random.default_rng(seed).standard_normal(size)
    first = product(start)
    if not np.isfinite(first).all():
        raise SteelyardError("the curvature of the loss is not finite: give a model and samples with a finite loss")
    if not first.any():
        raise SteelyardError("the curvature of the loss is 0 around this model: give other samples")

    # Lanczos iteration.
    operator = LinearOperator((size, size), matvec=product, dtype=np.float64)
    try:
        values, vectors = eigsh(operator, k=k, which="LA", tol=tolerance, v0=start)
    except ArpackError as error:
        raise SteelyardError(f"tolerance={tolerance}: use a larger one or double=True ({error})") from None

    # The largest first, with zeros for frozen parameters.
    order = np.argsort(values)[::-1]
    all_vectors = np.zeros((k, len(is_learned)))
    all_vectors[:, is_learned.numpy()] = vectors[:, order].T
    return Spectrum(values[order], all_vectors)


def losses_along(
    model: nn.Module,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    direction: Array,
    steps: Sequence[float],
    *,
    loss: Loss = nn.functional.cross_entropy,
) -> Array:
    """Return the loss at `theta + s v` for each step s along a direction v `[d]`.

    The direction may be the top eigenvector.
    """
    surface = Surface(model, inputs, targets, loss)
    if np.shape(direction) != tuple(surface.theta.shape):
        raise SteelyardError(f"direction has shape {list(np.shape(direction))}: give [{surface.layout.dim}]")
    along = torch.as_tensor(direction).to(surface.theta)
    return surface.losses(surface.theta + step * along for step in steps)
