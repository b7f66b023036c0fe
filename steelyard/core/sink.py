"""The interface of what receives a new model."""

from __future__ import annotations

from typing import Protocol

import torch

from steelyard.core.layout import Leaf


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

    def put(self, leaf: Leaf, values: torch.Tensor) -> None:
        """Write a statistic or a counter, in the leaf's dtype."""
