"""The one training loop in the tree: plain SGD or Adam on flat vectors, plus what client terms add to the gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard.client.augment import Augmentation
from steelyard.client.dense import DenseModels
from steelyard.client.flat import FlatModel
from steelyard.client.local import LocalTraining
from steelyard.core.term import ClientContext, ClientTerm

Indices = NDArray[np.int64]

_STEP = 16  # samples: clients smaller than a batch are padded to a multiple of it


@dataclass(frozen=True)
class Batches:
    """A client's samples in the order it sees them: one row of positions, cut at `edges`; `passes` over its data.

    `drawn` says what happens to each sample, if images are augmented. Clients train side by side only with others of
    the same `width`, to which batches are padded: a matrix product of another shape adds up in another order.
    """

    order: torch.Tensor  # int64 [n]
    edges: tuple[int, ...]
    passes: float
    drawn: torch.Tensor | None = None  # int64 [n, ...]
    width: int = 0

    @property
    def steps(self) -> int:
        """Number of batches."""
        return len(self.edges) - 1


def width(count: int, batch_size: int) -> int:
    """What the batches of a client with so many samples are padded to: a function of the client alone."""
    return min(batch_size, -(-count // _STEP) * _STEP)


def cuts(count: int, local: LocalTraining, at_least_two: bool = False) -> tuple[list[int], int]:
    """Where the batches of a pass over so many samples begin, and where the last one ends.

    With `at_least_two`, a last batch of one sample joins the batch before it: BatchNorm has no variance of one sample.
    """
    size = local.batch_size
    starts = list(range(0, count, size))
    if len(starts) > 1 and ((local.drop_last and count % size) or (at_least_two and count - starts[-1] == 1)):
        return starts[:-1], count - count % size if local.drop_last else count
    return starts, count


def batches(index: Indices, local: LocalTraining, rng: np.random.Generator, at_least_two: bool = False) -> Batches:
    """Cuts shuffled passes over a client's data into batches; `at_least_two` is that of `cuts`."""
    count = len(index)
    starts, whole = cuts(count, local, at_least_two)
    per_pass = len(starts)
    steps = local.steps if local.steps is not None else per_pass * (local.epochs or 1)
    orders, edges, taken = [], [0], 0
    while len(edges) - 1 < steps:
        orders.append(index[rng.permutation(count)[:whole]])
        ends = [taken + stop for stop in [*starts[1:], whole]]
        edges += ends[: steps - (len(edges) - 1)]
        taken += whole
    order = torch.from_numpy(np.concatenate(orders)[: edges[-1]])
    return Batches(order, tuple(edges), steps / per_pass, width=width(count, local.batch_size))


@dataclass(frozen=True)
class Training:
    """What a group of clients trains with; clients are sorted by number of steps, most first.

    Attributes:
        local: the options.
        lr: this round's learning rate.
        batches: one for each client.
        terms: what is added to the gradient, with what it sees.
        held: the optimizer's vectors `[C, d]`, changed in place.
        taken: steps taken before this round, where the optimizer's state persists, `[C, 1]`.
        free: 0 where nothing is learned, `[d]`; None if everything is.
        norms: whether to add up squared gradient norms.
        background: what lies outside an image, where images are augmented.
    """

    local: LocalTraining
    lr: float
    batches: Sequence[Batches]
    terms: Sequence[tuple[ClientTerm, ClientContext]]
    held: Mapping[str, torch.Tensor]
    taken: torch.Tensor
    free: torch.Tensor | None
    norms: bool
    background: torch.Tensor | None = None

    def augmented(self, images: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        """A batch of images, changed as drawn."""
        assert isinstance(self.local.augment, Augmentation)
        assert self.background is not None
        return self.local.augment(images, drawn, self.background)


def train(model: FlatModel | DenseModels, stored: torch.Tensor, targets: torch.Tensor, job: Training) -> torch.Tensor:
    """Trains `model.params[:C]` in place; returns CriticalFL's gradient norm of each client, float64 `[C]`.

    That is `eta` times the mean over epochs of the sum over batches of `|g|^2`, where g is the gradient of the loss,
    clipped, without client terms (in CriticalFL's code those are inside the optimizer, and it measures outside).
    """
    local = job.local
    count = len(job.batches)
    squares = torch.zeros(count, dtype=torch.float64)
    stack = _Stack(job.batches, stored, targets) if isinstance(model, DenseModels) else None
    order, drawn = job.batches[0].order.to(stored.device), job.batches[0].drawn
    drawn = None if drawn is None else drawn.to(stored.device)
    plain = not (job.terms or job.norms or local.slots or local.clip)
    ends = {one.steps for one in job.batches}
    for step in range(job.batches[0].steps):
        if step == 0 or step in ends:  # some clients have finished: the others are the first ones
            active = sum(one.steps > step for one in job.batches)
            x, grad = model.params[:active], model.grad[:active]
            terms = [(term, at.first(active)) for term, at in job.terms]
            held = {name: rows[:active] for name, rows in job.held.items()}
            taken = job.taken[:active]
        if isinstance(model, DenseModels):
            assert stack is not None
            if plain:
                model.descend(stack.rows, *stack.at(step, active, -job.lr), 1 - job.lr * local.weight_decay)
                continue
            model.gradient(stack.rows, *stack.at(step, active, 1.0))
        else:
            part = slice(*job.batches[0].edges[step : step + 2])
            index = order[part]
            inputs, wanted = model.batch(stored, index), targets.index_select(0, index)
            if drawn is not None:
                inputs = job.augmented(inputs, drawn[part])
            if plain and not local.weight_decay:
                model.descend(inputs, wanted, job.lr)
                continue
            model.gradient(inputs, wanted)
        if job.norms:
            counted = grad.add(x, alpha=local.weight_decay) if local.norm_decay else grad
            square = (counted * counted).sum(dim=1)
            squares[:active] += square.clamp(max=local.clip**2 if local.clip else float("inf")).cpu().double()
        for term, at in terms:
            term.add(grad, x, at)
        if local.clip is not None:
            _clip(grad, local.clip)
        local.update(x, grad, held, job.lr, taken, step + 1, job.free)
    passes = torch.tensor([one.passes for one in job.batches], dtype=torch.float64)
    return job.lr * squares / passes


def _clip(grad: torch.Tensor, limit: float) -> None:
    """Scales rows longer than `limit` down to it (as `torch.nn.utils.clip_grad_norm_` does)."""
    norms = grad.norm(dim=1, keepdim=True)
    grad.mul_((limit / (norms + 1e-6)).clamp(max=1.0))


class _Stack:
    """The batches of clients side by side, step by step; short ones are padded, so that company changes no bit."""

    def __init__(self, group: Sequence[Batches], stored: torch.Tensor, targets: torch.Tensor) -> None:
        self.group = group
        self.rows = stored.numpy()
        self.edges = group[0].edges
        self.alike = all(one.edges == self.edges for one in group)
        self.width = max(group[0].width, *(b - a for one in group for a, b in pairwise(one.edges)))
        self.orders = [one.order.numpy() for one in group]
        self.labels = [targets.numpy().take(order) for order in self.orders]
        if self.alike:
            self.order, self.label = np.stack(self.orders), np.stack(self.labels)  # [C, n]
        self.shares: dict[int, NDArray[np.float32]] = {}

    def at(self, step: int, active: int, scale: float) -> tuple[Indices, Indices, NDArray[np.float32]]:
        """Positions and labels `[C, b]` of the samples of a step, and each one's share of its batch, `[C, 1, b]`."""
        part, size = slice(self.edges[step], self.edges[step + 1]), self.width
        if self.alike and part.stop - part.start == size:
            if size not in self.shares:
                self.shares[size] = np.full((active, 1, size), scale / size, dtype=np.float32)
            return self.order[:, part], self.label[:, part], self.shares[size]
        parts = [slice(one.edges[step], one.edges[step + 1]) for one in self.group[:active]]
        sizes = [part.stop - part.start for part in parts]
        index, label = (np.zeros((active, self.width), dtype=np.int64) for _ in range(2))
        share = np.zeros((active, 1, self.width), dtype=np.float32)
        for row, (part, size) in enumerate(zip(parts, sizes, strict=True)):
            index[row, :size], label[row, :size] = self.orders[row][part], self.labels[row][part]
            share[row, 0, :size] = scale / size
        return index, label, share
