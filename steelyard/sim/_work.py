"""What a process needs to do clients' work: data, model, options; who trains with whom; evaluation.

The same code in every executor. Models and results travel through tensors in shared memory; a task
is a handful of whole numbers. Nothing is pickled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard.algorithm import Algorithm
from steelyard.client._augment import Augmentation
from steelyard.client._dense import DenseModels
from steelyard.client._features import check_class_targets, compute_features, find_classifier
from steelyard.client._flat import FlatModel
from steelyard.client._local import LocalTraining
from steelyard.client._train import Batches, batches, cuts, width
from steelyard.core._lora import FACTORS, LoraOutput
from steelyard.core._rng import stream
from steelyard.core._side_channel import Classifier
from steelyard.data._dataset import Federation
from steelyard.metrics import needs_evaluation
from steelyard.server._probe import Probe
from steelyard.sim._buffers import SHARD, Buffers, Sizes

OWN_MODEL = "own.model"  # the vector with a client's last model, if a metric needs it


class ClientSlot(NamedTuple):
    """A client that trains in a round.

    Its number, its place in the buffers, its row in the matrix or -1.

    Rows are the cohort's; clients outside it may train too, where all do.
    """

    client: int
    position: int
    row: int


@dataclass(frozen=True)
class SimulationContext:
    """Everything a process needs to train clients; built before workers are forked.

    Attributes:
        algorithm: terms, rule, server optimizer.
        federation: arranged data.
        model: the network as flat vectors.
        local: training options.
        rounds: length of the run, for schedules.
        seed: of everything.
        metrics: what clients report, sorted by name.
        probe: the server's proxy data, if it has any.
        mean_examples: samples per client, where the others' data is not here.
        output: the network's output of one sample, if outputs on the test set are to be kept.
        classifier_name: the name of the network's classifier, for feature terms; empty to find it.
        has_groups: whether the accuracy on groups of the test set is recorded.
        lora: what the server returns for LoRA adapters.
    """

    algorithm: Algorithm
    federation: Federation
    model: FlatModel
    local: LocalTraining
    rounds: int
    seed: int
    metrics: tuple[str, ...]
    probe: Probe | None = None
    mean_examples: float | None = None
    output: torch.Tensor | None = None
    classifier_name: str = ""
    has_groups: bool = False
    lora: LoraOutput = FACTORS

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Samples of each client."""
        return self.federation.sizes

    @cached_property
    def mean_size(self) -> float:
        """Mean number of samples over all clients."""
        return float(self.sizes.mean()) if self.mean_examples is None else self.mean_examples

    @cached_property
    def dense(self) -> DenseModels | None:
        """The closed form of several dense networks, if model and data allow it; else None."""
        has_feature_loss = any(term.has_loss for term in self.algorithm.client.feature_terms)
        if self.local.augmentation is not None or has_feature_loss:
            return None
        model, data = self.model, self.federation.train
        fits = DenseModels.fits(
            model.module, model.layout, model.loss, model.device, data.inputs, data.targets
        )
        return DenseModels(model.module, model.layout) if fits else None

    @cached_property
    def classifier(self) -> Classifier | None:
        """The last linear layer of the network, if there are feature terms; else None."""
        terms = self.algorithm.client
        if not terms.feature_terms:
            return None
        check_class_targets(self.federation.train.targets, terms.feature_terms)
        return find_classifier(self.model.module, self.classifier_name or terms.classifier)

    @cached_property
    def inputs(self) -> torch.Tensor:
        """The training inputs in the model's type and memory format."""
        return self.model.prepare_inputs(self.federation.train.inputs)

    @cached_property
    def rows(self) -> torch.Tensor:
        """The training inputs, one row per sample."""
        return self.inputs.flatten(1)

    @cached_property
    def background(self) -> torch.Tensor | None:
        """The values of pixels outside an image, if images are augmented, `[channels]`."""
        augment = self.local.augmentation
        if not isinstance(augment, Augmentation):
            return None
        return augment.background(self.federation.train.inputs).to(self.model.device)

    @cached_property
    def targets(self) -> torch.Tensor:
        """The training targets."""
        return self.model.cast(self.federation.train.targets)

    @cached_property
    def test(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The server's test set."""
        assert self.federation.test is not None
        return self.model.prepare_inputs(self.federation.test.inputs), self.model.cast(
            self.federation.test.targets
        )

    def prepare(self) -> None:
        """Convert the data once, before the fork, so that workers share it."""
        _ = self.dense, self.inputs, self.background, self.targets, self.mean_size
        if self.federation.test is not None:
            _ = self.test

    @property
    def slot_names(self) -> list[str]:
        """Names of the vectors that every client keeps between rounds."""
        own = [term.key(slot) for term in self.algorithm.client for slot in term.client_slots]
        if self.local.persistent:
            own += [f"local.{slot}" for slot in self.local.slots]
        if needs_evaluation(self.metrics, "without"):
            own.append(OWN_MODEL)
        return own

    def buffers(self, num_clients: int, rows: int) -> Buffers:
        """Return shared tensors for rounds in which `num_clients` clients train, `rows` in the cohort."""
        data = self.federation
        sizes = Sizes(
            clients=len(data.ids),
            sent=self.algorithm.sent_vectors,
            slots=self.slot_names,
            metrics=len(self.metrics),
            classes=data.classes or 0,
            test=len(data.test or ()),
            output=self.output,
            client_tensors=self.algorithm.client.client_tensors(self.classifier),
            server_tensors=self.algorithm.client.server_tensors(self.classifier),
            has_groups=self.has_groups,
        )
        return Buffers(sizes, self.model.layout, num_clients, rows)

    def split(self, client: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the positions of a client's training and validation samples.

        The first samples of a shuffle are for validation, as in FedLAW's code.
        """
        index = self.federation.index[client]
        if self.local.train_share == 1.0:
            return index, index[:0]
        shuffled = index[
            stream(self.seed, "split", 0, self.federation.ids[client]).permutation(len(index))
        ]
        held_out = int(len(index) * (1 - self.local.train_share) + 1e-9)
        return shuffled[held_out:], shuffled[:held_out]

    def batches(self, client: int, round: int) -> Batches | None:
        """Return a client's batches in a round; None if it has no examples."""
        index, _ = self.split(client)
        if not len(index):
            return None
        client_id = self.federation.ids[client]
        rng = stream(self.seed, "batches", round, client_id, self.local.batch_seed)
        client_batches = batches(index, self.local, rng, self.model.has_batch_norm)
        if self.local.augmentation is None:
            return client_batches
        augmentation = self.local.augmentation.draw(
            len(client_batches.order),
            stream(self.seed, "augment", round, client_id, self.local.batch_seed),
        )
        return replace(client_batches, drawn=torch.from_numpy(augmentation))

    def num_steps(self, client: int) -> int:
        """Return the number of a client's steps in a round, without drawing its batches."""
        if self.local.steps is not None:
            return self.local.steps
        starts, _ = cuts(self.num_samples(client), self.local, self.model.has_batch_norm)
        return len(starts) * (self.local.num_epochs or 1)

    def num_samples(self, client: int) -> int:
        """Return the number of samples that a client trains on."""
        count = int(self.sizes[client])
        if self.local.train_share == 1.0:
            return count
        return count - int(count * (1 - self.local.train_share) + 1e-9)

    def groups(self, trained: Sequence[ClientSlot]) -> list[list[ClientSlot]]:
        """Clients in the groups they train in, longest first.

        A function of who trains alone, not of the workers.

        Where clients train side by side, those with batches of one width do, and groups are filled
        so that all take about as long: each client, longest first, goes to the group that has least
        to do. Their number is a multiple of four, to share out evenly.
        """
        steps = {member: self.num_steps(member.client) for member in trained}
        order = sorted(trained, key=lambda member: (-steps[member], member.position))
        if self.dense is None:
            return [[member] for member in order]
        slots_by_width: dict[int, list[ClientSlot]] = {}
        for member in order:
            slots_by_width.setdefault(
                width(self.num_samples(member.client), self.local.batch_size), []
            ).append(member)
        groups = [
            group
            for members in slots_by_width.values()
            for group in self._balance_groups(members, steps, self.dense.count)
        ]
        return sorted(groups, key=lambda group: -sum(steps[member] for member in group))

    def _balance_groups(
        self, order: Sequence[ClientSlot], steps: Mapping[ClientSlot, int], group_size: int
    ) -> list[list[ClientSlot]]:
        """Return groups of at most `group_size` clients that take about the same time."""
        count = min(len(order), 4 * -(-len(order) // (4 * group_size)))
        groups: list[list[ClientSlot]] = [[] for _ in range(count)]
        for member in order:
            open_groups = [group for group in groups if len(group) < group_size]
            min(open_groups, key=lambda group: sum(steps[member] for member in group)).append(
                member
            )
        return groups

    def evaluate_client(self, client: int) -> tuple[float, float]:
        """Return loss and accuracy of the loaded model on all of a client's data."""
        index = torch.from_numpy(self.federation.index[client]).to(self.model.device)
        loss, right, count = self.model.evaluate(self.inputs, self.targets, index)
        return loss / count, right / count

    def evaluate_held_out(self, client: int) -> float:
        """Return the error of the loaded model on a client's validation part, or else on all."""
        trained, held_out = self.split(client)
        result = self._evaluate_samples(held_out if len(held_out) else trained)
        return 1 - float(result[1] / result[2])

    def compute_features(self, client: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loaded model's features of a client's training samples, and their targets."""
        assert self.classifier is not None
        index = torch.from_numpy(self.split(client)[0]).to(self.model.device)
        features = compute_features(self.model, self.classifier, self.inputs, index)
        return features, self.targets.index_select(0, index)

    def evaluate_test(self, buffers: Buffers, shard: int) -> None:
        """Write loss, correct answers and samples of one shard of the server's test set."""
        inputs, targets = self.test
        self.model.load(buffers.shown, buffers.stats, buffers.counts)
        start = shard * SHARD
        stop = min(start + SHARD, len(targets))
        index = torch.arange(start, stop, device=self.model.device)
        outputs = None if buffers.test_outputs is None else buffers.test_outputs[start:stop]
        is_right = None if buffers.test_is_right is None else buffers.test_is_right[start:stop]
        result = self.model.evaluate(inputs, targets, index, outputs, is_right)
        buffers.test_results[shard] = torch.tensor(result, dtype=torch.float64)

    def evaluate_clients(self, buffers: Buffers, first: int, last: int) -> None:
        """The same on the own data of clients `first` to `last - 1`.

        Their validation part, if they have one.
        """
        self.model.load(buffers.shown, buffers.stats, buffers.counts)
        for client in range(first, last):
            trained, held_out = self.split(client)
            index = held_out if len(held_out) else trained
            buffers.client_results[client] = self._evaluate_samples(index)

    def evaluate_training(self, buffers: Buffers, first: int, last: int) -> None:
        """The same on the training samples of clients `first` to `last - 1`."""
        self.model.load(buffers.shown, buffers.stats, buffers.counts)
        for client in range(first, last):
            trained, _ = self.split(client)
            buffers.train_results[client] = self._evaluate_samples(trained)

    def _evaluate_samples(self, index: NDArray[np.int64]) -> torch.Tensor:
        """Return loss, correct answers and number of some training samples; zeros for none."""
        if not len(index):
            return torch.zeros(3, dtype=torch.float64)
        positions = torch.from_numpy(index).to(self.model.device)
        result = self.model.evaluate(self.inputs, self.targets, positions)
        return torch.tensor(result, dtype=torch.float64)
