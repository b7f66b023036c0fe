"""L-DAWA: scale each client's layer by its cosine to the last global layer.

Rehman, Gao, Porto Buarque de Gusmao, Alibeigi, Shen, Lane, "L-DAWA: Layer-wise Divergence Aware
Weight Aggregation in Federated Self-Supervised Visual Representation Learning", ICCV 2023.

    delta_{k,l} = cos(theta_{k,l}, theta_{g,l}) ,  theta'_l = (1/K) sum_k delta_{k,l} theta_{k,l}

As in the authors' code: weights are uniform and not divided by their sum (so layers shrink wherever
delta < 1, and a negative cosine changes the sign), a client layer of zeros is not scaled, and the
first three rounds are FedAvg by size. Differences: a global layer of zeros has cosine 1 (the code
divides by zero); BatchNorm statistics are averaged, not scaled by their own cosines (a negative one
would make variances negative): `aggregate(..., kinds={"*.running_*": "param"})` has the code's
behaviour; `num_batches_tracked` is the maximum, not the mean.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from steelyard.core import checks
from steelyard.core._layout import Granularity, check_granularity
from steelyard.core._mixture import Mixture
from steelyard.core._needs import Needs
from steelyard.core._registry import RULES
from steelyard.core._state import State
from steelyard.core._view import View
from steelyard.core._weighting import Info, Weighting


@RULES.register
@dataclass(frozen=True)
class LDAWA(Weighting):
    """`w = delta / K` on the updates and `sum_k w` on the global model, after `warmup` rounds.

    Attributes:
        warmup: number of first rounds in which the prior is used.
        layers: what a layer is.
    """

    warmup: int = 3
    layers: Granularity = "tensor"

    name = "ldawa"
    modifies = True
    info = Info(
        "scales each layer by its cosine to the last global one",
        "Rehman et al., ICCV 2023",
        secagg="yes: the reference is public, clients scale their own layers",
        dp="yes with |delta| <= 1: weights only go down",
    )

    def __post_init__(self) -> None:
        checks.integer("warmup", self.warmup)
        check_granularity(self.layers)

    @property
    def needs(self) -> Needs:
        """One Gram per layer, for cosines between models."""
        return Needs(gram=True, per_layer=self.layers)

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Return the prior in the first rounds, and scaled layers afterwards."""
        if view.round <= self.warmup:
            return prior, state
        gram = view.split_layers(self.layers).gram
        has_cosine = (gram.model_sq_norms > 0) & (gram.theta_sq > 0)[:, None]
        delta = np.where(has_cosine, gram.model_cosines(), 1.0)
        weights = delta / len(view.ids)
        base = weights.sum(axis=1)
        mixture = replace(prior, weights=weights, base=base, layers=self.layers, scale=1.0)
        return mixture, state
