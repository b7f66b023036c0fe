"""The interfaces of update stores and of what receives a new model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import torch

from steelyard.core._layout import Layout, Leaf, Params
from steelyard.core._state import ClientId

# The interface of what receives a new model.


class Sink(Protocol):
    """Receives a new model.

    Parameters arrive in chunks, from several threads; statistics and counters leaf by leaf.
    """

    def room(self, start: int, stop: int) -> torch.Tensor | None:
        """Return a tensor for the coordinates `start:stop`, in the dtype of the rows.

        Return None to receive them through `write` instead.
        """

    def write(self, start: int, values: torch.Tensor) -> None:
        """Write parameters, starting at position `start`."""

    def write_leaf(self, leaf: Leaf, values: torch.Tensor) -> None:
        """Write a statistic, a counter, or a factor of a LoRA adapter whose rank changed.

        The values have the leaf's shape and dtype.
        """


@runtime_checkable
class UpdateStore(Protocol):
    """K accepted clients and the global model, in an order independent of the order of arrival.

    Kernels read rows: `d_k = theta_k - theta` for each client in the order of `ids`, then `theta`,
    in the layout's `row_dtype`.
    """

    @property
    def layout(self) -> Layout:
        """The layout of the model."""

    @property
    def ids(self) -> tuple[ClientId, ...]:
        """Ids of the accepted clients, sorted."""

    @property
    def all_ids(self) -> tuple[ClientId, ...]:
        """Ids of all clients, including refused ones, in the caller's order."""

    @property
    def base(self) -> Params:
        """The global model."""

    @property
    def quarantined(self) -> Mapping[ClientId, str]:
        """Reasons of refusal, by the ids of the refused clients."""

    def scratch(self, length: int) -> torch.Tensor | None:
        """Return a buffer for `rows`, one per thread; None if `rows` needs no copy."""

    def rows(self, start: int, stop: int, scratch: torch.Tensor | None) -> torch.Tensor:
        """Return the coordinates `start:stop` of every row, `[K+1, stop - start]`."""

    def stats(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the statistics in float64.

        Of the clients `[K, m]` and of the global model `[m]`.
        """

    def counts(self, leaf: Leaf) -> torch.Tensor:
        """Return a counter of all clients, `[K, ...]`."""

    def base_counts(self) -> Mapping[str, torch.Tensor]:
        """Return the counters of the global model, by name."""

    def without(self, refused: Mapping[ClientId, str]) -> UpdateStore:
        """Return the store without these clients; `refused` maps ids to reasons."""
