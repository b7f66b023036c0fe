"""How the replies of a Flower round become a model: `ServerState` on models in messages and files.

This module does not import Flower.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from steelyard import kernels, threads
from steelyard.algorithm import Algorithm
from steelyard.core import _round as rounds
from steelyard.core._errors import SteelyardError
from steelyard.core._evidence import part_needing_proxy_data
from steelyard.core._layout import Layout, Leaf
from steelyard.core._rng import stream
from steelyard.core._round_gram import RoundGram
from steelyard.core._server_state import ServerState
from steelyard.core._side_channel import Specs, find_classifier_by_shape
from steelyard.core._state import ClientId, sort_key
from steelyard.core._sums import are_finite
from steelyard.core._term import ClientTerm, Vectors
from steelyard.metrics import MEANING, Table, drop_invalid, find_invalid_clients
from steelyard.runs._record import Record, make_record
from steelyard.server._probe import Probe
from steelyard.sim._evaluation import report_metrics
from steelyard.sim._executors import one_thread
from steelyard.sim._lora_output import choose_lora_output
from steelyard.stores._memory import MemorySink
from steelyard.stores._padding import pad_to_layout
from steelyard.stores._slices import SliceStore, Source, layout_of

StateDict = dict[str, torch.Tensor]


@dataclass(frozen=True)
class TrainingResults:
    """What clients sent in a round.

    Attributes:
        models: the models, by client id.
        metrics: the reported metrics, by name, then by client id.
        vectors: the changes of vectors that clients keep, by client id: flat, each under
            `term.key(slot)`.
        refused: the reason for each client whose reply is not used.
        has_fractions: whether `num_examples` are weights of any kind, which need not be integers.
        messages: number of clients that got a message.
        tensors: the small tensors of feature terms, by client id, then by `term.key(name)`; they
            were checked.
    """

    models: Mapping[ClientId, Source]
    metrics: Table
    vectors: Mapping[ClientId, Source]
    refused: Mapping[ClientId, str]
    has_fractions: bool = False
    messages: int = 0
    tensors: Mapping[ClientId, Mapping[str, torch.Tensor]] = field(default_factory=dict)


@dataclass(frozen=True)
class RoundResult:
    """The result of a round.

    Attributes:
        model: the model to send in the next round; None if the round is void.
        model_to_evaluate: the same object, unless a client term returns another model to evaluate.
        record: the record of the round.
        accepted: the clients whose model was used.
        metrics: what these clients reported.
        counted: those of them whose own vectors are valid from now on, with their weights.
        round_gram: the inner products of the round, if they were computed.
    """

    model: StateDict | None
    model_to_evaluate: StateDict | None
    record: Record
    accepted: tuple[ClientId, ...] = ()
    metrics: Table | None = None
    counted: Mapping[ClientId, float] = field(default_factory=dict)
    round_gram: RoundGram | None = None


class ReportedVectors:
    """The changes of the vectors that the accepted clients keep, as they reported them.

    A client that sent no vector, or one that cannot be used, changed nothing.

    Attributes:
        local_steps: ones: on Flower, clients do not report their local steps.
    """

    def __init__(
        self,
        names: Sequence[str],
        ids: Sequence[ClientId],
        vectors: Mapping[ClientId, Source],
        layout: Layout,
        tensors: Mapping[ClientId, Mapping[str, torch.Tensor]],
    ) -> None:
        self.local_steps = torch.ones(len(ids), dtype=torch.float32)
        self._ids = ids
        self._tensors = tensors
        self._dtype = layout.row_dtype
        self._clients = len(ids)
        self._source_by_row = {name: _find_usable(name, ids, vectors, layout) for name in names}

    def read(self, term: ClientTerm, part: slice) -> tuple[Vectors, Vectors]:
        """Return zeros and the changes of a term's vectors, by slot, for a slice."""
        old = {}
        new = {}
        for slot in term.tags.reported_slots:
            changes = torch.zeros(self._clients, part.stop - part.start, dtype=self._dtype)
            for row, source in self._source_by_row[term.key(slot)].items():
                source.read(term.key(slot), part.start, changes[row])
            old[slot] = torch.zeros(1, 1, dtype=self._dtype).expand_as(changes)
            new[slot] = changes
        return old, new

    def write(self, term: ClientTerm, part: slice, vectors: Vectors) -> None:
        """Raise an error: on Flower, clients store their vectors themselves."""
        raise SteelyardError(
            f"client term {term.name!r} changes the clients' vectors, which is impossible on Flower: "
            "use the simulator"
        )

    def read_tensors(self, name: str, rows: Sequence[int]) -> torch.Tensor:
        """Return a tensor that clients sent, by `term.key(name)`, for some rows."""
        return torch.stack([self._tensors[self._ids[row]][name] for row in rows])

    def is_complete(self, row: int) -> bool:
        """Return whether every vector of this client can be used."""
        return all(row in sources for sources in self._source_by_row.values())


def _find_usable(
    name: str, ids: Sequence[ClientId], vectors: Mapping[ClientId, Source], layout: Layout
) -> dict[int, Source]:
    """Return the clients' vectors of this name that have the right shape and are finite, by row."""
    usable: dict[int, Source] = {}
    for row, client in enumerate(ids):
        source = vectors.get(client)
        if source is not None and _is_usable(name, source, layout):
            usable[row] = source
    return usable


def _is_usable(name: str, source: Source, layout: Layout) -> bool:
    """Return whether a source contains a finite vector of the model's length under this name."""
    if name not in source.shapes:
        return False
    shape, dtype = source.shapes[name]
    if shape != (layout.dim,) or not dtype.is_floating_point:
        return False
    block = torch.empty(min(layout.dim, kernels.BLOCK), dtype=layout.row_dtype)
    for start in range(0, layout.dim, kernels.BLOCK):
        part = block[: min(kernels.BLOCK, layout.dim - start)]
        source.read(name, start, part)
        if not are_finite(part):
            return False
    return True


class FlowerServer:
    """Aggregates the replies of clients.

    Attributes:
        state: the rule's state and the server's vectors.
        reported_vectors: names of the vectors whose changes clients send.
    """

    def __init__(
        self, algorithm: Algorithm, probe: Probe | None, seed: int, diagnose: bool
    ) -> None:
        """Create the server of a run.

        Args:
            algorithm: what to run.
            probe: the server's proxy data, if any.
            seed: random seed of the run.
            diagnose: whether reports are complete, which costs a pass over the updates.
        """
        # Check that the algorithm is possible on Flower.
        for term in algorithm.client:
            if term.tags.changes_client_vectors:
                raise SteelyardError(
                    f"client={term.name}: the server changes the clients' vectors, but on Flower "
                    "they keep them themselves: use client=scaffold"
                )
        part = part_needing_proxy_data(algorithm.rule, algorithm.refine)
        if part and probe is None:
            raise SteelyardError(
                f"{part} needs proxy data: pass proxy=steelyard.Probe(model, inputs, targets)"
            )
        self.algorithm = algorithm
        self.seed = seed
        self.diagnose = diagnose
        self.state = ServerState(
            algorithm.rule,
            algorithm.client,
            optimizer=algorithm.server,
            refiner=algorithm.refine,
            probe=probe,
            seed=seed,
        )
        self.reported_vectors = [
            term.key(slot) for term in algorithm.client for slot in term.tags.reported_slots
        ]
        self._reported_metrics: set[str] = set()  # needed metrics that a client has reported

    def choose_lora(self, text: str | None, layout: Layout) -> None:
        """Choose what to return for LoRA adapters, if there are any.

        Args:
            text: the option `lora`.
            layout: the tensors that are sent.
        """
        self.state.lora = choose_lora_output(text, layout, self.algorithm, can_change_base=False)

    def prepare_tensors(self, model: Source) -> None:
        """Find the classifier of the network, and prepare the small tensors of feature terms.

        Args:
            model: the initial model, whose tensors are in the order of the network's definition.
        """
        terms = self.algorithm.client
        if terms.feature_terms and self.state.classifier is None:
            shapes = {name: shape for name, (shape, _) in model.shapes.items()}
            classifier = find_classifier_by_shape(shapes, terms.classifier)
            self.state.prepare_tensors(classifier)

    @property
    def client_tensors(self) -> Specs:
        """The declarations of the small tensors that clients send, by `term.key(name)`."""
        return self.algorithm.client.client_tensors(self.state.classifier)

    def prepare_vectors(self, layout: Layout) -> dict[str, torch.Tensor]:
        """Return the vectors to send beside the parameters; they are zero before the first round."""
        for name in self.algorithm.sent_vectors:
            if name not in self.state.vectors:
                self.state.vectors[name] = torch.zeros(layout.dim, dtype=layout.row_dtype)
        return self.state.vectors

    def mutate_model(
        self, model: Source, clients: Sequence[ClientId], number: int
    ) -> list[StateDict]:
        """Return the model that each client starts from, if the algorithm has a broadcast.

        Without a broadcast, all clients start from the global model, and the list is empty.
        """
        broadcast = self.algorithm.broadcast
        if broadcast is None:
            return []
        state = {name: model.load(name) for name in model.shapes}
        layout = Layout.of(state)
        move = self.prepare_vectors(layout)["move"]

        # Coefficients by client, in the order of the ids.
        order = sorted(range(len(clients)), key=lambda at: sort_key(clients[at]))
        rng = stream(self.seed, "broadcast", number)
        coefficients = broadcast.coefficients(len(order), layout.params, number, rng)

        # One model per client.
        models = [dict(state) for _ in clients]
        for row, at in enumerate(order):
            for column, leaf in enumerate(layout.params):
                step = move[leaf.start : leaf.stop].view(leaf.shape).to(leaf.dtype)
                alpha = float(coefficients[row, column])
                models[at][leaf.name] = state[leaf.name].add(step, alpha=alpha)
        return models

    def aggregate(
        self, number: int, model: Source, results: TrainingResults, population: int
    ) -> RoundResult:
        """Weigh and sum the models of a round. A void round changes nothing.

        Args:
            number: number of the round.
            model: the global model that clients received.
            results: what clients sent.
            population: number of all clients.
        """
        # The models that can be used.
        metrics = {name: dict(column) for name, column in results.metrics.items()}
        layout = layout_of(model)
        models = {
            client: pad_to_layout(source, layout) for client, source in results.models.items()
        }
        store = SliceStore.of(model, models, self._find_refused(metrics, results))
        self.prepare_vectors(layout)

        # The round.
        sink = MemorySink(layout)
        counted: dict[ClientId, float] = {}
        with one_thread(), threads.parallel(threads.cores()):
            outcome = self.state.aggregate(store, sink, number, metrics, diagnose=self.diagnose)
            if not outcome.void:
                counted = self._apply_server_terms(
                    number, outcome, sink, model, results, population
                )

        # The record and the new model.
        ids = outcome.store.ids
        if not outcome.void:
            outcome.report.update(report_metrics(metrics, ids))
        record = make_record(outcome.report, outcome.client_weights, outcome.weights)
        if outcome.void:
            return RoundResult(None, None, record)
        new_model = sink.state()
        reported = {
            name: {client: column[client] for client in ids if client in column}
            for name, column in metrics.items()
        }
        model_to_evaluate = self._model_to_evaluate(new_model, sink)
        return RoundResult(
            new_model, model_to_evaluate, record, ids, reported, counted, outcome.round_gram
        )

    def _find_refused(self, metrics: Table, results: TrainingResults) -> dict[ClientId, str]:
        """Return the reason for each client that is not used; remove invalid values of metrics.

        Raises:
            SteelyardError: if most clients answered and no client ever reported a metric that the
                rule needs. Then the app is wrong, not a single client.
        """
        ids = [client for client in results.models if client not in results.refused]
        if not ids:
            return dict(results.refused)
        rule = self.state.rule
        needed = rule.needs.metrics
        self._reported_metrics |= {name for name in needed if metrics.get(name)}
        missing = sorted(needed - self._reported_metrics)
        if missing and 2 * len(ids) > results.messages:
            raise SteelyardError(describe_missing_metrics(missing))
        for name in sorted(needed - metrics.keys()):
            metrics[name] = {}
        integers_only = not results.has_fractions
        invalid = find_invalid_clients(rule, metrics, ids, integers_only)
        drop_invalid(metrics, ids, needed, integers_only)
        return {**invalid, **results.refused}

    def _apply_server_terms(
        self,
        number: int,
        outcome: rounds.Outcome,
        sink: MemorySink,
        model: Source,
        results: TrainingResults,
        population: int,
    ) -> dict[ClientId, float]:
        """Let client terms update the server's vectors and the model.

        Returns:
            The clients whose vectors are valid from now on, with their weights.
        """
        ids = outcome.store.ids
        vectors = ReportedVectors(
            self.reported_vectors, ids, results.vectors, sink.layout, results.tensors
        )

        def read_start(leaf: Leaf) -> torch.Tensor:
            return model.load(leaf.name).reshape(-1).to(sink.flat.dtype)

        self.state.apply_server_terms(
            outcome,
            sink.flat,
            vectors,
            read_start,
            number=number,
            population=population,
            lr=float("nan"),
        )
        complete = [ids[row] for row in outcome.counted_rows if vectors.is_complete(row)]
        return {client: outcome.client_weights[client] for client in complete}

    def _model_to_evaluate(self, new_model: StateDict, sink: MemorySink) -> StateDict:
        """Return the model to evaluate: `new_model` itself, unless a term returns another."""
        theta = self.state.params_to_evaluate(sink.flat, sink.layout)
        if theta is sink.flat:
            return new_model
        model = dict(new_model)
        for leaf in sink.layout.params:
            model[leaf.name] = theta[leaf.start : leaf.stop].view(leaf.shape).to(leaf.dtype)
        return model

    def snapshot(self) -> dict[str, Any]:
        """Return everything that a resumed run needs, beside the model."""
        return {**self.state.snapshot(), "heard": sorted(self._reported_metrics)}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Continue from a snapshot.

        Clients lose their vectors when a Flower run ends, so server vectors that belong to them
        start from zero, too.
        """
        terms = [term for term in self.algorithm.client if term.client_slots]
        lost = {term.key(slot) for term in terms for slot in term.server_slots}
        self.state.restore(snapshot, without=lost)
        self._reported_metrics = set(snapshot.get("heard", ()))


def describe_missing_metrics(metrics: Sequence[str]) -> str:
    """Return an error message for metrics that the rule needs and no client reports."""
    descriptions = "; ".join(
        f"{name.replace('_', '-')!r}, the {MEANING.get(name, 'metric')}" for name in metrics
    )
    pronoun = "it" if len(metrics) == 1 else "all of them"
    return (
        f"no client reported {descriptions}: the rule needs {pronoun}. Put it into the "
        "MetricRecord of the reply, or build the ClientApp with steelyard.flower.client"
    )
