"""The server's training curves within one round: what FedLAW's Fig. 14 draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from steelyard.core.client_state import ClientId
from steelyard.core.gram import Array

MOST = 25  # epochs on record


class Curves:
    """Loss, gamma and lambda after each epoch over the proxy data."""

    def __init__(self) -> None:
        self.points: list[tuple[float, float, Array]] = []

    def add(self, loss: float, gamma: float, shares: Array) -> None:
        """One epoch."""
        self.points.append((loss, gamma, shares))

    def thin_out(self, ids: Sequence[ClientId]) -> dict[str, Any]:
        """`epoch`, `loss`, `gamma` and, by client, `lambda`: at most 25 epochs, first and last among them."""
        kept = np.unique(np.linspace(0, len(self.points) - 1, min(MOST, len(self.points))).round().astype(int))
        points = [self.points[at] for at in kept]
        return {
            "epoch": (kept + 1).tolist(),
            "loss": [_short(loss) for loss, _, _ in points],
            "gamma": [_short(gamma) for _, gamma, _ in points],
            "lambda": {one: [_short(shares[k]) for _, _, shares in points] for k, one in enumerate(ids)},
        }


def _short(value: float) -> float:
    """Five digits: enough to draw, and a third of the room."""
    return float(f"{value:.5g}")
