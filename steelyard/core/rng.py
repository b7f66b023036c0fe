"""Randomness as a function of (seed, purpose, round, client id): there is no generator state to save.

Every stream is a Philox generator keyed by these four. A client's stream does not depend on who else takes part, on
the executor or on what was drawn before.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import numpy as np

from steelyard.core.client_state import ClientId

Purpose = Literal["cohort", "dropout", "speed", "delay", "batches", "split", "module", "broadcast", "augment"]
_CODES: dict[str, int] = {  # part of every run's bits: a number is never given to another purpose
    "cohort": 2,
    "dropout": 3,
    "speed": 4,
    "delay": 5,
    "batches": 6,
    "split": 7,
    "module": 8,
    "broadcast": 9,
    "augment": 11,
}


def stream(
    seed: int, purpose: Purpose, round: int = 0, client: ClientId | None = None, variant: int = 0
) -> np.random.Generator:
    """Return the generator of this purpose, round and client.

    Args:
        seed: of the run.
        purpose: what is drawn.
        round: number of the round.
        client: whose draw it is.
        variant: another number is an independent stream of the same seed.
    """
    entropy = [seed, variant] if variant else seed
    return np.random.Generator(np.random.Philox(_sequence(entropy, purpose, round, client)))


def number(seed: int, purpose: Purpose, round: int = 0, client: ClientId | None = None) -> int:
    """63 bits of the same, for seeding torch's generator."""
    return int(_sequence(seed, purpose, round, client).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _sequence(
    entropy: int | list[int], purpose: Purpose, round: int, client: ClientId | None
) -> np.random.SeedSequence:
    return np.random.SeedSequence(entropy=entropy, spawn_key=(_CODES[purpose], round, *_words(client)))


def _words(client: ClientId | None) -> tuple[int, ...]:
    """A client id as whole numbers; text by its hash, so that "7" and 7 are two clients."""
    if client is None:
        return ()
    if isinstance(client, int):
        return (0, client) if client >= 0 else (1, -client)
    digest = hashlib.sha256(client.encode()).digest()
    return (2, int.from_bytes(digest[:8], "little"))
