"""Computes what a rule may look at, each value on first use."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard import kernels, threads
from steelyard.core._errors import NO_PROBE, NonFiniteUpdate, SteelyardError
from steelyard.core._gram import Array, Gram, StepProducts
from steelyard.core._layout import Granularity
from steelyard.core._lora import pair_products
from steelyard.core._mixture import Mixture
from steelyard.core._probe import Session, Trial
from steelyard.core._refiner import Refiner
from steelyard.core._round_gram import LayeredGram, RoundGram, to_columns
from steelyard.core._spec import to_text
from steelyard.core._state import ClientId
from steelyard.core._store import UpdateStore
from steelyard.core._view import View
from steelyard.core._weighting import Weighting

if TYPE_CHECKING:
    from steelyard.core._round import Round


class Evidence:
    """The values behind a `View`, for one attempt at a round.

    Everything is computed on first use: a rule that never reads the Gram, like a closed gate, does
    not pay for it.
    """

    def __init__(self, rule: Weighting, store: UpdateStore, job: Round) -> None:
        self.rule = rule
        self.store = store
        self.job = job
        self._grams: dict[Granularity | None, Gram] = {}

    def view(self) -> View:
        """Return the view of the round for the rule."""
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
        """The reported values that the rule needs, by name; clients in the order of the store."""
        metrics = {}
        for name in self.rule.needs.metrics:
            column = self.job.metrics[name]
            values = [column[client] for client in self.store.ids]
            metrics[name] = np.array(values, dtype=np.float64)
        return metrics

    def gram(self, layers: Granularity | None) -> Gram:
        """Return the Gram of the updates for this granularity.

        If the rule needs a Gram per layer, that of the whole model is the sum of its blocks.
        """
        per_layer = self.rule.needs.per_layer
        if layers is None and per_layer is not None:
            return self.gram(per_layer).merge_layers()
        if layers not in self._grams:
            gram = inner_products(self.store, layers, self.job.chunk, self.pair_products)
            if self.rule.needs.last_step:
                gram = replace(gram, last_step=self._step_products(layers))
            self._grams[layers] = gram
        return self._grams[layers]

    @cached_property
    def last_step(self) -> torch.Tensor | None:
        """The aggregated step of the previous round, `[d]`; None in the first round."""
        layout = self.store.layout
        if layout.pairs:
            raise SteelyardError(
                f"{to_text(self.rule)} follows the step of the previous round, which LoRA adapters "
                "do not have as one vector: use another rule"
            )
        step: torch.Tensor | None = self.job.state.get("last_step")
        if step is not None and step.numel() != layout.dim:
            raise SteelyardError(
                f"state is of a model with {step.numel()} parameters, this one has {layout.dim}: "
                "start from state=None"
            )
        return step

    def _step_products(self, layers: Granularity | None) -> StepProducts:
        """Return the inner products of the previous round's step: one more pass."""
        store = self.store
        partition = store.layout.layers(layers)
        groups = len(partition.names)
        products = np.zeros((groups, len(store.ids) + 1))
        squares = np.zeros(groups)
        step = self.last_step
        if step is not None:
            for layer in range(groups):
                parts = [
                    (start, step[start:stop])
                    for start, stop, number in partition.spans
                    if number == layer
                ]
                products[layer] = kernels.project(store, len(store.ids) + 1, parts, self.job.chunk)
                with threads.alone():
                    squares[layer] = sum(float(part.double().square().sum()) for _, part in parts)
        return StepProducts(products[:, :-1], products[:, -1], squares)

    @cached_property
    def pair_products(self) -> Array:
        """The inner products of LoRA adapters, `[pairs, K+1, K+1]`."""
        return pair_products(self.store, self.store.layout.pairs)

    def gram_for_report(self, layers: Granularity | None) -> Gram | None:
        """Return the Gram if the rule read one or the round is diagnosed; None otherwise."""
        if self._grams or self.job.diagnose:
            return self.gram(layers)
        return None

    def make_round_gram(self, mixture: Mixture, weights: Array) -> RoundGram:
        """Return what a recorder keeps of the round.

        Args:
            mixture: the result of the rule.
            weights: the coefficients on the updates, `[g, K]`.
        """
        job = self.job
        layout = self.store.layout
        if job.record_layers is not None:
            self.gram(job.record_layers)
        grams: dict[Granularity | None, LayeredGram] = {}
        for granularity, gram in self._grams.items():
            if granularity in (None, job.record_layers):
                grams[granularity] = LayeredGram(gram, layout.layers(granularity).names)
        if not grams:  # the rule works layer by layer, which nobody asked to record
            grams[None] = LayeredGram(self.gram(None), layout.layers(None).names)
        base = np.array(mixture.base)
        step_weight = None if mixture.step_weight is None else np.array(mixture.step_weight)
        layers = mixture.layers
        if layers not in (None, job.record_layers):
            weights = weights.mean(axis=0, keepdims=True)
            base = base.mean(keepdims=True)
            step_weight = None if step_weight is None else step_weight.mean(keepdims=True)
            layers = None
        return RoundGram(
            round=job.number,
            ids=self.store.ids,
            grams=grams,
            metrics=to_columns(job.metrics, self.store.ids),
            weights=weights,
            base=base,
            step_weight=step_weight,
            layers=layers,
            norms=vars(self).get("norms"),
            global_lr=1.0 if job.server is None else job.server.global_lr,
            population_examples=job.population_examples,
        )

    def direction_cosines(self) -> dict[ClientId, float]:
        """Return the cosine of each update to the direction that clients received.

        The result is empty if the round is not diagnosed, or the direction is missing or zero. It
        is empty for LoRA adapters, too: the direction has factors, updates are products.
        """
        job = self.job
        store = self.store
        if job.direction is None or not job.diagnose or store.layout.pairs:
            return {}
        with threads.alone():
            length = float(torch.linalg.vector_norm(job.direction, dtype=torch.float64))
        if length == 0.0:
            return {}
        # The Gram comes before the products: it refuses updates that hold NaN or infinity.
        lengths = self.gram(None).norms[0] * length
        dots = kernels.project(store, len(store.ids) + 1, [(0, job.direction)], job.chunk)[:-1]
        cosines = np.divide(dots, lengths, out=np.zeros_like(dots), where=lengths > 0)
        return dict(zip(store.ids, np.clip(cosines, -1.0, 1.0).tolist(), strict=True))

    @cached_property
    def norms(self) -> Array:
        """Norms of the updates, `[K]`, from one pass over them."""
        store = self.store
        if store.layout.pairs:  # norms of products follow from inner products
            products: Array = self.gram(None).norms[0]
            return products
        norms = kernels.norms(store, len(store.ids), store.layout.dim, self.job.chunk)
        _refuse_rows(~np.isfinite(norms))
        return norms

    @property
    def lengths(self) -> Array:
        """Norms of the updates, `[K]`: from a Gram if there is one, otherwise from one pass."""
        for gram in self._grams.values():
            norms: Array = gram.merge_layers().norms[0]
            return norms
        return self.norms

    @cached_property
    def session(self) -> Session:
        """A session with the server's proxy data and network; opened on first use."""
        job = self.job
        if job.probe is None:
            part = part_needing_proxy_data(self.rule, job.refine)
            raise SteelyardError(NO_PROBE.format(rule=part))
        buffers = base_buffers(self.store)
        state = job.state.get("probe", {})
        return job.probe.open(self.store.layout, job.number, buffers, state)

    @property
    def has_session(self) -> bool:
        """Whether the session was opened, so that the proxy data was used."""
        return "session" in vars(self)

    def trial(self) -> Trial:
        """Return the loss on the proxy data, as a function of weights."""
        return Trial(self.store, self.session, self.job.chunk)


def part_needing_proxy_data(rule: Weighting, refine: Refiner | None = None) -> str | None:
    """Return the name of the part that needs proxy data; None if no part does."""
    if rule.needs.probe:
        inner = next((part for part in rule.parts if part.needs.probe), None)
        return rule.name if inner is None else part_needing_proxy_data(inner)
    return None if refine is None else refine.name


def inner_products(
    store: UpdateStore,
    layers: Granularity | None = None,
    chunk: int | None = None,
    pair_blocks: Array | None = None,
) -> Gram:
    """Return the Gram of a store's updates, of the whole model or per layer: the first pass.

    Args:
        store: the updates.
        layers: what a layer is; None for the whole model.
        chunk: number of coordinates per read.
        pair_blocks: the inner products of LoRA adapters, if they are known.
    """
    partition = store.layout.layers(layers)
    spans = [(start, stop) for start, stop, _ in partition.spans]
    blocks = kernels.gram(store, len(store.ids) + 1, spans, chunk)
    sizes = [stop - start for start, stop in spans]
    index = partition.index

    # The products of LoRA adapters.
    pairs = store.layout.pairs
    if pairs:
        if pair_blocks is None:
            pair_blocks = pair_products(store, pairs)
        blocks = np.concatenate([blocks, pair_blocks])
        sizes += [pair.inputs * pair.outputs for pair in pairs]
        index = np.append(index, np.array(partition.pair_layers, dtype=np.intp))

    _refuse_rows(~np.isfinite(np.diagonal(blocks.sum(axis=0))))
    gram = Gram.of_rows(blocks, np.array(sizes, dtype=np.float64))
    return gram.group_layers(index, len(partition.names))


def _refuse_rows(bad: NDArray[np.bool_]) -> None:
    """Raise `NonFiniteUpdate` for the rows where `bad` is true, if there are any."""
    if bad.any():
        raise NonFiniteUpdate(tuple(int(row) for row in np.flatnonzero(bad)))


def base_buffers(store: UpdateStore) -> dict[str, torch.Tensor]:
    """Return the statistics and counters of the global model; a flat tensor has none."""
    layout = store.layout
    _, stats = store.stats()
    buffers = {leaf.name: stats[leaf.start : leaf.stop].view(leaf.shape) for leaf in layout.stats}
    for leaf in layout.counts:
        buffers[leaf.name] = store.base_counts()[leaf.name]
    return buffers
