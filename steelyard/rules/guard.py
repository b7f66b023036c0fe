"""guard: one client contributes at most (3/K) x 2 median norms, whatever the rule and whatever it sends.

The adaptive rules amplify attacks as published: one client of 20 that sends a 100-fold update gets 57 % of FedAdp's
weight. The guard wraps any rule with ordered checks (the stores do the first, structure and finiteness, for everyone):

    G1  a zero update, a negative loss, accuracy or gradient norm: the client is set aside, named in the report
    G2  updates are clipped to `clip` medians of the norms; with fewer than 3 clients, of past rounds' medians; where
        there are none, to `clip` times the shortest
    G3  reported sizes are capped at `size_cap` medians, losses and gradient norms at `metric_cap`, work on both sides
    G4  a non-finite weight: the round falls back to weights by size, and says so
    G5  no weight above `weight_cap / K` (water-filling among those the rule weighs); of a rule that picks m clients on
        purpose (Krum), none above 1/m if that is more
    G6  an aggregate longer than `clip` medians is shortened to them

All of it happens in Gram space, at a cost linear in K for rules that need no Gram. G2 and G5 bound a client's direct
contribution by (weight_cap / K) x clip x median. The median is over all clients whose update is finite, so that idle
clients cannot raise it. Server parts of client terms, and refiners, see the clipped updates. The guard does not stop
collusion: docs/guard.md has the measurements.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from steelyard.core import checks
from steelyard.core.bounds import FEWEST, clip_factors, typical_norm
from steelyard.core.client_state import ClientId, State
from steelyard.core.errors import NonFiniteLoss
from steelyard.core.gram import Array
from steelyard.core.mixture import Mixture
from steelyard.core.needs import Needs
from steelyard.core.registry import RULES
from steelyard.core.rows import Selection
from steelyard.core.view import View
from steelyard.core.weighting import Info, Weighting
from steelyard.rules.chain import parse_rule, with_default_source
from steelyard.rules.modifiers import water_fill

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
    size_cap: float = 1.5

    name = "guard"
    modifies = False  # sizes must be capped before they become a prior, so the whole chain goes inside
    info = Info(
        "bounds what one client can do to any rule",
        "",
        "only if clients disclose their norms: then each clips and caps its own update",
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "rule", parse_rule(self.rule))
        checks.number("clip", self.clip, 0.0, open_low=True)
        checks.number("metric_cap", self.metric_cap, 1.0)
        checks.number("weight_cap", self.weight_cap, 1.0)
        checks.number("size_cap", self.size_cap, 1.0)

    @property
    def needs(self) -> Needs:
        """Norms, and what the rule needs."""
        return Needs.of(gram=True) | with_default_source(self.rule).needs

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
        rule = with_default_source(self.rule)
        norms = view.whole_gram.norms[0] if rule.needs.gram else view.norms

        # G1: set clients aside whose update or report cannot be meant.
        aside = _set_aside(norms, view)
        keep = [k for k, client in enumerate(view.ids) if client not in aside]
        if not keep:
            void = replace(prior, void="no progress: every update is zero or invalid")
            return void.add_report(set_aside=aside), state

        # G2: clip the updates.
        memory: list[float] = [*state.get("norms", [])]
        typical = _reference_norm(norms, norms[keep], memory)
        factors = clip_factors(norms, self.clip * typical)
        rows = Selection.of(keep, factors)

        # G3: cap what clients report.
        accepted = view.only(keep)
        metrics = {name: self._cap_metric(name, values) for name, values in accepted.metrics.items()}
        inner = replace(view.transform(rows), ids=accepted.ids, metrics=metrics)

        # G4 and G5: weigh, and cap the weights.
        mixture, rule_state, fallback = _weigh(rule, inner, state.get("rule", {}))
        mixture, capped = self._cap_weights(mixture, len(view.ids))

        # G6: shorten the aggregate.
        shortening = self._shortening(mixture, inner, typical)
        if shortening < 1:
            mixture = replace(mixture, weights=mixture.weights * shortening)

        notes: dict[str, Any] = {
            "set_aside": aside,
            "clipped": {view.ids[k]: float(factors[k]) for k in keep if factors[k] < 1},
            "capped": [inner.ids[k] for k in capped],
        }
        if fallback:
            notes["fallback"] = fallback
        if shortening < 1:
            notes["shortened"] = shortening
        bounded = replace(mixture.of_rows(rows), stat_clip=self.clip, clip_norm=self.clip * typical)

        # A round of one or two clients says nothing about what is usual.
        if len(keep) >= FEWEST:
            memory = [*memory, typical][-_MEMORY:]
        return bounded.add_report(**notes), {"norms": memory, "rule": rule_state}

    def _cap_metric(self, name: str, values: Array) -> Array:
        """Reported numbers within what the median makes plausible."""
        if values.ndim != 1:
            return values
        if name.removesuffix("_before") == "accuracy":
            return np.clip(values, 0.0, 1.0)
        middle = float(np.median(values))
        if middle <= 0:
            return values
        cap = self.size_cap if name == "num_examples" else self.metric_cap
        low = middle / cap if name in _WORK else -np.inf
        return np.clip(values, low, cap * middle)

    def _cap_weights(self, mixture: Mixture, clients: int) -> tuple[Mixture, list[int]]:
        """The mixture with no weight above the cap, and who was capped."""
        # A coordinate-wise reducer has weights of its own: its bound is that of the values it averages.
        if mixture.reduce is not None:
            return mixture, []
        weights = mixture.weights
        limits = np.full((len(weights), 1), self.weight_cap / clients)
        if mixture.selects:
            picked = np.maximum((weights > 0).sum(axis=1, keepdims=True), 1)
            limits = np.maximum(limits, 1 / picked)
        over = (np.abs(weights) > limits * (1 + 1e-12)).any(axis=0)
        if not over.any():
            return mixture, []
        capped = [int(k) for k in np.flatnonzero(over)]

        # Negative weights cannot be shared out: they are cut.
        total = weights.sum(axis=1, keepdims=True)
        if (weights < 0).any() or (total <= 0).any():
            return replace(mixture, weights=np.clip(weights, -limits, limits)), capped

        # Whom the rule refused to weigh gets nothing of what others lose. Where few have a weight, the rest of it
        # stays at the global model.
        filled = np.zeros_like(weights)
        for layer, limit in enumerate(limits[:, 0]):
            share = float(total[layer, 0])
            chosen = weights[layer] > 0
            shares = weights[None, layer, chosen] / share
            filled[layer, chosen] = water_fill(shares, limit / share)[0] * share
        return replace(mixture, weights=np.minimum(filled, limits)), capped

    def _shortening(self, mixture: Mixture, view: View, typical: float) -> float:
        """What the weights are multiplied by so that the aggregate is no longer than `clip` typical norms."""
        # Of a reducer nothing is known before the sum; a convex combination is no longer than the longest update.
        if mixture.reduce is not None or _is_convex(mixture):
            return 1.0
        layers = mixture.layers
        if layers is None and len(mixture.weights) > 1:
            layers = view.layers
        gram = view.whole_gram if layers is None else view.layered(layers).gram
        length = float(np.sqrt(gram.mixture_sq_norm(mixture.weights).sum()))
        limit = self.clip * typical
        return limit / length if length > limit * (1 + 1e-9) else 1.0


def _set_aside(norms: Array, view: View) -> dict[ClientId, str]:
    """Clients whose update or report cannot be meant, with the reason."""
    aside: dict[ClientId, str] = {view.ids[k]: "zero update" for k in np.flatnonzero(norms == 0)}
    for name, values in view.metrics.items():
        if name.removesuffix("_before") in ("loss", "grad_norm", "accuracy"):
            aside |= {view.ids[k]: f"negative {name}" for k in np.flatnonzero(values < 0)}
    return aside


def _reference_norm(norms: Array, accepted: Array, memory: list[float]) -> float:
    """The norm that updates are measured by: this round's, or that of past rounds where too few clients came."""
    if len(accepted) < FEWEST:
        return float(np.median(memory)) if memory else typical_norm(accepted)
    return float(np.median(norms)) or float(np.median(accepted))


def _weigh(rule: Weighting, view: View, state: State) -> tuple[Mixture, State, str]:
    """The rule's mixture and state, or weights by size and the reason why."""
    start = Mixture.convex(np.ones((1, len(view.ids))))
    with np.errstate(all="ignore"), suppress(NonFiniteLoss):
        mixture, after = rule.apply(start, view.restrict(rule.needs), state)
        if mixture.finite:
            return mixture, after, ""
    reports: Mapping[str, Array] = view.metrics
    sizes = reports.get("num_examples", np.ones(len(view.ids)))
    if not sizes.any():
        sizes = np.ones(len(view.ids))
    return Mixture.convex(sizes[None, :]), state, "non-finite weights: fell back to weights by size"


def _is_convex(mixture: Mixture) -> bool:
    """Whether the aggregate is no longer than the longest clipped update, so that nothing has to be measured."""
    weights = mixture.weights
    return weights.shape[0] == 1 and bool((weights >= 0).all()) and float(weights.sum()) <= 1 + 1e-9
