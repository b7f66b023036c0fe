"""What a round has to show a rule, each thing made when it is first looked at."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard import kernels, threads
from steelyard.core.client_state import ClientId
from steelyard.core.errors import NO_PROBE, NonFiniteUpdate, SteelyardError
from steelyard.core.gram import Array, Gram
from steelyard.core.layout import Granularity
from steelyard.core.probe import Session, Trial
from steelyard.core.refiner import Refiner
from steelyard.core.store import UpdateStore
from steelyard.core.view import View
from steelyard.core.weighting import Weighting

if TYPE_CHECKING:
    from steelyard.core.round import Round


class Evidence:
    """Of one attempt at a round. A closed gate never asks for the Gram, and is not made to pay for it."""

    def __init__(self, rule: Weighting, store: UpdateStore, job: Round) -> None:
        self.rule, self.store, self.job = rule, store, job
        self._grams: dict[Granularity | None, Gram] = {}

    def view(self) -> View:
        """The round as the rule sees it."""
        return View(
            ids=self.store.ids,
            round=self.job.number,
            needs=self.rule.needs,
            metrics=self.metrics,
            grams=self.gram,
            layer_counts=lambda layers: len(self.store.layout.layers(layers).names),
            trials=self.trial,
            lengths=lambda: self.norms,
            global_lr=1.0 if self.job.server is None else self.job.server.global_lr,
            population_examples=self.job.population_examples,
        )

    @cached_property
    def metrics(self) -> dict[str, Array]:
        """What clients reported, as far as the rule asks for it."""
        table = {name: self.job.metrics[name] for name in self.rule.needs.metrics}
        return {name: np.array([column[c] for c in self.store.ids], dtype=np.float64) for name, column in table.items()}

    def gram(self, layers: Granularity | None) -> Gram:
        """Inner products of the updates; the whole model's come off the layers', where those are wanted anyway."""
        finer = self.rule.needs.per_layer
        if layers is None and finer is not None:
            return self.gram(finer).merge_layers()
        if layers not in self._grams:
            self._grams[layers] = inner_products(self.store, layers, self.job.chunk)
        return self._grams[layers]

    def gram_for_report(self, layers: Granularity | None) -> Gram | None:
        """The Gram for the report: if the rule looked at one, or the round is to be diagnosed."""
        return self.gram(layers) if self._grams or self.job.diagnose else None

    def direction_cosines(self) -> dict[ClientId, float]:
        """Cosine of each update to the direction that clients were sent; empty without one, or if it is zero."""
        job, store = self.job, self.store
        if job.direction is None or not job.diagnose:
            return {}
        with threads.alone():
            length = float(torch.linalg.vector_norm(job.direction, dtype=torch.float64))
        if length == 0.0:
            return {}
        lengths = self.gram(None).norms[0] * length  # before the products: it refuses updates with NaN or infinity
        dots = kernels.project(store, len(store.ids) + 1, [(0, job.direction)], job.chunk)[:-1]
        cosines = np.divide(dots, lengths, out=np.zeros_like(dots), where=lengths > 0)
        return dict(zip(store.ids, np.clip(cosines, -1.0, 1.0).tolist(), strict=True))

    @cached_property
    def norms(self) -> Array:
        """Lengths of the updates, at the cost of reading them."""
        found = kernels.norms(self.store, len(self.store.ids), self.store.layout.dim, self.job.chunk)
        _refuse(~np.isfinite(found))
        return found

    @property
    def lengths(self) -> Array:
        """Lengths of the updates, off a Gram where there is one."""
        for gram in self._grams.values():
            norms: Array = gram.merge_layers().norms[0]
            return norms
        return self.norms

    @cached_property
    def session(self) -> Session:
        """The server's proxy data, and a network to try mixtures in."""
        job, store = self.job, self.store
        if job.probe is None:
            raise SteelyardError(NO_PROBE.format(rule=part_needing_proxy_data(self.rule, job.refine)))
        return job.probe.open(store.layout, job.number, _base_buffers(store), job.state.get("probe", {}))

    @property
    def tried(self) -> bool:
        """Whether anybody looked at the proxy data so far."""
        return "session" in vars(self)

    def trial(self) -> Trial:
        """The loss on the proxy data, as a function of weights."""
        return Trial(self.store, self.session, self.job.chunk)


def part_needing_proxy_data(rule: Weighting, refine: Refiner | None = None) -> str | None:
    """The name of the part that looks at proxy data, if one does."""
    if rule.needs.probe:
        inner = next((part for part in rule.parts if part.needs.probe), None)
        return rule.name if inner is None else part_needing_proxy_data(inner)
    return None if refine is None else refine.name


def inner_products(store: UpdateStore, layers: Granularity | None = None, chunk: int | None = None) -> Gram:
    """The first pass: the Gram of a store's updates, whole or per layer."""
    cut = store.layout.layers(layers)
    spans = [(start, stop) for start, stop, _ in cut.spans]
    blocks = kernels.gram(store, len(store.ids) + 1, spans, chunk)
    _refuse(~np.isfinite(np.diagonal(blocks.sum(axis=0))))
    gram = Gram.of_rows(blocks, np.array([stop - start for start, stop in spans], dtype=np.float64))
    return gram.group_layers(cut.index, len(cut.names))


def _refuse(bad: NDArray[np.bool_]) -> None:
    if bad.any():
        raise NonFiniteUpdate(tuple(int(row) for row in np.flatnonzero(bad)))


def _base_buffers(store: UpdateStore) -> dict[str, torch.Tensor]:
    """Statistics and counters of the global model; none if it is one flat tensor."""
    layout = store.layout
    _, stats = store.stats()
    found = {leaf.name: stats[leaf.start : leaf.stop].view(leaf.shape) for leaf in layout.stats}
    return found | {leaf.name: store.base_counts()[leaf.name] for leaf in layout.counts}
