"""All that a rule may look at: declared, lazy, and checked on touch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from steelyard.core.client_state import ClientId
from steelyard.core.errors import UndeclaredNeed
from steelyard.core.gram import Array, Gram
from steelyard.core.layout import Granularity
from steelyard.core.needs import Needs
from steelyard.core.probe import Trial
from steelyard.core.rows import RowMap, Selection, compose_rows


@dataclass(frozen=True)
class View:
    """One round as a rule sees it.

    The Gram is computed on first touch, so a gate that stays closed costs no pass over the updates.

    `global_lr` is the server's learning rate on the aggregated step (1 where its optimizer does more than scale), and
    `population_examples` the number of examples of all clients, in this round or not, where that is known.
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
        """What clients reported under this name, float64 `[K]` (`[K, C]` for histograms)."""
        if name not in self.needs.metrics:
            raise UndeclaredNeed(f"the rule reads metric {name!r} but declares only {sorted(self.needs.metrics)}")
        return self.metrics[name]

    @property
    def gram(self) -> Gram:
        """Inner products of the updates, whole or per layer."""
        return self._gram(self.layers)

    @property
    def whole_gram(self) -> Gram:
        """The whole model's Gram, also inside `per_layer`."""
        return self._gram(None)

    @property
    def norms(self) -> Array:
        """Lengths of the updates, `[K]`: at the cost of reading them, where nobody wants the Gram itself."""
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
        """Length of the leading axis `g`."""
        return self.layer_counts(self.layers)

    def cohort_share(self, population_examples: int | None = None) -> float:
        """The share of all clients' examples that the clients of this round hold.

        Args:
            population_examples: how many examples all clients hold; by default what the round was told.

        Returns:
            A number in (0, 1]; 1 where the population's or the clients' numbers of examples are unknown.
        """
        total = population_examples or self.population_examples
        sizes = self.metrics.get("num_examples")
        if total is None or sizes is None:
            return 1.0
        return min(1.0, float(sizes.sum()) / total)

    def restrict(self, needs: Needs) -> View:
        """The same round for a part that declared these needs."""
        return replace(self, needs=needs)

    def layered(self, layers: Granularity) -> View:
        """The same round seen layer by layer."""
        return replace(self, layers=layers)

    def transform(self, rows: RowMap) -> View:
        """The same round with the updates replaced by `rows @ D`."""
        return replace(self, rows=compose_rows(rows, self.rows))

    def only(self, keep: Sequence[int]) -> View:
        """The same round with these clients alone."""
        select = Selection.of(keep, np.ones(len(self.ids)))
        metrics = {name: values[list(keep)] for name, values in self.metrics.items()}
        return replace(self.transform(select), ids=tuple(self.ids[k] for k in keep), metrics=metrics)

    def with_metrics(self, metrics: Mapping[str, Array]) -> View:
        """The same round with some reported numbers replaced."""
        return replace(self, metrics={**self.metrics, **metrics})
