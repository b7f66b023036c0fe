"""`steelyard.aggregate(rule, base, clients, ...)`: aggregate client models in one call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from steelyard.algorithm import COMPOSITIONS, Algorithm, parse_optimizer, parse_refiner
from steelyard.core import _round as rounds
from steelyard.core import checks
from steelyard.core._errors import NO_PROBE, SteelyardError, shorten
from steelyard.core._evidence import part_needing_proxy_data
from steelyard.core._layout import Kind, Params
from steelyard.core._lora import Factors, parse_lora
from steelyard.core._optimizer import ServerOptimizer
from steelyard.core._probe import ProxyLoss
from steelyard.core._refiner import Refiner
from steelyard.core._round_gram import RoundGram
from steelyard.core._round_report import Report
from steelyard.core._state import ClientId, State, client_id
from steelyard.core._store import UpdateStore
from steelyard.core._weighting import Weighting
from steelyard.metrics import find_invalid_clients, metric_table
from steelyard.rules._combinators import parse_rule, with_default_source
from steelyard.rules._guard import Guard
from steelyard.stores._memory import MemorySink, MemoryStore

Clients = torch.Tensor | Sequence[Params] | Mapping[ClientId, Params] | UpdateStore
Metrics = Mapping[str, Any] | Sequence[Mapping[str, Any]]


@dataclass(frozen=True, repr=False)
class Aggregate:
    """The result of `aggregate`.

    Attributes:
        params: the new global model, in the form of `base`.
        weights: coefficients on the clients' updates, in the order of the clients; 0 for a
            quarantined client. float64 `[K]`, or `[L, K]` for a rule that works layer by layer.
        base: coefficient on the global model, float64 `[1]` or `[L]`.
        state: plain data by client id; pass it to the call of the next round.
        report: plain data: effective number of clients, cosines, coherence, norms, quarantined
            clients, ...
        gram: the inner products of the updates and what clients reported, if the rule computed
            inner products or `diagnose` was set; None otherwise.
        residuals: with `lora="residual"`, what is to be added to the weights that LoRA adapters
            change, as factors `left @ right`, by the name of the adapted module.
    """

    params: Params
    weights: torch.Tensor
    base: torch.Tensor
    state: dict[str, Any]
    report: Report
    gram: RoundGram | None = None
    residuals: Mapping[str, Factors] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Return a summary: sizes, the largest weight and the quarantined clients."""
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
    lora: str = "stack",
) -> Aggregate:
    """Aggregate client models into a new global model.

    A client that does not fit (keys, shapes, dtypes, NaN, invalid metrics) is quarantined: it is
    left out, and `out.report["quarantined"]` has the reason. If no client is valid,
    `NoValidClients` is raised; with `guard(...)` the round is void instead: `out.params` is the
    base model and `out.report["void"]` has the reason.

    Args:
        rule: a rule (`steelyard.fedawa(steps=10)`) or its spec string (`"fedawa:steps=10"`,
            `"feddisco|fedawa"`).
        base: the global model that the clients started from: a 1-D tensor or a state dict. It is
            not changed. Pass None if `clients` is a store, which contains it.
        clients: client models: a `[K, d]` tensor, a list of tensors or state dicts, a dict of them
            by id, or a store.
        ids: client ids, text or numbers; positions by default. The state is keyed by them. With
            ids, results do not depend on the order of the clients.
        metrics: values that clients report: `{"num_examples": [600, 120], ...}` (lists in the order
            of the clients, or dicts by id), or one dict per client.
        state: `out.state` of the previous round.
        round: number of this round, from 1.
        server: a server optimizer or its spec string.
        kinds: kinds of leaves by name pattern, instead of the default: `"param"`, `"stat"` or
            `"count"`.
        diagnose: whether to compute the Gram even if the rule does not need it, so that the report
            has coherence, cosines and norms.
        probe: the server's proxy data (`steelyard.Probe`), for the rules `fedlaw`, `fedlaw_swa`,
            `gws`, `law` and `fltrust`, and for refiners.
        refine: a refiner or its spec string: `server_ft`, `feddf`, `fedbe`.
        chunk: number of coordinates per read; the result has the same bits for any value.
        lora: what to return for LoRA adapters (leaves `lora_A` and `lora_B`), whose products are
            averaged: `stack` (exact; ranks add up), `svd:16` (the best approximation of rank 16),
            `residual` (mean factors, and the exact rest in `out.residuals`), or `factors` (mean
            factors, which is not the mean of the products).

    Returns:
        The new model, the weights, the state for the next round and a report.

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
    # Check the arguments.
    number: Any = round
    if isinstance(number, np.integer):
        number = int(number)
    checks.integer("round", number, 1)
    if state is not None and not isinstance(state, Mapping):
        raise SteelyardError(
            f"state is a {type(state).__name__}: pass out.state of the last round, or None"
        )

    # Build the parts.
    if isinstance(rule, str) and rule.strip() in COMPOSITIONS:
        raise SteelyardError(
            f"{rule.strip()!r} is {Algorithm(rule)}, which is more than a rule: train clients with "
            f"its client term, and aggregate with {COMPOSITIONS[rule.strip()]['weighting']!r}"
        )
    root = with_default_source(parse_rule(rule))
    refiner = parse_refiner(refine)
    needing_part = part_needing_proxy_data(root, refiner)
    if needing_part and probe is None:
        raise SteelyardError(NO_PROBE.format(rule=needing_part))
    optimizer = parse_optimizer(server)

    # Open the clients, and quarantine those whose metrics are invalid.
    if isinstance(clients, UpdateStore):
        store = clients
        all_ids = clients.all_ids
        if ids is not None or kinds is not None:
            raise SteelyardError(
                "ids and kinds belong to the store: pass them when you open the store"
            )
        if base is not None and not _same_model(base, store.base):
            raise SteelyardError(
                "base is not the model that the store's updates start from: pass base=None, or "
                "that model"
            )
        table = metric_table(metrics, all_ids)
        store = store.without(find_invalid_clients(root, table, store.ids))
    else:
        if base is None:
            raise SteelyardError("base=None: pass the global model that the clients started from")
        models = _by_id(clients, ids)
        all_ids = tuple(models)
        table = metric_table(metrics, all_ids)
        store = MemoryStore.of(base, models, find_invalid_clients(root, table, all_ids), kinds)

    # Run the round.
    sink = MemorySink(store.layout)
    job = rounds.Round(
        metrics=table,
        state=state or {},
        number=number,
        server=optimizer,
        diagnose=diagnose,
        chunk=chunk,
        probe=probe,
        refine=refiner,
        lora=parse_lora(lora),
    )
    run = rounds.run_or_void if isinstance(root.rules[0], Guard) else rounds.run
    outcome = run(root, store, job, sink)

    # Weights in the caller's order; quarantined clients have 0.
    weights = np.zeros((outcome.weights.shape[0], len(all_ids)))
    positions = {client: position for position, client in enumerate(all_ids)}
    weights[:, [positions[client] for client in outcome.store.ids]] = outcome.weights
    return Aggregate(
        params=store.base if outcome.void else sink.params(store.base),
        weights=torch.from_numpy(weights if root.needs.per_layer is not None else weights[0]),
        base=torch.from_numpy(outcome.base),
        state=dict(outcome.state),
        report=outcome.report,
        gram=outcome.round_gram,
        residuals=outcome.residuals,
    )


def _by_id(clients: Any, ids: Sequence[ClientId] | None) -> dict[ClientId, Params]:
    """Return the clients' models by id."""
    # Models and ids as lists.
    if isinstance(clients, Mapping):
        if ids is not None:
            raise SteelyardError("clients is a dict, its keys are the ids: leave ids out")
        ids = list(clients)
        clients = list(clients.values())
    if not isinstance(clients, (torch.Tensor, Iterable)):
        raise SteelyardError(
            f"clients is a {type(clients).__name__}: pass a [K, d] tensor, a list, a dict or a "
            f"store"
        )
    if not isinstance(clients, torch.Tensor):
        clients = list(clients)
    elif clients.ndim != 2:
        raise SteelyardError(f"clients has shape {tuple(clients.shape)}: pass a [K, d] tensor")
    names: list[ClientId] = list(range(len(clients)))
    if ids is not None:
        names = [client_id(client) for client in ids]

    # One id for each model.
    if len(names) != len(clients):
        raise SteelyardError(
            f"ids has {len(names)} entries for {len(clients)} clients: pass one id per client"
        )
    if len(set(names)) < len(names):
        repeated = next(client for client in names if names.count(client) > 1)
        raise SteelyardError(
            f"ids: {repeated!r} occurs more than once: pass one model per client and round"
        )
    if not names:
        raise SteelyardError("clients is empty: there is nothing to aggregate")
    return dict(zip(names, clients, strict=True))


def _same_model(a: Params, b: Params) -> bool:
    """Return whether two models have the same keys and values."""
    if a is b:
        return True
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and torch.equal(a, b)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
