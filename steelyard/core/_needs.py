"""What a part requires. The needs of a composed rule are the union of its parts' needs."""

from __future__ import annotations

from dataclasses import dataclass

from steelyard.core._errors import SteelyardError
from steelyard.core._layout import Granularity


@dataclass(frozen=True)
class Needs:
    """What a rule or a client term declares to need.

    Reading anything else raises an error; tests check that everything declared is used.

    Attributes:
        metrics: names of the values that clients report (`num_examples`, `loss`, `label_hist`...).
        gram: inner products of the updates (and with the global model).
        per_layer: the granularity, for a rule that needs one Gram block per layer; None for the
            whole model.
        coordinates: whether the combine pass passes `[K, n]` chunks of updates to the rule.
        probe: loss and gradient of a proxy set at a mixture.
        last_step: inner products with the aggregated step of the previous round, and the step
            itself as a part of the mixture.
        broadcast: names of the vectors that clients receive with the parameters (`step`, `move`).
    """

    metrics: frozenset[str] = frozenset()
    gram: bool = False
    per_layer: Granularity | None = None
    coordinates: bool = False
    probe: bool = False
    last_step: bool = False
    broadcast: frozenset[str] = frozenset()

    def __or__(self, other: Needs) -> Needs:
        if self.per_layer and other.per_layer and self.per_layer != other.per_layer:
            raise SteelyardError(
                f"two rules use different layers, {self.per_layer!r} and {other.per_layer!r}: "
                "use the same layers for both"
            )
        return Needs(
            metrics=self.metrics | other.metrics,
            gram=self.gram or other.gram,
            per_layer=self.per_layer or other.per_layer,
            coordinates=self.coordinates or other.coordinates,
            probe=self.probe or other.probe,
            last_step=self.last_step or other.last_step,
            broadcast=self.broadcast | other.broadcast,
        )

    @staticmethod
    def of(*metrics: str, gram: bool = False) -> Needs:
        """Return needs from metric names: `Needs.of("num_examples", gram=True)`."""
        return Needs(frozenset(metrics), gram=gram)
