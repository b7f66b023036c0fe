"""Updates in memory: one matrix, written once, read in place by the kernels."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard.core.client_state import ClientId, sort_key
from steelyard.core.errors import BAD_BASE, NOT_FINITE, SteelyardError
from steelyard.core.layout import FLAT, Kind, Layout, Leaf, Params
from steelyard.core.sums import ALIGNMENT, are_finite


@dataclass(frozen=True)
class MemoryStore:
    """K client models, held as updates `[K+1, d]` with the global model in the last row.

    Build it with `MemoryStore.of(base, {id: model, ...})`. It copies what it takes in and validates it: a client with a
    wrong key, shape or dtype, or with NaN or infinity anywhere, is quarantined with the reason.
    """

    layout: Layout
    base: Params
    given: tuple[ClientId, ...]
    ids: tuple[ClientId, ...]
    quarantined: Mapping[ClientId, str]
    matrix: torch.Tensor
    client_stats: torch.Tensor
    base_stats: torch.Tensor
    client_counts: Mapping[str, torch.Tensor]
    counters: Mapping[str, torch.Tensor]

    @staticmethod
    def of(
        base: Params,
        clients: Mapping[ClientId, Params] | Sequence[Params] | torch.Tensor,
        refused: Mapping[ClientId, str] | None = None,
        kinds: Mapping[str, Kind] | None = None,
    ) -> MemoryStore:
        """Takes in client models by id (or by position); those in `refused` are not looked at."""
        if not isinstance(clients, Mapping):
            clients = dict(enumerate(clients))
        layout = Layout.of(base, kinds)
        quarantined = dict(refused or {})
        leaves: dict[ClientId, Mapping[str, torch.Tensor]] = {}
        for client in sorted(clients, key=sort_key):
            if client not in quarantined:
                found = _leaves(clients[client])
                leaves[client] = layout.completed(found) if isinstance(found, Mapping) else found
                reason = _unfit(layout, leaves[client])
                if reason is not None:
                    quarantined[client] = reason
        fit = [client for client in leaves if client not in quarantined]

        matrix = allocate((len(fit) + 1) * layout.dim, layout.row_dtype).view(len(fit) + 1, layout.dim)
        stats = torch.empty(len(fit) + 1, layout.stat_dim, dtype=torch.float64)
        _flatten(layout.params, _leaves(base), matrix[-1])
        _flatten(layout.stats, _leaves(base), stats[-1])
        if not (are_finite(matrix[-1]) and are_finite(stats[-1])):
            raise SteelyardError(BAD_BASE)
        floats = [leaf for leaf in layout.counts if leaf.dtype.is_floating_point]
        kept: list[ClientId] = []
        for client in fit:
            row, stat = matrix[len(kept)], stats[len(kept)]
            _flatten(layout.params, leaves[client], row)
            _flatten(layout.stats, leaves[client], stat)
            row.sub_(matrix[-1])
            if are_finite(row) and are_finite(stat) and all(are_finite(leaves[client][leaf.name]) for leaf in floats):
                kept.append(client)
            else:
                quarantined[client] = NOT_FINITE
        matrix[len(kept)].copy_(matrix[-1])
        counts = {
            leaf.name: torch.stack([leaves[client][leaf.name].detach().cpu() for client in kept])
            for leaf in (layout.counts if kept else ())
        }
        rows = slice(0, len(kept))
        return MemoryStore(
            layout=layout,
            base=base,
            given=tuple(clients),
            ids=tuple(kept),
            quarantined=quarantined,
            matrix=matrix[: len(kept) + 1],
            client_stats=stats[rows],
            base_stats=stats[-1],
            client_counts=counts,
            counters={leaf.name: _leaves(base)[leaf.name].detach().cpu() for leaf in layout.counts},
        )

    def scratch(self, length: int) -> None:
        """None: rows are served in place."""

    def rows(self, start: int, stop: int, scratch: torch.Tensor | None) -> torch.Tensor:
        """A view of the matrix."""
        del scratch
        return self.matrix[:, start:stop]

    def stats(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Running statistics of the clients and of the global model."""
        return self.client_stats, self.base_stats

    def counts(self, leaf: Leaf) -> torch.Tensor:
        """One of the clients' counters."""
        return self.client_counts[leaf.name]

    def base_counts(self) -> Mapping[str, torch.Tensor]:
        """The global model's counters."""
        return self.counters

    def without(self, refused: Mapping[ClientId, str]) -> MemoryStore:
        """The same store less these clients (copies the rows that stay)."""
        refused = {client: reason for client, reason in refused.items() if client in self.ids}
        if not refused:
            return self
        keep = [i for i, client in enumerate(self.ids) if client not in refused]
        return replace(
            self,
            ids=tuple(self.ids[i] for i in keep),
            quarantined={**self.quarantined, **refused},
            matrix=self.matrix[[*keep, len(self.ids)]],
            client_stats=self.client_stats[keep],
            client_counts={name: stacked[keep] for name, stacked in self.client_counts.items()},
        )


class MemorySink:
    """Takes in the new model. Parameters of the rows' own dtype are written in place, as views of one flat vector."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.flat = recycled(layout.dim, layout.row_dtype)
        self.others: dict[str, torch.Tensor] = {}

    def room(self, start: int, stop: int) -> torch.Tensor:
        """A view of the flat vector."""
        return self.flat[start:stop]

    def write(self, start: int, values: torch.Tensor) -> None:
        """Copies a chunk into place."""
        self.flat[start : start + values.numel()].copy_(values)

    def put(self, leaf: Leaf, values: torch.Tensor) -> None:
        """Keeps a statistic or a counter."""
        self.others[leaf.name] = values

    def state(self) -> dict[str, torch.Tensor]:
        """The new model as a state dict; tied before, tied after."""
        made = {
            leaf.name: narrowed(self.flat[leaf.start : leaf.stop], leaf).view(leaf.shape) for leaf in self.layout.params
        }
        made.update(self.others)
        return {leaf.name: made[leaf.tied or leaf.name] for leaf in self.layout.leaves}

    def params(self, base: Params) -> Params:
        """The new model in the form, and on the devices, of the old."""
        made = self.state()
        if isinstance(base, torch.Tensor):
            return made[FLAT].to(base.device)
        return {name: tensor.to(base[name].device) for name, tensor in made.items()}


def narrowed(values: torch.Tensor, leaf: Leaf) -> torch.Tensor:
    """The values in the leaf's dtype, if they fit."""
    cast = values.to(leaf.dtype)
    if cast is not values and not bool(torch.isfinite(cast).all()):
        raise SteelyardError(f"the aggregated {leaf.name!r} overflows {leaf.dtype}: the base model stays as it was")
    return cast


def allocate(size: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor whose memory numpy takes from the system: it asks for huge pages, which torch does not."""
    return torch.from_numpy(_memory(size * dtype.itemsize)).view(dtype) if size else torch.empty(0, dtype=dtype)


def _memory(count: int) -> NDArray[np.uint8]:
    """So many bytes, aligned as torch's are."""
    room = np.empty(count + ALIGNMENT, dtype=np.uint8)
    first = -room.ctypes.data % ALIGNMENT
    return room[first : first + count]


_spare: list[NDArray[np.uint8]] = []
_RECYCLE = 1 << 30  # bytes: larger models are given back to the system at once


def recycled(size: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor that takes over the memory of an earlier one of the same size, once nothing refers to that one any more.

    Rounds allocate a model each and drop one each; fresh pages for it, zeroed by the system, cost a fifth of FedAvg.
    """
    if not size:
        return torch.empty(0, dtype=dtype)
    try:
        memory = _spare.pop()
    except IndexError:
        memory = None
    if memory is None or memory.nbytes != size * dtype.itemsize:
        memory = _memory(size * dtype.itemsize)
    handle = memory[:]  # lives exactly as long as torch's storage does
    if memory.nbytes <= _RECYCLE:
        weakref.finalize(handle, _keep, memory).atexit = False
    return torch.from_numpy(handle).view(dtype)


def _keep(memory: NDArray[np.uint8]) -> None:
    _spare[:] = [memory]


def _leaves(params: Params) -> Mapping[str, torch.Tensor]:
    return {FLAT: params} if isinstance(params, torch.Tensor) else params


def _unfit(layout: Layout, leaves: object) -> str | None:
    if not isinstance(leaves, Mapping):
        return f"a {type(leaves).__name__}, expected a tensor or a state dict"
    shapes = {}
    for name, tensor in leaves.items():
        if not isinstance(tensor, torch.Tensor):
            return f"{name!r} is a {type(tensor).__name__}, expected a tensor"
        if tensor.is_meta or tensor.layout != torch.strided:
            return f"{name!r} is a sparse tensor or one without values"
        shapes[name] = (tuple(tensor.shape), tensor.dtype)
    reason = layout.mismatch(shapes)
    if reason is None:
        for leaf in layout.leaves:
            if leaf.tied in leaves and leaf.name in leaves and not _same(leaves[leaf.name], leaves[leaf.tied]):
                return f"{leaf.name!r} is tied to {leaf.tied!r} in the base model but differs from it"
    return reason


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() or torch.equal(a, b)


def _flatten(leaves: Sequence[Leaf], source: Mapping[str, torch.Tensor], row: torch.Tensor) -> None:
    for leaf in leaves:
        row[leaf.start : leaf.stop].copy_(source[leaf.name].detach().reshape(-1))
