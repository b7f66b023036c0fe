"""What a round looks like to a rule that uses the updates only through their inner products.

A `RoundGram` is small: K x K numbers, whatever the model's size. It can be recorded, and any rule
that needs no more can be applied to it later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from steelyard.core._errors import SteelyardError
from steelyard.core._gram import Array, Gram
from steelyard.core._layout import Granularity
from steelyard.core._needs import Needs
from steelyard.core._probe import Trial
from steelyard.core._state import ClientId
from steelyard.core._sums import Selection
from steelyard.core._view import View


@dataclass(frozen=True)
class LayeredGram:
    """The Gram of a round for one granularity.

    Attributes:
        gram: the inner products, one block per layer.
        names: the names of the layers.
    """

    gram: Gram
    names: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class RoundGram:
    """The inner products of a round's updates, what clients reported, and the weights they got.

    Attributes:
        round: number of the round.
        ids: the accepted clients.
        grams: the Gram by granularity; None is the whole model.
        metrics: reported values by name, `[K]` or `[K, C]`; NaN where a client reported nothing.
        weights: the coefficients on the updates that the rule of the run computed, `[g, K]`.
        base: its coefficient on the global model, `[g]`.
        step_weight: its coefficient on the previous round's step, `[g]`; None for 0.
        layers: the granularity of `weights` and `base`; None for the whole model.
        norms: norms of the updates `[K]` from a pass of their own, if the rule asked for them.
        global_lr: the server's learning rate on the aggregated step.
        population_examples: number of examples of all clients, if known.
    """

    round: int
    ids: tuple[ClientId, ...]
    grams: Mapping[Granularity | None, LayeredGram]
    metrics: Mapping[str, Array]
    weights: Array
    base: Array
    step_weight: Array | None = None
    layers: Granularity | None = None
    norms: Array | None = None
    global_lr: float = 1.0
    population_examples: int | None = None

    def __repr__(self) -> str:
        """Return a summary on one line."""
        return f"RoundGram(round {self.round}, {len(self.ids)} clients)"

    @property
    def whole(self) -> Gram:
        """The Gram of the whole model."""
        if None in self.grams:
            return self.grams[None].gram
        return next(iter(self.grams.values())).gram.merge_layers()

    def view(self, needs: Needs) -> View:
        """Return the round as a rule with these needs sees it."""

        def read_gram(layers: Granularity | None) -> Gram:
            # As in a round: a rule that works layer by layer sees the sum of the layers as the
            # whole.
            if layers is None and needs.per_layer is not None:
                return self.find_gram(needs.per_layer).merge_layers()
            return self.find_gram(layers)

        def count_layers(layers: Granularity | None) -> int:
            return 1 if layers is None else len(self._find(layers).names)

        return View(
            ids=self.ids,
            round=self.round,
            needs=needs,
            metrics=self.metrics,
            grams=read_gram,
            layer_counts=count_layers,
            trials=_refuse_trial,
            lengths=lambda: self.whole.norms[0] if self.norms is None else self.norms,
            global_lr=self.global_lr,
            population_examples=self.population_examples,
        )

    def only(self, ids: Sequence[ClientId]) -> RoundGram:
        """Return the round with only these clients."""
        positions = [self.ids.index(client) for client in ids]
        rows = Selection.of(positions, np.ones(len(self.ids)))
        grams = {
            layers: LayeredGram(entry.gram.transform(rows), entry.names)
            for layers, entry in self.grams.items()
        }
        return replace(
            self,
            ids=tuple(ids),
            grams=grams,
            metrics={name: values[positions] for name, values in self.metrics.items()},
            weights=self.weights[:, positions],
            norms=None if self.norms is None else self.norms[positions],
        )

    def find_gram(self, layers: Granularity | None) -> Gram:
        """Return the Gram for a granularity; raise an error if it is not recorded."""
        return self.whole if layers is None else self._find(layers).gram

    def _find(self, layers: Granularity) -> LayeredGram:
        """Return the Gram of layers with their names; raise an error if it is not recorded."""
        if layers not in self.grams:
            raise SteelyardError(
                f"round {self.round} has no Gram for layers={layers!r}: "
                f"record one, with record={describe_recording(layers)!r}"
            )
        return self.grams[layers]


def describe_recording(layers: Granularity) -> str:
    """Return the value of the option `record` that records the Gram of these layers."""
    text = layers if isinstance(layers, str) else "[" + ",".join(map(str, layers)) + "]"
    return f"gram:layers={text}"


def to_columns(
    metrics: Mapping[str, Mapping[ClientId, Any]], ids: Sequence[ClientId]
) -> dict[str, Array]:
    """Return reported values as arrays, `[K]` or `[K, C]`.

    A client that did not report a metric has NaN. A metric whose values are not numbers of one
    shape is left out.

    Args:
        metrics: values by metric name, then by client id.
        ids: the clients, in the order of the rows.
    """
    columns: dict[str, Array] = {}
    for name, column in metrics.items():
        values = [column.get(client) for client in ids]
        present = next((value for value in values if value is not None), None)
        if present is None:
            continue
        try:
            missing = np.full(np.shape(present), np.nan)
            rows = [missing if value is None else value for value in values]
            array = np.array(rows, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            continue
        if array.ndim in (1, 2):
            columns[name] = array
    return columns


def _refuse_trial() -> Trial:
    raise SteelyardError("a recorded round has no proxy data")
