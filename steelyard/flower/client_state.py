"""What a client keeps from round to round.

As it is now, and as it was, until it is known whether the round counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from steelyard.flower.replies import OURS

BEFORE, ROUNDS = f"{OURS}.before", f"{OURS}.rounds"  # beside OURS in the client's state


def recall(state: RecordDict, accepted: int | None) -> tuple[ArrayRecord | None, bool]:
    """What was kept in the round that counted last, and whether that is lost.

    Without a round, the newest counts.
    """
    rounds: Mapping[str, Any] = state.config_records.get(ROUNDS, {})
    round_number = rounds.get(OURS, 0) if accepted is None else accepted
    for name in (OURS, BEFORE) if round_number else ():
        if rounds.get(name) == round_number:
            return state.array_records[name], False
    return None, round_number > 0


def remember(
    state: RecordDict,
    number: int,
    current: ArrayRecord,
    accepted: int | None,
    before: ArrayRecord | None,
) -> None:
    """Keeps both, with their rounds; what it had is of no use where no round is ever named."""
    previous = before if accepted else None
    state[OURS] = current
    state[BEFORE] = previous or ArrayRecord()
    state[ROUNDS] = ConfigRecord({OURS: number, BEFORE: (accepted or 0) if previous else 0})
