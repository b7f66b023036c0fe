"""Run one aggregation round.

A rule computes the weights of a store's updates, a sink receives the new model, and a report
describes the round.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from steelyard import kernels, threads
from steelyard.core._errors import (
    BAD_BASE,
    NOT_FINITE,
    NonFiniteLoss,
    NonFiniteUpdate,
    NoValidClients,
    OversizedUpdate,
    RefusedReports,
    RoundOverflow,
    SteelyardError,
)
from steelyard.core._evidence import Evidence, part_needing_proxy_data
from steelyard.core._gram import Array
from steelyard.core._layout import Granularity, Layers, Layout, Leaf
from steelyard.core._lora import (
    FACTORS,
    Factors,
    LoraOutput,
    PairReader,
    combine_pair,
    step_norms,
)
from steelyard.core._mixture import Mixture
from steelyard.core._optimizer import ServerOptimizer, ServerStep
from steelyard.core._probe import ProxyLoss, Session
from steelyard.core._refiner import Refiner, SessionSink
from steelyard.core._round_gram import RoundGram
from steelyard.core._round_report import Report, describe
from steelyard.core._server_terms import Bounds, clip_factors
from steelyard.core._spec import to_text
from steelyard.core._state import ClientId, State
from steelyard.core._store import Sink, UpdateStore
from steelyard.core._sums import UpdateMap, WeightedSum, are_finite
from steelyard.core._weighting import Weighting


@dataclass(frozen=True)
class Round:
    """The inputs of a round, apart from the rule and the updates.

    Attributes:
        metrics: values that clients reported: by metric name, then by client id.
        state: the state that the previous round's `Outcome` returned.
        number: number of the round; the first round is 1.
        server: the server optimizer, if any.
        diagnose: whether to compute the Gram even if the rule does not need it, so that the
            report is complete.
        chunk: number of coordinates per read; the result has the same bits for any value.
        step: if set, this tensor receives `target - theta`, the aggregated step before the server
            optimizer.
        direction: the vector that the server sent to clients and that a client term pulls along,
            if any. With `diagnose`, the report has the cosine of each update to it.
        probe: the server's proxy data, for rules and refiners that use it.
        refine: the refiner that trains the aggregated model on the proxy data, if any.
        population_examples: number of examples of all clients, including those that are not in
            this round; None if unknown.
        lora: what to return for LoRA adapters.
        record_layers: a granularity whose Gram `Outcome.round_gram` has beside that of the whole
            model, if any.
    """

    metrics: Mapping[str, Mapping[ClientId, Any]] = field(default_factory=dict)
    state: State = field(default_factory=dict)
    number: int = 1
    server: ServerOptimizer | None = None
    diagnose: bool = False
    chunk: int | None = None
    step: torch.Tensor | None = None
    direction: torch.Tensor | None = None
    probe: ProxyLoss | None = None
    refine: Refiner | None = None
    population_examples: int | None = None
    record_layers: Granularity | None = None
    lora: LoraOutput = FACTORS


@dataclass(frozen=True, repr=False)
class Outcome:
    """The result of a round.

    Attributes:
        store: the updates of the accepted clients.
        weights: coefficients on the updates, `[g, K]`, clients in the order of `store.ids`.
        base: coefficient on the global model, `[g]`.
        state: the state for the next round.
        report: a description of the round.
        void: whether the round was void, so that model and state did not change.
        bounds: the bounds that a guard in the rule applied, if there is one.
        round_gram: the inner products and reports of the round, if the Gram was computed.
        residuals: with `lora=residual`, what is to be added to the weights that LoRA adapters
            change, as factors, by the name of the adapted module.
    """

    store: UpdateStore
    weights: Array
    base: Array
    state: State
    report: Report
    void: bool
    bounds: Bounds | None = None
    round_gram: RoundGram | None = None
    residuals: Mapping[str, Factors] = field(default_factory=dict)

    @property
    def counted_rows(self) -> list[int]:
        """Positions in `store.ids` of the clients that a guard, if any, did not set aside."""
        aside = set() if self.bounds is None else set(self.bounds.aside)
        return [row for row in range(len(self.store.ids)) if row not in aside]

    @property
    def client_weights(self) -> dict[ClientId, float]:
        """The weight of each client, averaged over layers."""
        means = self.weights.mean(axis=0).tolist()
        return dict(zip(self.store.ids, means, strict=True))

    def __repr__(self) -> str:
        """Return a summary on one line."""
        text = f"{len(self.store.ids)} clients"
        if self.store.quarantined:
            text += f", {len(self.store.quarantined)} quarantined"
        return f"Outcome({text}, {'void' if self.void else 'weighed'})"


def run(rule: Weighting, store: UpdateStore, job: Round, sink: Sink) -> Outcome:
    """Run a round: compute the weights, combine the updates and write the new model to `sink`.

    If an update or a report turns out to be unusable, its client is quarantined and the round
    starts again without it.

    Args:
        rule: computes the weights.
        store: the updates and the global model.
        job: the other inputs of the round.
        sink: receives the new model.

    Returns:
        The outcome of the round; its store holds the clients that were accepted.

    Raises:
        NoValidClients: if every client was quarantined.
        RoundOverflow: if the new model leaves the range of its dtype and no single client is the
            cause.
    """
    while True:
        if not store.ids:
            raise NoValidClients(dict(store.quarantined))
        try:
            return _attempt(rule, store, job, sink)
        except NonFiniteUpdate as error:
            # The row after the clients' rows is the global model.
            if len(store.ids) in error.rows:
                raise SteelyardError(BAD_BASE) from None
            store = store.without({store.ids[row]: NOT_FINITE for row in error.rows})
        except OversizedUpdate as error:
            store = store.without({store.ids[row]: error.reason for row in error.rows})
        except RefusedReports as error:
            store = store.without(error.refused)


def run_or_void(rule: Weighting, store: UpdateStore, job: Round, sink: Sink) -> Outcome:
    """Run a round as `run` does, but return a void outcome where `run` raises for lack of a result.

    A round is void if no client is valid, or if its numbers leave the range of their dtype and no
    single client is the cause. Model and state do not change in a void round.
    """
    try:
        return run(rule, store, job, sink)
    except NoValidClients as error:
        store = store.without(error.quarantined)
        reason = str(error)
    except RoundOverflow as error:
        reason = str(error)
    mixture = Mixture(np.zeros((1, len(store.ids))), np.ones(1), void=reason)
    return _void_outcome(store, mixture, job)


def _void_outcome(store: UpdateStore, mixture: Mixture, job: Round) -> Outcome:
    """Return the outcome of a round in which the model does not change; `mixture.void` says why."""
    layers = store.layout.layers(mixture.layers)
    weights = np.zeros((len(layers.names), len(store.ids)))
    base = np.ones(len(layers.names))
    report = describe(store, mixture, weights, layers, None, job.number)
    return Outcome(store, weights, base, job.state, report, True)


def _attempt(rule: Weighting, store: UpdateStore, job: Round, sink: Sink) -> Outcome:
    """Run the round once with all clients of `store`.

    Raise an error that names unusable clients.
    """
    # Apply the rule to equal weights.
    evidence = Evidence(rule, store, job)
    prior = Mixture.convex(np.ones((1, len(store.ids))))
    try:
        mixture, after = rule.apply(prior, evidence.view(), job.state)
    except NonFiniteLoss:
        # If a client's update is not finite, name it, so that the round continues without it.
        spans = [(0, store.layout.dim)]
        rows = len(store.ids) + 1
        kernels.combine(store, rows, spans, lambda _, rows: _refuse_non_finite(rows), job.chunk)
        raise

    # Stop here if the rule has no usable result.
    if not mixture.finite:
        raise SteelyardError(
            f"{to_text(rule)} returned a weight that is NaN or infinite; the base model is "
            f"unchanged: "
            "check what clients report, or use if_finite(...) or guard(...)"
        )
    if mixture.void is not None:
        return _void_outcome(store, mixture, job)

    # Write the new model. `direction` may be the same tensor as `step`, which `_write_model`
    # overwrites: compute the cosines first.
    layers = store.layout.layers(mixture.layers)
    state = dict(after)
    bounds = _bounds(evidence, mixture)
    cosines = evidence.direction_cosines()
    # The step goes into a new tensor: `job.step` does not change if a pass fails.
    step = None
    if job.step is not None or rule.needs.last_step:
        step = torch.empty(store.layout.dim, dtype=store.layout.row_dtype)
    lora_errors, residuals = _write_adapters(evidence, mixture, layers, sink, step)
    weights = _write_model(evidence, mixture, layers, state, sink, bounds, step)
    if job.step is not None and step is not None:
        job.step.copy_(step)
    if rule.needs.last_step:
        state["last_step"] = step

    # Describe the round.
    gram = evidence.gram_for_report(mixture.layers)
    sizes = evidence.metrics.get("num_examples")
    lr = 1.0 if job.server is None else job.server.global_lr
    report = describe(store, mixture, weights, layers, gram, job.number, sizes, lr)
    if cosines:
        report["direction_cosines"] = cosines
    if lora_errors:
        report["lora_error"] = lora_errors
    round_gram = None if gram is None else evidence.make_round_gram(mixture, weights)
    base = np.array(mixture.base)
    return Outcome(store, weights, base, state, report, False, bounds, round_gram, residuals)


def _bounds(evidence: Evidence, mixture: Mixture) -> Bounds | None:
    """Return the bounds that the rule's guard applied to each client; None without a guard."""
    if mixture.clip_norm is None or mixture.stat_clip is None:
        return None
    factors = clip_factors(evidence.lengths, mixture.clip_norm)
    set_aside = mixture.notes.get("set_aside", {})
    factors[[client in set_aside for client in evidence.store.ids]] = 0.0
    return Bounds(factors, mixture.stat_clip)


def _write_model(
    evidence: Evidence,
    mixture: Mixture,
    layers: Layers,
    state: dict[str, Any],
    sink: Sink,
    bounds: Bounds | None,
    step: torch.Tensor | None,
) -> Array:
    """Write the new model to `sink`, after the refiner, if there is one, trained it.

    Without LoRA adapters, unless their factors are averaged. The aggregated step goes to `step`.

    Returns:
        The weights of the clients, `[g, K]`. With a reducer, they follow from how often it used
        each update.
    """
    store = evidence.store
    job = evidence.job
    layout = store.layout

    # With a refiner, the sum goes into the session first.
    rule_used_probe = evidence.has_session
    if rule_used_probe and job.refine is None:
        evidence.session.close()
    session_sink = None if job.refine is None else SessionSink(evidence.session)
    target: Sink = session_sink or sink

    # Parameters.
    usage = _combine(evidence, mixture, layers, state, target, step)
    weights = mixture.client_weights
    if usage is not None:
        share = usage / usage.sum()
        if mixture.rows is not None:
            share = share @ mixture.rows
        weights = mixture.weights.sum(axis=1, keepdims=True) * share

    # Statistics and counters. If the rule ran the network on proxy data, those of its passes may
    # replace the clients'.
    _mix_stats(store, mixture, layers, target)
    _merge_counters(store, mixture, target)
    if rule_used_probe:
        for leaf, values in _probe_buffers(evidence.session, layout):
            target.write_leaf(leaf, values)

    # Train on the proxy data.
    if session_sink is not None and job.refine is not None:
        share = np.maximum(weights, 0.0).mean(axis=0)
        share = share / share.sum()
        trial = evidence.trial()
        if bounds is not None:
            trial = trial.transform(bounds.rows)
        before = job.state.get("refine", {})
        state["refine"] = session_sink.refine(job.refine, trial, share, before, sink)

    # A flat model has no leaves for the network's buffers: keep them in the state.
    if evidence.has_session and layout.flat and (buffers := evidence.session.buffers()):
        state["probe"] = buffers
    return weights


def _probe_buffers(session: Session, layout: Layout) -> Iterator[tuple[Leaf, torch.Tensor]]:
    """Yield the statistics and counters after the passes over the proxy data.

    Yield nothing if the session leaves them to the mixture of the clients.
    """
    buffers = session.buffers()
    if buffers is not None:
        for leaf in (*layout.stats, *layout.counts):
            yield leaf, buffers[leaf.name].to(leaf.dtype).view(leaf.shape)


def _combine(
    evidence: Evidence,
    mixture: Mixture,
    layers: Layers,
    state: dict[str, Any],
    sink: Sink,
    step: torch.Tensor | None,
) -> Array | None:
    """Write the new parameters to `sink`, and the step: the second pass over the updates.

    Returns:
        How often the reducer used each row; None if the mixture has no reducer.
    """
    # Choose how rows are combined.
    store = evidence.store
    job = evidence.job
    layout = store.layout
    server = None
    if job.server is not None:
        server = ServerStep(job.server, layout, state, job.state, mixture.scale)
    reduction = None
    if mixture.reduce is not None:
        reduction = _Reduction(mixture, layout.row_dtype)
    mix = reduction or WeightedSum(mixture.weights, mixture.base, layout.row_dtype)
    last_step = None if mixture.step_weight is None else evidence.last_step

    def emit(piece: kernels.Piece, rows: torch.Tensor) -> None:
        room = sink.room(piece.start, piece.stop)
        layer = all_spans[piece.span][2]
        values = mix(rows, layer, room)
        if last_step is not None and mixture.step_weight is not None:
            part = last_step[piece.start : piece.stop]
            values.add_(part, alpha=float(mixture.step_weight[layer]))
        if step is not None:
            torch.sub(values, rows[-1], out=step[piece.start : piece.stop])
        if server is not None:
            values = server(rows[-1], values, piece.start, piece.stop)
            if not server.is_finite(piece.start, piece.stop):
                _refuse_non_finite(rows)
                server.refuse_overflow(rows)
        if not are_finite(values):
            _refuse_non_finite(rows)
            raise RoundOverflow(
                f"the aggregated model overflows {layout.row_dtype}: the base model is unchanged"
            )
        if values is not room:
            sink.write(piece.start, values)

    # Run the pass. Factors of LoRA adapters are ordinary leaves only if they are averaged.
    averages_factors = job.lora.kind == "factors"
    all_spans = layout.all_spans(layers) if averages_factors else list(layers.spans)
    spans = [(start, stop) for start, stop, _ in all_spans]
    kernels.combine(store, len(store.ids) + 1, spans, emit, job.chunk)
    if reduction is None:
        return None
    return reduction.usage.numpy().astype(np.float64)


def _write_adapters(
    evidence: Evidence, mixture: Mixture, layers: Layers, sink: Sink, step: torch.Tensor | None
) -> tuple[dict[str, float], dict[str, Factors]]:
    """Write the new factors of LoRA adapters to `sink`, unless they are averaged as leaves.

    Their part of the aggregated step goes to `step`.

    Returns:
        The error of each adapter by its name, and what is to be added to the weights themselves.
    """
    store = evidence.store
    job = evidence.job
    pairs = store.layout.pairs
    if not pairs:
        return {}, {}
    averages_factors = job.lora.kind == "factors"
    if not averages_factors:
        _check_adapters(evidence.rule, mixture, job)
    if averages_factors and (mixture.reduce is not None or job.server is not None):
        return {}, {}  # the new factors are not a weighted sum, which has an error

    # One adapter after the other: only the factors of one are in memory.
    weights = mixture.client_weights[list(layers.pair_layers)]
    base = mixture.base[list(layers.pair_layers)]
    lengths = step_norms(evidence.pair_products, weights, base)
    reader = PairReader(store)
    errors = {}
    residuals = {}
    with threads.alone():
        for number, pair in enumerate(pairs):
            a, b = reader.read(pair)
            adapter = combine_pair(
                pair, a, b, weights[number], float(base[number]), job.lora, float(lengths[number])
            )
            errors[pair.name] = adapter.error
            if adapter.residual is not None:
                residuals[pair.name] = adapter.residual
            if not averages_factors:
                _write_factor(pair.a, adapter.factors.right, 0, sink)
                _write_factor(pair.b, adapter.factors.left, 1, sink)
                if step is not None:
                    _write_step(pair.a, adapter.factors.right, a[-1], step)
                    _write_step(pair.b, adapter.factors.left, b[-1], step)
    return errors, residuals


def _check_adapters(rule: Weighting, mixture: Mixture, job: Round) -> None:
    """Raise an error if a part needs the factors of adapters as ordinary leaves."""
    part = None
    if mixture.reduce is not None:
        part = "a rule that works coordinate by coordinate"
    elif rule.needs.probe:
        part = f"{part_needing_proxy_data(rule)}, which evaluates mixtures on proxy data"
    elif job.server is not None:
        part = f"server={job.server.name}"
    elif job.refine is not None:
        part = f"refine={job.refine.name}"
    if part is not None:
        raise SteelyardError(
            f"lora={job.lora} with {part}: it acts on the factors A and B, not on their product: "
            "use lora=factors, or leave it out"
        )


def _write_factor(leaf: Leaf, values: torch.Tensor, axis: int, sink: Sink) -> None:
    """Write a new factor of a LoRA adapter; its rank may differ from the leaf's.

    Args:
        leaf: the leaf of the factor.
        values: the new factor, a matrix.
        axis: the axis of the rank.
        sink: receives the factor.
    """
    if not are_finite(values):
        raise RoundOverflow(
            f"the aggregated {leaf.name!r} is not finite: the base model is unchanged"
        )
    if values.numel() == leaf.size:
        dtype = torch.float64 if leaf.dtype == torch.float64 else torch.float32
        sink.write(leaf.start, values.reshape(-1).to(dtype))
        return
    shape = list(leaf.shape)
    shape[axis] = values.shape[axis]
    sink.write_leaf(replace(leaf, shape=tuple(shape)), values.reshape(shape).to(leaf.dtype))


def _write_step(leaf: Leaf, factor: torch.Tensor, before: torch.Tensor, step: torch.Tensor) -> None:
    """Write the change of a factor to its part of the aggregated step.

    Args:
        leaf: the leaf of the factor.
        factor: the new factor, a matrix.
        before: the factor of the global model.
        step: the aggregated step `[d]`.
    """
    if factor.numel() != leaf.size:
        raise SteelyardError(
            f"{leaf.name!r} changes its rank, and a client term needs the last step of the model: "
            "use lora=residual"
        )
    change = factor.reshape(-1) - before.reshape(-1).double()
    step[leaf.start : leaf.stop].copy_(change)


def _refuse_non_finite(rows: torch.Tensor) -> None:
    """Raise `NonFiniteUpdate` if a row holds NaN or infinity."""
    bad = torch.nonzero(~torch.isfinite(rows).all(dim=1)).flatten().tolist()
    if bad:
        raise NonFiniteUpdate(tuple(bad))


class _Reduction:
    """Runs a mixture's reducer on chunks and counts how often it used each row (`usage`)."""

    def __init__(self, mixture: Mixture, dtype: torch.dtype) -> None:
        assert mixture.reduce is not None
        self.reduce = mixture.reduce
        self.map = None if mixture.rows is None else UpdateMap(mixture.rows, dtype)
        has_weight = (mixture.weights != 0).any(axis=0)
        self.selected = torch.from_numpy(np.flatnonzero(has_weight))
        self.total = mixture.weights.sum(axis=1).tolist()
        self.base = mixture.base.tolist()
        self.lock = threading.Lock()
        self.usage = torch.zeros(mixture.weights.shape[1], dtype=torch.int64)

    def __call__(self, rows: torch.Tensor, layer: int, out: torch.Tensor | None) -> torch.Tensor:
        del out
        # Check first: a reducer that sorts would drop NaN silently.
        if not are_finite(rows):
            _refuse_non_finite(rows)
        updates = rows[:-1]
        if self.map is not None:
            updates = self.map(updates)
        values, usage = self.reduce(updates[self.selected])
        with self.lock:
            self.usage.index_add_(0, self.selected, usage)
        mixed: torch.Tensor = self.base[layer] * rows[-1] + self.total[layer] * values
        return mixed


def _merge_counters(store: UpdateStore, mixture: Mixture, sink: Sink) -> None:
    """Write the counters of the new model, one leaf at a time.

    They can be as large as parameters.
    """
    for leaf in store.layout.counts:
        is_batch_count = leaf.name.endswith("num_batches_tracked")
        counts = _merge_counts(store.counts(leaf), is_batch_count, mixture.stat_clip)
        sink.write_leaf(leaf, counts.to(leaf.dtype))


def _merge_counts(counts: torch.Tensor, is_batch_count: bool, clip: float | None) -> torch.Tensor:
    """Return one counter of the new model from those of the clients, `[K, ...]`.

    It is the (lower) median over clients. For a number of batches it is the maximum, unless a guard
    is active and the maximum is larger than `clip` times the median.
    """
    if is_batch_count and clip is None:
        return counts.amax(dim=0)
    numbers = counts.byte() if counts.dtype == torch.bool else counts
    median = numbers.kthvalue((len(counts) + 1) // 2, dim=0).values
    if not is_batch_count or clip is None:
        return median
    maximum = counts.amax(dim=0)
    return torch.where(maximum > clip * median.double(), median, maximum)


def _mix_stats(store: UpdateStore, mixture: Mixture, layers: Layers, sink: Sink) -> None:
    """Write the running statistics of the new model.

    They are a convex combination of the clients' statistics, also where weights are negative or
    `base` is not 1.
    """
    layout = store.layout
    if not layout.stats:
        return
    clients, base = (tensor.numpy() for tensor in store.stats())

    # A guard limits how far a client's statistics may be from the global ones.
    if mixture.stat_clip is not None:
        change = clients - base
        norms = np.linalg.norm(change, axis=1)
        limit = mixture.stat_clip * float(np.median(norms))
        clients = base + change * np.minimum(1.0, limit / np.where(norms > 0, norms, 1.0))[:, None]

    # Shares [g, K] from the positive weights; equal shares where no weight is positive.
    positive = np.maximum(mixture.client_weights, 0.0)
    total = positive.sum(axis=1, keepdims=True)
    equal = 1 / positive.shape[1]
    shares = np.where(total > 0, positive / np.where(total > 0, total, 1.0), equal)

    # A statistic follows its module's layer, or the mean over layers.
    for leaf in layout.stats:
        layer = layout.stat_layer(leaf, layers)
        share = shares.mean(axis=0) if layer is None else shares[layer]
        values = mixture.stat_scale * (share @ clients[:, leaf.start : leaf.stop])
        if leaf.name.endswith("running_var"):
            values = np.maximum(values, 0.0)
        sink.write_leaf(leaf, torch.from_numpy(values).to(leaf.dtype).view(leaf.shape))
