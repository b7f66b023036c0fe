"""Merges checkpoints that are larger than memory: the same rules, streamed from and to disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from steelyard import kernels
from steelyard._version import __version__
from steelyard.algorithm import parse_optimizer
from steelyard.api import Metrics
from steelyard.core import _round as rounds
from steelyard.core._errors import SteelyardError
from steelyard.core._evidence import part_needing_proxy_data
from steelyard.core._layout import Kind
from steelyard.core._optimizer import ServerOptimizer
from steelyard.core._spec import to_text
from steelyard.core._state import ClientId, State
from steelyard.core._weighting import Weighting
from steelyard.metrics import find_invalid_clients, metric_table
from steelyard.rules._combinators import parse_rule, with_default_source
from steelyard.stores._safetensors import Checkpoint, SafetensorsStore, read_metadata
from steelyard.stores._writer import FileSink


@dataclass(frozen=True)
class Plan:
    """The size of a merge, known before it starts.

    Attributes:
        clients: number of clients.
        quarantined: reasons of the clients that are left out, by id.
        parameters: number of parameters of the model.
        model_bytes: size of the base checkpoint.
        passes: number of passes over the clients.
        buffer_bytes: memory for buffers.
    """

    clients: int
    quarantined: Mapping[ClientId, str]
    parameters: int
    model_bytes: int
    passes: int
    buffer_bytes: int

    @property
    def reads(self) -> int:
        """Number of coordinates that all passes read."""
        return self.passes * self.parameters * (self.clients + 1)


class Merge:
    """A merge of checkpoints: the constructor opens the files and plans, `run` merges.

    Args:
        base: the global checkpoint: a safetensors file, or a directory of shards with an index.
        clients: client checkpoints by id.
        rule: a rule or its spec string.
        metrics: values that clients report; by default `num_examples` comes from the metadata of
            the files.
        kinds: kinds of leaves by name pattern, instead of the default.
        allow_partial: whether to leave out clients that cannot be merged (a missing or damaged
            file, other tensors, NaN, invalid reports) instead of raising an error.

    Examples:
        >>> import tempfile
        >>> from safetensors.torch import load_file, save_file
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     files = {name: f"{folder}/{name}.safetensors" for name in ("base", "a", "b", "merged")}
        ...     for name, value in {"base": 0.0, "a": 1.0, "b": 3.0}.items():
        ...         save_file({"weight": torch.full((2,), value)}, files[name])
        ...     report = Merge(files["base"], {"a": files["a"], "b": files["b"]}, "uniform").run(files["merged"])
        ...     load_file(files["merged"])
        {'weight': tensor([2., 2.])}
    """

    def __init__(
        self,
        base: str | os.PathLike[str],
        clients: Mapping[ClientId, str | os.PathLike[str]],
        rule: str | Weighting = "fedavg",
        *,
        metrics: Metrics | None = None,
        kinds: Mapping[str, Kind] | None = None,
        allow_partial: bool = False,
    ) -> None:
        # The rule.
        self.allow_partial = allow_partial
        self.rule = parse_rule(rule)
        self.root = with_default_source(self.rule)
        if self.root.needs.probe:
            raise SteelyardError(
                f"{part_needing_proxy_data(self.root)} needs proxy data, which a merge does not "
                f"have: "
                "use another rule, or steelyard.aggregate(rule, None, SafetensorsStore.open(...), "
                "probe=steelyard.Probe(...))"
            )

        # The files and what their clients report.
        store = SafetensorsStore.open(base, clients, kinds=kinds)
        self.table = metric_table(metrics, tuple(clients))
        if "num_examples" not in self.table:
            reported = {
                c: _number(read_metadata(store.clients[c]).get("num_examples")) for c in store.ids
            }
            if any(value is not None for value in reported.values()):
                self.table["num_examples"] = reported
        self._check_clients(store.quarantined)
        self.store = store.without(find_invalid_clients(self.root, self.table, store.ids))
        self._check_clients(self.store.quarantined)

        # The plan.
        assert isinstance(store.source, Checkpoint)
        count = len(self.store.ids) + 1
        itemsize = store.layout.row_dtype.itemsize
        length = kernels.task_length(count, store.layout.dim, kernels.BLOCK, None, streamed=True)
        self.plan = Plan(
            clients=len(self.store.ids),
            quarantined=self.store.quarantined,
            parameters=store.layout.dim,
            model_bytes=store.source.num_bytes,
            passes=2 if self.root.needs.gram else 1,
            buffer_bytes=torch.get_num_threads() * (count + 2) * length * itemsize,
        )

    def run(
        self,
        out: str | os.PathLike[str],
        *,
        state: State | None = None,
        round: int = 1,
        server: str | ServerOptimizer | None = None,
        force: bool = False,
        on_read: Callable[[int], None] | None = None,
    ) -> rounds.Outcome:
        """Write the merged checkpoint to `out`, atomically.

        Args:
            out: a `.safetensors` file, or a directory, which also gets copies of the small files of
                the base model's directory.
            state: the state that the previous round's outcome returned.
            round: number of this round, from 1.
            server: a server optimizer or its spec string.
            force: whether to replace an existing `out`.
            on_read: called with the number of coordinates after every read.

        Returns:
            The outcome of the round.
        """
        # Prepare the round.
        optimizer = parse_optimizer(server)
        job = rounds.Round(self.table, state or {}, round, optimizer)
        store = replace(self.store, on_read=on_read)
        metadata = {
            "format": "pt",
            "merged_by": f"steelyard {__version__}",
            "rule": to_text(self.rule),
        }

        # Run it; the sink removes its files if that fails.
        assert isinstance(store.source, Checkpoint)
        try:
            with FileSink(Path(out), store.source, store.layout, metadata, force) as sink:
                outcome = rounds.run(self.root, store, job, sink)
                if outcome.void:
                    raise SteelyardError(f"nothing is written: {outcome.report['void']}")
                self._check_clients(outcome.store.quarantined)
        except OSError as error:
            reason = error.strerror or error
            raise SteelyardError(
                f"{error.filename or out}: {reason}: nothing is written: free some space, or "
                f"choose another path"
            ) from error
        return outcome

    def _check_clients(self, quarantined: Mapping[ClientId, str]) -> None:
        """Raise an error if clients are quarantined, unless `allow_partial` is set."""
        if not quarantined or self.allow_partial:
            return
        reasons = [f"client {client!r}: {reason}" for client, reason in quarantined.items()]
        if len(reasons) > 5:
            reasons[5:] = [f"and {len(reasons) - 5} more"]
        raise SteelyardError(
            f"{'; '.join(reasons)}. Nothing is written: correct this, or pass allow_partial=True "
            "to leave these clients out"
        )


def _number(text: Any) -> Any:
    """Return the text as a number if it is one, otherwise the text."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text
