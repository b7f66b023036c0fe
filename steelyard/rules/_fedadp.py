"""FedAdp: weigh clients by the angle of their update.

Wu and Wang, "Fast-Convergent Federated Learning With Adaptive Weighting", IEEE TCCN 7(4), 2021.

    grad F   = sum_i p_i grad F_i ,  p_i = n_i / n
    theta_i  = arccos( <grad F, grad F_i> / |grad F| |grad F_i| )                                  (8)
    smooth_i = theta_i                                     if t = 1
             = ((t - 1) smooth_i(t-1) + theta_i) / t       otherwise                               (9)
    f(a)     = alpha (1 - exp(-exp(-alpha (a - 1))))                                               (10)
    psi_i    = n_i exp f(smooth_i) / sum_j n_j exp f(smooth_j)                                     (11)

The learning rate cancels in (8), so `d_i` replaces the gradient. There is no code by the authors.
Differences from the public implementations: the cosine is clipped (one returns NaN where rounding
makes it larger than 1), a zero update has the neutral angle pi/2 (in one it has 0, the greatest
weight), only parameters are used (no BatchNorm statistics), and all tensors are scaled equally
(one leaves the first tensor unscaled). The paper does not define partial participation:
`clock="round"` takes t from the server's round, as two implementations do; `clock="client"` counts
the rounds in which a client took part.

The mean in (8) includes the client itself. If sizes differ, a large client is close to the mean
because it is most of it, and gets even more weight. `reference="others"` is our addition: the angle
to the mean of the other clients.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steelyard.core import checks
from steelyard.core._gram import Array, Gram
from steelyard.core._mixture import Mixture
from steelyard.core._needs import Needs
from steelyard.core._registry import RULES
from steelyard.core._state import State, gather, scatter
from steelyard.core._view import View
from steelyard.core._weighting import Info, Weighting


@RULES.register
@dataclass(frozen=True)
class FedAdp(Weighting):
    """Prior weights times `exp f(smoothed angle to the prior's mean)`.

    Attributes:
        alpha: the parameter of f, Eq. (10).
        clock: where t of Eq. (9) comes from: the server's `round`, or each `client`'s rounds.
        reference: the angle is to the `mean` of all clients, or to that of the `others`.

    Examples:
        Clients a and b agree, and get more weight than c, which has as much data as each of them.

        >>> import torch
        >>> import steelyard
        >>> clients = torch.tensor([[1.0, 0.1], [1.0, -0.1], [-1.0, 0.0]])
        >>> out = steelyard.aggregate(
        ...     steelyard.fedadp(), torch.zeros(2), clients, ids=["a", "b", "c"], metrics={"num_examples": [5, 5, 5]}
        ... )
        >>> [round(weight, 2) for weight in out.weights.tolist()]
        [0.5, 0.5, 0.0]
    """

    alpha: float = 5.0
    clock: str = "round"
    reference: str = "mean"

    name = "fedadp"
    modifies = True
    info = Info(
        "weighs clients by the smoothed angle of their update to the mean",
        "Wu & Wang, IEEE TCCN 2021",
        secagg="yes, in two passes: the mean by secure sum, then each client computes its own weight",
        dp="only with the mean of the round noised too, and weights that never exceed 1",
    )

    def __post_init__(self) -> None:
        checks.number("alpha", self.alpha, 0.0, open_low=True)
        checks.one_of("clock", self.clock, "round", "client")
        checks.one_of("reference", self.reference, "mean", "others")

    @property
    def needs(self) -> Needs:
        """The Gram, for angles."""
        return Needs.of(gram=True)

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Apply Equations (8) to (11)."""
        # Angles of this round, Eq. (8).
        if self.reference == "others":
            angle = angles_to_others(view.gram, prior.shares)
        else:
            angle = angles_to_mean(view.gram, prior.shares)
        # Smoothed angles, Eq. (9). For a new client, t has no effect.
        angles = state.get("angles", {})
        rounds = state.get("rounds", {})
        before = gather(angles, view.ids, angle)
        past_rounds = gather(rounds, view.ids, np.zeros((1, len(view.ids))))
        t = past_rounds + 1 if self.clock == "client" else float(view.round)
        smooth = smooth_angles(before, angle, t)

        # Shares, Eq. (10) and (11).
        contribution = gompertz(smooth, self.alpha)
        shares = prior.shares * np.exp(contribution - contribution.max(axis=1, keepdims=True))

        # State and report.
        after = {"angles": scatter(angles, view.ids, smooth)}
        if self.clock == "client":
            after["rounds"] = scatter(rounds, view.ids, past_rounds + 1)
        reported = dict(zip(view.ids, smooth.mean(axis=0).tolist(), strict=True))
        return prior.reweight(shares, angles=reported), after


def angles_to_mean(gram: Gram, shares: Array) -> Array:
    """Return the angles of the updates to their mean with these shares, Eq. (8), in radians, `[g, K]`."""
    angles: Array = np.arccos(gram.cosines_to(shares))
    return angles


def angles_to_others(gram: Gram, shares: Array) -> Array:
    """Return each update's angle to the mean of the others with these shares, in radians, `[g, K]`."""
    angles: Array = np.arccos(gram.cosines_to_others(shares))
    return angles


def smooth_angles(before: Array, angle: Array, t: Array | float) -> Array:
    """Return the mean of the angles so far, of which this is number `t`: Eq. (9)."""
    return before + (angle - before) / t


def gompertz(angle: Array, alpha: float) -> Array:
    """Return the contribution of an angle in radians, a decreasing function: Eq. (10)."""
    with np.errstate(over="ignore"):  # for a large alpha: exp(-inf) is 0, the correct limit
        value: Array = alpha * (1 - np.exp(-np.exp(-alpha * (angle - 1))))
    return value
