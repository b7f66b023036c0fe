"""Modifiers for the end of a chain: `shrink(rule, gamma)` is `chain(rule, Shrink(gamma))`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from steelyard.core import checks
from steelyard.core._gram import Array
from steelyard.core._mixture import Mixture
from steelyard.core._needs import Needs
from steelyard.core._registry import RULES
from steelyard.core._state import State, gather, scatter
from steelyard.core._view import View
from steelyard.core._weighting import Info, Weighting
from steelyard.rules._combinators import chain

_AS_INPUT = "as the rules before it"


@RULES.register
@dataclass(frozen=True)
class Shrink(Weighting):
    """Fixed global weight shrinking: `theta' = gamma (theta + global_lr m)` (FedLAW, Eq. 4).

    Attributes:
        gamma: the factor on the aggregated model.
        stats: whether to shrink BatchNorm statistics, too, as `gamma` of the official FedAWA code
            does; not recommended.
        global_lr: learning rate on the aggregated step m, inside the shrinking;
            `server=sgd:lr=...` has the same effect.
    """

    gamma: float
    stats: bool = False
    global_lr: float = 1.0

    name = "shrink"
    modifies = True
    scales = True
    info = Info(
        "multiplies the aggregated model by gamma", "Li et al., ICML 2023", _AS_INPUT, _AS_INPUT
    )

    def __post_init__(self) -> None:
        checks.number("gamma", self.gamma, 0.0, open_low=True)
        checks.number("global_lr", self.global_lr, 0.0, open_low=True)

    @property
    def needs(self) -> Needs:
        """Nothing of its own."""
        return Needs()

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Multiply the weights by `global_lr`, then base and weights by gamma."""
        mixture = prior.scale_step(self.global_lr).scale_by(self.gamma)
        if self.stats:
            mixture = replace(mixture, stat_scale=prior.stat_scale * self.gamma)
        return mixture.add_report(gamma=self.gamma), state


@RULES.register
@dataclass(frozen=True)
class Cap(Weighting):
    """Limits each client's share to `max_weight`.

    The excess goes to the other clients in proportion to their shares (water-filling). With fewer
    than `1 / max_weight` clients the limit is impossible, and all shares become equal.

    Attributes:
        max_weight: the largest share of a client.
    """

    max_weight: float

    name = "cap"
    modifies = True
    info = Info("no client above max_weight", "", _AS_INPUT, _AS_INPUT)

    def __post_init__(self) -> None:
        checks.number("max_weight", self.max_weight, 0.0, 1.0, open_low=True)

    @property
    def needs(self) -> Needs:
        """Nothing of its own."""
        return Needs()

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Limit the shares."""
        return prior.reweight(water_fill(prior.shares, self.max_weight)), state


@RULES.register
@dataclass(frozen=True)
class Ema(Weighting):
    """Averages each client's share over its rounds: `s = decay * s_before + (1 - decay) * share`.

    Attributes:
        decay: the factor of the earlier average.
    """

    decay: float = 0.9

    name = "ema"
    modifies = True
    info = Info("averages each client's share over rounds", "", _AS_INPUT, _AS_INPUT)

    def __post_init__(self) -> None:
        checks.number("decay", self.decay, 0.0, 1.0)

    @property
    def needs(self) -> Needs:
        """Nothing of its own."""
        return Needs()

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Return the averaged shares; a new client starts with its share of this round."""
        table = state.get("shares", {})
        shares = prior.shares
        before = gather(table, view.ids, shares)
        smooth = self.decay * before + (1 - self.decay) * shares
        return prior.reweight(smooth), {"shares": scatter(table, view.ids, smooth)}


def shrink(rule: Weighting | str, gamma: float, global_lr: float = 1.0) -> Weighting:
    """Return the rule with its step multiplied by `global_lr`, then its model by gamma."""
    return chain(rule, Shrink(gamma, global_lr=global_lr))


def cap(rule: Weighting | str, max_weight: float) -> Weighting:
    """Return the rule with each client's share limited to `max_weight`."""
    return chain(rule, Cap(max_weight))


def ema(rule: Weighting | str, decay: float = 0.9) -> Weighting:
    """Return the rule with its shares averaged over rounds."""
    return chain(rule, Ema(decay))


def water_fill(shares: Array, limit: float) -> Array:
    """Return shares `[g, K]` that do not exceed `limit`.

    The excess goes to the other clients in proportion to their shares. If `limit` is too small for
    this number of clients, all shares are equal.
    """
    # The limit may be impossible.
    count = shares.shape[1]
    if limit * count <= 1:
        return np.full_like(shares, 1 / count)

    # Each pass fixes the clients above the limit and redistributes the rest, until none is above.
    out = shares / shares.sum(axis=1, keepdims=True)
    full = np.zeros(out.shape, dtype=np.bool_)
    for _ in range(count):
        full |= out > limit
        room = 1 - limit * full.sum(axis=1, keepdims=True)
        rest = np.where(full, 0.0, out)
        total = rest.sum(axis=1, keepdims=True)
        # If all other clients are full, clients with weight zero get equal parts of the excess.
        free = ~full
        even = free / np.maximum(free.sum(axis=1, keepdims=True), 1)
        spread = np.where(total > 0, rest / np.where(total > 0, total, 1.0), even) * room
        out = np.where(full, limit, spread)
        if not (out > limit * (1 + 1e-12)).any():
            break
    capped: Array = np.minimum(out, limit)
    return capped
