"""Updates in memory: one matrix, written once, which the kernels read in place."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard.core._errors import BAD_BASE, NOT_FINITE, SteelyardError
from steelyard.core._layout import FLAT, Kind, Layout, Leaf, Params
from steelyard.core._lora import find_common_ranks, pad_factors
from steelyard.core._state import ClientId, sort_key
from steelyard.core._sums import ALIGNMENT, are_finite


@dataclass(frozen=True)
class MemoryStore:
    """K client models, stored as updates `[K+1, d]` with the global model in the last row.

    Build it with `MemoryStore.of(base, {id: model, ...})`. It copies and validates the models: a
    client with a wrong key, shape or dtype, or with NaN or infinity anywhere, is quarantined with
    the reason.
    """

    layout: Layout
    base: Params
    all_ids: tuple[ClientId, ...]
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
        """Build a store from client models.

        Args:
            base: the global model.
            clients: models by client id, or by position.
            refused: clients to quarantine, with the reason; their models are not read.
            kinds: of the tensors, where the layout cannot tell from the name.
        """
        if not isinstance(clients, Mapping):
            clients = dict(enumerate(clients))
        layout = Layout.of(base, kinds)
        if layout.pairs and isinstance(base, Mapping):
            base, clients, layout = _pad_adapters(base, clients, layout, kinds)

        # Quarantine clients with other tensors than the global model.
        quarantined = dict(refused or {})
        leaves: dict[ClientId, Mapping[str, torch.Tensor]] = {}
        for client in sorted(clients, key=sort_key):
            if client not in quarantined:
                tensors = _leaves(clients[client])
                leaves[client] = (
                    layout.add_tied_leaves(tensors) if isinstance(tensors, Mapping) else tensors
                )
                reason = _find_mismatch(layout, leaves[client])
                if reason is not None:
                    quarantined[client] = reason
        candidates = [client for client in leaves if client not in quarantined]

        # The global model is the last row.
        num_rows = len(candidates) + 1
        matrix = allocate(num_rows * layout.dim, layout.row_dtype).view(num_rows, layout.dim)
        stats = torch.empty(num_rows, layout.stat_dim, dtype=torch.float64)
        _flatten(layout.params, _leaves(base), matrix[-1])
        _flatten(layout.stats, _leaves(base), stats[-1])
        if not (are_finite(matrix[-1]) and are_finite(stats[-1])):
            raise SteelyardError(BAD_BASE)

        # The updates of the clients; a row with NaN or infinity is overwritten by the next client.
        floats = [leaf for leaf in layout.counts if leaf.dtype.is_floating_point]
        ids: list[ClientId] = []
        for client in candidates:
            row = matrix[len(ids)]
            stat = stats[len(ids)]
            _flatten(layout.params, leaves[client], row)
            _flatten(layout.stats, leaves[client], stat)
            row.sub_(matrix[-1])
            counters_finite = all(are_finite(leaves[client][leaf.name]) for leaf in floats)
            if are_finite(row) and are_finite(stat) and counters_finite:
                ids.append(client)
            else:
                quarantined[client] = NOT_FINITE
        matrix[len(ids)].copy_(matrix[-1])

        # The counters.
        counts = {}
        if ids:
            for leaf in layout.counts:
                counts[leaf.name] = torch.stack(
                    [leaves[client][leaf.name].detach().cpu() for client in ids]
                )
        return MemoryStore(
            layout=layout,
            base=base,
            all_ids=tuple(clients),
            ids=tuple(ids),
            quarantined=quarantined,
            matrix=matrix[: len(ids) + 1],
            client_stats=stats[: len(ids)],
            base_stats=stats[-1],
            client_counts=counts,
            counters={leaf.name: _leaves(base)[leaf.name].detach().cpu() for leaf in layout.counts},
        )

    def scratch(self, length: int) -> None:
        """Return None: rows are read in place."""

    def rows(self, start: int, stop: int, scratch: torch.Tensor | None) -> torch.Tensor:
        """Return a view of the matrix."""
        del scratch
        return self.matrix[:, start:stop]

    def stats(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the running statistics of the clients and of the global model."""
        return self.client_stats, self.base_stats

    def counts(self, leaf: Leaf) -> torch.Tensor:
        """Return one counter of all clients."""
        return self.client_counts[leaf.name]

    def base_counts(self) -> Mapping[str, torch.Tensor]:
        """Return the counters of the global model."""
        return self.counters

    def without(self, refused: Mapping[ClientId, str]) -> MemoryStore:
        """Return the store without these clients, quarantined with the reason.

        It copies the other rows.
        """
        refused = {client: reason for client, reason in refused.items() if client in self.ids}
        if not refused:
            return self
        rows = [row for row, client in enumerate(self.ids) if client not in refused]
        return replace(
            self,
            ids=tuple(self.ids[row] for row in rows),
            quarantined={**self.quarantined, **refused},
            matrix=self.matrix[[*rows, len(self.ids)]],
            client_stats=self.client_stats[rows],
            client_counts={name: counts[rows] for name, counts in self.client_counts.items()},
        )


class MemorySink:
    """Receives the new model.

    Parameters of the dtype of the rows are written in place, into one flat vector.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.flat = allocate_recycled(layout.dim, layout.row_dtype)
        self.others: dict[str, torch.Tensor] = {}

    def room(self, start: int, stop: int) -> torch.Tensor:
        """Return a view of the flat vector."""
        return self.flat[start:stop]

    def write(self, start: int, values: torch.Tensor) -> None:
        """Copy a chunk into place."""
        self.flat[start : start + values.numel()].copy_(values)

    def write_leaf(self, leaf: Leaf, values: torch.Tensor) -> None:
        """Store a statistic, a counter, or a factor of a LoRA adapter with a new rank."""
        if leaf.kind == "param":
            self.flat[leaf.start : leaf.stop].zero_()
        self.others[leaf.name] = values

    def state(self) -> dict[str, torch.Tensor]:
        """Return the new model as a state dict; tensors that were tied are still tied."""
        tensors = {}
        for leaf in self.layout.params:
            tensors[leaf.name] = cast_to_leaf(self.flat[leaf.start : leaf.stop], leaf).view(
                leaf.shape
            )
        tensors.update(self.others)
        return {leaf.name: tensors[leaf.tied or leaf.name] for leaf in self.layout.leaves}

    def params(self, base: Params) -> Params:
        """Return the new model in the form, and on the devices, of the old one."""
        state = self.state()
        if isinstance(base, torch.Tensor):
            return state[FLAT].to(base.device)
        return {name: tensor.to(base[name].device) for name, tensor in state.items()}


def cast_to_leaf(values: torch.Tensor, leaf: Leaf) -> torch.Tensor:
    """Return the values in the dtype of the leaf; raise an error if they overflow it."""
    cast = values.to(leaf.dtype)
    if cast is not values and not bool(torch.isfinite(cast).all()):
        raise SteelyardError(
            f"the aggregated {leaf.name!r} overflows {leaf.dtype}: the base model was not changed"
        )
    return cast


def allocate(size: int, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor in memory of numpy, which asks for huge pages; torch does not."""
    if not size:
        return torch.empty(0, dtype=dtype)
    return torch.from_numpy(_memory(size * dtype.itemsize)).view(dtype)


def _memory(count: int) -> NDArray[np.uint8]:
    """Return `count` bytes, aligned as torch aligns them."""
    room = np.empty(count + ALIGNMENT, dtype=np.uint8)
    first = -room.ctypes.data % ALIGNMENT
    return room[first : first + count]


_spare_memory: list[NDArray[np.uint8]] = []
_RECYCLE = 1 << 30  # bytes: larger models are returned to the system at once


def allocate_recycled(size: int, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor that reuses the memory of an earlier one of the same size.

    This happens only when nothing refers to the earlier one any more.

    Each round allocates one model and drops one; new pages for it, zeroed by the system, would take
    a fifth of the time of FedAvg.
    """
    if not size:
        return torch.empty(0, dtype=dtype)
    try:
        memory = _spare_memory.pop()
    except IndexError:
        memory = None
    if memory is None or memory.nbytes != size * dtype.itemsize:
        memory = _memory(size * dtype.itemsize)
    handle = memory[:]  # lives exactly as long as torch's storage
    if memory.nbytes <= _RECYCLE:
        weakref.finalize(handle, _save_for_reuse, memory).atexit = False
    return torch.from_numpy(handle).view(dtype)


def _save_for_reuse(memory: NDArray[np.uint8]) -> None:
    _spare_memory[:] = [memory]


def _pad_adapters(
    base: Mapping[str, torch.Tensor],
    clients: Mapping[ClientId, Params],
    layout: Layout,
    kinds: Mapping[str, Kind] | None,
) -> tuple[Mapping[str, torch.Tensor], Mapping[ClientId, Params], Layout]:
    """Return models whose LoRA adapters all have the same ranks, and their layout.

    Args:
        base: the global model.
        clients: the clients' models.
        layout: the layout of the global model.
        kinds: of the tensors, where the layout cannot tell from the name.
    """
    shapes = []
    for model in clients.values():
        if isinstance(model, Mapping):
            tensors = {name: t for name, t in model.items() if isinstance(t, torch.Tensor)}
            shapes.append({name: tuple(tensor.shape) for name, tensor in tensors.items()})
    ranks = find_common_ranks(layout, shapes)
    padded_clients: dict[ClientId, Params] = {}
    for client, model in clients.items():
        padded_clients[client] = model
        if isinstance(model, Mapping):
            padded_clients[client] = pad_factors(model, layout, ranks)
    padded_base = pad_factors(base, layout, ranks)
    return padded_base, padded_clients, Layout.of(padded_base, kinds)


def _leaves(params: Params) -> Mapping[str, torch.Tensor]:
    return {FLAT: params} if isinstance(params, torch.Tensor) else params


def _find_mismatch(layout: Layout, leaves: object) -> str | None:
    """Return why a client's model does not fit the layout; None if it does."""
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
            if (
                leaf.tied in leaves
                and leaf.name in leaves
                and not _are_same(leaves[leaf.name], leaves[leaf.tied])
            ):
                return (
                    f"{leaf.name!r} is tied to {leaf.tied!r} in the base model but differs from it"
                )
    return reason


def _are_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() or torch.equal(a, b)


def _flatten(leaves: Sequence[Leaf], source: Mapping[str, torch.Tensor], row: torch.Tensor) -> None:
    for leaf in leaves:
        row[leaf.start : leaf.stop].copy_(source[leaf.name].detach().reshape(-1))
