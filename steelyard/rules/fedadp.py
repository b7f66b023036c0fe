"""FedAdp: weigh clients by the angle of their update.

Wu and Wang, "Fast-Convergent Federated Learning With Adaptive Weighting", IEEE TCCN 7(4), 2021.

    grad F   = sum_i p_i grad F_i ,  p_i = n_i / n
    theta_i  = arccos( <grad F, grad F_i> / |grad F| |grad F_i| )                                  (8)
    smooth_i = theta_i                                     if t = 1
             = ((t - 1) smooth_i(t-1) + theta_i) / t       otherwise                               (9)
    f(a)     = alpha (1 - exp(-exp(-alpha (a - 1))))                                               (10)
    psi_i    = n_i exp f(smooth_i) / sum_j n_j exp f(smooth_j)                                     (11)

The learning rate cancels in (8), so `d_i` stands for the gradient. There is no code by the authors; against the public
implementations this one clips the cosine (one gives NaN where rounding takes it past 1), gives a zero update the
neutral angle pi/2 (one gives it 0, the greatest weight), looks at parameters only (no BatchNorm statistics) and
scales all tensors alike (one leaves the first tensor unscaled). Partial participation is open in the paper:
`clock="round"` takes t from the server's round, as two implementations do, `clock="client"` counts the rounds a
client took part in.

The mean of (8) contains the client itself. Where sizes differ, a large client is close to the mean because it is most
of it, and gets even more weight. `reference="others"` is ours: the angle to the mean of the other clients.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steelyard.core import checks
from steelyard.core.client_state import State, gather, scatter
from steelyard.core.gram import Array, Gram
from steelyard.core.mixture import Mixture
from steelyard.core.needs import Needs
from steelyard.core.registry import RULES
from steelyard.core.view import View
from steelyard.core.weighting import Info, Weighting


@RULES.register
@dataclass(frozen=True)
class FedAdp(Weighting):
    """Prior weights times `exp f(smoothed angle to the prior's mean)`.

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
        """Angles."""
        return Needs.of(gram=True)

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Equations (8) to (11)."""
        if self.reference == "others":
            angle = angles_to_others(view.gram, prior.shares)
        else:
            angle = angles_to_mean(view.gram, prior.shares)
        angles, rounds = state.get("angles", {}), state.get("rounds", {})
        before = gather(angles, view.ids, angle)
        seen = gather(rounds, view.ids, np.zeros((1, len(view.ids))))
        t = seen + 1 if self.clock == "client" else float(view.round)  # of no effect for a client seen first
        smooth = smooth_angles(before, angle, t)
        contribution = gompertz(smooth, self.alpha)
        shares = prior.shares * np.exp(contribution - contribution.max(axis=1, keepdims=True))
        after = {"angles": scatter(angles, view.ids, smooth)}
        if self.clock == "client":
            after["rounds"] = scatter(rounds, view.ids, seen + 1)
        return prior.reweight(shares, angles=dict(zip(view.ids, smooth.mean(axis=0).tolist(), strict=True))), after


def angles_to_mean(gram: Gram, shares: Array) -> Array:
    """Equation (8): angles of the updates to their mean with these shares, in radians, `[g, K]`."""
    angles: Array = np.arccos(gram.cosines_to(shares))
    return angles


def angles_to_others(gram: Gram, shares: Array) -> Array:
    """Return each update's angle to the mean of the others with these shares, in radians, `[g, K]`."""
    angles: Array = np.arccos(gram.cosines_to_others(shares))
    return angles


def smooth_angles(before: Array, angle: Array, t: Array | float) -> Array:
    """Equation (9): the mean of the angles so far, of which this one is number `t`."""
    return before + (angle - before) / t


def gompertz(angle: Array, alpha: float) -> Array:
    """Equation (10): the decreasing map from an angle in radians to a contribution."""
    with np.errstate(over="ignore"):  # of a large alpha: exp(-inf) is the 0 it tends to
        value: Array = alpha * (1 - np.exp(-np.exp(-alpha * (angle - 1))))
    return value
