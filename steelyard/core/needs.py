"""What a part requires. The needs of a whole are the union of its parts' needs."""

from __future__ import annotations

from dataclasses import dataclass

from steelyard.core.errors import SteelyardError
from steelyard.core.layout import Granularity


@dataclass(frozen=True)
class Needs:
    """A declaration, checked both ways: a rule may touch nothing else, and must have use for all of it.

    Attributes:
        metrics: numbers clients report, by name (`num_examples`, `loss`, `label_hist`, ...).
        gram: inner products between updates (and with the global model).
        per_layer: what a layer is, for a rule that wants one Gram block for each; None for the whole model.
        coordinates: the combine pass shows the rule `[K, n]` chunks of updates.
        probe: loss and gradient of a proxy set at a mixture.
        broadcast: what clients must receive beside the parameters (`step`, `move`).
    """

    metrics: frozenset[str] = frozenset()
    gram: bool = False
    per_layer: Granularity | None = None
    coordinates: bool = False
    probe: bool = False
    broadcast: frozenset[str] = frozenset()

    def __or__(self, other: Needs) -> Needs:
        if self.per_layer and other.per_layer and self.per_layer != other.per_layer:
            raise SteelyardError(
                f"two rules cut the model into different layers, {self.per_layer!r} and {other.per_layer!r}: choose one"
            )
        return Needs(
            metrics=self.metrics | other.metrics,
            gram=self.gram or other.gram,
            per_layer=self.per_layer or other.per_layer,
            coordinates=self.coordinates or other.coordinates,
            probe=self.probe or other.probe,
            broadcast=self.broadcast | other.broadcast,
        )

    @staticmethod
    def of(*metrics: str, gram: bool = False) -> Needs:
        """Shorthand: `Needs.of("num_examples", gram=True)`."""
        return Needs(frozenset(metrics), gram=gram)
