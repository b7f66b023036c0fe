"""chain: applies rules one after another; the mixture of each rule is the prior of the next."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

from steelyard.core.client_state import State
from steelyard.core.errors import SteelyardError
from steelyard.core.mixture import Mixture
from steelyard.core.needs import Needs
from steelyard.core.registry import RULES
from steelyard.core.spec import parse
from steelyard.core.view import View
from steelyard.core.weighting import Info, Weighting
from steelyard.rules.fedavg import FedAvg


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
                    f"{rule.name} needs the whole model, but {layered_rule.name} before it computes "
                    f"weights layer by layer: {hint}"
                )
            if rule.needs.per_layer is not None:
                layered_rule = rule
            if rule.final or rule.needs.coordinates:
                final_rule = rule
        _ = self.needs  # raises an error if two rules use different layers
        object.__setattr__(self, "modifies", self.rules[0].modifies)

    @property
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
            f"{spec!r} is a {type(rule).__name__}: pass a rule or its spec string (detectors go inside gate or pa3fed)"
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
