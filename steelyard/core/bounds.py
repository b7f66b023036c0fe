"""How far a guard lets single clients go: medians of lengths, and factors that cut what is longer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steelyard.core.rows import Array, Selection

FEWEST = 3  # clients that can outvote one liar; with fewer, a median is what the liar says


@dataclass(frozen=True)
class Bounds:
    """What a guard decided about the clients of a round, for whatever else reads their vectors at the server.

    Attributes:
        factors: what each update is multiplied by, `[K]`: 1 if it is short enough, 0 for a client set aside.
        clip: medians beyond which a vector that a client keeps is cut.
    """

    factors: Array
    clip: float

    @property
    def aside(self) -> list[int]:
        """Positions of the clients that were set aside."""
        return [int(k) for k in np.flatnonzero(self.factors == 0)]

    @property
    def rows(self) -> Selection:
        """The map from the updates to the bounded ones."""
        return Selection.of(range(len(self.factors)), self.factors)

    def limit_vectors(self, norms: Array, usual: float) -> tuple[Array, float]:
        """What clients' vectors of these lengths `[K]` are multiplied by, `[K]`, and the usual length from now on.

        Vectors that clients keep change much at first and little later on. A client that comes late is honest with a
        long one, so that lengths are measured by the largest median of any round so far, `usual` (0 in the first
        round). The vector of a client set aside counts for nothing.
        """
        accepted = self.factors > 0
        lengths = np.where(accepted, norms, 0.0)
        # A round of one or two clients says nothing about what is usual.
        if np.count_nonzero(lengths) >= FEWEST:
            usual = max(usual, typical_norm(lengths))
        limit = self.clip * (usual or typical_norm(lengths))
        return np.where(accepted, clip_factors(lengths, limit), 0.0), usual


def typical_norm(norms: Array) -> float:
    """The length that others are measured by; 0 if all are zero.

    It is the median, in which zeros count, so that idle clients cannot raise it. With fewer than three lengths
    other than zero the median is one client's word, and the smallest is taken instead.
    """
    positive = norms[norms > 0]
    if len(positive) == 0:
        return 0.0
    if len(positive) < FEWEST:
        return float(positive.min())
    return float(np.median(norms)) or float(np.median(positive))


def clip_factors(norms: Array, limit: float) -> Array:
    """What vectors of these lengths are multiplied by so that none is longer than `limit`."""
    factors: Array = np.minimum(1.0, limit / np.where(norms > 0, norms, 1.0))
    return np.where(norms > 0, factors, 1.0)
