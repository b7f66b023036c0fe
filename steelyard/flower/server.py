"""What the server keeps from round to round, and how the replies of one become a model.

Nothing here is Flower's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from steelyard import kernels, threads
from steelyard.algorithm import Algorithm
from steelyard.core import round as rounds
from steelyard.core.errors import SteelyardError
from steelyard.core.evidence import part_needing_proxy_data
from steelyard.core.layout import Layout
from steelyard.core.rng import stream
from steelyard.core.server_terms import Settling, usual_lengths, with_usual_lengths
from steelyard.core.state import ClientId, sort_key
from steelyard.core.sums import are_finite
from steelyard.core.term import ClientTerm
from steelyard.metrics import MEANING, Table, drop_invalid, find_invalid_clients
from steelyard.runs.record import Record, make_record
from steelyard.server.probe import Probe
from steelyard.sim.evaluation import report_metrics
from steelyard.sim.executors import one_thread
from steelyard.stores.memory import MemorySink
from steelyard.stores.slices import SliceStore, Source, layout_of

Vectors = dict[str, torch.Tensor]
StateDict = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Replies:
    """What came back in a round.

    Attributes:
        models: by client id.
        metrics: by name, then by client id.
        told: changes of vectors that clients keep, by client id: flat, each under `term.slot`.
        refused: clients whose reply is not to be looked at, with the reason.
        fractions: whether `num_examples` are weights of any kind, which need not be whole.
        asked: how many clients were asked.
    """

    models: Mapping[ClientId, Source]
    metrics: Table
    told: Mapping[ClientId, Source]
    refused: Mapping[ClientId, str]
    fractions: bool = False
    asked: int = 0


@dataclass(frozen=True)
class RoundResult:
    """The outcome of a round.

    The model to send, the one to look at, the record, who was accepted and what they told.

    There are no models if the round is void. `settled` are those whose own vectors count: what they
    told can be used.
    """

    model: StateDict | None
    shown: StateDict | None
    record: Record
    accepted: tuple[ClientId, ...]
    told: Table
    settled: tuple[ClientId, ...] = ()


class FlowerServer:
    """The rule's state and the terms' vectors."""

    def __init__(
        self, algorithm: Algorithm, probe: Probe | None, seed: int, diagnose: bool
    ) -> None:
        for term in algorithm.client:
            if term.writes_slots:
                raise SteelyardError(
                    f"client={term.name}: the server changes what clients keep, and on Flower they "
                    f"keep it "
                    "themselves: use client=scaffold"
                )
        wanting = part_needing_proxy_data(algorithm.rule, algorithm.refine)
        if wanting and probe is None:
            raise SteelyardError(
                f"{wanting} looks at proxy data and there is none: pass "
                f"proxy=steelyard.Probe(model, inputs, targets)"
            )
        self.algorithm, self.rule, self.probe, self.seed = algorithm, algorithm.rule, probe, seed
        self.diagnose = diagnose
        self.state: Mapping[str, Any] = {}
        self.sent: Vectors = {}
        self.heard: set[str] = set()  # metrics that somebody has reported
        self.slots = [term.key(slot) for term in algorithm.client for slot in term.server_slots]
        self.told_names = [term.key(slot) for term in algorithm.client for slot in term.told_slots]

    def vectors(self, model: Source) -> Vectors:
        """What is sent beside the parameters: flat vectors by name, zero before the first round."""
        return self._vectors(layout_of(model))

    def _vectors(self, layout: Layout) -> Vectors:
        for name in [*sorted(self.algorithm.needs.broadcast), *self.slots]:
            self.sent.setdefault(name, torch.zeros(layout.dim, dtype=layout.row_dtype))
        return self.sent

    def starts(self, model: Source, clients: Sequence[ClientId], number: int) -> list[StateDict]:
        """The models clients start from, if a broadcast mutates the global one."""
        broadcast = self.algorithm.broadcast
        if broadcast is None:
            return []
        state = {name: model.load(name) for name in model.shapes}
        layout = Layout.of(state)
        order = sorted(range(len(clients)), key=lambda at: sort_key(clients[at]))
        coefficients = broadcast.coefficients(
            len(order), layout.params, number, stream(self.seed, "broadcast", number)
        )
        move, models = self._vectors(layout)["move"], [dict(state) for _ in clients]
        for row, at in enumerate(order):
            for column, leaf in enumerate(layout.params):
                step = move[leaf.start : leaf.stop].view(leaf.shape)
                models[at][leaf.name] = state[leaf.name].add(
                    step.to(leaf.dtype), alpha=float(coefficients[row, column])
                )
        return models

    def aggregate(
        self, number: int, model: Source, replies: Replies, population: int
    ) -> RoundResult:
        """Weighs and sums; a void round leaves everything as it was."""
        table = {name: dict(column) for name, column in replies.metrics.items()}
        reasons = self._find_refused(table, replies)
        store = SliceStore.of(model, replies.models, reasons)
        sink = MemorySink(store.layout)
        vectors = self._vectors(store.layout)
        job = rounds.Round(
            table,
            self.state,
            number,
            self.algorithm.server,
            diagnose=self.diagnose,
            step=vectors.get("step"),
            direction=vectors.get(self.algorithm.client.direction),
            probe=self.probe,
            refine=self.algorithm.refine,
        )
        with one_thread(), threads.parallel(threads.cores()):
            outcome = rounds.run_or_void(self.rule, store, job, sink)
            settled_clients: tuple[ClientId, ...] = ()
            state = outcome.state
            if not outcome.void:
                settled_clients, usual = self._settle(outcome, sink, model, replies, population)
                state = with_usual_lengths(state, usual)
        weights = dict(zip(outcome.store.ids, outcome.weights.mean(axis=0).tolist(), strict=True))
        outcome.report.update({} if outcome.void else report_metrics(table, outcome.store.ids))
        record = make_record(outcome.report, weights, outcome.weights)
        if outcome.void:
            return RoundResult(None, None, record, (), {})
        self.state = state
        new_model = sink.state()
        ids = outcome.store.ids
        reported = {
            name: {client: column[client] for client in ids if client in column}
            for name, column in table.items()
        }
        return RoundResult(
            new_model,
            self._params_to_evaluate(new_model, sink),
            record,
            ids,
            reported,
            settled_clients,
        )

    def _find_refused(self, table: Table, replies: Replies) -> dict[ClientId, str]:
        ids = [client for client in replies.models if client not in replies.refused]
        if not ids:
            return dict(replies.refused)
        needed = self.rule.needs.metrics
        self.heard |= {name for name in needed if table.get(name)}
        missing = sorted(needed - self.heard)
        if (
            missing and 2 * len(ids) > replies.asked
        ):  # most clients answered: it is no single one's fault
            raise SteelyardError(describe_missing(missing))
        for name in sorted(needed - table.keys()):
            table[name] = {}
        integers_only = not replies.fractions
        reasons = {**find_invalid_clients(self.rule, table, ids, integers_only), **replies.refused}
        drop_invalid(table, ids, needed, integers_only)
        return reasons

    def _settle(
        self,
        outcome: rounds.Outcome,
        sink: MemorySink,
        model: Source,
        replies: Replies,
        population: int,
    ) -> tuple[tuple[ClientId, ...], dict[str, float]]:
        """Lets terms update what the server keeps, and possibly the model.

        Returns:
            Whose vectors could be used, and the usual lengths of vectors where a guard measures
            them.
        """
        ids, real = outcome.store.ids, sink.flat.dtype
        sound = {name: _sound(name, ids, replies.told, sink.layout) for name in self.told_names}

        def own(term: ClientTerm, part: slice) -> tuple[Vectors, Vectors]:
            new: Vectors = {}
            for slot in term.told_slots:
                new[slot] = torch.zeros(len(ids), part.stop - part.start, dtype=real)
                for row, source in sound[term.key(slot)].items():
                    source.read(term.key(slot), part.start, new[slot][row])
            return {
                slot: torch.zeros(1, 1, dtype=real).expand_as(rows) for slot, rows in new.items()
            }, new

        usual = Settling(
            store=outcome.store,
            theta=sink.flat,
            weights=torch.from_numpy(outcome.weights.mean(axis=0)).to(real),
            own=own,
            file=None,
            kept=self.sent,
            work=torch.ones(len(ids), dtype=torch.float32),
            lr=float("nan"),
            population=population,
            bounds=outcome.bounds,
            usual=usual_lengths(self.state),
        ).run(self.algorithm.client)
        if "move" in self.sent:
            for leaf in sink.layout.params:
                part, before = (
                    slice(leaf.start, leaf.stop),
                    model.load(leaf.name).reshape(-1).to(real),
                )
                torch.sub(sink.flat[part], before, out=self.sent["move"][part])
        aside = set() if outcome.bounds is None else set(outcome.bounds.aside)
        counted = [row for row in range(len(ids)) if row not in aside]
        settled_clients = tuple(
            ids[row] for row in counted if all(row in rows for rows in sound.values())
        )
        return settled_clients, usual

    def _params_to_evaluate(self, new_model: StateDict, sink: MemorySink) -> StateDict:
        """The model to evaluate: the one that is sent, unless a term says otherwise."""
        theta = sink.flat
        for term in self.algorithm.client:
            theta = term.params_to_evaluate(
                theta, {slot: self.sent[term.key(slot)] for slot in term.server_slots}
            )
        if theta is sink.flat:
            return new_model
        evaluated_model = {
            leaf.name: theta[leaf.start : leaf.stop].view(leaf.shape).to(leaf.dtype)
            for leaf in sink.layout.params
        }
        return {name: evaluated_model.get(name, tensor) for name, tensor in new_model.items()}

    def snapshot(self) -> dict[str, Any]:
        """Everything to go on from, beside the model."""
        server_vectors = {name: vector.clone() for name, vector in self.sent.items()}
        return {"rule": self.state, "sent": server_vectors, "heard": sorted(self.heard)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes back to a snapshot, but for vectors that belong with what clients keep.

        Theirs begin at zero, too.
        """
        terms = [term for term in self.algorithm.client if term.client_slots]
        lost = {term.key(slot) for term in terms for slot in term.server_slots}
        self.state, self.heard = state["rule"], set(state.get("heard", ()))
        self.sent = {name: vector for name, vector in state["sent"].items() if name not in lost}


def describe_missing(metrics: Sequence[str]) -> str:
    """Return a sentence on metrics that the rule needs and no client reports.

    All of them, with their meanings.
    """
    descriptions = "; ".join(
        f"{name.replace('_', '-')!r}, the {MEANING.get(name, 'metric')}" for name in metrics
    )
    return (
        f"no client reported {descriptions}: the rule needs "
        f"{'it' if len(metrics) == 1 else 'all of them'}. Put it "
        "into the reply's MetricRecord, or let steelyard.flower.client build the ClientApp"
    )


def _sound(
    name: str, ids: Sequence[ClientId], term_vectors: Mapping[ClientId, Source], layout: Layout
) -> dict[int, Source]:
    """Who told a vector that can be used, by row.

    Who sent none, or a wrong one, changed nothing.
    """
    sound_vectors: dict[int, Source] = {}
    block = torch.empty(min(layout.dim, kernels.BLOCK), dtype=layout.row_dtype)
    for row, client in enumerate(ids):
        source = term_vectors.get(client)
        shape, dtype = (
            (None, torch.bool) if source is None else source.shapes.get(name, (None, torch.bool))
        )
        if source is None or shape != (layout.dim,) or not dtype.is_floating_point:
            continue
        for start in range(0, layout.dim, kernels.BLOCK):
            part = block[: min(kernels.BLOCK, layout.dim - start)]
            source.read(name, start, part)
            if not are_finite(part):
                break
        else:
            sound_vectors[row] = source
    return sound_vectors
