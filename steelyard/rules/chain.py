"""chain: the mixture of each rule is the prior of the next."""

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
    """Rules in a row. Build it with `chain(...)`, which flattens nested chains and refuses senseless ones."""

    rules: tuple[Weighting, ...]

    name = "chain"
    modifies = True  # of an instance: whether its first rule does
    info = Info("rules in a row, each starting from the one before")

    def __post_init__(self) -> None:
        if not self.rules:
            raise SteelyardError("chain() needs at least one rule")
        for rule in self.rules[1:]:
            if not rule.modifies:
                raise SteelyardError(
                    f"{rule.name} ignores what comes before it in a chain: put it first, or leave out what is before it"
                )
        layered: Weighting | None = None
        settled: Weighting | None = None
        for rule in self.rules:
            if settled is not None and not rule.scales:
                why = "makes no weighted sum: leave one of them out"
                if settled.final:
                    why = f"bounds them for good: put {rule.name} inside, guard(...|{rule.name})"
                raise SteelyardError(f"{rule.name} divides weights, and {settled.name} before it {why}")
            whole = (rule.needs.gram or rule.needs.probe) and rule.needs.per_layer is None
            if layered is not None and whole:
                cure = f"put {rule.name} first" if rule.needs.probe else f"use per_layer({rule.name}), or put it first"
                raise SteelyardError(
                    f"{rule.name} looks at the whole model after {layered.name} weighed it layer by layer: {cure}"
                )
            layered = layered if rule.needs.per_layer is None else rule
            settled = rule if rule.final or rule.needs.coordinates else settled
        _ = self.needs  # raises if two rules cut the model into different layers
        object.__setattr__(self, "modifies", self.rules[0].modifies)

    @property
    def needs(self) -> Needs:
        """Those of all its rules."""
        return reduce(Needs.__or__, (rule.needs for rule in self.rules))

    @property
    def parts(self) -> tuple[Weighting, ...]:
        """The rules, in order."""
        return self.rules

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Folds the mixture through the rules; each sees only what it declared and owns its named state."""
        after: dict[str, Any] = {}
        for key, rule in zip(keys(self.rules), self.rules, strict=True):
            prior, kept = rule.apply(prior, view.restrict(rule.needs), state.get(key, {}))
            layers = rule.needs.per_layer
            if layers is not None and prior.layers is None:  # still warming up, or its gate is closed
                prior = prior.in_layers(layers, view.layered(layers).layer_count)
            if kept:
                after[key] = kept
        return prior, after


def parse_rule(spec: Any) -> Weighting:
    """A rule from its text form (`"feddisco|fedawa:steps=10"`); a rule object is returned as it is.

    Examples:
        >>> parse_rule("guard(fedadp:alpha=3)").rule
        FedAdp(alpha=3, clock='round', reference='mean')
    """
    made = parse(spec, RULES, chain) if isinstance(spec, str) else spec() if isinstance(spec, type) else spec
    if not isinstance(made, Weighting):
        raise SteelyardError(
            f"{spec!r} is a {type(made).__name__}, not a rule or its text form (detectors go inside gate or pa3fed)"
        )
    return made


def chain(*rules: Weighting | str) -> Weighting:
    """The rules in a row, as one rule: `chain(fedavg(), feddisco(), fedawa())`.

    Examples:
        >>> import steelyard
        >>> rule = steelyard.chain("feddisco", steelyard.fedawa(steps=10))
        >>> rule == steelyard.parse_rule("feddisco|fedawa:steps=10")
        True
    """
    made = [parse_rule(rule) for rule in rules]
    flat = [part for rule in made for part in (rule.rules if isinstance(rule, Chain) else (rule,))]
    return flat[0] if len(flat) == 1 else Chain(tuple(flat))


def with_default_source(rule: Weighting) -> Chain:
    """The rule as a chain that starts at a source: rules that modify start from weights by number of examples."""
    parts = rule.rules if isinstance(rule, Chain) else (rule,)
    return Chain((FedAvg(), *parts) if parts[0].modifies else parts)


def keys(rules: tuple[Weighting, ...]) -> list[str]:
    """The state key of each rule: its name, numbered from the second use on."""
    names = [rule.name for rule in rules]
    return [
        name if names[:i].count(name) == 0 else f"{name}#{names[:i].count(name) + 1}" for i, name in enumerate(names)
    ]
