"""Alerts: conditions on recorded numbers, such as `weight>0.3 for 5`."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from steelyard.core._errors import SteelyardError, describe_unknown_name, shorten
from steelyard.core._round_record import OLD_NAMES, ROUND_RECORD, Form, get_value
from steelyard.report._series import as_number
from steelyard.runs._files import ROUNDS
from steelyard.runs._following import AppendedFile, find_runs, follow_records

WEIGHT = "weight"  # the largest share of a client
_OPERATORS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_GRAMMAR = re.compile(
    r"\s*(?P<key>[A-Za-z_][\w.-]*)"  # a key of the record
    r"\s*(?P<sign><=|>=|<|>)"
    r"\s*(?P<limit>[-+]?[\w.+-]+)"  # a number, which is checked later
    r"(?:\s+for\s+(?P<rounds>\w+)(?:\s+rounds?)?)?\s*"
)
_USAGE = "write KEY<NUMBER or KEY>NUMBER, and if you like 'for N': 'weight>0.3 for 5'"
_NUMBER_FORMS: tuple[Form, ...] = ("number", "number by client", "numbers by name")


@dataclass(frozen=True)
class Condition:
    """A condition on a recorded number.

    Attributes:
        text: the condition as the user wrote it.
        key: the key of the record; `weight` is the largest share of a client.
        sign: `<`, `<=`, `>` or `>=`.
        limit: what the number is compared with.
        rounds: the number of rounds in a row that must satisfy it.
    """

    text: str
    key: str
    sign: str
    limit: float
    rounds: int = 1

    def is_satisfied(self, value: float) -> bool:
        """Return whether a number satisfies the condition."""
        return bool(_OPERATORS[self.sign](value, self.limit))


def parse_condition(text: str) -> Condition:
    """Return the condition of a text such as `mean_cosine<0 for 3`.

    Raises:
        SteelyardError: if the text is not a condition, or its key is not recorded as a number.
    """
    match = _GRAMMAR.fullmatch(text)
    if match is None:
        raise SteelyardError(f"alert {shorten(text)}: not a condition: {_USAGE}")
    key = OLD_NAMES.get(match["key"], match["key"])
    _check_key(text, key)

    # The number, and the number of rounds.
    try:
        limit = float(match["limit"])
    except ValueError:
        limit = math.nan
    if not math.isfinite(limit):
        raise SteelyardError(f"alert {shorten(text)}: {match['limit']!r} is not a number: {_USAGE}")
    rounds = match["rounds"] or "1"
    if not re.fullmatch(r"[1-9][0-9]{0,8}", rounds):
        raise SteelyardError(
            f"alert {shorten(text)}: 'for {rounds}': use a number of rounds, at least 1"
        )
    return Condition(text.strip(), key, match["sign"], limit, int(rounds))


def _check_key(text: str, key: str) -> None:
    """Raise an error if a key is recorded, but not as a number."""
    entry = ROUND_RECORD.get(key)
    if entry is not None and entry.form not in _NUMBER_FORMS:
        raise SteelyardError(
            f"alert {shorten(text)}: {key!r} is recorded as {entry.form}, not as a number"
        )


def describe_unknown_key(condition: Condition) -> str | None:
    """Return a note if Steelyard itself does not record the key; None if it does.

    Rules, callbacks and evaluations of the user may record it, so this is not an error.
    """
    if condition.key == WEIGHT or condition.key in ROUND_RECORD:
        return None
    names = [key for key, entry in ROUND_RECORD.items() if entry.form in _NUMBER_FORMS]
    text = describe_unknown_name("key", condition.key, [WEIGHT, *names])
    hint = text.partition(": ")[2] if "did you mean" in text else "docs/records.md lists the keys"
    return (
        f"alert {shorten(condition.text)}: Steelyard does not record {condition.key!r} "
        f"({hint}): waiting for your own code to record it"
    )


def read_values(record: Mapping[str, Any], key: str) -> dict[str | None, float]:
    """Return the numbers of a record under a key.

    Args:
        record: the record of a round.
        key: a key of the record, or `weight`.

    Returns:
        The numbers by client (or other name); by None if the round has one number. Empty if the
        round has none.
    """
    if key == WEIGHT and WEIGHT not in record:
        return _find_largest_share(record)
    value = get_value(record, key)
    if isinstance(value, Mapping):
        numbers = {str(name): as_number(item) for name, item in value.items()}
        return {name: number for name, number in numbers.items() if number is not None}
    number = as_number(value)
    return {} if number is None else {None: number}


def _find_largest_share(record: Mapping[str, Any]) -> dict[str | None, float]:
    """Return the largest share of the weights as the one number of the round."""
    weights = read_values(record, "weights")
    total = math.fsum(abs(weight) for weight in weights.values())
    if total == 0:
        return {}
    return {None: max(abs(weight) for weight in weights.values()) / total}


def _find_heaviest_client(record: Mapping[str, Any]) -> str | None:
    """Return the client with the largest share of the weights."""
    weights = read_values(record, "weights")
    return max(weights, key=lambda client: abs(weights[client]), default=None)


@dataclass(frozen=True)
class Alert:
    """A condition that became true.

    Attributes:
        run: the run directory.
        round: the round in which it became true.
        condition: the condition.
        value: the number in this round.
        name: the client, or other name, whose number it is; None if the round has one number.
    """

    run: Path
    round: int
    condition: Condition
    value: float
    name: str | None = None

    def __str__(self) -> str:
        text = f"{self.run}, round {self.round}: {self.condition.text}: {self.value:.4g}"
        if self.name is None:
            return text
        entry = ROUND_RECORD.get(self.condition.key)
        has_names = entry is not None and entry.form == "numbers by name"
        return f"{text} ({self.name})" if has_names else f"{text} (client {self.name})"


@dataclass
class _RunState:
    """What is known of one run: its file, and how long each condition has been satisfied."""

    file: AppendedFile
    streaks: dict[tuple[Condition, str | None], int] = field(default_factory=dict)


class Alerts:
    """Checks conditions on the rounds of runs, also of those that start later.

    A condition that becomes true gives one alert. The next one comes after the condition was not
    satisfied in between. A round without the number (void, or not evaluated) does not count.

    Args:
        directories: run directories, or directories that contain them.
        conditions: the conditions.
    """

    def __init__(self, directories: Sequence[Path], conditions: Sequence[Condition]) -> None:
        self.directories = directories
        self.conditions = conditions
        self._runs: dict[Path, _RunState] = {}
        self._raised: set[Alert] = set()

    def check(self) -> Iterator[Alert]:
        """Read the new rounds of all runs, and yield new alerts."""
        for path in find_runs(self.directories):
            state = self._runs.setdefault(path, _RunState(AppendedFile(path / ROUNDS)))
            try:
                records, is_other = follow_records(state.file)
            except SteelyardError:  # the file is being replaced: read it the next time
                continue
            if is_other:
                state.streaks = {}
            for record in records:
                for alert in self._check_record(path, record, state.streaks):
                    # A run that was resumed repeats rounds.
                    if alert not in self._raised:
                        self._raised.add(alert)
                        yield alert

    def _check_record(
        self,
        path: Path,
        record: Mapping[str, Any],
        streaks: dict[tuple[Condition, str | None], int],
    ) -> Iterator[Alert]:
        """Yield the conditions that become true in a round, and update how long they have been."""
        for condition in self.conditions:
            for name, value in read_values(record, condition.key).items():
                streak = 0
                if condition.is_satisfied(value):
                    streak = streaks.get((condition, name), 0) + 1
                streaks[condition, name] = streak
                if streak == condition.rounds:
                    client = _find_heaviest_client(record) if condition.key == WEIGHT else name
                    yield Alert(path, record["round"], condition, value, client)
