"""The server of a simulated run: `ServerState` on the shared buffers of the simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from steelyard.core import _round as rounds
from steelyard.core._server_state import ServerState
from steelyard.core._state import ClientId
from steelyard.core._term import ClientTerm, Vectors
from steelyard.metrics import find_invalid_clients
from steelyard.runs._checkpoint import Snapshot
from steelyard.sim._base_weights import BaseWeights
from steelyard.sim._buffers import Buffers
from steelyard.sim._evaluation import report_metrics
from steelyard.sim._group import FINE, REASONS
from steelyard.sim._work import OWN_MODEL, ClientSlot, SimulationContext
from steelyard.stores._memory import MemorySink, MemoryStore


class BufferedVectors:
    """The vectors of a cohort in the shared buffers.

    Attributes:
        local_steps: local steps of each client, `[K]`.
    """

    def __init__(self, buffers: Buffers, cohort: Sequence[ClientSlot]) -> None:
        self.buffers = buffers
        self.clients = [member.client for member in cohort]
        self.positions = [member.position for member in cohort]
        self.local_steps = buffers.work[self.positions]

    def read(self, term: ClientTerm, part: slice) -> tuple[Vectors, Vectors]:
        """Return a term's vectors before and after training, by slot, for a slice."""
        old = {}
        new = {}
        for slot in term.tags.reported_slots:
            name = term.key(slot)
            old[slot] = self.buffers.tables[name][self.clients, part]
            new[slot] = self.buffers.staged[name][self.positions, part]
        return old, new

    def write(self, term: ClientTerm, part: slice, vectors: Vectors) -> None:
        """Store vectors that a term changed, where those after training are."""
        for slot, vector in vectors.items():
            self.buffers.staged[term.key(slot)][self.positions, part] = vector

    def read_tensors(self, name: str, rows: Sequence[int]) -> torch.Tensor:
        """Return a tensor that clients sent, by `term.key(name)`, for some rows of the cohort."""
        positions = [self.positions[row] for row in rows]
        return self.buffers.client_tensors[name][positions]


class SimulationServer:
    """The global model in shared memory, the state of the server, and what clients keep.

    Attributes:
        state: the rule's state and the server's vectors.
        base_weights: the frozen weights under LoRA adapters, if the server changes them.
        stateful_clients: numbers of the clients that have rows in the tables.
    """

    def __init__(self, work: SimulationContext, buffers: Buffers) -> None:
        algorithm = work.algorithm
        self.work = work
        self.buffers = buffers
        self.state = ServerState(
            algorithm.rule,
            algorithm.client,
            optimizer=algorithm.server,
            refiner=algorithm.refine,
            probe=work.probe,
            vectors=buffers.sent,
            seed=work.seed,
        )
        if work.classifier is not None:
            self.state.prepare_tensors(work.classifier, buffers.server_tensors)
        self.state.lora = work.lora
        self.base_weights: BaseWeights | None = None
        if work.lora.kind in ("residual", "restart"):
            self.base_weights = BaseWeights(work.model.module, work.model.layout.pairs)
        self.stateful_clients: set[int] = set()
        self.load_model(work.model.module.state_dict())

    def load_model(self, model: Mapping[str, torch.Tensor]) -> None:
        """Make this state dict the global model."""
        params, stats, counts = self.work.model.vectors(model)
        self.buffers.theta.copy_(params)
        self.buffers.stats.copy_(stats)
        self.buffers.counts.copy_(counts)

    def model(self) -> dict[str, torch.Tensor]:
        """Return the global model to evaluate, as a state dict in new memory.

        With LoRA adapters, it has what clients train, and the frozen weights that the server
        changed.
        """
        model = self.work.model.state_dict(
            self.params_to_evaluate(), self.buffers.stats, self.buffers.counts
        )
        if self.base_weights is not None:
            model |= self.base_weights.state()
        return model

    def params_to_evaluate(self) -> torch.Tensor:
        """Return the parameters to evaluate: the global model, unless a term returns others."""
        return self.state.params_to_evaluate(self.buffers.theta, self.work.model.layout)

    def aggregate(self, number: int, members: Sequence[ClientSlot]) -> rounds.Outcome:
        """Weigh and sum the updates in the buffers. A void round changes nothing.

        Args:
            number: number of the round.
            members: the clients that trained. Of those outside the cohort, only the vectors that
                they keep are used.
        """
        # The updates and reports of the cohort, without clients that failed.
        cohort = [member for member in members if member.row >= 0]
        fine = [member for member in members if int(self.buffers.status[member.position]) == FINE]
        store = self._build_store(cohort)
        metrics = self._read_reports([member for member in fine if member.row >= 0])
        if store.ids:
            store = store.without(find_invalid_clients(self.state.rule, metrics, store.ids))

        # The round.
        sink = MemorySink(self.work.model.layout)
        outcome = self.state.aggregate(
            store, sink, number, metrics, population_examples=int(self.work.sizes.sum())
        )
        if not outcome.void:
            self._finish_round(number, outcome, sink, fine)
            outcome.report.update(report_metrics(metrics, outcome.store.ids))
        return outcome

    def _build_store(self, cohort: Sequence[ClientSlot]) -> MemoryStore:
        """Return a store on the rows of the cohort, without clients whose training failed."""
        buffers = self.buffers
        layout = self.work.model.layout
        ids = self.work.federation.ids
        count = len(cohort)
        names = tuple(ids[member.client] for member in cohort)

        # The global model is the row after those of the clients.
        buffers.matrix[count].copy_(buffers.theta)

        # Counters by leaf, of the clients and of the global model.
        client_counts = {}
        counters = {}
        for leaf in layout.counts:
            columns = slice(leaf.start, leaf.stop)
            client_counts[leaf.name] = buffers.row_counts[:count, columns].reshape(
                count, *leaf.shape
            )
            counters[leaf.name] = buffers.counts[columns].reshape(leaf.shape)

        store = MemoryStore(
            layout=layout,
            base=buffers.theta,
            all_ids=names,
            ids=names,
            quarantined={},
            matrix=buffers.matrix[: count + 1],
            client_stats=buffers.row_stats[:count],
            base_stats=buffers.stats,
            client_counts=client_counts,
            counters=counters,
        )
        failed = {}
        for member in cohort:
            status = int(buffers.status[member.position])
            if status != FINE:
                failed[ids[member.client]] = REASONS[status]
        return store.without(failed)

    def _read_reports(self, members: Sequence[ClientSlot]) -> dict[str, dict[ClientId, Any]]:
        """Return what clients reported: by metric, then by client."""
        ids = self.work.federation.ids
        rows = {
            ids[member.client]: self.buffers.reports[member.position].tolist() for member in members
        }
        metrics: dict[str, dict[ClientId, Any]] = {}
        for column, name in enumerate(self.work.metrics):
            metrics[name] = {client: row[column] for client, row in rows.items()}
        for name, values in self.buffers.class_reports.items():
            if name in metrics:
                metrics[name] = {
                    ids[member.client]: values[member.position].tolist() for member in members
                }
        return metrics

    def _finish_round(
        self,
        number: int,
        outcome: rounds.Outcome,
        sink: MemorySink,
        members: Sequence[ClientSlot],
    ) -> None:
        """Apply the server's part of client terms, and store the new model and clients' vectors.

        Args:
            number: number of the round.
            outcome: of the aggregation; not void.
            sink: holds the new model.
            members: the clients that trained without an error.
        """
        buffers = self.buffers
        work = self.work
        theta = sink.flat
        accepted = set(outcome.store.ids)
        cohort = [
            member
            for member in members
            if member.row >= 0 and work.federation.ids[member.client] in accepted
        ]

        # The server's part of client terms.
        self.state.apply_server_terms(
            outcome,
            theta,
            BufferedVectors(buffers, cohort),
            lambda leaf: buffers.theta[leaf.start : leaf.stop],
            number=number,
            population=len(work.federation.ids),
            lr=work.local.rate(number, work.rounds),
        )

        # The new global model.
        if self.base_weights is not None:
            self.base_weights.add(outcome.residuals)
        buffers.theta.copy_(theta)
        for leaf in work.model.layout.stats:
            buffers.stats[leaf.start : leaf.stop].copy_(sink.others[leaf.name].reshape(-1))
        for leaf in work.model.layout.counts:
            buffers.counts[leaf.start : leaf.stop].copy_(sink.others[leaf.name].reshape(-1))

        # What clients keep. A client that a guard set aside keeps its earlier vectors, because the
        # server did not count the new ones.
        counted = [cohort[row] for row in outcome.counted_rows]
        outside = [member for member in members if member.row < 0]
        self._store_client_vectors(counted, outside)
        for member in counted:
            weight = outcome.client_weights[work.federation.ids[member.client]]
            buffers.last_weights[member.client] = weight

    def _store_client_vectors(
        self, cohort: Sequence[ClientSlot], outside: Sequence[ClientSlot]
    ) -> None:
        """Copy the vectors after training to the tables.

        Args:
            cohort: the clients whose update counts.
            outside: clients that trained outside the cohort. The vectors of most terms do not
                change there.
        """
        buffers = self.buffers
        if not buffers.tables:
            return
        cohort_only = {
            term.key(slot)
            for term in self.work.algorithm.client
            if not term.tags.updates_outside_cohort
            for slot in term.client_slots
        }
        cohort_only.add(OWN_MODEL)
        changed = [*outside, *cohort]
        for name, table in buffers.tables.items():
            for member in cohort if name in cohort_only else changed:
                table[member.client].copy_(buffers.staged[name][member.position])
        for member in changed:
            self.stateful_clients.add(member.client)
            buffers.steps_taken[member.client] += buffers.steps[member.position]

    def snapshot(self, round: int, progress: Mapping[str, Any], identity: str) -> Snapshot:
        """Return everything that a run needs to resume after this round, in new memory.

        Args:
            round: the last finished round.
            progress: what the simulator needs beside the server.
            identity: the fingerprint of the run.
        """
        buffers = self.buffers
        ids = self.work.federation.ids
        clients = {}
        steps_taken = {}
        last_weights = {}
        for client in sorted(self.stateful_clients):
            clients[ids[client]] = {
                name: table[client].clone() for name, table in buffers.tables.items()
            }
            steps_taken[ids[client]] = float(buffers.steps_taken[client])
            if OWN_MODEL in buffers.tables:
                last_weights[ids[client]] = float(buffers.last_weights[client])
        state = {
            **self.state.snapshot(),
            "theta": buffers.theta.clone(),
            "clients": clients,
            "steps_taken": steps_taken,
            "progress": dict(progress),
        }
        if last_weights:
            state["last_weights"] = last_weights
        return Snapshot(round, self.model(), state, identity)

    def restore(self, snapshot: Snapshot) -> Mapping[str, Any]:
        """Continue from a snapshot; return the progress that is stored in it."""
        state = snapshot.state
        assert state is not None
        buffers = self.buffers

        # Model and state of the server.
        self.load_model(snapshot.model)
        if self.base_weights is not None:
            self.base_weights.load(snapshot.model)
        buffers.theta.copy_(state["theta"])
        self.state.restore(state)

        # What clients keep.
        numbers = {name: client for client, name in enumerate(self.work.federation.ids)}
        last_weights = state.get("last_weights", {})
        for name, rows in state["clients"].items():
            client = numbers[name]
            self.stateful_clients.add(client)
            for slot, row in rows.items():
                buffers.tables[slot][client].copy_(row)
            buffers.steps_taken[client] = state["steps_taken"][name]
            buffers.last_weights[client] = last_weights.get(name, torch.nan)
        progress: Mapping[str, Any] = state["progress"]
        return progress
