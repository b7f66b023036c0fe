"""The tensors parent and workers share, all of them in one place."""

from __future__ import annotations

from typing import NamedTuple

import torch

from steelyard.core.layout import Layout
from steelyard.sim import memory

SHARD = 500  # test samples of one task; fixed, so that sums have the same bits on any number of workers


class Sizes(NamedTuple):
    """What the shapes depend on, beside the model: numbers of clients, metrics, classes and test samples; names.

    `output` is the network's output of one test sample, where outputs are kept for metrics of the user's own.
    """

    clients: int
    sent: list[str]
    slots: list[str]
    metrics: int
    classes: int
    test: int
    output: torch.Tensor | None = None


class Buffers:
    """The shared tensors. `places` clients train in a round, `rows` of them are in the cohort."""

    def __init__(self, needs: Sizes, layout: Layout, places: int, rows: int) -> None:
        clients = needs.clients
        dim, real = layout.dim, layout.row_dtype
        counters = sum(leaf.size for leaf in layout.counts)
        f64, i64 = torch.float64, torch.int64
        self.theta = memory.zeros([dim], real)
        self.stats = memory.zeros([layout.stat_dim], f64)
        self.counts = memory.zeros([counters], i64)
        self.sent = {name: memory.zeros([dim], real) for name in needs.sent}
        self.tables = {name: memory.zeros([clients, dim], real) for name in needs.slots}  # [N, d] each
        self.staged = {name: memory.zeros([places, dim], real) for name in needs.slots}
        self.steps_taken = memory.zeros([clients], f64)
        self.matrix = memory.zeros([rows + 1, dim], real)
        self.row_stats = memory.zeros([rows, layout.stat_dim], f64)
        self.row_counts = memory.zeros([rows, counters], i64)
        self.starts = memory.zeros([rows, len(layout.params)], f64)  # FedMut's coefficients
        self.status = memory.zeros([places], i64)
        self.steps = memory.zeros([places], f64)
        self.work = memory.zeros([places], f64)
        self.seconds = memory.zeros([places], f64)
        self.reports = memory.zeros([places, needs.metrics], f64)
        self.histograms = memory.zeros([places, needs.classes], f64)
        shards = -(-needs.test // SHARD)
        self.shown = memory.zeros([dim], real)
        self.test_results = memory.zeros([shards, 3], f64)
        self.test_outputs: torch.Tensor | None = None
        if needs.output is not None:
            self.test_outputs = memory.zeros([needs.test, *needs.output.shape], needs.output.dtype)
        self.client_results = memory.zeros([clients, 3], f64)
