"""FedLWS: shrink each layer of the aggregated model.

Shi, Li, Zhao, Guo, Chang, "FedLWS: Federated Learning with Adaptive Layer-wise Weight Shrinking",
ICLR 2025. For each layer, with the aggregated step `g = sum_k p_k d_k`:

    tau    = clip(beta (1/K) sum_k |d_k - (1/K) sum_j d_j|, min_tau, max_tau)
    gamma  = |theta| / (|theta| + tau |g|)
    theta' = gamma (theta + g)

tau is the ratio of two parts of the step, `(1 - gamma) theta`, which regularises, and `gamma g`,
which optimises. It grows with the disagreement of the clients.

The equations are those of the authors' code; we could not compare them with the equations of the
paper. Summaries of the paper speak of the variance of the clients' updates. The code computes the
mean distance to the mean, without a square, and limits tau to [0.01, 0.2]. The mean inside tau is
not weighted by size; the aggregated step is.

Differences from the code: the code puts BatchNorm statistics into the vectors of the layers and
shrinks them, too, while here only parameters are used and shrunk (`aggregate(...,
kinds={"*.running_*": "param"})` includes statistics). A layer of the code ends after each tensor
that has "bias" in its name, so that a convolution without bias and the BatchNorm after it are one
layer; here they are two modules (name patterns in `layers` can join them). A global layer of zeros
is not shrunk: gamma would be 0, and the layer could never leave zero.

A server optimizer sees the shrunk model: unlike the factor of `shrink`, the factors of layers are
inside its step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from steelyard.core import checks
from steelyard.core._errors import SteelyardError
from steelyard.core._gram import Array, Gram
from steelyard.core._layout import Granularity, check_granularity
from steelyard.core._mixture import Mixture
from steelyard.core._needs import Needs
from steelyard.core._registry import RULES
from steelyard.core._state import State
from steelyard.core._view import View
from steelyard.core._weighting import Info, Weighting


@RULES.register
@dataclass(frozen=True)
class FedLWS(Weighting):
    """The prior's model with each layer multiplied by its gamma; `out.base` has the gammas.

    Attributes:
        beta: factor of the clients' disagreement in tau.
        min_tau: lower limit of tau.
        max_tau: upper limit of tau.
        layers: what a layer is.

    Examples:
        Both clients send the same update, so tau is `min_tau`: gamma = 4 / (4 + 0.01 * 2).

        >>> import torch
        >>> import steelyard
        >>> base = {"w": torch.tensor([4.0, 0.0])}
        >>> clients = [{"w": torch.tensor([4.0, 2.0])}] * 2
        >>> out = steelyard.aggregate("uniform|fedlws", base, clients)
        >>> round(out.base.item(), 4)
        0.995
    """

    beta: float = 0.03
    min_tau: float = 0.01
    max_tau: float = 0.2
    layers: Granularity = "module"

    name = "fedlws"
    modifies = True
    info = Info(
        "shrinks each layer by the disagreement of the clients",
        "Shi et al., ICLR 2025",
        secagg="yes, in two passes: the mean by secure sum, then a secure sum of distances per layer",
        dp="only with the mean of the round and the distances noised too",
    )

    def __post_init__(self) -> None:
        checks.number("beta", self.beta, 0.0)
        checks.number("min_tau", self.min_tau, 0.0)
        checks.number("max_tau", self.max_tau, 0.0)
        check_granularity(self.layers)
        if self.min_tau > self.max_tau:
            raise SteelyardError(
                f"min_tau={self.min_tau} is above max_tau={self.max_tau}: use a smaller min_tau"
            )

    @property
    def needs(self) -> Needs:
        """One Gram per layer, for norms and distances."""
        return Needs(gram=True, per_layer=self.layers)

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Multiply base and weights of each layer by gamma."""
        gram = view.split_layers(self.layers).gram
        gamma = self.compute_gamma(gram, prior)
        weights = prior.weights * gamma[:, None]
        base = prior.base * gamma
        return replace(prior, weights=weights, base=base, layers=self.layers), state

    def compute_gamma(self, gram: Gram, prior: Mixture) -> Array:
        """Return the shrinking factor of each layer, `[g]`."""
        # tau, from the distances to the plain mean.
        mean = np.full(gram.sq_norms.shape, 1 / gram.sq_norms.shape[1])
        disagreement = np.sqrt(gram.sq_distances_to(mean)).mean(axis=1)
        tau = np.clip(self.beta * disagreement, self.min_tau, self.max_tau)

        # The length of the prior's step, of which a base other than 1 is a part.
        weights = np.broadcast_to(prior.weights, gram.sq_norms.shape)
        drift = prior.base - 1
        along_theta = (weights * gram.theta_dots).sum(axis=1)
        square = gram.mixture_sq_norm(weights) + 2 * drift * along_theta + drift**2 * gram.theta_sq
        step = np.sqrt(np.maximum(square, 0.0))

        # gamma; 1 for a layer of zeros.
        theta = np.sqrt(gram.theta_sq)
        length = theta + tau * step
        gamma: Array = np.divide(theta, length, out=np.ones_like(theta), where=theta > 0)
        return gamma
