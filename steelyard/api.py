"""The call: `steelyard.aggregate(rule, base, clients, ...)`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from steelyard.algorithm import parse_optimizer, parse_refiner
from steelyard.core import checks
from steelyard.core import round as rounds
from steelyard.core.client_state import ClientId, State, client_id
from steelyard.core.errors import NO_PROBE, SteelyardError, shorten
from steelyard.core.evidence import part_needing_proxy_data
from steelyard.core.layout import Kind, Params
from steelyard.core.optimizer import ServerOptimizer
from steelyard.core.probe import ProxyLoss
from steelyard.core.refiner import Refiner
from steelyard.core.round_report import Report
from steelyard.core.store import UpdateStore
from steelyard.core.weighting import Weighting
from steelyard.metrics import find_invalid_clients, metric_table
from steelyard.rules.chain import parse_rule, with_default_source
from steelyard.rules.guard import Guard
from steelyard.stores.memory import MemorySink, MemoryStore

Clients = torch.Tensor | Sequence[Params] | Mapping[ClientId, Params] | UpdateStore
Metrics = Mapping[str, Any] | Sequence[Mapping[str, Any]]


@dataclass(frozen=True, repr=False)
class Aggregate:
    """The outcome of one call.

    Attributes:
        params: the new global model, in the form of `base`.
        weights: float64 `[K]`, or `[L, K]` for a rule that works layer by layer: coefficients on the clients' updates,
            in the order the clients were given; 0 for a quarantined client.
        base: float64 `[1]` or `[L]`: coefficient on the global model.
        state: plain data keyed by client id; hand it to the next round's call.
        report: plain data: effective number of clients, cosines, coherence, norms, quarantined clients, ...
    """

    params: Params
    weights: torch.Tensor
    base: torch.Tensor
    state: dict[str, Any]
    report: Report

    def __repr__(self) -> str:
        """A few lines: sizes, the largest weight, and who was left out; the attributes hold it all."""
        if isinstance(self.params, torch.Tensor):
            size = f"{self.params.numel()} parameters"
        else:
            size = f"{len(self.params)} tensors"
        largest = f"{float(self.weights.max()):.4f}" if self.weights.numel() else "none"
        lines = [
            f"Aggregate({size}, {self.weights.shape[-1]} clients)",
            f"  weights: {self.weights.numel()}, the largest {largest}",
            f"  state: {shorten(sorted(map(str, self.state)))}",
            f"  report: {shorten(sorted(map(str, self.report)), 200)}",
        ]
        quarantined = self.report.get("quarantined", {})
        if quarantined:
            lines.append(f"  quarantined: {len(quarantined)}: {shorten(list(quarantined))}")
        if self.report.get("void"):
            lines.append(f"  void: {shorten(self.report['void'])}")
        return "\n".join(lines)


def aggregate(
    rule: str | Weighting,
    base: Params | None,
    clients: Clients,
    *,
    ids: Sequence[ClientId] | None = None,
    metrics: Metrics | None = None,
    state: State | None = None,
    round: int = 1,
    server: str | ServerOptimizer | None = None,
    kinds: Mapping[str, Kind] | None = None,
    diagnose: bool = False,
    probe: ProxyLoss | None = None,
    refine: str | Refiner | None = None,
    chunk: int | None = None,
) -> Aggregate:
    """Aggregates client models into a new global model.

    Args:
        rule: an object (`steelyard.fedawa(steps=10)`) or its text form (`"fedawa:steps=10"`, `"feddisco|fedawa"`).
        base: the global model the clients started from: a 1-D tensor or a state dict. It is not changed. May be None
            if `clients` is a store, which holds it.
        clients: client models: a `[K, d]` tensor, a list of tensors or state dicts, a dict of them by id, or a store.
        ids: logical client ids, text or numbers; positions if left out. State is keyed by them, and results do not
            depend on the order in which identified clients come in.
        metrics: what clients report: `{"num_examples": [600, 120], ...}` (lists in the order of the clients, or dicts
            by id), or one dict per client.
        state: `out.state` of the previous round.
        round: number of this round, from 1.
        server: a server optimizer, or its text form.
        kinds: overrides what leaves are, by name pattern: `"param"`, `"stat"` or `"count"`.
        diagnose: compute the Gram even if the rule needs none, so that the report has coherence, cosines and norms.
        probe: the server's proxy data (`steelyard.Probe`), for rules that look at it: `fedlaw`, `gws`, `law`.
        refine: what the server does with proxy data after the sum: `server_ft`, `feddf`, `fedbe`.
        chunk: coordinates per read of the clients; any value gives the same bits.

    A client that does not fit (keys, shapes, dtypes, NaN, invalid metrics) is quarantined: it is left out, and named
    with the reason in `out.report["quarantined"]`. If none is left, `NoValidClients` is raised; under `guard(...)`
    the round is void instead: `out.params` is the base model and `out.report["void"]` says why.

    Examples:
        >>> import torch
        >>> import steelyard
        >>> base = torch.zeros(3)
        >>> clients = {"a": torch.tensor([1.0, 0.0, 0.0]), "b": torch.tensor([0.0, 2.0, 0.0])}
        >>> out = steelyard.aggregate("fedavg", base, clients, metrics={"num_examples": {"a": 30, "b": 10}})
        >>> out.weights
        tensor([0.7500, 0.2500], dtype=torch.float64)
        >>> out.params
        tensor([0.7500, 0.5000, 0.0000])
    """
    number: Any = round
    number = int(number) if isinstance(number, np.integer) else number
    checks.integer("round", number, 1)
    if state is not None and not isinstance(state, Mapping):
        raise SteelyardError(f"state is a {type(state).__name__}: pass out.state of the last round, or None")
    root = with_default_source(parse_rule(rule))
    refiner = parse_refiner(refine)
    wanting = part_needing_proxy_data(root, refiner)
    if wanting and probe is None:
        raise SteelyardError(NO_PROBE.format(rule=wanting))
    optimizer = parse_optimizer(server)
    if isinstance(clients, UpdateStore):
        store, given = clients, clients.given
        if ids is not None or kinds is not None:
            raise SteelyardError("ids and kinds belong to the store: give them where the store is made")
        if base is not None and not _same_model(base, store.base):
            raise SteelyardError("base is not the model the store's updates start from: pass base=None, or that model")
        table = metric_table(metrics, given)
        store = store.without(find_invalid_clients(root, table, store.ids))
    else:
        if base is None:
            raise SteelyardError("base=None: pass the global model the clients started from")
        models = _by_id(clients, ids)
        given = tuple(models)
        table = metric_table(metrics, given)
        store = MemoryStore.of(base, models, find_invalid_clients(root, table, given), kinds)

    sink = MemorySink(store.layout)
    job = rounds.Round(table, state or {}, number, optimizer, diagnose, chunk, probe=probe, refine=refiner)
    run = rounds.run_or_void if isinstance(root.rules[0], Guard) else rounds.run
    outcome = run(root, store, job, sink)
    weights = np.zeros((outcome.weights.shape[0], len(given)))
    where = {client: position for position, client in enumerate(given)}
    weights[:, [where[client] for client in outcome.store.ids]] = outcome.weights
    return Aggregate(
        params=store.base if outcome.void else sink.params(store.base),
        weights=torch.from_numpy(weights if root.needs.per_layer is not None else weights[0]),
        base=torch.from_numpy(outcome.base),
        state=dict(outcome.state),
        report=outcome.report,
    )


def _by_id(clients: Any, ids: Sequence[ClientId] | None) -> dict[ClientId, Params]:
    if isinstance(clients, Mapping):
        if ids is not None:
            raise SteelyardError("clients is a dict, its keys are the ids: leave ids out")
        ids, clients = list(clients), list(clients.values())
    if not isinstance(clients, (torch.Tensor, Iterable)):
        raise SteelyardError(f"clients is a {type(clients).__name__}: pass a [K, d] tensor, a list, a dict or a store")
    clients = clients if isinstance(clients, torch.Tensor) else list(clients)
    if isinstance(clients, torch.Tensor) and clients.ndim != 2:
        raise SteelyardError(f"clients has shape {tuple(clients.shape)}: a tensor of clients is [K, d]")
    names: list[ClientId] = list(range(len(clients))) if ids is None else [client_id(client) for client in ids]
    if len(names) != len(clients):
        raise SteelyardError(f"ids has {len(names)} entries for {len(clients)} clients")
    if len(set(names)) < len(names):
        twice = next(client for client in names if names.count(client) > 1)
        raise SteelyardError(f"ids: {twice!r} occurs more than once; one model per client and round")
    if not names:
        raise SteelyardError("clients is empty: there is nothing to aggregate")
    return dict(zip(names, clients, strict=True))


def _same_model(a: Params, b: Params) -> bool:
    if a is b:
        return True
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and torch.equal(a, b)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
