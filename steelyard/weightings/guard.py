"""guard: one client contributes at most (3/K) x 2 median norms, whatever the rule and whatever it sends.

The adaptive rules amplify attacks as published: one client of 20 that sends a 100-fold update gets 57 % of FedAdp's
weight. The guard wraps any rule with ordered checks (the stores do the first, structure and finiteness, for everyone):

    G1  a zero update, a negative loss, accuracy or gradient norm: the client is set aside, named in the report
    G2  updates are clipped to `clip` medians of the norms; with fewer than 3 clients, of past rounds' medians
    G3  reported numbers are capped at `metric_cap` medians (sizes, losses, gradient norms), work also from below
    G4  a non-finite weight: the round falls back to weights by size, and says so
    G5  no weight above `weight_cap / K` (water-filling among those the rule weighs)
    G6  an aggregate that is not finite or longer than `clip` medians voids the round: model and state stay as they were

All of it happens in Gram space. G2 and G5 bound a client's direct contribution by (weight_cap / K) x clip x median. The
median is over all clients whose update is finite, so that idle clients cannot raise it. The guard does not stop
collusion: wrap the rule in `nnm` for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from steelyard.core import checks
from steelyard.core.errors import NonFiniteLoss
from steelyard.core.gram import Array
from steelyard.core.mixture import Mixture
from steelyard.core.needs import Needs
from steelyard.core.registry import RULES
from steelyard.core.table import ClientId, State
from steelyard.core.view import View
from steelyard.core.weighting import Card, Weighting
from steelyard.weightings.chain import parse_rule, rooted
from steelyard.weightings.modifiers import water_fill

_MEMORY = 10  # rounds whose median norms are remembered
_WORK = ("normalizer", "num_steps")  # metrics that rules divide by: capped from below too


@RULES.register
@dataclass(frozen=True)
class Guard(Weighting):
    """The rule, made safe against one bad client. Off in the papers' presets, on wherever real clients connect."""

    rule: Weighting
    clip: float = 2.0
    metric_cap: float = 5.0
    weight_cap: float = 3.0

    name = "guard"
    modifies = False  # sizes must be capped before they become a prior, so the whole chain goes inside
    card = Card(
        "bounds what one client can do to any rule",
        "",
        "only if clients disclose their norms: then each clips and caps its own update",
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "rule", parse_rule(self.rule))
        checks.number("clip", self.clip, 0.0, open_low=True)
        checks.number("metric_cap", self.metric_cap, 1.0)
        checks.number("weight_cap", self.weight_cap, 1.0)

    @property
    def needs(self) -> Needs:
        """Norms, and what the rule needs."""
        return Needs.of(gram=True) | rooted(self.rule).needs

    @property
    def final(self) -> bool:
        """What it bounds stays bounded."""
        return True

    @property
    def parts(self) -> tuple[Weighting, ...]:
        """The rule inside."""
        return (self.rule,)

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """G1 to G6, in order."""
        rule = rooted(self.rule)
        norms = view.whole_gram.norms[0] if rule.needs.gram else view.norms
        aside = self._set_aside(norms, view)
        keep = [k for k, client in enumerate(view.ids) if client not in aside]
        if not keep:
            return replace(prior, void="no progress: every update is zero or invalid").noted(set_aside=aside), state

        memory: list[float] = [*state.get("norms", [])]
        median = self._median(norms, norms[keep], memory)
        scale = np.minimum(1.0, self.clip * median / np.where(norms > 0, norms, 1.0))
        clipped = view.transformed(np.diag(scale)).only(keep)
        inner = clipped.with_metrics({name: self._capped(name, values) for name, values in clipped.metrics.items()})

        mixture, kept, fallback = self._weigh(rule, inner, state.get("rule", {}))
        mixture, capped = self._cap(mixture, len(view.ids))
        if mixture.reduce is None and not (_convex(mixture) or self._sound(mixture, inner, median)):
            return replace(prior, void=f"aggregate longer than {self.clip:g} median norms").noted(
                set_aside=aside
            ), state
        notes = {
            "set_aside": aside,
            "clipped": {view.ids[k]: float(scale[k]) for k in keep if scale[k] < 1},
            "capped": [inner.ids[k] for k in capped],
            **({"fallback": fallback} if fallback else {}),
        }
        rows = np.diag(scale)[keep]  # [K', K]
        mixture = replace(mixture.of_rows(rows), stat_clip=self.clip).noted(**notes)
        after: dict[str, Any] = {"norms": [*memory, median][-_MEMORY:], "rule": kept}
        return mixture, after

    def _set_aside(self, norms: Array, view: View) -> dict[ClientId, str]:
        aside: dict[ClientId, str] = {}
        for k, client in enumerate(view.ids):
            if norms[k] == 0:
                aside[client] = "zero update"
            for name, values in view.metrics.items():
                if name.removesuffix("_before") in ("loss", "grad_norm", "accuracy") and values[k] < 0:
                    aside[client] = f"negative {name}"
        return aside

    def _median(self, norms: Array, accepted: Array, memory: list[float]) -> float:
        median = float(np.median(norms)) or float(np.median(accepted))
        return median if len(accepted) >= 3 or not memory else float(np.median(memory))

    def _capped(self, name: str, values: Array) -> Array:
        if values.ndim != 1:
            return values
        if name.removesuffix("_before") == "accuracy":
            return np.clip(values, 0.0, 1.0)
        middle = float(np.median(values))
        low = middle / self.metric_cap if name in _WORK else -np.inf
        return np.clip(values, low, self.metric_cap * middle) if middle > 0 else values

    def _weigh(self, rule: Weighting, view: View, state: State) -> tuple[Mixture, State, str]:
        start = Mixture.convex(np.ones((1, len(view.ids))))
        with np.errstate(all="ignore"), suppress(NonFiniteLoss):
            mixture, kept = rule.apply(start, view.restricted(rule.needs), state)
            if mixture.finite:
                return mixture, kept, ""
        sizes: Mapping[str, Array] = view.metrics
        weights = sizes.get("num_examples", np.ones(len(view.ids)))[None, :]
        return Mixture.convex(weights), state, "non-finite weights: fell back to weights by size"

    def _cap(self, mixture: Mixture, clients: int) -> tuple[Mixture, list[int]]:
        limit = self.weight_cap / clients  # where few have a weight, the rest of it stays at the global model
        over = [int(k) for k in np.flatnonzero((np.abs(mixture.weights) > limit * (1 + 1e-12)).any(axis=0))]
        if not over or mixture.reduce is not None:
            return mixture, []
        total = mixture.weights.sum(axis=1, keepdims=True)
        if (mixture.weights < 0).any() or (total <= 0).any():
            return replace(mixture, weights=np.clip(mixture.weights, -limit, limit)), over
        filled = np.zeros_like(mixture.weights)
        for row, weights, sum_ in zip(filled, mixture.weights, total[:, 0], strict=True):
            chosen = weights > 0  # what the rule refused to weigh gets nothing of what others lose
            row[chosen] = water_fill(weights[None, chosen] / sum_, limit / sum_)[0] * sum_
        return replace(mixture, weights=np.minimum(filled, limit)), over

    def _sound(self, mixture: Mixture, view: View, median: float) -> bool:
        layers = mixture.layers or (view.layers if len(mixture.weights) > 1 else None)
        gram = view.whole_gram if layers is None else view.layered(layers).gram
        length = float(np.sqrt(gram.mixture_sq_norm(mixture.weights).sum()))
        return bool(length <= self.clip * median * (1 + 1e-9))


def _convex(mixture: Mixture) -> bool:
    """Whether the aggregate is no longer than the longest clipped update, so that nothing has to be measured."""
    weights = mixture.weights
    return weights.shape[0] == 1 and bool((weights >= 0).all()) and float(weights.sum()) <= 1 + 1e-9
