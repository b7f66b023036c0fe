"""The proxy loss at a mixture of clients, and its slopes, without a graph through K models.

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
from steelyard.core.gram import Array
from steelyard.core.layout import Layout
from steelyard.core.rows import RowMap, compose_rows
from steelyard.core.store import UpdateStore
from steelyard.core.sums import WeightedSum

Objective = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Session(Protocol):
    """A network and its proxy samples, open for one round; vectors are in the layout's coordinates.

    `free` is 0 where nothing is learned; None if everything is.
    """

    params: torch.Tensor
    free: torch.Tensor | None
    rng: np.random.Generator

    def epoch(self) -> Iterator[torch.Tensor]:
        """The batches of one pass over the proxy samples: their positions."""

    def backward(self, batch: torch.Tensor, objective: Objective | None = None) -> float:
        """Takes the gradient of a batch's loss at `params`; returns the loss.

        The loss is the probe's own, or an objective: a function of the outputs and the batch's positions.
        """

    def slopes(self) -> Sequence[kernels.Part]:
        """The gradient of the last pass, in parts: no vector of its own is needed to project it."""

    def gradient(self) -> torch.Tensor:
        """The gradient of the last pass as one vector, which may be written to."""

    def outputs(self) -> torch.Tensor:
        """What the network at `params` says of all samples, with its running statistics and without a graph."""

    def adopt(self, buffers: Mapping[str, torch.Tensor]) -> None:
        """Takes over statistics and counters, by name; those not given stay."""

    def copy_buffers(self) -> dict[str, torch.Tensor]:
        """Statistics and counters as they are now."""

    def close(self) -> None:
        """No more passes: gives back what only they need."""

    def buffers(self) -> Mapping[str, torch.Tensor] | None:
        """Statistics and counters as the passes left them, by name; None if they are left to the mixture."""


class ProxyLoss(Protocol):
    """What can open a session."""

    def open(
        self, layout: Layout, number: int, buffers: Mapping[str, torch.Tensor], state: Mapping[str, torch.Tensor]
    ) -> Session:
        """A session for round `number`.

        `buffers` are the global model's statistics and counters; a flat model has none, and `state` holds what the last
        round's session left.
        """


class Slopes(NamedTuple):
    """The loss of a batch at a mixture, and its derivatives."""

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
        """The batches of one pass over the proxy samples."""
        return self.session.epoch()

    def slopes(self, weights: Array, base: float, batch: torch.Tensor) -> Slopes:
        """Loss and derivatives at `base * theta + sum_k w_k d_k`, `weights` `[K]`."""
        self.mix(weights, base)
        loss = self.session.backward(batch)
        dots = kernels.project(self.store, len(self.store.ids) + 1, self.session.slopes(), self.chunk)
        slopes = dots[:-1] if self.rows is None else self.rows @ dots[:-1]
        return Slopes(loss, slopes, float(dots[-1]))

    def mix(self, weights: Array, base: float) -> None:
        """Puts the mixed model into the session."""
        given = weights if self.rows is None else weights @ self.rows
        add = WeightedSum(given[None], np.array([base]), self.store.layout.row_dtype)
        room = self.session.params

        def emit(piece: kernels.Piece, rows: torch.Tensor) -> None:
            add(rows, 0, room[piece.start : piece.stop])

        spans = [(0, self.store.layout.dim)]
        kernels.combine(self.store, len(self.store.ids) + 1, spans, emit, self.chunk)

    def transform(self, rows: RowMap) -> Trial:
        """The same loss as a function of weights on the updates `rows @ D`."""
        return replace(self, rows=compose_rows(rows, self.rows))
