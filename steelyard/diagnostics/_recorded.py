"""Read everything a run has recorded, by name, for reports, diagnostics and users.

    series(run, "coherence")        one number per round
    by_client(run, "weights")       one number per round and client
    curves(run)                     FedLAW's training curves within one round

`run` is a run directory or a `History`. A round without the number (it was void, or not evaluated)
is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.core._errors import SteelyardError
from steelyard.core._gram import Array
from steelyard.core._round_record import ROUND_RECORD, read_path
from steelyard.runs._history import History

Run = str | Path | History
Rounds = NDArray[np.int64]

SERIES = {
    entry.key: entry.meaning
    for entry in ROUND_RECORD.values()
    if entry.form in ("number", "true or false") and entry.key != "round"
}
"""Names of series and their meaning; a rule may record others."""

NOT_BY_CLIENT = tuple(
    entry.key for entry in ROUND_RECORD.values() if entry.form in ("numbers by name", "record")
)
"""Tables of a round that have no row per client, such as seconds by stage."""

_COMPUTED = tuple(entry.key for entry in ROUND_RECORD.values() if entry.compute is not None)


class Series(NamedTuple):
    """One number for each round that has one."""

    rounds: Rounds
    values: Array


class ByClient(NamedTuple):
    """Numbers `[T, K]` by round and client; NaN where a client has none in a round."""

    rounds: Rounds
    clients: tuple[str, ...]
    values: Array

    def columns(self, clients: Mapping[Any, float]) -> Array:
        """Return numbers by client in the order of the columns."""
        by_name = {str(client): value for client, value in clients.items()}
        missing = [client for client in self.clients if client not in by_name]
        if missing:
            raise SteelyardError(
                f"client {missing[0]!r} has no number: pass one for each of {len(self.clients)}"
            )
        return np.array([by_name[client] for client in self.clients], dtype=np.float64)


def history_of(run: Run) -> History:
    """Return the history of a run directory, or the history itself."""
    return run if isinstance(run, History) else History.read(run)


def series(run: Run, name: str) -> Series:
    """Return one number per round.

    Args:
        run: a run directory or a history.
        name: a name in `names(run)`, or a dotted path such as `timings.train` or
            `weights.client-0`.
    """
    history = history_of(run)
    key = history.find_key(name)
    rounds = []
    values = []
    for record in history:
        value = _read_number(record, key)
        if value is not None:
            rounds.append(record["round"])
            values.append(value)
    if not values:
        raise SteelyardError(_describe_missing(history, "series", name, names(history)))
    return Series(np.array(rounds, dtype=np.int64), np.array(values, dtype=np.float64))


def by_client(run: Run, name: str) -> ByClient:
    """Return numbers by round and client.

    Args:
        run: a run directory or a history.
        name: `weights`, `norms`, `cosines`, `angles`, `lambda`, `reported.loss`, ...
    """
    history = history_of(run)
    key = history.find_key(name)
    rounds = []
    rows = []
    for record in history:
        row = _read_table(record, key)
        if row:
            rounds.append(record["round"])
            rows.append(row)
    if not rows:
        raise SteelyardError(
            _describe_missing(history, "table by client", name, client_names(history))
        )
    clients = tuple(sorted({client for row in rows for client in row}, key=_sort_key))
    values = [
        [np.nan if row.get(client) is None else row[client] for client in clients] for row in rows
    ]
    return ByClient(np.array(rounds, dtype=np.int64), clients, np.array(values, dtype=np.float64))


def curves(run: Run, round: int | None = None) -> dict[str, Any]:
    """Return the training curves within a round (FedLAW, Figure 14).

    These are `epoch`, `loss`, `gamma` and, by client, `lambda`.

    Args:
        run: a run directory or a history.
        round: the last one with curves by default.
    """
    history = history_of(run)
    traces = {record["round"]: record["trace"] for record in history if record.get("trace")}
    if not traces:
        raise SteelyardError(_describe_missing(history, "curves", "trace", []))
    number = max(traces) if round is None else round
    if number not in traces:
        raise SteelyardError(
            f"round={round}: has no curves: use one of {', '.join(map(str, traces))}"
        )
    trace: dict[str, Any] = traces[number]
    return trace


def names(run: Run) -> list[str]:
    """Return the names of the series of a run."""
    history = history_of(run)
    # Numbers of the record itself.
    plain: dict[str, None] = {}
    for record in history:
        plain |= dict.fromkeys(
            name for name, value in record.items() if name != "round" and _is_number(value)
        )
    # Numbers that are computed from others.
    computed = []
    for name in _COMPUTED:
        if any(_read_number(record, name) is not None for record in history):
            computed.append(name)
    # Numbers of tables that are not by client.
    inner: dict[str, None] = {}
    for table in NOT_BY_CLIENT:
        for record in history:
            items = record.get(table, {}).items()
            inner |= dict.fromkeys(f"{table}.{name}" for name, value in items if _is_number(value))
    return [*plain, *computed, *inner]


def client_names(run: Run) -> list[str]:
    """Return the names of the tables by client of a run."""
    names: dict[str, None] = {}
    for record in history_of(run):
        for name, value in record.items():
            tables = {name: value}
            if name == "reported":
                tables = {f"{name}.{key}": item for key, item in value.items()}
            names |= dict.fromkeys(
                key for key, item in tables.items() if _is_table(item) and key not in NOT_BY_CLIENT
            )
    return list(names)


def _read_number(record: Mapping[str, Any], name: str) -> float | None:
    """Return a number of a record; None if it has none."""
    value = read_path(record, name)
    return float(value) if _is_number(value) else None


def _read_table(record: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Return a table by client of a record; None if it has none."""
    value = read_path(record, name)
    return value if _is_table(value) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))  # True and False too


def _is_table(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(v is None or _is_number(v) for v in value.values())
    )


def _sort_key(client: str) -> tuple[bool, int, str]:
    """Return a sort key: numbers by value, then text (JSON turns both into text)."""
    return (False, int(client), "") if client.isdecimal() else (True, 0, client)


def _describe_missing(history: History, kind: str, name: str, available: list[str]) -> str:
    """Return the message for a name that a run has not recorded."""
    message = f"{kind} {name!r}: not on record in {history.path or history.name}"
    entry = ROUND_RECORD.get(name.partition(".")[0])
    if entry is not None and entry.requires:
        message += f": it needs {entry.requires}"
    if available:
        message += f"; it has {', '.join(available)}"
    return message
