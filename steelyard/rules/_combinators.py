"""Combinators: chain, per_layer, gate and if_finite build a rule out of other rules."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any

import numpy as np

from steelyard.core._errors import NonFiniteLoss, SteelyardError
from steelyard.core._layout import Granularity, check_granularity
from steelyard.core._mixture import Mixture
from steelyard.core._needs import Needs
from steelyard.core._registry import RULES
from steelyard.core._spec import parse
from steelyard.core._state import State
from steelyard.core._view import View
from steelyard.core._weighting import Info, Weighting
from steelyard.rules._detectors import Detector, parse_detector
from steelyard.rules._fedavg import FedAvg

# chain: applies rules one after another; the mixture of each rule is the prior of the next.


@dataclass(frozen=True)
class Chain(Weighting):
    """Rules that are applied in order. Build it with `chain(...)`, which flattens nested chains.

    Raises:
        SteelyardError: if a rule cannot follow the rules before it.
    """

    rules: tuple[Weighting, ...]

    name = "chain"
    modifies = True  # an instance has the value of its first rule
    info = Info("rules in a row, each starting from the one before")

    def __post_init__(self) -> None:
        # A source ignores its prior, so it must come first.
        if not self.rules:
            raise SteelyardError("chain() needs at least one rule")
        for rule in self.rules[1:]:
            if not rule.modifies:
                raise SteelyardError(
                    f"{rule.name} ignores the rules before it in a chain: "
                    "put it first, or leave out the rules before it"
                )

        # Check each rule against the rules before it.
        layered_rule: Weighting | None = None  # the last rule with weights per layer
        final_rule: Weighting | None = None  # the last rule after which weights must not change
        for rule in self.rules:
            if final_rule is not None and not rule.scales:
                _refuse_reweighting(rule, final_rule)
            reads_whole_model = rule.needs.gram or rule.needs.probe
            if layered_rule is not None and reads_whole_model and rule.needs.per_layer is None:
                hint = f"use per_layer({rule.name}), or put it first"
                if rule.needs.probe:
                    hint = f"put {rule.name} first"
                raise SteelyardError(
                    f"{rule.name} needs the whole model, but {layered_rule.name} before it "
                    f"computes "
                    f"weights layer by layer: {hint}"
                )
            if rule.needs.per_layer is not None:
                layered_rule = rule
            if rule.final or rule.needs.coordinates or rule.needs.last_step:
                final_rule = rule
        _ = self.needs  # raises an error if two rules use different layers
        object.__setattr__(self, "modifies", self.rules[0].modifies)

    @cached_property
    def needs(self) -> Needs:
        """The needs of all rules together."""
        return reduce(Needs.__or__, (rule.needs for rule in self.rules))

    @property
    def parts(self) -> tuple[Weighting, ...]:
        """The rules, in order."""
        return self.rules

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Apply the rules in order; each sees only what it declared and has its own state."""
        after: dict[str, Any] = {}
        for key, rule in zip(state_keys(self.rules), self.rules, strict=True):
            prior, rule_state = rule.apply(prior, view.restrict(rule.needs), state.get(key, {}))
            # A layered rule may return the prior unchanged, as in its warm-up or in a closed gate.
            layers = rule.needs.per_layer
            if layers is not None and prior.layers is None:
                prior = prior.in_layers(layers, view.split_layers(layers).layer_count)
            if rule_state:
                after[key] = rule_state
        return prior, after


def _refuse_reweighting(rule: Weighting, final_rule: Weighting) -> None:
    """Raise an error for a rule that changes weights after `final_rule`."""
    reason = "does not compute a weighted sum: leave one of them out"
    if final_rule.final:
        reason = f"limits them for the last time: put {rule.name} inside, guard(...|{rule.name})"
    raise SteelyardError(f"{rule.name} changes weights, but {final_rule.name} before it {reason}")


def parse_rule(spec: Any) -> Weighting:
    """Return the rule of a spec string (`"feddisco|fedawa:steps=10"`), a rule class or a rule.

    Examples:
        >>> parse_rule("guard(fedadp:alpha=3)").rule
        FedAdp(alpha=3, clock='round', reference='mean')
    """
    rule = spec
    if isinstance(spec, str):
        rule = parse(spec, RULES, chain)
    elif isinstance(spec, type):
        rule = spec()
    if not isinstance(rule, Weighting):
        raise SteelyardError(
            f"{spec!r} is a {type(rule).__name__}: pass a rule or its spec string (detectors go "
            f"inside gate or pa3fed)"
        )
    return rule


def chain(*rules: Weighting | str) -> Weighting:
    """Return the rules, applied in order, as one rule: `chain(fedavg(), feddisco(), fedawa())`.

    Examples:
        >>> import steelyard
        >>> rule = steelyard.chain("feddisco", steelyard.fedawa(steps=10))
        >>> rule == steelyard.parse_rule("feddisco|fedawa:steps=10")
        True
    """
    parts: list[Weighting] = []
    for spec in rules:
        rule = parse_rule(spec)
        parts += rule.rules if isinstance(rule, Chain) else [rule]
    return parts[0] if len(parts) == 1 else Chain(tuple(parts))


def with_default_source(rule: Weighting) -> Chain:
    """Return the rule as a chain that starts with a source.

    A rule that modifies its prior starts from weights by number of examples.
    """
    parts = rule.rules if isinstance(rule, Chain) else (rule,)
    if parts[0].modifies:
        parts = (FedAvg(), *parts)
    return Chain(parts)


def state_keys(rules: tuple[Weighting, ...]) -> list[str]:
    """Return the state key of each rule: its name, with a number from the second use on."""
    keys = []
    counts: dict[str, int] = {}
    for rule in rules:
        counts[rule.name] = counts.get(rule.name, 0) + 1
        count = counts[rule.name]
        keys.append(rule.name if count == 1 else f"{rule.name}#{count}")
    return keys


# per_layer: applies a rule to each layer, with one set of weights per layer.


@RULES.register
@dataclass(frozen=True)
class PerLayer(Weighting):
    """The rule with one set of weights per layer: `per_layer(fedawa())` is FedAWA-L.

    Attributes:
        rule: the rule inside.
        layers: `"tensor"`, `"module"`, a tuple of sizes that cut a flat vector, or a tuple of name
            patterns.
    """

    rule: Weighting
    layers: Granularity = "tensor"

    name = "per_layer"
    modifies = True  # an instance has the value of its rule
    info = Info("one set of weights for each layer", "", "as the rule inside", "as the rule inside")

    def __post_init__(self) -> None:
        # Parse the options.
        object.__setattr__(self, "rule", parse_rule(self.rule))
        layers: object = self.layers
        if isinstance(layers, list):
            object.__setattr__(self, "layers", tuple(layers))
        check_granularity(self.layers)

        # Refuse rules that cannot work per layer.
        name = self.rule.name
        if self.rule.needs.per_layer:
            raise SteelyardError(
                f"per_layer({name}): {name} works layer by layer already: leave per_layer out"
            )
        if self.rule.needs.coordinates:
            raise SteelyardError(
                f"per_layer({name}): {name} works by coordinate already: leave per_layer out"
            )
        if self.rule.needs.probe:
            raise SteelyardError(
                f"per_layer({name}): {name} needs a loss, which only the whole model has: use "
                f"{name}"
            )
        object.__setattr__(self, "modifies", self.rule.modifies)

    @property
    def needs(self) -> Needs:
        """The needs of the rule, with one Gram per layer if it needs a Gram."""
        return replace(self.rule.needs, per_layer=self.layers)

    @property
    def parts(self) -> tuple[Weighting, ...]:
        """The rule inside."""
        return (self.rule,)

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Apply the rule to a view whose Gram has one block per layer."""
        name = self.rule.name
        layered = view.split_layers(self.layers).restrict(self.rule.needs)
        before: dict[str, Any] = state.get(name, {})
        mixture, rule_state = self.rule.apply(prior, layered, before)
        after = {name: rule_state} if rule_state else {}
        return mixture.in_layers(self.layers, layered.layer_count), after


# gate: applies a rule only in critical periods.


@RULES.register
@dataclass(frozen=True)
class Gate(Weighting):
    """The rule in rounds that the detector calls critical, the prior in all others.

    In other rounds nothing of the rule is computed: there is no pass over the updates, and the
    rule's state does not change.
    """

    detector: Detector
    rule: Weighting

    name = "gate"
    modifies = True
    info = Info(
        "the rule in critical periods, the prior outside",
        "",
        "as the rule inside",
        "as the rule inside",
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "detector", parse_detector(self.detector))
        object.__setattr__(self, "rule", parse_rule(self.rule))

    @property
    def needs(self) -> Needs:
        """The needs of the detector and of the rule."""
        return self.detector.needs | self.rule.needs

    @property
    def parts(self) -> tuple[Weighting, ...]:
        """The rule inside."""
        return (self.rule,)

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Apply the rule if the detector says that the round is critical."""
        # The detector.
        name = self.detector.name
        detector_view = view.restrict(self.detector.needs)
        critical, detector_state = self.detector.critical(detector_view, state.get(name, {}))
        after: dict[str, Any] = {**state, name: detector_state}

        # The rule.
        mixture = prior
        if critical:
            rule_view = view.restrict(self.rule.needs)
            rule_state = state.get(self.rule.name, {})
            mixture, after[self.rule.name] = self.rule.apply(prior, rule_view, rule_state)
        return mixture.add_report(critical=critical), after


# if_finite: applies a rule unless its weights are not finite.


@RULES.register
@dataclass(frozen=True)
class IfFinite(Weighting):
    """The rule's mixture if every coefficient is finite, otherwise the prior.

    If the prior is used, the rule's state does not change.
    """

    rule: Weighting

    name = "if_finite"
    modifies = True
    info = Info(
        "the rule, unless it gives NaN or infinity", "", "as the rule inside", "as the rule inside"
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "rule", parse_rule(self.rule))

    @property
    def needs(self) -> Needs:
        """The needs of the rule."""
        return self.rule.needs

    @property
    def parts(self) -> tuple[Weighting, ...]:
        """The rule inside."""
        return (self.rule,)

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Apply the rule; the report says if the prior is used instead."""
        with np.errstate(all="ignore"), suppress(NonFiniteLoss):
            mixture, rule_state = self.rule.apply(prior, view, state.get(self.rule.name, {}))
            if mixture.finite:
                return mixture, ({self.rule.name: rule_state} if rule_state else {})
        return prior.add_report(fallback=f"{self.rule.name} gave non-finite weights"), state
