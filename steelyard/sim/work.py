"""What a worker does: train a group of clients, evaluate a piece of data. The same code in every executor.

Models and results travel through tensors in shared memory; a task is a handful of whole numbers. Nothing is pickled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard.algorithm import Algorithm
from steelyard.client.dense import DenseModels
from steelyard.client.flat import FlatModel
from steelyard.client.local import Local
from steelyard.client.train import Batches, Training, batches, train
from steelyard.core.round import NOT_FINITE, finite
from steelyard.core.term import AtClient, ClientTerm
from steelyard.data.dataset import Federation
from steelyard.sim.buffers import SHARD, Buffers, Sizes
from steelyard.sim.streams import number, stream

REASONS = {1: "has no examples", 2: NOT_FINITE}

Group = Sequence[tuple[int, int, int]]  # (client, place, row): row is -1 for a client outside the cohort


@dataclass(frozen=True)
class Work:
    """Everything a process needs to do clients' work; made before workers are forked.

    Attributes:
        algorithm: terms, rule, server optimizer.
        federation: arranged data.
        model: the network as flat vectors.
        local: training options.
        rounds: length of the run, for schedules.
        seed: of everything.
        metrics: what clients report, sorted by name.
    """

    algorithm: Algorithm
    federation: Federation
    model: FlatModel
    local: Local
    rounds: int
    seed: int
    metrics: tuple[str, ...]

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Samples of each client."""
        return self.federation.sizes

    @cached_property
    def mean_size(self) -> float:
        """Their mean over all clients."""
        return float(self.sizes.mean())

    @cached_property
    def dense(self) -> DenseModels | None:
        """The stacked closed form, if the network has one."""
        model, inputs = self.model, self.federation.train.inputs
        fits = DenseModels.fits(model.module, model.layout, model.loss, model.device, inputs)
        return DenseModels(model.module, model.layout) if fits else None

    @cached_property
    def inputs(self) -> torch.Tensor:
        """The training inputs as the model wants them."""
        return self.model.stored(self.federation.train.inputs)

    @cached_property
    def rows(self) -> torch.Tensor:
        """The same, one row per sample."""
        return self.inputs.flatten(1)

    @cached_property
    def targets(self) -> torch.Tensor:
        """The training targets."""
        return self.federation.train.targets.to(self.model.device)

    @cached_property
    def test(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The server's test set."""
        assert self.federation.test is not None
        return self.model.stored(self.federation.test.inputs), self.federation.test.targets.to(self.model.device)

    def prepare(self) -> None:
        """Brings the data into form once, before the fork, so that workers share it."""
        _ = self.dense, self.inputs, self.targets, self.mean_size
        if self.federation.test is not None:
            _ = self.test

    @property
    def sent_names(self) -> list[str]:
        """Vectors the server sends beside the parameters."""
        own = [f"{term.name}.{slot}" for term in self.algorithm.client for slot in term.server_slots]
        return [*sorted(self.algorithm.needs.broadcast), *own]

    @property
    def slot_names(self) -> list[str]:
        """Vectors every client keeps."""
        own = [f"{term.name}.{slot}" for term in self.algorithm.client for slot in term.client_slots]
        return own + ([f"local.{slot}" for slot in self.local.slots] if self.local.persistent else [])

    def buffers(self, places: int, rows: int) -> Buffers:
        """Shared tensors for rounds in which `places` clients train and `rows` of them are in the cohort."""
        data = self.federation
        sizes = Sizes(
            len(data.ids), self.sent_names, self.slot_names, len(self.metrics), data.classes or 0, len(data.test or ())
        )
        return Buffers(sizes, self.model.layout, places, rows)

    def split(self, client: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Positions of a client's training and validation samples: the first of a shuffle validate, as FedLAW's do."""
        index = self.federation.index[client]
        if self.local.train_share == 1.0:
            return index, index[:0]
        shuffled = index[stream(self.seed, "split", 0, self.federation.ids[client]).permutation(len(index))]
        held_out = int(len(index) * (1 - self.local.train_share) + 1e-9)
        return shuffled[held_out:], shuffled[:held_out]

    def batches(self, client: int, round: int) -> Batches | None:
        """A client's batches in a round; None if it has no examples."""
        index, _ = self.split(client)
        if not len(index):
            return None
        rng = stream(self.seed, "batches", round, self.federation.ids[client])
        return batches(index, self.local, rng, self.model.has_batch_norm)

    def num_steps(self, client: int) -> int:
        """How many steps a client takes in a round, without drawing its batches."""
        if self.local.steps is not None:
            return self.local.steps
        count = int(self.sizes[client])
        count -= int(count * (1 - self.local.train_share) + 1e-9) if self.local.train_share < 1.0 else 0
        return -(-count // self.local.batch_size) * (self.local.epochs or 1)

    def groups(self, trained: Sequence[tuple[int, int, int]]) -> list[list[tuple[int, int, int]]]:
        """Clients in the groups they train in, longest first: a function of who trains alone, not of the workers.

        Where clients train side by side, groups are filled so that all take about as long: each client, longest
        first, goes to the group that has least to do. Their number is a multiple of four, to share out evenly.
        """
        steps = {one: self.num_steps(one[0]) for one in trained}
        order = sorted(trained, key=lambda one: (-steps[one], one[1]))
        if self.dense is None:
            return [[one] for one in order]
        count = min(len(order), 4 * -(-len(order) // (4 * self.dense.count)))
        groups: list[list[tuple[int, int, int]]] = [[] for _ in range(count)]
        for one in order:
            open_groups = [group for group in groups if len(group) < self.dense.count]
            min(open_groups, key=lambda group: sum(steps[member] for member in group)).append(one)
        return groups

    def train(self, buffers: Buffers, round: int, group: Group) -> None:
        """Trains a group and writes updates, vectors and reports to their places."""
        with_data = []
        for client, place, row in group:
            drawn = self.batches(client, round)
            buffers.status[place] = 0 if drawn is not None else 1
            if drawn is not None:
                with_data.append((drawn, client, place, row))
        with_data.sort(key=lambda one: -one[0].steps)
        if not with_data:
            return
        lr = self.local.rate(round, self.rounds)
        places = [place for _, _, place, _ in with_data]
        clients = [client for _, client, _, _ in with_data]
        starts = self._starts(buffers, [row for _, _, _, row in with_data])  # [C, d] or [1, d]
        before = [self._evaluated(buffers, starts[min(i, len(starts) - 1)], c) for i, c in enumerate(clients)]
        model: FlatModel | DenseModels = self.dense or self.model
        params = model.params[: len(places)]
        params.copy_(starts)
        held, taken = self._optimizer_state(buffers, clients, params)
        terms = self._terms(buffers, clients, places, starts, lr)
        drawn_batches = [drawn for drawn, _, _, _ in with_data]
        job = Training(self.local, lr, drawn_batches, terms, held, taken, self.model.free, "grad_norm" in self.metrics)
        with torch.random.fork_rng(devices=[]), np.errstate(all="ignore"):  # what overflows is found below
            if isinstance(model, FlatModel):
                model.load(params[0], buffers.stats, buffers.counts)
                model.mode(batch_norm=len(self.split(clients[0])[0]) > 1)
                self._seed(number(self.seed, "module", round, self.federation.ids[clients[0]]))
            norms = train(model, self.inputs if model is self.model else self.rows, self.targets, job)
        work = [self.local.work(drawn.steps, lr, self.algorithm.client.proximal) for drawn in drawn_batches]
        column = torch.tensor(work, dtype=params.dtype, device=params.device).unsqueeze(1)
        for term, at in terms:
            term.finish(params, at, column)
        self._hand_in(buffers, with_data, params, norms, work, terms, held, before)

    def _seed(self, seed: int) -> None:
        """Dropout and the like draw from torch's own generator: it, too, is a function of (seed, round, client)."""
        torch.default_generator.manual_seed(seed)
        if self.model.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def _starts(self, buffers: Buffers, rows: Sequence[int]) -> torch.Tensor:
        """The models the clients start from."""
        theta = buffers.theta.unsqueeze(0)
        if self.algorithm.broadcast is not None:
            theta = theta.repeat(len(rows), 1)
            for start, row in zip(theta, rows, strict=True):
                for number_of_leaf, leaf in enumerate(self.model.layout.params):
                    much = float(buffers.starts[row, number_of_leaf]) if row >= 0 else 0.0
                    start[leaf.start : leaf.stop].add_(buffers.sent["move"][leaf.start : leaf.stop], alpha=much)
        return theta.to(self.model.device)

    def _optimizer_state(
        self, buffers: Buffers, clients: Sequence[int], like: torch.Tensor
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """The optimizer's vectors and steps so far: fresh, or those of the clients' last participation."""
        if not self.local.persistent:
            fresh = {slot: torch.zeros_like(like) for slot in self.local.slots}
            return fresh, torch.zeros(len(clients), 1, device=like.device)
        held = {slot: buffers.tables[f"local.{slot}"][clients].to(like.device) for slot in self.local.slots}
        return held, buffers.steps_taken[clients].to(like.device, torch.float32).unsqueeze(1)

    def _terms(
        self, buffers: Buffers, clients: Sequence[int], places: Sequence[int], starts: torch.Tensor, lr: float
    ) -> list[tuple[ClientTerm, AtClient]]:
        """Each term with what it sees; the clients' own vectors are copies."""
        relative = torch.tensor([self.sizes[client] / self.mean_size for client in clients], dtype=starts.dtype)
        seen = []
        for term in self.algorithm.client:
            own = {slot: buffers.tables[f"{term.name}.{slot}"][clients].to(starts.device) for slot in term.client_slots}
            sent = {slot: buffers.sent[f"{term.name}.{slot}"].to(starts.device) for slot in term.server_slots}
            sent |= {name: buffers.sent[name].to(starts.device) for name in term.needs.broadcast}
            seen.append((term, AtClient(starts, lr, own, sent, relative.unsqueeze(1).to(starts.device))))
        return seen

    def _evaluated(self, buffers: Buffers, params: torch.Tensor, client: int) -> tuple[float, float]:
        """Loss and accuracy of the model received, on the client's data, if anyone asked."""
        if not {"loss_before", "accuracy_before"} & set(self.metrics):
            return 0.0, 0.0
        self.model.load(params, buffers.stats, buffers.counts)
        return self._measured(client)

    def _measured(self, client: int) -> tuple[float, float]:
        index = torch.from_numpy(self.federation.index[client]).to(self.model.device)
        loss, right, count = self.model.evaluate(self.inputs, self.targets, index)
        return loss / count, right / count

    def _hand_in(
        self,
        buffers: Buffers,
        with_data: Sequence[tuple[Batches, int, int, int]],
        params: torch.Tensor,
        norms: torch.Tensor,
        work: Sequence[float],
        terms: Sequence[tuple[ClientTerm, AtClient]],
        held: dict[str, torch.Tensor],
        before: Sequence[tuple[float, float]],
    ) -> None:
        """Writes what the group made to its places in shared memory."""
        own = {f"{term.name}.{slot}": rows for term, at in terms for slot, rows in at.own.items()}
        own |= {f"local.{slot}": rows for slot, rows in held.items()} if self.local.persistent else {}
        for i, (drawn, client, place, row) in enumerate(with_data):
            fine = finite(params[i]) and all(finite(rows[i]) for rows in own.values())
            if row >= 0:
                torch.sub(params[i].cpu(), buffers.theta, out=buffers.matrix[row])
                fine = fine and finite(buffers.matrix[row]) and finite(self.model.stats)
                buffers.row_stats[row].copy_(self.model.stats)
                buffers.row_counts[row].copy_(self.model.counts())
            for name, rows in own.items():
                buffers.staged[name][place].copy_(rows[i])
            buffers.steps[place] = drawn.steps
            buffers.work[place] = work[i]
            buffers.status[place] = 0 if fine else 2
            self._report(buffers, client, place, params[i], drawn.steps, work[i], float(norms[i]), before[i])

    def _report(
        self,
        buffers: Buffers,
        client: int,
        place: int,
        params: torch.Tensor,
        steps: int,
        work: float,
        norm: float,
        before: tuple[float, float],
    ) -> None:
        """The metrics somebody asked for, and no others."""
        after = (0.0, 0.0)
        if {"loss", "accuracy"} & set(self.metrics):
            if self.dense is not None:
                self.model.load(params, buffers.stats, buffers.counts)
            after = self._measured(client)
        known = {
            "num_examples": float(self.sizes[client]),
            "num_steps": float(steps),
            "normalizer": work,
            "grad_norm": norm,
            "loss_before": before[0],
            "accuracy_before": before[1],
            "loss": after[0],
            "accuracy": after[1],
            "label_hist": 0.0,  # has a table of its own
        }
        buffers.reports[place] = torch.tensor([known[name] for name in self.metrics], dtype=torch.float64)
        if "label_hist" in self.metrics:
            labels = self.federation.train.targets[torch.from_numpy(self.federation.index[client])]
            buffers.histograms[place] = torch.bincount(labels, minlength=buffers.histograms.shape[1]).double()

    def evaluate_test(self, buffers: Buffers, shard: int) -> None:
        """Loss, right answers and samples of one shard of the server's test set."""
        inputs, targets = self.test
        self.model.load(buffers.shown, buffers.stats, buffers.counts)
        index = torch.arange(shard * SHARD, min((shard + 1) * SHARD, len(targets)), device=self.model.device)
        buffers.test_results[shard] = torch.tensor(self.model.evaluate(inputs, targets, index), dtype=torch.float64)

    def evaluate_clients(self, buffers: Buffers, first: int, last: int) -> None:
        """The same on the own data of clients `first` to `last - 1`: their validation part, if they have one."""
        self.model.load(buffers.shown, buffers.stats, buffers.counts)
        for client in range(first, last):
            trained, held_out = self.split(client)
            index = torch.from_numpy(held_out if len(held_out) else trained).to(self.model.device)
            result = self.model.evaluate(self.inputs, self.targets, index) if len(index) else (0.0, 0.0, 0)
            buffers.client_results[client] = torch.tensor(result, dtype=torch.float64)
