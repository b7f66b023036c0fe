"""guard: limits a client's contribution to (3/K) x 2 median norms, for any rule and any update.

The adaptive rules, as published, amplify attacks: one client of 20 that sends a 100-fold update
gets 57 % of FedAdp's weight. The guard wraps any rule with checks, in this order (structure and
finite values are checked before, by the stores, for every rule):

    G1  a client with a zero update, or a negative loss, accuracy or gradient norm, is set aside and
        named in the report
    G2  updates are clipped to `clip` times the median norm; with fewer than 3 clients, that of past
        rounds; without past rounds, to `clip` times the shortest
    G3  reported sizes are capped at `size_cap` medians, losses and gradient norms at `metric_cap`
        medians; work is limited from both sides
    G4  if a weight is not finite, the round uses weights by size, and the report says so
    G5  no weight is above `weight_cap / K` (water-filling among the clients with a weight); for a
        rule that selects m clients on purpose (Krum), none is above 1/m if that is more
    G6  an aggregate longer than `clip` medians is shortened to that norm

All checks use the Gram or the norms; the cost is linear in K for rules that need no Gram. G2 and G5
limit a client's direct contribution to (weight_cap / K) x clip x median. The median is over all
clients whose update is finite, so that idle clients cannot raise it. Server parts of client terms,
and refiners, see the clipped updates. The guard does not stop collusion: see docs/guard.md for
measurements.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from steelyard.core import checks
from steelyard.core._errors import NonFiniteLoss, SteelyardError
from steelyard.core._gram import Array
from steelyard.core._mixture import Mixture
from steelyard.core._needs import Needs
from steelyard.core._registry import RULES
from steelyard.core._server_terms import FEWEST, clip_factors, typical_norm
from steelyard.core._state import ClientId, State
from steelyard.core._sums import Selection
from steelyard.core._view import View
from steelyard.core._weighting import Info, Weighting
from steelyard.metrics import METRICS, find_metric
from steelyard.rules._combinators import Chain, parse_rule, with_default_source
from steelyard.rules._modifiers import water_fill

_MEMORY = 10  # number of rounds whose median norms are stored


@RULES.register
@dataclass(frozen=True)
class Guard(Weighting):
    """The rule, protected against single bad clients.

    It is off in the papers' presets, and on wherever real clients connect.

    Attributes:
        rule: the rule inside.
        clip: limit of an update's norm, in medians.
        metric_cap: limit of reported losses, gradient norms and work, in medians.
        weight_cap: limit of a weight, in units of 1/K.
        size_cap: limit of reported numbers of examples, in medians.
    """

    rule: Weighting
    clip: float = 2.0
    metric_cap: float = 5.0
    weight_cap: float = 3.0
    size_cap: float = 1.5

    name = "guard"
    # Sizes must be capped before they become a prior, so the whole chain goes inside.
    modifies = False
    info = Info(
        "bounds what one client can do to any rule",
        "",
        "only if clients disclose their norms: then each clips and caps its own update",
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "rule", parse_rule(self.rule))
        if self.rule.scales_by_reports:
            raise SteelyardError(
                "guard: the rule inside multiplies the global model by what clients report "
                "(pa3fed:divide=false), which no guard bounds: divide the weights, or use it "
                "without a guard"
            )
        checks.number("clip", self.clip, 0.0, open_low=True)
        checks.number("metric_cap", self.metric_cap, 1.0)
        checks.number("weight_cap", self.weight_cap, 1.0)
        checks.number("size_cap", self.size_cap, 1.0)

    @cached_property
    def chain(self) -> Chain:
        """The rule inside, with a source before it if necessary."""
        return with_default_source(self.rule)

    @cached_property
    def needs(self) -> Needs:
        """The Gram, for norms, and the needs of the rule."""
        return Needs.of(gram=True) | self.chain.needs

    @property
    def final(self) -> bool:
        """True: no later rule may change the limited weights."""
        return True

    @property
    def parts(self) -> tuple[Weighting, ...]:
        """The rule inside."""
        return (self.rule,)

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Apply the checks G1 to G6 in order."""
        rule = self.chain
        norms = view.whole_gram.norms[0] if rule.needs.gram else view.norms

        # G1: set clients aside whose update or report is not plausible.
        set_aside = _find_implausible(norms, view)
        keep = [k for k, client in enumerate(view.ids) if client not in set_aside]
        if not keep:
            void = replace(prior, void="no progress: every update is zero or invalid")
            return void.add_report(set_aside=set_aside), state

        # G2: clip the updates.
        memory: list[float] = [*state.get("norms", [])]
        typical = _reference_norm(norms, norms[keep], memory)
        factors = clip_factors(norms, self.clip * typical)
        rows = Selection.of(keep, factors)

        # G3: cap the reported values.
        accepted = view.only(keep)
        metrics = {}
        for name, values in accepted.metrics.items():
            metrics[name] = self._cap_metric(name, values)
        inner = replace(view.transform(rows), ids=accepted.ids, metrics=metrics)

        # G4 and G5: apply the rule, and cap the weights.
        mixture, rule_state, fallback = _weigh(rule, inner, state.get("rule", {}))
        mixture, capped = self._cap_weights(mixture, len(view.ids))

        # G6: shorten the aggregate.
        shortening = self._shortening(mixture, inner, typical)
        if shortening < 1:
            mixture = mixture.scale_step(shortening)

        # Report and mixture.
        notes: dict[str, Any] = {
            "set_aside": set_aside,
            "clipped": {view.ids[k]: float(factors[k]) for k in keep if factors[k] < 1},
            "capped": [inner.ids[k] for k in capped],
        }
        if fallback:
            notes["fallback"] = fallback
        if shortening < 1:
            notes["shortened"] = shortening
        clip_norm = self.clip * typical
        mixture = replace(mixture.of_rows(rows), stat_clip=self.clip, clip_norm=clip_norm)

        # One or two clients are too few for a typical norm.
        if len(keep) >= FEWEST:
            memory = [*memory, typical][-_MEMORY:]
        return mixture.add_report(**notes), {"norms": memory, "rule": rule_state}

    def _cap_metric(self, name: str, values: Array) -> Array:
        """Return the reported values, limited to a multiple of their median."""
        if values.ndim != 1:
            return values
        metric = find_metric(name)
        if metric.bounds is not None:
            return np.clip(values, *metric.bounds)
        median = float(np.median(values))
        if median <= 0:
            return values
        cap = self.size_cap if metric.is_size else self.metric_cap
        low = median / cap if metric.is_divisor else -np.inf
        return np.clip(values, low, cap * median)

    def _cap_weights(self, mixture: Mixture, clients: int) -> tuple[Mixture, list[int]]:
        """Return the mixture with capped weights, and the positions of the capped clients."""
        # A coordinate-wise reducer has weights of its own; clipping limits the values it averages.
        if mixture.reduce is not None:
            return mixture, []

        # Find the weights above the limit.
        weights = mixture.weights
        limits = np.full((len(weights), 1), self.weight_cap / clients)
        if mixture.selects:
            selected = np.maximum((weights > 0).sum(axis=1, keepdims=True), 1)
            limits = np.maximum(limits, 1 / selected)
        over = (np.abs(weights) > limits * (1 + 1e-12)).any(axis=0)
        if not over.any():
            return mixture, []
        capped = [int(k) for k in np.flatnonzero(over)]

        # With negative weights there is no redistribution: weights are clipped.
        total = weights.sum(axis=1, keepdims=True)
        if (weights < 0).any() or (total <= 0).any():
            return replace(mixture, weights=np.clip(weights, -limits, limits)), capped

        # The excess goes to the other clients with a positive weight. If they are too few to take
        # it, the rest stays with the global model.
        filled = np.zeros_like(weights)
        for layer, limit in enumerate(limits[:, 0]):
            share = float(total[layer, 0])
            positive = weights[layer] > 0
            shares = weights[None, layer, positive] / share
            filled[layer, positive] = water_fill(shares, limit / share)[0] * share
        return replace(mixture, weights=np.minimum(filled, limits)), capped

    def _shortening(self, mixture: Mixture, view: View, typical: float) -> float:
        """Return the factor that limits the aggregate to `clip` typical norms."""
        # The result of a reducer is not known yet. A convex combination cannot be longer than the
        # longest update.
        if mixture.reduce is not None or _is_convex(mixture):
            return 1.0
        layers = mixture.layers
        if layers is None and len(mixture.weights) > 1:
            layers = view.layers
        gram = view.whole_gram if layers is None else view.split_layers(layers).gram
        squares = gram.mixture_sq_norm(mixture.weights, mixture.step_weight)
        length = float(np.sqrt(squares.sum()))
        limit = self.clip * typical
        return limit / length if length > limit * (1 + 1e-9) else 1.0


def _find_implausible(norms: Array, view: View) -> dict[ClientId, str]:
    """Return the clients with a zero update or a negative report, and the reasons."""
    reasons: dict[ClientId, str] = {}
    for k in np.flatnonzero(norms == 0):
        reasons[view.ids[k]] = "zero update"
    for name, values in view.metrics.items():
        if name in METRICS and METRICS[name].may_be_negative:
            for k in np.flatnonzero(values < 0):
                reasons[view.ids[k]] = f"negative {name}"
    return reasons


def _reference_norm(norms: Array, accepted: Array, memory: list[float]) -> float:
    """Return the typical norm of this round; that of past rounds if there are too few clients."""
    if len(accepted) < FEWEST:
        return float(np.median(memory)) if memory else typical_norm(accepted)
    return float(np.median(norms)) or float(np.median(accepted))


def _weigh(rule: Weighting, view: View, state: State) -> tuple[Mixture, State, str]:
    """Apply the rule; fall back to weights by size if its weights are not finite.

    Returns:
        The mixture, the rule's state, and the reason of the fallback (empty without one).
    """
    # The rule.
    start = Mixture.convex(np.ones((1, len(view.ids))))
    with np.errstate(all="ignore"), suppress(NonFiniteLoss):
        mixture, after = rule.apply(start, view.restrict(rule.needs), state)
        if mixture.finite:
            return mixture, after, ""

    # The fallback.
    reports: Mapping[str, Array] = view.metrics
    sizes = reports.get("num_examples", np.ones(len(view.ids)))
    if not sizes.any():
        sizes = np.ones(len(view.ids))
    return Mixture.convex(sizes[None, :]), state, "non-finite weights: fell back to weights by size"


def _is_convex(mixture: Mixture) -> bool:
    """Return whether the mixture is convex.

    Then it is not longer than the longest clipped update.
    """
    weights = mixture.weights
    if mixture.step_weight is not None:
        return False
    return weights.shape[0] == 1 and bool((weights >= 0).all()) and float(weights.sum()) <= 1 + 1e-9
