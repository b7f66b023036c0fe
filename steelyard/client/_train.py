"""The training loop of clients: SGD or Adam on flat vectors, with client terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard.client._dense import DenseModels
from steelyard.client._features import FeatureLoss
from steelyard.client._flat import FlatModel
from steelyard.client._local import LocalTraining
from steelyard.core._term import ClientContext, ClientTerm

Indices = NDArray[np.int64]

_STEP = 16  # clients with less than a batch of samples are padded to a multiple of this number


@dataclass(frozen=True)
class Batches:
    """A client's samples in the order of training.

    Attributes:
        order: positions of the samples, int64 `[n]`.
        edges: where batches start and end in `order`.
        passes: number of passes over the data.
        drawn: random numbers of the augmentation for each sample, int64 `[n, ...]`, if any.
        width: the size to which batches are padded. Only clients of the same width train side by
            side: a matrix product of another shape would add in another order.
    """

    order: torch.Tensor
    edges: tuple[int, ...]
    passes: float
    drawn: torch.Tensor | None = None
    width: int = 0

    @property
    def steps(self) -> int:
        """Number of batches."""
        return len(self.edges) - 1


def width(count: int, batch_size: int) -> int:
    """Return the size to which batches of a client with `count` samples are padded.

    It depends on nothing but the client.
    """
    return min(batch_size, -(-count // _STEP) * _STEP)


def cuts(count: int, local: LocalTraining, at_least_two: bool = False) -> tuple[list[int], int]:
    """Return where the batches of a pass over `count` samples start, and where the last one ends.

    With `at_least_two`, a last batch of one sample is added to the batch before it: BatchNorm
    cannot compute the variance of one sample.
    """
    size = local.batch_size
    starts = list(range(0, count, size))
    if len(starts) < 2:
        return starts, count
    if local.drop_last and count % size:
        return starts[:-1], count - count % size
    if at_least_two and count - starts[-1] == 1:
        return starts[:-1], count
    return starts, count


def batches(
    index: Indices, local: LocalTraining, rng: np.random.Generator, at_least_two: bool = False
) -> Batches:
    """Return the batches of shuffled passes over a client's data.

    Args:
        index: positions of the client's samples.
        local: options of local training.
        rng: random generator.
        at_least_two: as in `cuts`.
    """
    # The batches of one pass.
    count = len(index)
    starts, pass_length = cuts(count, local, at_least_two)
    per_pass = len(starts)
    steps = local.steps if local.steps is not None else per_pass * (local.num_epochs or 1)

    # As many shuffled passes as the steps need.
    orders = []
    edges = [0]
    offset = 0
    while len(edges) - 1 < steps:
        orders.append(index[rng.permutation(count)[:pass_length]])
        ends = [offset + stop for stop in [*starts[1:], pass_length]]
        edges += ends[: steps - (len(edges) - 1)]
        offset += pass_length
    order = torch.from_numpy(np.concatenate(orders)[: edges[-1]])
    return Batches(order, tuple(edges), steps / per_pass, width=width(count, local.batch_size))


@dataclass(frozen=True)
class Training:
    """The training of a group of clients; they are sorted by number of steps, largest first.

    Attributes:
        local: the options.
        lr: the learning rate of this round.
        batches: the batches of each client.
        terms: client terms, with their contexts.
        slots: the optimizer's vectors `[C, d]`, changed in place.
        past_steps: number of steps before this round, if the optimizer's state persists, `[C, 1]`.
        free: a vector `[d]` that is 0 at parameters that are not trained; None if all are.
        norms: whether to compute gradient norms.
        background: the pixel outside an image, if images are augmented.
        feature_loss: what feature terms add to the loss, if there are any.
    """

    local: LocalTraining
    lr: float
    batches: Sequence[Batches]
    terms: Sequence[tuple[ClientTerm, ClientContext]]
    slots: Mapping[str, torch.Tensor]
    past_steps: torch.Tensor
    free: torch.Tensor | None
    norms: bool
    background: torch.Tensor | None = None
    feature_loss: FeatureLoss | None = None

    def augment(self, images: torch.Tensor, changes: torch.Tensor) -> torch.Tensor:
        """Return a batch of images with these random changes."""
        assert self.local.augmentation is not None
        assert self.background is not None
        return self.local.augmentation(images, changes, self.background)


def train(
    model: FlatModel | DenseModels, inputs: torch.Tensor, targets: torch.Tensor, job: Training
) -> torch.Tensor:
    """Train `model.params[:C]` in place.

    Args:
        model: the network, with the clients' initial parameters.
        inputs: all inputs, from `FlatModel.prepare_inputs`.
        targets: all targets.
        job: what to train, and how.

    Returns:
        CriticalFL's gradient norm of each client, float64 `[C]`: `eta` times the mean over epochs
        of the sum over batches of `|g|^2`, where g is the clipped gradient of the loss without
        client terms (in CriticalFL's code those are inside the optimizer, and the norm is computed
        outside).
    """
    # Prepare the batches.
    local = job.local
    squares = torch.zeros(len(job.batches), dtype=torch.float64)
    stack = _Stack(job.batches, inputs, targets) if isinstance(model, DenseModels) else None
    order = job.batches[0].order.to(inputs.device)
    changes = job.batches[0].drawn
    if changes is not None:
        changes = changes.to(inputs.device)
    is_plain_sgd = not (job.terms or job.feature_loss or job.norms or local.slots or local.clip)
    ends = {client_batches.steps for client_batches in job.batches}
    loss_grad = None
    if job.norms and job.feature_loss is not None:
        loss_grad = torch.zeros_like(model.grad)

    for step in range(job.batches[0].steps):
        # Leave out the clients that have finished: they are the last ones.
        if step == 0 or step in ends:
            active = sum(client_batches.steps > step for client_batches in job.batches)
            x = model.params[:active]
            grad = model.grad[:active]
            terms = [(term, at.first(active)) for term, at in job.terms]
            slots = {name: rows[:active] for name, rows in job.slots.items()}
            past_steps = job.past_steps[:active]

        # The gradient of the loss. A step of plain SGD ends here.
        if isinstance(model, DenseModels):
            assert stack is not None
            if is_plain_sgd:
                keep = 1 - job.lr * local.weight_decay
                model.descend(stack.rows, *stack.at(step, active, -job.lr), keep)
                continue
            model.gradient(stack.rows, *stack.at(step, active, 1.0))
        else:
            part = slice(*job.batches[0].edges[step : step + 2])
            index = order[part]
            batch = model.batch(inputs, index)
            batch_targets = targets.index_select(0, index)
            if changes is not None:
                batch = job.augment(batch, changes[part])
            if is_plain_sgd and not local.weight_decay:
                model.descend(batch, batch_targets, job.lr)
                continue
            if job.feature_loss is None:
                model.gradient(batch, batch_targets)
            else:
                model.penalized_gradient(batch, batch_targets, job.feature_loss, loss_grad)

        # Its norm.
        if job.norms:
            measured = grad if loss_grad is None else loss_grad
            if local.norm_decay:
                measured = measured.add(x, alpha=local.weight_decay)
            square = (measured * measured).sum(dim=1)
            limit = local.clip**2 if local.clip else float("inf")
            squares[:active] += square.clamp(max=limit).cpu().double()

        # Client terms, clipping, and the step.
        for term, at in terms:
            term.add(grad, x, at)
        if local.clip is not None:
            _clip(grad, local.clip)
        local.update(x, grad, slots, job.lr, past_steps, step + 1, job.free)

    passes = [client_batches.passes for client_batches in job.batches]
    return job.lr * squares / torch.tensor(passes, dtype=torch.float64)


def _clip(grad: torch.Tensor, limit: float) -> None:
    """Scale rows longer than `limit` down to it, as `torch.nn.utils.clip_grad_norm_` does."""
    norms = grad.norm(dim=1, keepdim=True)
    grad.mul_((limit / (norms + 1e-6)).clamp(max=1.0))


class _Stack:
    """The batches of clients side by side, step by step.

    Short batches are padded, so that a client's bits do not depend on the other clients.
    """

    def __init__(
        self, group: Sequence[Batches], inputs: torch.Tensor, targets: torch.Tensor
    ) -> None:
        self.group = group
        self.rows = inputs.numpy()
        self.edges = group[0].edges
        self.same_edges = all(client_batches.edges == self.edges for client_batches in group)
        self.width = group[0].width
        for client_batches in group:
            for start, stop in pairwise(client_batches.edges):
                self.width = max(self.width, stop - start)
        self.orders = [client_batches.order.numpy() for client_batches in group]
        self.labels = [targets.numpy().take(order) for order in self.orders]
        if self.same_edges:
            self.order = np.stack(self.orders)  # [C, n]
            self.label = np.stack(self.labels)  # [C, n]
        self.shares: dict[int, NDArray[np.float32]] = {}

    def at(
        self, step: int, active: int, scale: float
    ) -> tuple[Indices, Indices, NDArray[np.float32]]:
        """Return the samples of a step.

        Args:
            step: number of the step.
            active: number of clients that still train.
            scale: divided by the batch size, the share of a sample.

        Returns:
            Positions and labels `[C, b]`, and the share of each sample, `[C, 1, b]`; 0 for padding.
        """
        # All clients have a full batch: no padding.
        part = slice(self.edges[step], self.edges[step + 1])
        size = self.width
        if self.same_edges and part.stop - part.start == size:
            if size not in self.shares:
                self.shares[size] = np.full((active, 1, size), scale / size, dtype=np.float32)
            return self.order[:, part], self.label[:, part], self.shares[size]

        # Pad each client's batch.
        index = np.zeros((active, self.width), dtype=np.int64)
        label = np.zeros((active, self.width), dtype=np.int64)
        share = np.zeros((active, 1, self.width), dtype=np.float32)
        for row, client_batches in enumerate(self.group[:active]):
            part = slice(client_batches.edges[step], client_batches.edges[step + 1])
            size = part.stop - part.start
            index[row, :size] = self.orders[row][part]
            label[row, :size] = self.labels[row][part]
            share[row, 0, :size] = scale / size
        return index, label, share
