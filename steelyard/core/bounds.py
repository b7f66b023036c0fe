"""Limits that a guard applies to single clients: typical norms, and factors for longer vectors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steelyard.core.rows import Array, Selection

# The smallest number of clients whose median one dishonest client cannot choose.
FEWEST = 3


@dataclass(frozen=True)
class Bounds:
    """The limits that a guard applied to the clients of a round.

    Everything at the server that reads the clients' vectors applies them, too.

    Attributes:
        factors: the factor of each update, `[K]`: 1 if it is short enough, 0 for a client that was
            set aside.
        clip: the limit for vectors that clients keep, as a multiple of their usual norm.
    """

    factors: Array
    clip: float

    @property
    def aside(self) -> list[int]:
        """Positions of the clients that were set aside."""
        return [int(k) for k in np.flatnonzero(self.factors == 0)]

    @property
    def rows(self) -> Selection:
        """The map from the updates to the clipped ones."""
        return Selection.of(range(len(self.factors)), self.factors)

    def limit_vectors(self, norms: Array, usual: float) -> tuple[Array, float]:
        """Return factors for clients' vectors of these norms, and the new usual norm.

        Vectors that clients keep change much in early rounds and little later. An honest client
        that joins late has a long one, so norms are compared with the largest median of all rounds
        so far. The vector of a client that was set aside gets the factor 0.

        Args:
            norms: norms of the clients' vectors, `[K]`.
            usual: the usual norm of the previous rounds; 0 in the first round.

        Returns:
            The factors, `[K]`, and the usual norm for the next round.
        """
        accepted = self.factors > 0
        lengths = np.where(accepted, norms, 0.0)
        # One or two clients are too few to update the usual norm.
        if np.count_nonzero(lengths) >= FEWEST:
            usual = max(usual, typical_norm(lengths))
        limit = self.clip * (usual or typical_norm(lengths))
        return np.where(accepted, clip_factors(lengths, limit), 0.0), usual


def typical_norm(norms: Array) -> float:
    """Return the norm that the others are compared with; 0 if all are zero.

    It is the median including zeros, so that idle clients cannot raise it; if that is zero, the
    median of the positive norms. With fewer than three positive norms a single client could choose
    the median, and it is their minimum instead.
    """
    positive = norms[norms > 0]
    if len(positive) == 0:
        return 0.0
    if len(positive) < FEWEST:
        return float(positive.min())
    return float(np.median(norms)) or float(np.median(positive))


def clip_factors(norms: Array, limit: float) -> Array:
    """Return the factors that reduce vectors of these norms to at most `limit`."""
    factors: Array = np.minimum(1.0, limit / np.where(norms > 0, norms, 1.0))
    return np.where(norms > 0, factors, 1.0)
