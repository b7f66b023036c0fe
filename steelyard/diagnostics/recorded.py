"""Everything a run has on record, by name: one reader for reports, diagnostics and users.

    series(run, "coherence")        one number per round
    by_client(run, "weights")       one number per round and client
    curves(run)                     FedLAW's training curves within one round

`run` is a run directory or a `History`. A round that has no such number (it was void, or not evaluated) is left out.
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
"""Names of series and what they are; a rule may note others."""

NOT_BY_CLIENT = ("timings", "client_evaluation", "server_evaluation", "evaluation")
"""Tables of a round that have no row per client: seconds by stage; what Flower's clients found, together."""

_CURES = {
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
    divergence, lr = record.get("divergence"), record.get("lr")
    return divergence / lr if divergence is not None and lr else None


_DERIVED: dict[str, Callable[[Mapping[str, Any]], float | None]] = {"gradient_divergence": _gradient_divergence}


class Series(NamedTuple):
    """One number for each round that has it."""

    rounds: Rounds
    values: Array


class ByClient(NamedTuple):
    """Numbers `[T, K]` by round and client; NaN where a client has none in a round."""

    rounds: Rounds
    clients: tuple[str, ...]
    values: Array

    def columns(self, clients: Mapping[Any, float]) -> Array:
        """Numbers given by client, in the order of the columns."""
        given = {str(client): value for client, value in clients.items()}
        missing = [client for client in self.clients if client not in given]
        if missing:
            raise SteelyardError(f"client {missing[0]!r} has no number: give one for each of {len(self.clients)}")
        return np.array([given[client] for client in self.clients], dtype=np.float64)


def history_of(run: Run) -> History:
    """The history itself, or that of a run directory."""
    return run if isinstance(run, History) else History.read(run)


def series(run: Run, name: str) -> Series:
    """A number by round: a name in `names(run)`, or a dotted path such as `timings.train` or `weights.client-0`."""
    history = history_of(run)
    found = [(record["round"], _number(record, name)) for record in history]
    kept = [(number, value) for number, value in found if value is not None]
    if not kept:
        raise SteelyardError(_missing_error(history, "series", name, names(history)))
    return Series(np.array([n for n, _ in kept], dtype=np.int64), np.array([v for _, v in kept], dtype=np.float64))


def by_client(run: Run, name: str) -> ByClient:
    """Numbers by round and client: `weights`, `norms`, `cosines`, `angles`, `lambda`, `reported.loss`, ..."""
    history = history_of(run)
    rows = [(record["round"], found) for record in history if (found := _mapping(record, name))]
    if not rows:
        raise SteelyardError(_missing_error(history, "table by client", name, client_names(history)))
    clients = tuple(sorted({client for _, row in rows for client in row}, key=_natural))
    values = [[np.nan if row.get(client) is None else row[client] for client in clients] for _, row in rows]
    return ByClient(np.array([n for n, _ in rows], dtype=np.int64), clients, np.array(values, dtype=np.float64))


def curves(run: Run, round: int | None = None) -> dict[str, Any]:
    """FedLAW's Fig. 14: `epoch`, `loss`, `gamma` and by client `lambda` within a round, the last one by default."""
    history = history_of(run)
    traced = {record["round"]: record["trace"] for record in history if record.get("trace")}
    if not traced:
        raise SteelyardError(_missing_error(history, "curves", "trace", []))
    chosen = max(traced) if round is None else round
    if chosen not in traced:
        raise SteelyardError(f"round={round}: has no curves: use one of {', '.join(map(str, traced))}")
    kept: dict[str, Any] = traced[chosen]
    return kept


def names(run: Run) -> list[str]:
    """The series a run has."""
    history = history_of(run)
    plain = dict.fromkeys(name for record in history for name, value in record.items() if _is_number(value))
    inner = dict.fromkeys(
        f"{part}.{name}"
        for part in NOT_BY_CLIENT
        for record in history
        for name, value in record.get(part, {}).items()
        if _is_number(value)
    )
    derived = [name for name in _DERIVED if any(_number(record, name) is not None for record in history)]
    return [*(name for name in plain if name != "round"), *derived, *inner]


def client_names(run: Run) -> list[str]:
    """The tables by client a run has."""
    found: dict[str, None] = {}
    for record in history_of(run):
        for name, value in record.items():
            inner = {f"{name}.{key}": item for key, item in value.items()} if name == "reported" else {name: value}
            found |= dict.fromkeys(key for key, item in inner.items() if _is_table(item) and key not in NOT_BY_CLIENT)
    return list(found)


def _number(record: Mapping[str, Any], name: str) -> float | None:
    if name in _DERIVED:
        return _DERIVED[name](record)
    value = _at(record, name)
    return float(value) if _is_number(value) else None


def _mapping(record: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    value = _at(record, name)
    return value if _is_table(value) else None


def _at(record: Any, path: str) -> Any:
    """What a dotted path leads to; a key may have dots itself, as client ids do."""
    if not isinstance(record, Mapping):
        return None
    if path in record:
        return record[path]
    head, _, rest = path.partition(".")
    return _at(record.get(head), rest) if rest else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))  # True and False, too


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value) and all(v is None or _is_number(v) for v in value.values())


def _natural(client: str) -> tuple[bool, int, str]:
    """Numbers by value, then text: JSON made text of both."""
    return (False, int(client), "") if client.isdecimal() else (True, 0, client)


def _missing_error(history: History, kind: str, name: str, known: list[str]) -> str:
    place = history.path or history.name
    cure = f": it takes {_CURES[base]}" if (base := name.partition(".")[0]) in _CURES else ""
    there = f"; it has {', '.join(known)}" if known else ""
    return f"{kind} {name!r}: not on record in {place}{cure}{there}"
