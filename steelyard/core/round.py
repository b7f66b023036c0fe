"""One round: a rule weighs a store's updates, a sink receives the new model, a report says what happened."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from steelyard import kernels
from steelyard.core.bounds import Bounds, clip_factors
from steelyard.core.client_state import ClientId, State
from steelyard.core.errors import (
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
from steelyard.core.evidence import Evidence
from steelyard.core.gram import Array
from steelyard.core.layout import Layers, Layout, Leaf
from steelyard.core.mixture import Mixture
from steelyard.core.optimizer import ServerOptimizer
from steelyard.core.probe import ProxyLoss, Session
from steelyard.core.refiner import Refiner, SessionSink
from steelyard.core.round_report import Report, describe
from steelyard.core.server_step import ServerStep
from steelyard.core.sink import Sink
from steelyard.core.spec import to_text
from steelyard.core.store import UpdateStore
from steelyard.core.sums import UpdateMap, WeightedSum, are_finite
from steelyard.core.weighting import Weighting


@dataclass(frozen=True)
class Round:
    """What a round is made of, beside the rule.

    Attributes:
        metrics: what clients reported: by name, then by client id.
        state: what the last round's outcome said to hand on.
        number: 1 for the first round.
        server: the server optimizer, if any.
        diagnose: compute the Gram even for a rule that needs none, so that the report is whole.
        chunk: coordinates per read; any value gives the same bits.
        step: if given, receives `target - theta`: the aggregated step before the server optimizer.
        direction: what clients were sent to pull along, if anything: a diagnosed round reports their cosines to it.
        probe: the server's proxy data, for rules and refiners that look at it.
        refine: what the server does with the proxy data after the sum.
        population_examples: how many examples all clients hold, in this round or not; None if unknown.
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


@dataclass(frozen=True, repr=False)
class Outcome:
    """What a round decided: weights and base by client id order of the store, state, report.

    `bounds` are those of a guard, if there is one in the rule.
    """

    store: UpdateStore
    weights: Array
    base: Array
    state: State
    report: Report
    void: bool
    bounds: Bounds | None = None

    def __repr__(self) -> str:
        """One line; the attributes hold it all."""
        left_out = f", {len(self.store.quarantined)} quarantined" if self.store.quarantined else ""
        return f"Outcome({len(self.store.ids)} clients{left_out}, {'void' if self.void else 'weighed'})"


def run(rule: Weighting, store: UpdateStore, job: Round, sink: Sink) -> Outcome:
    """Weighs and combines; a client found to be of no use on the way is quarantined and the round starts over."""
    while True:
        if not store.ids:
            raise NoValidClients(dict(store.quarantined))
        try:
            return _attempt(rule, store, job, sink)
        except NonFiniteUpdate as found:
            if len(store.ids) in found.rows:
                raise SteelyardError(BAD_BASE) from None
            store = store.without({store.ids[row]: NOT_FINITE for row in found.rows})
        except OversizedUpdate as found:
            store = store.without({store.ids[row]: found.reason for row in found.rows})
        except RefusedReports as found:
            store = store.without(found.refused)


def run_or_void(rule: Weighting, store: UpdateStore, job: Round, sink: Sink) -> Outcome:
    """The same, and where no client is valid a void round instead of an error: model and state stay as they were.

    So does a round whose numbers leave the range of their dtype, where that is not the doing of single clients.
    """
    try:
        return run(rule, store, job, sink)
    except NoValidClients as error:
        return _nothing(store.without(error.quarantined), job, str(error))
    except RoundOverflow as error:
        return _nothing(store, job, str(error))


def _nothing(store: UpdateStore, job: Round, reason: str) -> Outcome:
    cut = store.layout.layers(None)
    weights = np.zeros((1, len(store.ids)))
    mixture = Mixture(weights, np.ones(1), void=reason)
    return Outcome(
        store, weights, np.ones(1), job.state, describe(store, mixture, weights, cut, None, job.number), True
    )


def _attempt(rule: Weighting, store: UpdateStore, job: Round, sink: Sink) -> Outcome:
    evidence = Evidence(rule, store, job)
    try:
        mixture, after = rule.apply(Mixture.convex(np.ones((1, len(store.ids)))), evidence.view(), job.state)
    except NonFiniteLoss:  # if that is a client's doing, the round goes on without it
        spans = [(0, store.layout.dim)]
        kernels.combine(store, len(store.ids) + 1, spans, lambda _, rows: _refuse_non_finite(rows), job.chunk)
        raise
    cut = store.layout.layers(mixture.layers)
    if not mixture.finite:
        raise SteelyardError(
            f"{to_text(rule)} gives NaN or infinity for a weight, and the base model stays as it was: "
            "look at what clients report, or use if_finite(...) or guard(...)"
        )
    if mixture.void is not None:
        weights, base = np.zeros((len(cut.names), len(store.ids))), np.ones(len(cut.names))
        return Outcome(store, weights, base, job.state, describe(store, mixture, weights, cut, None, job.number), True)
    state = dict(after)
    bounds = _bounds(evidence, mixture)
    cosines = evidence.direction_cosines()  # before `direction`, which may be `step`, is replaced
    weights = _write(evidence, mixture, cut, state, sink, bounds)
    gram, sizes = evidence.gram_for_report(mixture.layers), evidence.metrics.get("num_examples")
    lr = 1.0 if job.server is None else job.server.global_lr
    report = describe(store, mixture, weights, cut, gram, job.number, sizes, lr)
    if cosines:
        report["direction_cosines"] = cosines
    return Outcome(store, weights, np.array(mixture.base), state, report, False, bounds)


def _bounds(evidence: Evidence, mixture: Mixture) -> Bounds | None:
    """What the guard in the rule, if there is one, decided about each client."""
    if mixture.clip_norm is None or mixture.stat_clip is None:
        return None
    factors = clip_factors(evidence.lengths, mixture.clip_norm)
    aside = mixture.notes.get("set_aside", {})
    factors[[client in aside for client in evidence.store.ids]] = 0.0
    return Bounds(factors, mixture.stat_clip)


def _write(
    evidence: Evidence,
    mixture: Mixture,
    cut: Layers,
    state: dict[str, Any],
    sink: Sink,
    bounds: Bounds | None,
) -> Array:
    """The new model into the sink, refined if it is to be; returns the weights that clients turned out to have."""
    store, job, layout = evidence.store, evidence.job, evidence.store.layout
    tried = evidence.tried  # the rule looked at the proxy data, and its passes left statistics
    if tried and job.refine is None:
        evidence.session.close()
    held = None if job.refine is None else SessionSink(evidence.session)
    target: Sink = held or sink
    used = _combine(store, mixture, cut, job, state, target)
    weights = mixture.client_weights
    if used is not None:
        share = used / used.sum()
        weights = mixture.weights.sum(axis=1, keepdims=True) * (share if mixture.rows is None else share @ mixture.rows)
    _mix_stats(store, mixture, cut, target)
    _agree_on_counts(store, mixture, target)
    if tried:
        for leaf, values in _left_behind(evidence.session, layout):
            target.put(leaf, values)
    if held is not None and job.refine is not None:
        share = np.maximum(weights, 0.0).mean(axis=0)
        before = job.state.get("refine", {})
        trial = evidence.trial() if bounds is None else evidence.trial().transform(bounds.rows)
        state["refine"] = held.refined(job.refine, trial, share / share.sum(), before, sink)
    if evidence.tried and layout.flat and (buffers := evidence.session.buffers()):
        state["probe"] = buffers  # a flat model has no place of its own for them
    return weights


def _left_behind(session: Session, layout: Layout) -> Iterator[tuple[Leaf, torch.Tensor]]:
    """Statistics and counters as the passes over the proxy data left them, if they count instead of the clients'."""
    buffers = session.buffers()
    if buffers is not None:
        for leaf in (*layout.stats, *layout.counts):
            yield leaf, buffers[leaf.name].to(leaf.dtype).view(leaf.shape)


def _combine(
    store: UpdateStore, mixture: Mixture, cut: Layers, job: Round, state: dict[str, Any], sink: Sink
) -> Array | None:
    """The second pass. Returns how often a reducer used each row, if there is one."""
    layout = store.layout
    server = None
    if job.server is not None:
        server = ServerStep(job.server, layout, state, job.state, mixture.scale)
    reduction = _Reduction(mixture, layout.row_dtype) if mixture.reduce is not None else None
    mix = reduction or WeightedSum(mixture.weights, mixture.base, layout.row_dtype)
    step = None if job.step is None else torch.empty_like(job.step)  # the old one stays if the pass fails

    def emit(piece: kernels.Piece, rows: torch.Tensor) -> None:
        room = sink.room(piece.start, piece.stop)
        values = mix(rows, cut.spans[piece.span][2], room)
        if step is not None:
            torch.sub(values, rows[-1], out=step[piece.start : piece.stop])
        if server is not None:
            values = server(rows[-1], values, piece.start, piece.stop)
            if not server.is_finite(piece.start, piece.stop):
                _refuse_non_finite(rows)
                server.refuse_overflow(rows)
        if not are_finite(values):
            _refuse_non_finite(rows)
            raise RoundOverflow(f"the aggregated model overflows {layout.row_dtype}: the base model stays as it was")
        if values is not room:
            sink.write(piece.start, values)

    kernels.combine(store, len(store.ids) + 1, [(start, stop) for start, stop, _ in cut.spans], emit, job.chunk)
    if job.step is not None and step is not None:
        job.step.copy_(step)
    return None if reduction is None else reduction.used.numpy().astype(np.float64)


def _refuse_non_finite(rows: torch.Tensor) -> None:
    bad = torch.nonzero(~torch.isfinite(rows).all(dim=1)).flatten().tolist()
    if bad:
        raise NonFiniteUpdate(tuple(bad))


class _Reduction:
    """Runs a mixture's reducer on chunks and counts whom it used."""

    def __init__(self, mixture: Mixture, dtype: torch.dtype) -> None:
        assert mixture.reduce is not None
        self.reduce = mixture.reduce
        self.map = None if mixture.rows is None else UpdateMap(mixture.rows, dtype)
        self.chosen = torch.from_numpy(np.flatnonzero((mixture.weights != 0).any(axis=0)))
        self.total = mixture.weights.sum(axis=1).tolist()
        self.base = mixture.base.tolist()
        self.lock = threading.Lock()
        self.used = torch.zeros(mixture.weights.shape[1], dtype=torch.int64)

    def __call__(self, rows: torch.Tensor, layer: int, out: torch.Tensor | None) -> torch.Tensor:
        del out
        if not are_finite(rows):  # sorting would trim NaN away instead of showing it
            _refuse_non_finite(rows)
        updates = rows[:-1]
        if self.map is not None:
            updates = self.map(updates)
        values, used = self.reduce(updates[self.chosen])
        with self.lock:
            self.used.index_add_(0, self.chosen, used)
        mixed: torch.Tensor = self.base[layer] * rows[-1] + self.total[layer] * values
        return mixed


def _agree_on_counts(store: UpdateStore, mixture: Mixture, sink: Sink) -> None:
    """Counters, one at a time: integers can be as large as parameters."""
    for leaf in store.layout.counts:
        tracked = leaf.name.endswith("num_batches_tracked")
        sink.put(leaf, _agreed(store.counts(leaf), tracked, mixture.stat_clip).to(leaf.dtype))


def _agreed(counts: torch.Tensor, tracked: bool, clip: float | None) -> torch.Tensor:
    """Batches seen: the most of any client, if a guard lets that pass. Anything else: what half the clients reach."""
    if tracked and clip is None:
        return counts.amax(dim=0)
    half = (counts.byte() if counts.dtype == torch.bool else counts).kthvalue((len(counts) + 1) // 2, dim=0).values
    if not tracked or clip is None:
        return half
    most = counts.amax(dim=0)
    return torch.where(most > clip * half.double(), half, most)


def _mix_stats(store: UpdateStore, mixture: Mixture, cut: Layers, sink: Sink) -> None:
    """Running statistics: a convex combination of the clients', whatever base and sign the weights have."""
    layout = store.layout
    if not layout.stats:
        return
    clients, base = (tensor.numpy() for tensor in store.stats())
    if mixture.stat_clip is not None:
        away = clients - base
        norms = np.linalg.norm(away, axis=1)
        limit = mixture.stat_clip * float(np.median(norms))
        clients = base + away * np.minimum(1.0, limit / np.where(norms > 0, norms, 1.0))[:, None]
    positive = np.maximum(mixture.client_weights, 0.0)
    total = positive.sum(axis=1, keepdims=True)
    shares = np.where(total > 0, positive / np.where(total > 0, total, 1.0), 1 / positive.shape[1])  # [g, K]
    for leaf in layout.stats:
        layer = layout.stat_layer(leaf, cut)
        share = shares.mean(axis=0) if layer is None else shares[layer]
        values = mixture.stat_scale * (share @ clients[:, leaf.start : leaf.stop])
        if leaf.name.endswith("running_var"):
            values = np.maximum(values, 0.0)
        sink.put(leaf, torch.from_numpy(values).to(leaf.dtype).view(leaf.shape))
