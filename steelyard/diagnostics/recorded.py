"""Read everything a run has recorded, by name, for reports, diagnostics and users.

    series(run, "coherence")        one number per round
    by_client(run, "weights")       one number per round and client
    curves(run)                     FedLAW's training curves within one round

`run` is a run directory or a `History`. A round without the number (it was void, or not evaluated)
is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.core.errors import SteelyardError
from steelyard.core.gram import Array
from steelyard.core.round_report import GEOMETRY
from steelyard.runs.history import History

Run = str | Path | History
Rounds = NDArray[np.int64]

_GRAD_NORM = "metrics=('grad_norm', 'num_examples')"
_GAMMA = "a rule that shrinks, such as gws or fedavg|shrink:0.95"

MEANING = {
    "accuracy": "of the global model on the test set",
    "loss": "of the global model on the test set",
    "lr": "the clients' learning rate",
    "effective_clients": "1 / sum of squared shares of the weights",
    **GEOMETRY,
    "gradient_divergence": "divergence / lr: FedAdp's, in the unit of gradients",
    "gamma": "shrinking factor, set or learned (FedLAW)",
    "gamma_product": "of all rounds so far",
    "fgn": "federated gradient norm, weighted by sizes (PA3Fed, Eq. 5)",
    "fgn_mean": "federated gradient norm, the plain mean (CriticalFL)",
    "critical": "1 in a critical period, as the rule saw it",
}
"""Names of series and their meaning; a rule may record others."""

NOT_BY_CLIENT = ("timings", "client_evaluation", "server_evaluation", "evaluation")
"""Tables of a round that have no row per client: seconds by stage.

Averages of Flower's evaluations.
"""

_REQUIREMENTS = {
    "fgn": _GRAD_NORM,
    "fgn_mean": _GRAD_NORM,
    "reported": "metrics=('loss',), or 'grad_norm', 'accuracy', 'loss_before', 'accuracy_before'",
    "critical": "a rule with a detector, such as pa3fed or gate(eq6,fedawa)",
    "accuracy": "a test set, and evaluate_every > 0",
    "loss": "a test set, and evaluate_every > 0",
    "client_accuracy": "evaluate_clients > 0",
    "client_loss": "evaluate_clients > 0, and a task without an accuracy",
    "direction_cosines": "a client term with a direction (client=fedcos), and a second round",
    "trace": "a rule that keeps curves: fedlaw:trace=true",
    **dict.fromkeys(("gamma", "shrinking", "shrinking_ratio"), _GAMMA),
}


def _gradient_divergence(record: Mapping[str, Any]) -> float | None:
    divergence = record.get("divergence")
    lr = record.get("lr")
    return divergence / lr if divergence is not None and lr else None


_DERIVED: dict[str, Callable[[Mapping[str, Any]], float | None]] = {
    "gradient_divergence": _gradient_divergence
}


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
                f"client {missing[0]!r} has no number: give one for each of {len(self.clients)}"
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
    rounds = []
    values = []
    for record in history:
        value = _number(record, name)
        if value is not None:
            rounds.append(record["round"])
            values.append(value)
    if not values:
        raise SteelyardError(_missing_error(history, "series", name, names(history)))
    return Series(np.array(rounds, dtype=np.int64), np.array(values, dtype=np.float64))


def by_client(run: Run, name: str) -> ByClient:
    """Return numbers by round and client.

    Args:
        run: a run directory or a history.
        name: `weights`, `norms`, `cosines`, `angles`, `lambda`, `reported.loss`, ...
    """
    history = history_of(run)
    rounds = []
    rows = []
    for record in history:
        row = _mapping(record, name)
        if row:
            rounds.append(record["round"])
            rows.append(row)
    if not rows:
        raise SteelyardError(
            _missing_error(history, "table by client", name, client_names(history))
        )
    clients = tuple(sorted({client for row in rows for client in row}, key=_natural))
    values = [
        [np.nan if row.get(client) is None else row[client] for client in clients] for row in rows
    ]
    return ByClient(np.array(rounds, dtype=np.int64), clients, np.array(values, dtype=np.float64))


def curves(run: Run, round: int | None = None) -> dict[str, Any]:
    """Return the training curves within a round (FedLAW, Fig.

    14): `epoch`, `loss`, `gamma` and, by client, `lambda`.

    Args:
        run: a run directory or a history.
        round: the last one with curves by default.
    """
    history = history_of(run)
    traces = {record["round"]: record["trace"] for record in history if record.get("trace")}
    if not traces:
        raise SteelyardError(_missing_error(history, "curves", "trace", []))
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
    derived = [
        name for name in _DERIVED if any(_number(record, name) is not None for record in history)
    ]
    # Numbers of tables that are not by client.
    inner: dict[str, None] = {}
    for table in NOT_BY_CLIENT:
        for record in history:
            items = record.get(table, {}).items()
            inner |= dict.fromkeys(f"{table}.{name}" for name, value in items if _is_number(value))
    return [*plain, *derived, *inner]


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


def _number(record: Mapping[str, Any], name: str) -> float | None:
    """Return a number of a record; None if it has none."""
    if name in _DERIVED:
        return _DERIVED[name](record)
    value = _at(record, name)
    return float(value) if _is_number(value) else None


def _mapping(record: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Return a table by client of a record; None if it has none."""
    value = _at(record, name)
    return value if _is_table(value) else None


def _at(record: Any, path: str) -> Any:
    """Return the value at a dotted path; keys may contain dots themselves, as client ids do."""
    if not isinstance(record, Mapping):
        return None
    if path in record:
        return record[path]
    head, _, rest = path.partition(".")
    return _at(record.get(head), rest) if rest else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))  # True and False too


def _is_table(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(v is None or _is_number(v) for v in value.values())
    )


def _natural(client: str) -> tuple[bool, int, str]:
    """Return a sort key: numbers by value, then text (JSON turns both into text)."""
    return (False, int(client), "") if client.isdecimal() else (True, 0, client)


def _missing_error(history: History, kind: str, name: str, available: list[str]) -> str:
    """Return the message for a name that a run has not recorded."""
    message = f"{kind} {name!r}: not on record in {history.path or history.name}"
    base = name.partition(".")[0]
    if base in _REQUIREMENTS:
        message += f": it needs {_REQUIREMENTS[base]}"
    if available:
        message += f"; it has {', '.join(available)}"
    return message
