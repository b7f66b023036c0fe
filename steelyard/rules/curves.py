"""The server's training curves within one round, as in FedLAW's Fig. 14."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from steelyard.core.client_state import ClientId
from steelyard.core.gram import Array

MAX_POINTS = 25  # recorded epochs per round


class Curves:
    """Loss, gamma and lambda after each epoch over the proxy data."""

    def __init__(self) -> None:
        self.points: list[tuple[float, float, Array]] = []

    def add(self, loss: float, gamma: float, shares: Array) -> None:
        """Add the values after one epoch."""
        self.points.append((loss, gamma, shares))

    def thin_out(self, ids: Sequence[ClientId]) -> dict[str, Any]:
        """Return `epoch`, `loss`, `gamma` and, by client, `lambda`.

        At most 25 epochs are returned, including the first and the last.
        """
        # Select epochs at equal distances.
        count = min(MAX_POINTS, len(self.points))
        epochs = np.unique(np.linspace(0, len(self.points) - 1, count).round().astype(int))
        points = [self.points[epoch] for epoch in epochs]

        # One list per curve.
        lambdas = {}
        for k, client in enumerate(ids):
            lambdas[client] = [_round_digits(shares[k]) for _, _, shares in points]
        return {
            "epoch": (epochs + 1).tolist(),
            "loss": [_round_digits(loss) for loss, _, _ in points],
            "gamma": [_round_digits(gamma) for _, gamma, _ in points],
            "lambda": lambdas,
        }


def _round_digits(value: float) -> float:
    """Return the value with five digits: enough for a plot, and a third of the size."""
    return float(f"{value:.5g}")
