"""Random streams as functions of (seed, purpose, round, client id), without state to save.

Every stream is a Philox generator with these four as its key; those of the data and the model have
only a seed and numbers of their own. A client's stream does not depend on
the other clients, on the executor or on earlier draws.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import numpy as np

from steelyard.core._state import ClientId

Purpose = Literal[
    "cohort",
    "dropout",
    "speed",
    "delay",
    "batches",
    "split",
    "module",
    "broadcast",
    "augment",
    "term",
]
# The codes are part of every run's bits: never reuse a number for another purpose.
_CODES: dict[str, int] = {
    "cohort": 2,
    "dropout": 3,
    "speed": 4,
    "delay": 5,
    "batches": 6,
    "split": 7,
    "module": 8,
    "broadcast": 9,
    "augment": 11,
    "term": 12,
}

DataPurpose = Literal["partition", "corruption", "proxy", "model"]
_DATA_CODES: dict[str, bytes] = {
    "partition": b"part",
    "corruption": b"corr",
    "proxy": b"prox",
    "model": b"init",
}


def stream(
    seed: int, purpose: Purpose, round: int = 0, client: ClientId | None = None, variant: int = 0
) -> np.random.Generator:
    """Return the generator of this purpose, round and client.

    Args:
        seed: seed of the run.
        purpose: what the numbers are for.
        round: number of the round.
        client: id of the client, if the stream belongs to one.
        variant: each variant is an independent stream of the same seed.
    """
    entropy = [seed, variant] if variant else seed
    return np.random.Generator(np.random.Philox(_sequence(entropy, purpose, round, client)))


def number(seed: int, purpose: Purpose, round: int = 0, client: ClientId | None = None) -> int:
    """Return a seed of 63 bits for torch's generator, from the same key as `stream`."""
    return int(
        _sequence(seed, purpose, round, client).generate_state(1, np.uint64)[0] >> np.uint64(1)
    )


def data_stream(seed: int, purpose: DataPurpose, *numbers: int) -> np.random.Generator:
    """Return the generator of something that is drawn before the rounds.

    Args:
        seed: seed of the run.
        purpose: what the numbers are for.
        numbers: a further key, such as the number of a client.
    """
    return np.random.Generator(np.random.Philox(_data_sequence(seed, purpose, *numbers)))


def data_number(seed: int, purpose: DataPurpose) -> int:
    """Return a seed of 64 bits for torch's generator, from the same key as `data_stream`."""
    return int(_data_sequence(seed, purpose).generate_state(1, np.uint64)[0])


def _data_sequence(seed: int, purpose: DataPurpose, *numbers: int) -> np.random.SeedSequence:
    code = int.from_bytes(_DATA_CODES[purpose], "big")
    return np.random.SeedSequence(entropy=seed, spawn_key=(code, *numbers))


def _sequence(
    entropy: int | list[int], purpose: Purpose, round: int, client: ClientId | None
) -> np.random.SeedSequence:
    return np.random.SeedSequence(
        entropy=entropy, spawn_key=(_CODES[purpose], round, *_words(client))
    )


def _words(client: ClientId | None) -> tuple[int, ...]:
    """Return a client id as whole numbers; text is hashed, so that "7" and 7 differ."""
    if client is None:
        return ()
    if isinstance(client, int):
        return (0, client) if client >= 0 else (1, -client)
    digest = hashlib.sha256(client.encode()).digest()
    return (2, int.from_bytes(digest[:8], "little"))
