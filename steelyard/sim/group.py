"""A group of clients that train side by side, from the model they receive to what they hand in."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import numpy as np
import torch

from steelyard import threads
from steelyard.client.dense import DenseModels
from steelyard.client.flat import FlatModel
from steelyard.client.train import Batches, Training, train
from steelyard.core.errors import NOT_FINITE
from steelyard.core.rng import number
from steelyard.core.sums import are_finite
from steelyard.core.term import ClientContext, ClientTerm
from steelyard.metrics import METRICS
from steelyard.sim.buffers import Buffers
from steelyard.sim.work import ClientSlot, SimulationContext

FINE, EMPTY, BROKEN = range(3)
REASONS = {EMPTY: "has no examples", BROKEN: NOT_FINITE}


class _Trainee(NamedTuple):
    client: int
    place: int
    row: int
    batches: Batches


def train_group(
    work: SimulationContext, buffers: Buffers, round: int, seats: Sequence[ClientSlot]
) -> None:
    """Trains a group and writes updates, vectors and reports to their places."""
    trainees = []
    for seat in seats:
        client_batches = work.batches(seat.client, round)
        buffers.status[seat.place] = EMPTY if client_batches is None else FINE
        if client_batches is not None:
            trainees.append(_Trainee(*seat, client_batches))
    trainees.sort(key=lambda one: -one.batches.steps)
    if trainees:
        _Group(work, buffers, round, trainees).train()


class _Group:
    """One piece of work; clients are sorted by number of steps, most first."""

    def __init__(
        self, work: SimulationContext, buffers: Buffers, round: int, trainees: Sequence[_Trainee]
    ) -> None:
        self.work, self.buffers, self.round, self.trainees = work, buffers, round, trainees
        self.clients = [trainee.client for trainee in trainees]
        self.lr = work.local.rate(round, work.rounds)
        self.model: FlatModel | DenseModels = work.dense or work.model
        self.params = self.model.params[: len(trainees)]  # [C, d]
        self.received = self._received()  # [C, d] or [1, d], in the usual order
        self.starts = self._turned(self.received)
        self.held, self.taken = self._optimizer_state()
        self.terms = self._terms()

    def train(self) -> None:
        """From the models received to what is handed in."""
        work, buffers = self.work, self.buffers
        before = [self._measured_before(i) for i in range(len(self.trainees))]
        client_batches = [one.batches for one in self.trainees]
        needs_grad_norm = "grad_norm" in work.metrics
        state = (self.terms, self.held, self.taken, work.model.free)
        job = Training(
            work.local, self.lr, client_batches, *state, needs_grad_norm, work.background
        )
        with self._seeded(), np.errstate(all="ignore"):  # what overflows is found below
            if self.model is work.model:
                work.model.load(self.received[0], buffers.stats, buffers.counts)
                work.model.mode(batch_norm=len(work.split(self.clients[0])[0]) > 1)
            else:
                self.params.copy_(self.starts)
            began = time.perf_counter()
            norms = train(
                self.model,
                work.inputs if self.model is work.model else work.rows,
                work.targets,
                job,
            )
            spent = (time.perf_counter() - began) / len(self.trainees)
        amounts = [
            work.local.work(one.steps, self.lr, work.algorithm.client.proximal)
            for one in client_batches
        ]
        column = torch.tensor(
            amounts, dtype=self.params.dtype, device=self.params.device
        ).unsqueeze(1)
        for term, at in self.terms:
            term.finish(self.params, at, column)
        self._hand_in()
        for i, trainee in enumerate(self.trainees):
            buffers.seconds[trainee.place] = spent
            buffers.steps[trainee.place] = trainee.batches.steps
            buffers.work[trainee.place] = amounts[i]
            self._report(i, amounts[i], float(norms[i]), before[i])

    def _seeded(self) -> AbstractContextManager[None]:
        """Dropout and the like draw from torch's own generator.

        It, too, is a function of (seed, round, client).

        The closed form draws nothing, and leaves the generator alone.
        """
        work = self.work
        if self.model is not work.model:
            return nullcontext()
        seed = number(work.seed, "module", self.round, work.federation.ids[self.clients[0]])
        if work.model.device.type == "cuda":
            torch.cuda.manual_seed(seed)
        return threads.seeded(seed)

    def _received(self) -> torch.Tensor:
        """The models the clients start from: the global one, unless a broadcast mutates it."""
        buffers, device = self.buffers, self.work.model.device
        theta = buffers.theta.unsqueeze(0)
        if self.work.algorithm.broadcast is not None:
            theta = theta.repeat(len(self.trainees), 1)
            for start, trainee in zip(theta, self.trainees, strict=True):
                for column, leaf in enumerate(self.work.model.layout.params):
                    coefficient = (
                        float(buffers.starts[trainee.row, column]) if trainee.row >= 0 else 0.0
                    )
                    start[leaf.start : leaf.stop].add_(
                        buffers.sent["move"][leaf.start : leaf.stop], alpha=coefficient
                    )
        return theta.to(device)

    def _turned(self, rows: torch.Tensor) -> torch.Tensor:
        """Vectors as the model holds its own.

        Only a network that trains alone has an order of its own.
        """
        model = self.work.model
        return (
            torch.stack([model.to_internal_order(row) for row in rows])
            if model.channels_last
            else rows
        )

    def _usual(self, row: torch.Tensor) -> torch.Tensor:
        """The other way."""
        return self.work.model.usual(row)

    def _optimizer_state(self) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """The optimizer's vectors and steps so far.

        Fresh, or those of the clients' last participation.
        """
        local, like = self.work.local, self.params
        if not local.persistent:
            fresh = {slot: torch.zeros_like(like) for slot in local.slots}
            return fresh, torch.zeros(len(like), 1, dtype=torch.float64)
        slots = {
            slot: self.buffers.tables[f"local.{slot}"][self.clients].to(like.device)
            for slot in local.slots
        }
        return slots, self.buffers.steps_taken[self.clients].unsqueeze(1)

    def _terms(self) -> list[tuple[ClientTerm, ClientContext]]:
        """Each term with what it sees; the clients' own vectors are copies."""
        work, buffers, starts = self.work, self.buffers, self.starts
        relative = torch.tensor(
            [work.sizes[client] / work.mean_size for client in self.clients], dtype=starts.dtype
        )
        contexts = []
        for term in work.algorithm.client:
            own = {slot: buffers.tables[term.key(slot)][self.clients] for slot in term.client_slots}
            server_vectors = {slot: buffers.sent[term.key(slot)] for slot in term.server_slots}
            server_vectors |= {name: buffers.sent[name] for name in term.needs.broadcast}
            own = {name: self._turned(rows.to(starts.device)) for name, rows in own.items()}
            server_vectors = {
                name: work.model.to_internal_order(vector.to(starts.device))
                for name, vector in server_vectors.items()
            }
            contexts.append(
                (
                    term,
                    ClientContext(
                        starts,
                        self.lr,
                        own,
                        server_vectors,
                        relative.unsqueeze(1).to(starts.device),
                    ),
                )
            )
        return contexts

    def _measured_before(self, i: int) -> tuple[float, float]:
        """Loss and accuracy of the model received, on the client's data, if anyone asked."""
        if not _needs_evaluation(self.work.metrics, "received"):
            return 0.0, 0.0
        start = self.received[min(i, len(self.received) - 1)]
        self.work.model.load(start, self.buffers.stats, self.buffers.counts)
        return self.work.evaluate_client(self.clients[i])

    def _hand_in(self) -> None:
        """Writes updates, statistics and what clients keep to their places.

        Says who is not finite.
        """
        buffers, model = self.buffers, self.work.model
        own = {
            term.key(slot): [self._usual(row) for row in rows]
            for term, at in self.terms
            for slot, rows in at.own.items()
        }
        own |= (
            {f"local.{slot}": list(rows) for slot, rows in self.held.items()}
            if self.work.local.persistent
            else {}
        )
        for i, trainee in enumerate(self.trainees):
            fine = all(are_finite(rows[i]) for rows in own.values())
            if trainee.row < 0:
                fine = fine and are_finite(self.params[i])
            else:  # what is not finite in the parameters is not finite in the update
                torch.sub(
                    self._usual(self.params[i]).cpu(),
                    buffers.theta,
                    out=buffers.matrix[trainee.row],
                )
                fine = fine and are_finite(buffers.matrix[trainee.row]) and are_finite(model.stats)
                buffers.row_stats[trainee.row].copy_(model.stats)
                buffers.row_counts[trainee.row].copy_(model.counts())
            for name, rows in own.items():
                buffers.staged[name][trainee.place].copy_(rows[i])
            buffers.status[trainee.place] = FINE if fine else BROKEN

    def _report(self, i: int, work: float, norm: float, before: tuple[float, float]) -> None:
        """Write the metrics that were asked for, and no others, to their places."""
        # Evaluate the trained model on the client's data, if a metric needs it.
        trainee = self.trainees[i]
        after = (0.0, 0.0)
        if _needs_evaluation(self.work.metrics, "trained"):
            if self.model is not self.work.model:
                self.work.model.load(self.params[i], self.buffers.stats, self.buffers.counts)
            after = self.work.evaluate_client(trainee.client)

        # A number for each metric; metrics with a number per class have tables of their own.
        values = self._compute_metrics(trainee, work, norm, before, after)
        reports = [values.get(name, 0.0) for name in self.work.metrics]
        self.buffers.reports[trainee.place] = torch.tensor(reports, dtype=torch.float64)
        for name in self.buffers.class_reports.keys() & set(self.work.metrics):
            self.buffers.class_reports[name][trainee.place] = self._compute_class_metric(
                name, trainee.client
            )

    def _compute_metrics(
        self,
        trainee: _Trainee,
        work: float,
        grad_norm: float,
        before: tuple[float, float],
        after: tuple[float, float],
    ) -> dict[str, float]:
        """Return all metrics of `steelyard.metrics.METRICS` that are single numbers.

        Args:
            trainee: the client.
            work: its amount of local work, FedNova's a_i.
            grad_norm: the sum of its squared gradient norms times the learning rate.
            before: loss and accuracy of the received model.
            after: loss and accuracy of the trained model.
        """
        return {
            "num_examples": float(self.work.sizes[trainee.client]),
            "num_steps": float(trainee.batches.steps),
            "normalizer": work,
            "grad_norm": grad_norm,
            "loss_before": before[0],
            "accuracy_before": before[1],
            "loss": after[0],
            "accuracy": after[1],
        }

    def _compute_class_metric(self, name: str, client: int) -> torch.Tensor:
        """Return a metric of `steelyard.metrics.METRICS` that has a number for each class."""
        data = self.work.federation
        labels = data.train.targets[torch.from_numpy(data.index[client])]
        classes = self.buffers.class_reports[name].shape[1]
        metrics = {"label_hist": torch.bincount(labels, minlength=classes).double()}
        return metrics[name]


def _needs_evaluation(metrics: Sequence[str], model: str) -> bool:
    """Return whether a metric is computed from an evaluation of the received or trained model."""
    return any(model in METRICS[name].evaluates for name in metrics)
