"""Modifiers: small steps at the end of a chain. `shrink(rule, gamma)` is `chain(rule, Shrink(gamma))`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from steelyard.core import checks
from steelyard.core.client_state import State, gather, scatter
from steelyard.core.gram import Array
from steelyard.core.mixture import Mixture
from steelyard.core.needs import Needs
from steelyard.core.registry import RULES
from steelyard.core.view import View
from steelyard.core.weighting import Info, Weighting
from steelyard.rules.chain import chain

_AS_INPUT = "as the rules before it"


@RULES.register
@dataclass(frozen=True)
class Shrink(Weighting):
    """Fixed global weight shrinking: `theta' = gamma (theta + global_lr m)` (FedLAW, Eq. 4 with gamma fixed).

    Attributes:
        gamma: the factor on the aggregated model.
        stats: shrink BatchNorm statistics too, as the official FedAWA code's `gamma` does; leave it off.
        global_lr: learning rate on the aggregated step m, inside the shrinking. `server=sgd:lr=...` does the same.
    """

    gamma: float
    stats: bool = False
    global_lr: float = 1.0

    name = "shrink"
    modifies = True
    scales = True
    info = Info("multiplies the aggregated model by gamma", "Li et al., ICML 2023", _AS_INPUT, _AS_INPUT)

    def __post_init__(self) -> None:
        checks.number("gamma", self.gamma, 0.0, open_low=True)
        checks.number("global_lr", self.global_lr, 0.0, open_low=True)

    @property
    def needs(self) -> Needs:
        """Nothing of its own."""
        return Needs()

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """The weights times `global_lr`, then base and weights times gamma."""
        shrunk = prior.with_global_lr(self.global_lr).scale_by(self.gamma)
        if self.stats:
            shrunk = replace(shrunk, stat_scale=prior.stat_scale * self.gamma)
        return shrunk.add_report(gamma=self.gamma), state


@RULES.register
@dataclass(frozen=True)
class Cap(Weighting):
    """No client above `max_weight` of the total; what is cut off goes to the others in proportion (water-filling).

    With fewer than `1 / max_weight` clients the cap cannot hold: all weights become equal then.
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
        """Water-filling on the shares."""
        return prior.reweight(water_fill(prior.shares, self.max_weight)), state


@RULES.register
@dataclass(frozen=True)
class Ema(Weighting):
    """Each client's share averaged over the rounds it took part in: `s = decay * s_before + (1 - decay) * share`."""

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
        """A client seen for the first time enters with its share of this round."""
        table = state.get("shares", {})
        shares = prior.shares
        before = gather(table, view.ids, shares)
        smooth = self.decay * before + (1 - self.decay) * shares
        return prior.reweight(smooth), {"shares": scatter(table, view.ids, smooth)}


def shrink(rule: Weighting | str, gamma: float, global_lr: float = 1.0) -> Weighting:
    """The rule, with its step multiplied by `global_lr` and then its aggregated model by gamma."""
    return chain(rule, Shrink(gamma, global_lr=global_lr))


def cap(rule: Weighting | str, max_weight: float) -> Weighting:
    """The rule, with no client above `max_weight`."""
    return chain(rule, Cap(max_weight))


def ema(rule: Weighting | str, decay: float = 0.9) -> Weighting:
    """The rule, with its weights averaged over rounds."""
    return chain(rule, Ema(decay))


def water_fill(shares: Array, limit: float) -> Array:
    """Shares `[g, K]` with nothing above `limit`; the excess is spread over the rest in proportion to their shares."""
    count = shares.shape[1]
    if limit * count <= 1:
        return np.full_like(shares, 1 / count)
    out = shares / shares.sum(axis=1, keepdims=True)
    full = np.zeros(out.shape, dtype=np.bool_)
    for _ in range(count):
        full |= out > limit
        room = 1 - limit * full.sum(axis=1, keepdims=True)
        rest = np.where(full, 0.0, out)
        total = rest.sum(axis=1, keepdims=True)
        # Clients of weight zero share the excess evenly when nobody else can take it.
        free = ~full
        even = free / np.maximum(free.sum(axis=1, keepdims=True), 1)
        spread = np.where(total > 0, rest / np.where(total > 0, total, 1.0), even) * room
        out = np.where(full, limit, spread)
        if not (out > limit * (1 + 1e-12)).any():
            break
    capped: Array = np.minimum(out, limit)
    return capped
