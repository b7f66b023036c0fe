"""Where a new model goes."""

from __future__ import annotations

from typing import Protocol

import torch

from steelyard.core.layout import Leaf


class Sink(Protocol):
    """Receives the new model: parameters by position, from several threads, and other leaves whole."""

    def room(self, start: int, stop: int) -> torch.Tensor | None:
        """Where to put coordinates `start:stop` in the rows' dtype, or None to have them handed to `write`."""

    def write(self, start: int, values: torch.Tensor) -> None:
        """Parameters from position `start` on."""

    def put(self, leaf: Leaf, values: torch.Tensor) -> None:
        """A statistic or a counter, in the leaf's dtype."""
