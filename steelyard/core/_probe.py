"""The proxy loss at a mixture of clients, and its derivatives, without a graph through K models.

The mixed model is `theta' = base * theta + sum_k w_k d_k`, so by the chain rule

    dL/dw_k = <grad L(theta'), d_k>        dL/dbase = <grad L(theta'), theta>:

one combine, one forward and backward pass of one network, one projection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
import torch

from steelyard import kernels
from steelyard.core._gram import Array
from steelyard.core._layout import Layout
from steelyard.core._store import UpdateStore
from steelyard.core._sums import RowMap, WeightedSum, compose_rows

Objective = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Session(Protocol):
    """A network and its proxy samples, open for one round.

    Attributes:
        params: the network's parameters, as a vector in the layout's order.
        free: a vector that is 0 at parameters that are not trained; None if all are trained.
        rng: random generator of the session.
    """

    params: torch.Tensor
    free: torch.Tensor | None
    rng: np.random.Generator

    def epoch(self) -> Iterator[torch.Tensor]:
        """Yield the batches of one pass over the proxy samples, as positions of samples."""

    def backward(self, batch: torch.Tensor, objective: Objective | None = None) -> float:
        """Compute the gradient of a batch's loss at `params`; return the loss.

        Args:
            batch: positions of the samples.
            objective: a function of the outputs and the positions; by default the probe's loss.
        """

    def slopes(self) -> Sequence[kernels.Part]:
        """Return the gradient of the last pass in parts, which can be projected without a copy."""

    def gradient(self) -> torch.Tensor:
        """Return the gradient of the last pass as one vector, which the caller may change."""

    def outputs(self) -> torch.Tensor:
        """Return the outputs of the network for all samples, in evaluation mode, without a graph."""

    def evaluate(self) -> float:
        """Return the mean loss at `params` of all samples, in evaluation mode."""

    def adopt(self, buffers: Mapping[str, torch.Tensor]) -> None:
        """Set statistics and counters, by name; the others do not change."""

    def copy_buffers(self) -> dict[str, torch.Tensor]:
        """Return a copy of the statistics and counters."""

    def close(self) -> None:
        """Free the memory that only passes need; no pass may follow."""

    def buffers(self) -> Mapping[str, torch.Tensor] | None:
        """Return the statistics and counters after the passes, by name.

        Return None if the new model has those of the mixture instead.
        """


class ProxyLoss(Protocol):
    """A proxy data set that can open a session."""

    def open(
        self,
        layout: Layout,
        number: int,
        buffers: Mapping[str, torch.Tensor],
        state: Mapping[str, torch.Tensor],
    ) -> Session:
        """Return a session.

        Args:
            layout: the layout of the model.
            number: number of the round.
            buffers: statistics and counters of the global model; empty for a flat model.
            state: for a flat model, the buffers that the previous round's session returned.
        """


class Slopes(NamedTuple):
    """The loss of a batch at a mixture, and its derivatives by weights and base."""

    loss: float
    weights: Array  # [K]
    base: float


@dataclass(frozen=True)
class Trial:
    """The proxy loss as a rule sees it: a function of weights and base."""

    store: UpdateStore
    session: Session
    chunk: int | None = None
    rows: RowMap | None = None

    def epoch(self) -> Iterator[torch.Tensor]:
        """Yield the batches of one pass over the proxy samples."""
        return self.session.epoch()

    def slopes(self, weights: Array, base: float, batch: torch.Tensor) -> Slopes:
        """Return loss and derivatives at `base * theta + sum_k w_k d_k`, `weights` `[K]`."""
        self.mix(weights, base)
        loss = self.session.backward(batch)
        dots = kernels.project(
            self.store, len(self.store.ids) + 1, self.session.slopes(), self.chunk
        )
        slopes = dots[:-1] if self.rows is None else self.rows @ dots[:-1]
        return Slopes(loss, slopes, float(dots[-1]))

    def mix(self, weights: Array, base: float) -> None:
        """Load the model `base * theta + sum_k w_k d_k` into the session."""
        if self.rows is not None:
            weights = weights @ self.rows
        add = WeightedSum(weights[None], np.array([base]), self.store.layout.row_dtype)
        room = self.session.params

        def emit(piece: kernels.Piece, rows: torch.Tensor) -> None:
            add(rows, 0, room[piece.start : piece.stop])

        spans = [(0, self.store.layout.dim)]
        kernels.combine(self.store, len(self.store.ids) + 1, spans, emit, self.chunk)

    def transform(self, rows: RowMap) -> Trial:
        """Return the loss as a function of weights on the updates `rows @ D`."""
        return replace(self, rows=compose_rows(rows, self.rows))
