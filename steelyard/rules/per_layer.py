"""per_layer: applies a rule to each layer, with one set of weights per layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from steelyard.core.client_state import State
from steelyard.core.errors import SteelyardError
from steelyard.core.layout import Granularity, check_granularity
from steelyard.core.mixture import Mixture
from steelyard.core.needs import Needs
from steelyard.core.registry import RULES
from steelyard.core.view import View
from steelyard.core.weighting import Info, Weighting
from steelyard.rules.chain import parse_rule


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
            raise SteelyardError(f"per_layer({name}): {name} works layer by layer already: leave per_layer out")
        if self.rule.needs.coordinates:
            raise SteelyardError(f"per_layer({name}): {name} works by coordinate already: leave per_layer out")
        if self.rule.needs.probe:
            raise SteelyardError(f"per_layer({name}): {name} needs a loss, which only the whole model has: use {name}")
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
