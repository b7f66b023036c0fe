"""The one thing that knows where tensors are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import torch

from steelyard.core.client_state import ClientId
from steelyard.core.layout import Layout, Leaf, Params


@runtime_checkable
class UpdateStore(Protocol):
    """K accepted clients and the global model, in an order that does not depend on who came first.

    Rows are what the kernels see: `d_k = theta_k - theta` for each client in the order of `ids`, then `theta`
    itself, in the layout's `row_dtype`.
    """

    @property
    def layout(self) -> Layout:
        """The leaves of the model."""

    @property
    def ids(self) -> tuple[ClientId, ...]:
        """Accepted clients, sorted."""

    @property
    def given(self) -> tuple[ClientId, ...]:
        """All clients, refused ones too, in the order they were given."""

    @property
    def base(self) -> Params:
        """The global model."""

    @property
    def quarantined(self) -> Mapping[ClientId, str]:
        """Refused clients, with the reason."""

    def scratch(self, length: int) -> torch.Tensor | None:
        """A buffer that `rows` may fill, one per thread; None if rows are served in place."""

    def rows(self, start: int, stop: int, scratch: torch.Tensor | None) -> torch.Tensor:
        """Coordinates `start:stop` of every row, `[K+1, stop - start]`."""

    def stats(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Running statistics as float64: of the clients `[K, m]` and of the global model `[m]`."""

    def counts(self, leaf: Leaf) -> torch.Tensor:
        """One of the clients' counters, `[K, ...]`."""

    def base_counts(self) -> Mapping[str, torch.Tensor]:
        """The global model's counters."""

    def without(self, refused: Mapping[ClientId, str]) -> UpdateStore:
        """The same store less these clients."""
