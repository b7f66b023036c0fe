"""Local training of a group of clients side by side, from the global model to their updates."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import NamedTuple

import numpy as np
import torch

from steelyard import threads
from steelyard.client._dense import DenseModels
from steelyard.client._features import FeatureLoss, FeatureRecorder
from steelyard.client._flat import FlatModel
from steelyard.client._train import Batches, Training, train
from steelyard.core._errors import NOT_FINITE, SteelyardError
from steelyard.core._rng import number
from steelyard.core._sums import are_finite
from steelyard.core._term import ClientContext, ClientTerm, FeatureTerm
from steelyard.metrics import needs_evaluation
from steelyard.sim._buffers import Buffers
from steelyard.sim._work import OWN_MODEL, ClientSlot, SimulationContext

LARGEST_WEIGHT = 1 - 1e-6  # without a client that has more, no model is left
FINE, EMPTY, BROKEN = range(3)
REASONS = {EMPTY: "has no examples", BROKEN: NOT_FINITE}


class _Trainee(NamedTuple):
    client: int
    position: int
    row: int
    batches: Batches


def train_group(
    work: SimulationContext, buffers: Buffers, round: int, members: Sequence[ClientSlot]
) -> None:
    """Train a group of clients; write their updates, vectors and reports to the buffers."""
    trainees = []
    for member in members:
        client_batches = work.batches(member.client, round)
        buffers.status[member.position] = EMPTY if client_batches is None else FINE
        if client_batches is not None:
            trainees.append(_Trainee(*member, client_batches))
    trainees.sort(key=lambda trainee: -trainee.batches.steps)
    if trainees:
        _Group(work, buffers, round, trainees).train()


class _Group:
    """The training of one group; clients are sorted by number of steps, most first."""

    def __init__(
        self, work: SimulationContext, buffers: Buffers, round: int, trainees: Sequence[_Trainee]
    ) -> None:
        self.work = work
        self.buffers = buffers
        self.round = round
        self.trainees = trainees
        self.clients = [trainee.client for trainee in trainees]
        self.lr = work.local.rate(round, work.rounds)
        self.model: FlatModel | DenseModels = work.dense or work.model
        self.params = self.model.params[: len(trainees)]  # [C, d]
        self.received = self._build_starts()  # [C, d] or [1, d], in the layout's order
        self.starts = self._to_internal_order(self.received)
        self.optimizer_slots, self.steps_taken = self._load_optimizer()
        self.terms = self._build_contexts()
        # The terms that are functions of features.
        self.feature_terms: list[tuple[FeatureTerm, ClientContext]] = []
        for term, at in self.terms:
            if isinstance(term, FeatureTerm):
                self.feature_terms.append((term, at))

    def train(self) -> None:
        """Train the clients and write what the server needs."""
        work = self.work
        buffers = self.buffers
        # Evaluate the received model, if a metric asks for it.
        before = [self._evaluate_start(i) for i in range(len(self.trainees))]
        errors_without = [self._evaluate_without(i) for i in range(len(self.trainees))]
        for i in range(len(self.trainees)):
            self._write_summaries(i, "received")
        # Train; values that overflow are found later.
        client_batches = [trainee.batches for trainee in self.trainees]
        needs_grad_norm = "grad_norm" in work.metrics
        acting = [(term, at) for term, at in self.terms if type(term).add is not FeatureTerm.add]
        state = (acting, self.optimizer_slots, self.steps_taken, work.model.free)
        with ExitStack() as stack:
            stack.enter_context(self._seed_torch())
            stack.enter_context(np.errstate(all="ignore"))
            feature_loss = self._open_feature_loss(stack)
            job = Training(
                work.local,
                self.lr,
                client_batches,
                *state,
                needs_grad_norm,
                work.background,
                feature_loss,
            )
            if self.model is work.model:
                work.model.load(self.received[0], buffers.stats, buffers.counts)
                work.model.mode(batch_norm=len(work.split(self.clients[0])[0]) > 1)
            else:
                self.params.copy_(self.starts)
            start_time = time.perf_counter()
            norms = train(
                self.model,
                work.inputs if self.model is work.model else work.rows,
                work.targets,
                job,
            )
            seconds = (time.perf_counter() - start_time) / len(self.trainees)
        # Let the client terms update their vectors.
        amounts = [
            work.local.work(batches.steps, self.lr, work.algorithm.client.proximal)
            for batches in client_batches
        ]
        column = torch.tensor(
            amounts, dtype=self.params.dtype, device=self.params.device
        ).unsqueeze(1)
        for term, at in self.terms:
            term.finish(self.params, at, column)
        # Write updates and reports.
        self._write_updates()
        for i, trainee in enumerate(self.trainees):
            buffers.seconds[trainee.position] = seconds
            buffers.steps[trainee.position] = trainee.batches.steps
            buffers.work[trainee.position] = amounts[i]
            self._write_summaries(i, "trained")
            self._report(i, amounts[i], float(norms[i]), before[i], errors_without[i])

    def _open_feature_loss(self, stack: ExitStack) -> FeatureLoss | None:
        """Return what feature terms add to the loss, if there are any.

        The network's features are recorded until the stack is closed.
        """
        terms = [(term, at) for term, at in self.feature_terms if term.has_loss]
        classifier = self.work.classifier
        if not terms or classifier is None:
            return None
        recorder = FeatureRecorder(self.work.model.module, classifier)
        return FeatureLoss(stack.enter_context(recorder), terms)

    def _write_summaries(self, i: int, model: str) -> None:
        """Write the tensors that feature terms send, and mark a client whose are not finite.

        Args:
            i: position of the client in the group.
            model: the model whose features are summarized: `received` or `trained`.
        """
        terms = [(term, at) for term, at in self.feature_terms if term.summarized_model == model]
        classifier = self.work.classifier
        if not terms or classifier is None:
            return

        # Load the model, and compute the features of the client's samples.
        network = self.work.model
        trainee = self.trainees[i]
        if model == "received":
            start = self.received[min(i, len(self.received) - 1)]
            network.load(start, self.buffers.stats, self.buffers.counts)
        elif self.model is not network:
            network.load(self.params[i], self.buffers.stats, self.buffers.counts)
        features, targets = self.work.compute_features(trainee.client)

        # Write what each term returns.
        for term, at in terms:
            tensors = term.summarize(features, targets, classifier, at)
            for name, spec in term.client_tensors(classifier).items():
                tensor = tensors[name].cpu()
                problem = spec.find_problem(tensor)
                if problem == NOT_FINITE:
                    self.buffers.status[trainee.position] = BROKEN
                elif problem is not None:
                    raise SteelyardError(f"{term.key(name)} of summarize {problem}")
                self.buffers.client_tensors[term.key(name)][trainee.position] = tensor

    def _seed_torch(self) -> AbstractContextManager[None]:
        """Seed torch's own generator, for dropout and the like, by seed, round and client.

        The closed form draws no random numbers and leaves the generator as it is.
        """
        work = self.work
        if self.model is not work.model:
            return nullcontext()
        seed = number(work.seed, "module", self.round, work.federation.ids[self.clients[0]])
        if work.model.device.type == "cuda":
            torch.cuda.manual_seed(seed)
        return threads.seeded(seed)

    def _build_starts(self) -> torch.Tensor:
        """Return the models that the clients start from: the global one, unless a broadcast changes it."""
        buffers, device = self.buffers, self.work.model.device
        theta = buffers.theta.unsqueeze(0)
        if self.work.algorithm.broadcast is not None:
            theta = theta.repeat(len(self.trainees), 1)
            for start, trainee in zip(theta, self.trainees, strict=True):
                for column, leaf in enumerate(self.work.model.layout.params):
                    coefficient = 0.0
                    if trainee.row >= 0:
                        coefficient = float(buffers.starts[trainee.row, column])
                    start[leaf.start : leaf.stop].add_(
                        buffers.sent["move"][leaf.start : leaf.stop], alpha=coefficient
                    )
        return theta.to(device)

    def _to_internal_order(self, rows: torch.Tensor) -> torch.Tensor:
        """Return vectors in the order of the model's own memory."""
        model = self.work.model
        if not model.channels_last:
            return rows
        return torch.stack([model.to_internal_order(row) for row in rows])

    def _to_layout_order(self, row: torch.Tensor) -> torch.Tensor:
        """Return a vector in the order of the layout."""
        return self.work.model.usual(row)

    def _load_optimizer(self) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Return the optimizer's vectors and the steps so far: zero, or from the last participation."""
        local, like = self.work.local, self.params
        if not local.persistent:
            fresh = {slot: torch.zeros_like(like) for slot in local.slots}
            return fresh, torch.zeros(len(like), 1, dtype=torch.float64)
        slots = {
            slot: self.buffers.tables[f"local.{slot}"][self.clients].to(like.device)
            for slot in local.slots
        }
        return slots, self.buffers.steps_taken[self.clients].unsqueeze(1)

    def _build_contexts(self) -> list[tuple[ClientTerm, ClientContext]]:
        """Return each client term with its context; the clients' own vectors are copies."""
        work, buffers, starts = self.work, self.buffers, self.starts
        relative = torch.tensor(
            [work.sizes[client] / work.mean_size for client in self.clients], dtype=starts.dtype
        )
        contexts = []
        for term in work.algorithm.client:
            own = {slot: buffers.tables[term.key(slot)][self.clients] for slot in term.client_slots}
            server_vectors = {slot: buffers.sent[term.key(slot)] for slot in term.server_slots}
            server_vectors |= {name: buffers.sent[name] for name in term.needs.broadcast}
            own = {
                name: self._to_internal_order(rows.to(starts.device)) for name, rows in own.items()
            }
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
                        self._read_sent_tensors(term),
                    ),
                )
            )
        return contexts

    def _read_sent_tensors(self, term: ClientTerm) -> dict[str, torch.Tensor]:
        """Return the small tensors that the server sent for a term, by name."""
        classifier = self.work.classifier
        if not isinstance(term, FeatureTerm) or classifier is None:
            return {}
        specs = term.server_tensors(classifier)
        return {
            name: self.buffers.server_tensors[term.key(name)].to(self.starts.device)
            for name, spec in specs.items()
            if spec.is_sent
        }

    def _evaluate_start(self, i: int) -> tuple[float, float]:
        """Return loss and accuracy of the received model on the client's data; 0 if not needed."""
        if not needs_evaluation(self.work.metrics, "received"):
            return 0.0, 0.0
        start = self.received[min(i, len(self.received) - 1)]
        self.work.model.load(start, self.buffers.stats, self.buffers.counts)
        return self.work.evaluate_client(self.clients[i])

    def _evaluate_without(self, i: int) -> float:
        """Return the error of the global model without the client, on the client's data.

        With the client's last model theta_k and its weight w_k in the sum, this is the error of
        `(theta - w_k theta_k) / (1 - w_k)`. It is 1 if there is no such model, because the client
        took part for the first time, or alone; 0 if no metric needs it.
        """
        if not needs_evaluation(self.work.metrics, "without"):
            return 0.0
        client = self.clients[i]
        weight = float(self.buffers.last_weights[client])
        if math.isnan(weight) or weight > LARGEST_WEIGHT:
            return 1.0
        own = self.buffers.tables[OWN_MODEL][client]
        params = (self.buffers.theta - weight * own) / (1 - weight)
        self.work.model.load(params, self.buffers.stats, self.buffers.counts)
        return self.work.evaluate_held_out(client)

    def _write_updates(self) -> None:
        """Write updates, statistics and per-client state, and mark clients that are not finite."""
        buffers, model = self.buffers, self.work.model
        own = {
            term.key(slot): [self._to_layout_order(row) for row in rows]
            for term, at in self.terms
            for slot, rows in at.own.items()
        }
        if self.work.local.persistent:
            for slot, vectors in self.optimizer_slots.items():
                own[f"local.{slot}"] = list(vectors)
        if OWN_MODEL in buffers.tables:
            own[OWN_MODEL] = [self._to_layout_order(row) for row in self.params]
        for i, trainee in enumerate(self.trainees):
            is_finite = all(are_finite(rows[i]) for rows in own.values())
            if trainee.row < 0:
                is_finite = is_finite and are_finite(self.params[i])
            else:  # parameters that are not finite give an update that is not finite
                torch.sub(
                    self._to_layout_order(self.params[i]).cpu(),
                    buffers.theta,
                    out=buffers.matrix[trainee.row],
                )
                is_finite = (
                    is_finite
                    and are_finite(buffers.matrix[trainee.row])
                    and are_finite(model.stats)
                )
                buffers.row_stats[trainee.row].copy_(model.stats)
                buffers.row_counts[trainee.row].copy_(model.counts())
            for name, rows in own.items():
                buffers.staged[name][trainee.position].copy_(rows[i])
            if not is_finite:
                buffers.status[trainee.position] = BROKEN

    def _report(
        self, i: int, work: float, norm: float, before: tuple[float, float], error_without: float
    ) -> None:
        """Write the metrics that the algorithm or the user asks for."""
        # Evaluate the trained model on the client's data, if a metric needs it.
        trainee = self.trainees[i]
        after = (0.0, 0.0)
        if needs_evaluation(self.work.metrics, "trained"):
            if self.model is not self.work.model:
                self.work.model.load(self.params[i], self.buffers.stats, self.buffers.counts)
            after = self.work.evaluate_client(trainee.client)

        # A number for each metric; metrics with a number per class have tables of their own.
        values = self._compute_metrics(trainee, work, norm, before, after)
        values["error_without"] = error_without
        reports = [values.get(name, 0.0) for name in self.work.metrics]
        self.buffers.reports[trainee.position] = torch.tensor(reports, dtype=torch.float64)
        for name in self.buffers.class_reports.keys() & set(self.work.metrics):
            self.buffers.class_reports[name][trainee.position] = self._compute_class_metric(
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
        """Return the metrics of `steelyard.metrics.METRICS` that describe the training.

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
