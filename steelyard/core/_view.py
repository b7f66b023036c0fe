"""The view of a round that rules get.

A rule can read only what its `needs` declare, and expensive values are computed on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from steelyard.core._errors import NO_LAST_STEP, SteelyardError, UndeclaredNeed
from steelyard.core._gram import Array, Gram, StepProducts
from steelyard.core._layout import Granularity
from steelyard.core._needs import Needs
from steelyard.core._probe import Trial
from steelyard.core._state import ClientId
from steelyard.core._sums import RowMap, Selection, compose_rows


@dataclass(frozen=True)
class View:
    """One round as a rule sees it.

    The Gram is computed on first use, so a gate that stays closed costs no pass over the updates.

    Attributes:
        ids: the clients of the round.
        round: number of the round.
        needs: what the rule declared; reading anything else raises `UndeclaredNeed`.
        metrics: reported values by name, `[K]` or `[K, C]`.
        grams: returns the Gram for a granularity.
        layer_counts: returns the number of layers for a granularity.
        trials: returns the proxy loss as a function of weights.
        lengths: returns the norms of the updates, `[K]`.
        layers: the granularity of the view; None for the whole model.
        rows: a linear map of the updates that the view applies, if any.
        global_lr: the server's learning rate on the aggregated step; 1 where the server optimizer
            does more than scale the step.
        population_examples: number of examples of all clients, including those that are not in
            this round, if known.
    """

    ids: tuple[ClientId, ...]
    round: int
    needs: Needs
    metrics: Mapping[str, Array]
    grams: Callable[[Granularity | None], Gram]
    layer_counts: Callable[[Granularity | None], int]
    trials: Callable[[], Trial]
    lengths: Callable[[], Array]
    layers: Granularity | None = None
    rows: RowMap | None = None
    global_lr: float = 1.0
    population_examples: int | None = None

    def metric(self, name: str) -> Array:
        """Return the values that clients reported: float64 `[K]` (`[K, C]` for histograms)."""
        if name not in self.needs.metrics:
            declared = sorted(self.needs.metrics)
            raise UndeclaredNeed(f"the rule reads metric {name!r} but declares only {declared}")
        return self.metrics[name]

    @property
    def gram(self) -> Gram:
        """The Gram of the updates, of the whole model or per layer."""
        return self._gram(self.layers)

    @property
    def whole_gram(self) -> Gram:
        """The Gram of the whole model, also inside `per_layer`."""
        return self._gram(None)

    @property
    def last_step(self) -> StepProducts:
        """The inner products of the previous round's step, of the whole model or per layer."""
        if not self.needs.last_step:
            raise UndeclaredNeed("the rule reads the last step but declares last_step=False")
        products = self.gram.last_step
        if products is None:
            raise SteelyardError(NO_LAST_STEP)
        return products

    @property
    def norms(self) -> Array:
        """Norms of the updates, `[K]`.

        They take one pass over the updates, and no inner products unless `rows` is a matrix.
        """
        if not self.needs.gram:
            raise UndeclaredNeed("the rule reads norms but declares gram=False")
        if self.rows is None:
            return self.lengths()
        norms: Array
        if isinstance(self.rows, Selection):
            norms = np.abs(self.rows.factors) * self.lengths()[self.rows.index]
        else:
            norms = self.whole_gram.norms[0]
        return norms

    def _gram(self, layers: Granularity | None) -> Gram:
        if not self.needs.gram:
            raise UndeclaredNeed("the rule reads the Gram but declares gram=False")
        gram = self.grams(layers)
        return gram if self.rows is None else gram.transform(self.rows)

    @property
    def probe(self) -> Trial:
        """The loss on the server's proxy data, as a function of weights on these clients' updates."""
        if not self.needs.probe:
            raise UndeclaredNeed("the rule reads the probe but declares probe=False")
        trial = self.trials()
        return trial if self.rows is None else trial.transform(self.rows)

    @property
    def layer_count(self) -> int:
        """Number of layers: the length of the leading axis `g`."""
        return self.layer_counts(self.layers)

    def cohort_share(self, population_examples: int | None = None) -> float:
        """Return the share of all clients' examples that belongs to the clients of this round.

        Args:
            population_examples: number of examples of all clients; by default that of the round.

        Returns:
            A number in (0, 1]; 1 where the numbers of examples of the population or of the clients
            are unknown.
        """
        total = population_examples or self.population_examples
        sizes = self.metrics.get("num_examples")
        if total is None or sizes is None:
            return 1.0
        return min(1.0, float(sizes.sum()) / total)

    def restrict(self, needs: Needs) -> View:
        """Return the view for a part of the rule that declared these needs."""
        return replace(self, needs=needs)

    def split_layers(self, layers: Granularity) -> View:
        """Return the view with one entry per layer."""
        return replace(self, layers=layers)

    def transform(self, rows: RowMap) -> View:
        """Return the view in which the updates `D` are replaced by `rows @ D`."""
        return replace(self, rows=compose_rows(rows, self.rows))

    def only(self, keep: Sequence[int]) -> View:
        """Return the view of the clients at the positions `keep`."""
        selection = Selection.of(keep, np.ones(len(self.ids)))
        ids = tuple(self.ids[k] for k in keep)
        metrics = {name: values[list(keep)] for name, values in self.metrics.items()}
        return replace(self.transform(selection), ids=ids, metrics=metrics)

    def with_metrics(self, metrics: Mapping[str, Array]) -> View:
        """Return the view with some of the reported values replaced."""
        return replace(self, metrics={**self.metrics, **metrics})
