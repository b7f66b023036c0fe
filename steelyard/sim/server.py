"""The server of a simulated run.

What it keeps from round to round, and how a round's updates become a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from steelyard.core import round as rounds
from steelyard.core.gram import Array
from steelyard.core.round_report import Report
from steelyard.core.server_terms import Settling, usual_lengths, with_usual_lengths
from steelyard.core.state import ClientId
from steelyard.core.term import ClientTerm, Vectors
from steelyard.metrics import find_invalid_clients
from steelyard.runs.checkpoint import Snapshot
from steelyard.sim.buffers import Buffers
from steelyard.sim.evaluation import report_metrics
from steelyard.sim.group import FINE, REASONS
from steelyard.sim.work import ClientSlot, SimulationContext
from steelyard.stores.memory import MemorySink, MemoryStore


class SimulationServer:
    """The global model in shared memory, the rule's state, and what clients and terms keep."""

    def __init__(self, work: SimulationContext, buffers: Buffers) -> None:
        self.work, self.buffers = work, buffers
        self.rule = work.algorithm.rule
        self.state: Mapping[str, Any] = {}
        self.known: set[int] = set()  # clients with rows in the tables
        self.adopt(work.model.module.state_dict())

    def adopt(self, model: Mapping[str, torch.Tensor]) -> None:
        """Makes this the global model."""
        params, stats, counts = self.work.model.vectors(model)
        self.buffers.theta.copy_(params)
        self.buffers.stats.copy_(stats)
        self.buffers.counts.copy_(counts)

    def model(self) -> dict[str, torch.Tensor]:
        """The global model to look at, as a state dict of its own memory."""
        return self.work.model.state_dict(
            self.params_to_evaluate(), self.buffers.stats, self.buffers.counts
        )

    def params_to_evaluate(self) -> torch.Tensor:
        """The parameters to evaluate: the global model, unless a term says otherwise."""
        theta = self.buffers.theta
        for term in self.work.algorithm.client:
            theta = term.params_to_evaluate(theta, self._read_slots(term.name, term.server_slots))
        return theta

    def _read_slots(self, name: str, slots: Sequence[str]) -> dict[str, torch.Tensor]:
        return {slot: self.buffers.sent[f"{name}.{slot}"] for slot in slots}

    def aggregate(
        self, number: int, seats: Sequence[ClientSlot]
    ) -> tuple[Report, dict[ClientId, float], Array]:
        """Weighs and sums what the seats hold.

        Returns the report, the weights by client and the layers' weights.

        A void round leaves everything as it was. Seats outside the cohort only hand in what they
        keep.
        """
        buffers, work = self.buffers, self.work
        cohort = [seat for seat in seats if seat.row >= 0]
        fine = {seat for seat in seats if int(buffers.status[seat.place]) == FINE}
        store = self._store(cohort)
        table = self._reports([seat for seat in cohort if seat in fine])
        store = store.without(
            find_invalid_clients(self.rule, table, store.ids) if store.ids else {}
        )
        sink = MemorySink(work.model.layout)
        job = rounds.Round(
            table,
            self.state,
            number,
            work.algorithm.server,
            diagnose=True,
            step=buffers.sent.get("step"),
            direction=buffers.sent.get(work.algorithm.client.direction),
            probe=work.probe,
            refine=work.algorithm.refine,
            population_examples=int(work.sizes.sum()),
        )
        outcome = rounds.run_or_void(self.rule, store, job, sink)
        if not outcome.void:
            usual = self._settle(number, outcome, sink, [seat for seat in seats if seat in fine])
            self.state = with_usual_lengths(outcome.state, usual)
            outcome.report.update(report_metrics(table, outcome.store.ids))
        by_client = dict(zip(outcome.store.ids, outcome.weights.mean(axis=0).tolist(), strict=True))
        return outcome.report, by_client, outcome.weights

    def _store(self, cohort: Sequence[ClientSlot]) -> MemoryStore:
        """The rows of the cohort as a store: in place if all are fine."""
        buffers, layout, ids = self.buffers, self.work.model.layout, self.work.federation.ids
        count = len(cohort)
        names = tuple(ids[seat.client] for seat in cohort)
        buffers.matrix[count].copy_(buffers.theta)
        sizes = [leaf.size for leaf in layout.counts]
        counters = torch.split(buffers.row_counts[:count], sizes, dim=1) if sizes else ()
        own = torch.split(buffers.counts, sizes) if sizes else ()
        store = MemoryStore(
            layout=layout,
            base=buffers.theta,
            given=names,
            ids=names,
            quarantined={},
            matrix=buffers.matrix[: count + 1],
            client_stats=buffers.row_stats[:count],
            base_stats=buffers.stats,
            client_counts={
                leaf.name: part.reshape(count, *leaf.shape)
                for leaf, part in zip(layout.counts, counters, strict=True)
            },
            counters={
                leaf.name: part.reshape(leaf.shape)
                for leaf, part in zip(layout.counts, own, strict=True)
            },
        )
        status = {ids[seat.client]: int(buffers.status[seat.place]) for seat in cohort}
        return store.without({name: REASONS[code] for name, code in status.items() if code})

    def _reports(self, seats: Sequence[ClientSlot]) -> dict[str, dict[ClientId, Any]]:
        """What clients reported: by metric, then by client."""
        ids = self.work.federation.ids
        rows = {seat: self.buffers.reports[seat.place].tolist() for seat in seats}
        table: dict[str, dict[ClientId, Any]] = {
            name: {ids[seat.client]: row[column] for seat, row in rows.items()}
            for column, name in enumerate(self.work.metrics)
        }
        for name, values in self.buffers.class_reports.items():
            if name in table:
                table[name] = {ids[s.client]: values[s.place].tolist() for s in seats}
        return table

    def _settle(
        self, number: int, outcome: rounds.Outcome, sink: MemorySink, seats: Sequence[ClientSlot]
    ) -> dict[str, float]:
        """Takes over the new model, lets terms update what they keep, and files what clients keep.

        Returns:
            The usual lengths of clients' vectors, where a guard measures them.
        """
        buffers, work = self.buffers, self.work
        accepted = set(outcome.store.ids)
        cohort = [
            seat for seat in seats if seat.row >= 0 and work.federation.ids[seat.client] in accepted
        ]
        theta = sink.flat
        clients, places = [seat.client for seat in cohort], [seat.place for seat in cohort]

        def own(term: ClientTerm, part: slice) -> tuple[Vectors, Vectors]:
            names = {slot: term.key(slot) for slot in term.told_slots}
            old = {slot: buffers.tables[name][clients, part] for slot, name in names.items()}
            return old, {slot: buffers.staged[name][places, part] for slot, name in names.items()}

        def file(term: ClientTerm, part: slice, new: Vectors) -> None:
            for slot, changed in new.items():
                buffers.staged[term.key(slot)][places, part] = changed

        usual = Settling(
            store=outcome.store,
            theta=theta,
            weights=torch.from_numpy(outcome.weights.mean(axis=0)).to(theta.dtype),
            own=own,
            file=file,
            kept=buffers.sent,
            work=buffers.work[places],
            lr=work.local.rate(number, work.rounds),
            population=len(work.federation.ids),
            bounds=outcome.bounds,
            usual=usual_lengths(self.state),
        ).run(work.algorithm.client)
        if "move" in buffers.sent:
            torch.sub(theta, buffers.theta, out=buffers.sent["move"])
        buffers.theta.copy_(theta)
        for leaf in work.model.layout.stats:
            buffers.stats[leaf.start : leaf.stop].copy_(sink.others[leaf.name].reshape(-1))
        for leaf in work.model.layout.counts:
            buffers.counts[leaf.start : leaf.stop].copy_(sink.others[leaf.name].reshape(-1))
        if outcome.bounds is not None:
            # What a client keeps counts if the server counted it: not where a guard set the client
            # aside.
            aside = set(outcome.bounds.aside)
            cohort = [seat for row, seat in enumerate(cohort) if row not in aside]
        filed = [seat for seat in seats if seat.row < 0] + cohort
        terms = [term for term in work.algorithm.client if not term.files_all]
        alone = {term.key(slot) for term in terms for slot in term.client_slots}
        for name, table in buffers.tables.items():
            for seat in cohort if name in alone else filed:
                table[seat.client].copy_(buffers.staged[name][seat.place])
        if buffers.tables:
            self.known.update(seat.client for seat in filed)
            for seat in filed:
                buffers.steps_taken[seat.client] += buffers.steps[seat.place]
        return usual

    def snapshot(self, round: int, progress: Mapping[str, Any], identity: str) -> Snapshot:
        """Everything a run needs to go on after this round, in memory of its own.

        The model as it is shown.
        """
        buffers, ids = self.buffers, self.work.federation.ids
        state = {
            "rule": self.state,
            "theta": buffers.theta.clone(),
            "sent": {name: vector.clone() for name, vector in buffers.sent.items()},
            "clients": {
                ids[client]: {name: table[client].clone() for name, table in buffers.tables.items()}
                for client in sorted(self.known)
            },
            "steps_taken": {
                ids[client]: float(buffers.steps_taken[client]) for client in sorted(self.known)
            },
            "progress": dict(progress),
        }
        return Snapshot(round, self.model(), state, identity)

    def restore(self, snapshot: Snapshot) -> Mapping[str, Any]:
        """Goes back to a snapshot; returns the progress kept with it."""
        buffers, ids = self.buffers, self.work.federation.ids
        self.adopt(snapshot.model)
        state = snapshot.state
        assert state is not None
        buffers.theta.copy_(state["theta"])
        self.state = state["rule"]
        for name, vector in state["sent"].items():
            buffers.sent[name].copy_(vector)
        places = {name: client for client, name in enumerate(ids)}
        for name, rows in state["clients"].items():
            self.known.add(places[name])
            for slot, row in rows.items():
                buffers.tables[slot][places[name]].copy_(row)
            buffers.steps_taken[places[name]] = state["steps_taken"][name]
        progress: Mapping[str, Any] = state["progress"]
        return progress
