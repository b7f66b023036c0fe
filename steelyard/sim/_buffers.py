"""The tensors that parent and workers share."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from types import MappingProxyType
from typing import NamedTuple

import torch

from steelyard.core._layout import Layout
from steelyard.core._side_channel import Specs
from steelyard.metrics import METRICS

# Memory that parent and workers share: pages mapped before the fork, gone with the last process.
#
# Nothing is named, so a killed run leaves nothing behind, and no limit of /dev/shm applies. Pages
# take up memory when
# they are first written to: a table with a row for each of 10 000 clients costs what the rows in
# use cost.

_FLAGS = (
    getattr(mmap, "MAP_SHARED", 0)
    | getattr(mmap, "MAP_ANONYMOUS", 0)
    | getattr(mmap, "MAP_NORESERVE", 0)
)


def shared_zeros(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of zeros in shared memory."""
    count = 1
    for length in shape:
        count *= length
    if count == 0:
        return torch.zeros(tuple(shape), dtype=dtype)
    size = count * dtype.itemsize
    memory = mmap.mmap(-1, size, flags=_FLAGS) if _FLAGS else mmap.mmap(-1, size)
    return torch.frombuffer(memory, dtype=dtype, count=count).view(tuple(shape))


SHARD = (
    500  # test samples of one task; fixed, so that sums have the same bits on any number of workers
)


class Sizes(NamedTuple):
    """What the shapes depend on, beside the model.

    Numbers of clients, metrics, classes and test samples; names.

    `output` is the network's output of one test sample, where outputs are kept for metrics of the
    user's own. `client_tensors` and `server_tensors` are the declarations of the side channel.
    `has_groups` says whether the accuracy on groups of the test set is recorded.
    """

    clients: int
    sent: list[str]
    slots: list[str]
    metrics: int
    classes: int
    test: int
    output: torch.Tensor | None = None
    client_tensors: Specs = MappingProxyType({})
    server_tensors: Specs = MappingProxyType({})
    has_groups: bool = False


class Buffers:
    """The shared tensors. `num_clients` clients train in a round, `rows` of them are in the cohort."""

    def __init__(self, needs: Sizes, layout: Layout, num_clients: int, rows: int) -> None:
        clients = needs.clients
        dim, real = layout.dim, layout.row_dtype
        counters = sum(leaf.size for leaf in layout.counts)
        f64, i64 = torch.float64, torch.int64
        self.theta = shared_zeros([dim], real)
        self.stats = shared_zeros([layout.stat_dim], f64)
        self.counts = shared_zeros([counters], i64)
        self.sent = {name: shared_zeros([dim], real) for name in needs.sent}
        self.tables = {
            name: shared_zeros([clients, dim], real) for name in needs.slots
        }  # [N, d] each
        self.staged = {name: shared_zeros([num_clients, dim], real) for name in needs.slots}
        self.steps_taken = shared_zeros([clients], f64)
        # Each client's weight in the last round in which it counted; NaN if there is none.
        self.last_weights = shared_zeros([clients], f64).fill_(torch.nan)
        self.matrix = shared_zeros([rows + 1, dim], real)
        self.row_stats = shared_zeros([rows, layout.stat_dim], f64)
        self.row_counts = shared_zeros([rows, counters], i64)
        self.starts = shared_zeros([rows, len(layout.params)], f64)  # FedMut's coefficients
        self.status = shared_zeros([num_clients], i64)
        self.steps = shared_zeros([num_clients], f64)
        self.work = shared_zeros([num_clients], f64)
        self.seconds = shared_zeros([num_clients], f64)
        self.reports = shared_zeros([num_clients, needs.metrics], f64)
        self.class_reports = {
            name: shared_zeros([num_clients, needs.classes], f64)
            for name, metric in METRICS.items()
            if metric.is_per_class
        }
        self.client_tensors = {
            name: shared_zeros([num_clients, *spec.shape], spec.dtype)
            for name, spec in needs.client_tensors.items()
        }
        self.server_tensors = {
            name: shared_zeros(spec.shape, spec.dtype)
            for name, spec in needs.server_tensors.items()
        }
        shards = -(-needs.test // SHARD)
        self.shown = shared_zeros([dim], real)
        self.test_results = shared_zeros([shards, 3], f64)
        self.test_outputs: torch.Tensor | None = None
        if needs.output is not None:
            self.test_outputs = shared_zeros([needs.test, *needs.output.shape], needs.output.dtype)
        self.test_is_right: torch.Tensor | None = None
        if needs.has_groups:
            self.test_is_right = shared_zeros([needs.test], torch.bool)
        self.client_results = shared_zeros([clients, 3], f64)
        self.train_results = shared_zeros([clients, 3], f64)
