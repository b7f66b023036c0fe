"""per_layer: a rule with one set of weights for each layer."""

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
    """The same rule over a leading axis: `per_layer(fedawa())` is FedAWA-L.

    `layers` is `"tensor"`, `"module"`, a tuple of sizes that cut the flat vector, or a tuple of name patterns.
    """

    rule: Weighting
    layers: Granularity = "tensor"

    name = "per_layer"
    modifies = True  # of an instance: whether its rule does
    info = Info("one set of weights for each layer", "", "as the rule inside", "as the rule inside")

    def __post_init__(self) -> None:
        object.__setattr__(self, "rule", parse_rule(self.rule))
        layers: object = self.layers
        if isinstance(layers, list):
            object.__setattr__(self, "layers", tuple(layers))
        check_granularity(self.layers)
        if self.rule.needs.per_layer:
            raise SteelyardError(f"per_layer({self.rule.name}): {self.rule.name} is layer by layer already")
        if self.rule.needs.coordinates:
            raise SteelyardError(f"per_layer({self.rule.name}): {self.rule.name} is finer than layers already")
        if self.rule.needs.probe:
            raise SteelyardError(
                f"per_layer({self.rule.name}): it looks at a loss, which only the whole model has: use {self.rule.name}"
            )
        object.__setattr__(self, "modifies", self.rule.modifies)

    @property
    def needs(self) -> Needs:
        """Those of the rule, with one Gram per layer if it wants a Gram."""
        return replace(self.rule.needs, per_layer=self.layers)

    @property
    def parts(self) -> tuple[Weighting, ...]:
        """The rule inside."""
        return (self.rule,)

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """The rule, over a view whose Gram has one block per layer."""
        layered = view.layered(self.layers).restrict(self.rule.needs)
        inner: dict[str, Any] = state.get(self.rule.name, {})
        mixture, kept = self.rule.apply(prior, layered, inner)
        return mixture.in_layers(self.layers, layered.layer_count), ({self.rule.name: kept} if kept else {})
