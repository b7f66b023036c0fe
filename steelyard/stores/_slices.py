"""Client models that are read by slices, wherever they are: in files, in messages, or in both.

No complete row is ever in memory: the kernels ask for a range of coordinates, and every source
reads its part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard.core._errors import BAD_BASE, NOT_FINITE, SteelyardError
from steelyard.core._layout import Kind, Layout, Leaf
from steelyard.core._state import ClientId, sort_key
from steelyard.core._sums import are_finite


class Source(Protocol):
    """One model, of which any part of any tensor can be read."""

    @property
    def shapes(self) -> Mapping[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of every tensor."""

    def read(self, name: str, start: int, out: torch.Tensor) -> None:
        """Read elements of a tensor from position `start` on into `out`, cast to its dtype."""

    def read_bytes(self, name: str, start: int, out: memoryview) -> None:
        """Read bytes of a tensor from byte `start` on into `out`."""

    def load(self, name: str) -> torch.Tensor:
        """Return one complete tensor in new memory."""

    def peek(self, name: str) -> NDArray[Any] | None:
        """Return the flat tensor if it is in memory; None otherwise."""


S = TypeVar("S", bound=Source)


@dataclass(frozen=True)
class SliceStore(Generic[S]):
    """K models and the global one. Build it with `SliceStore.of(base, {id: source, ...})`.

    `SliceStore.of` validates shapes; NaN and infinity are found in the first pass over the data. In
    both cases a bad client is quarantined with the reason. Running statistics and counters are
    small and read at once. `on_read` is called with the number of coordinates after every read,
    from several threads; it is for progress bars.
    """

    layout: Layout
    source: S
    all_ids: tuple[ClientId, ...]
    ids: tuple[ClientId, ...]
    quarantined: Mapping[ClientId, str]
    clients: Mapping[ClientId, S]
    on_read: Callable[[int], None] | None = None

    @staticmethod
    def of(
        source: S,
        clients: Mapping[ClientId, S],
        refused: Mapping[ClientId, str] | None = None,
        kinds: Mapping[str, Kind] | None = None,
    ) -> SliceStore[S]:
        """Build a store from the global model and those of the clients.

        Args:
            source: the global model.
            clients: a source for each client.
            refused: clients to quarantine, with the reason; they are not read and may be missing.
            kinds: of the tensors, where the layout cannot tell from the name.
        """
        layout = layout_of(source, kinds)

        # Quarantine clients with other tensors than the global model.
        quarantined = dict(refused or {})
        all_ids = (*clients, *(client for client in quarantined if client not in clients))
        accepted: dict[ClientId, S] = {}
        for client in sorted(clients, key=sort_key):
            if client in quarantined:
                continue
            reason = layout.mismatch(clients[client].shapes)
            if reason is None:
                accepted[client] = clients[client]
            else:
                quarantined[client] = reason
        store = SliceStore(layout, source, all_ids, tuple(accepted), quarantined, accepted)

        # Quarantine clients whose statistics or counters are not finite.
        statistics, base_statistics = store.stats()
        if not are_finite(base_statistics):
            raise SteelyardError(BAD_BASE)
        is_bad = ~torch.isfinite(statistics).all(dim=1)
        for leaf in layout.counts:
            if leaf.dtype.is_floating_point:
                bad_counts = [not are_finite(store._count(client, leaf)) for client in accepted]
                is_bad |= torch.tensor(bad_counts, dtype=torch.bool)
        bad_rows = torch.nonzero(is_bad).flatten().tolist()
        return store.without({store.ids[row]: NOT_FINITE for row in bad_rows})

    @cached_property
    def base(self) -> dict[str, torch.Tensor]:
        """The global model, loaded completely."""
        return {name: self.source.load(name) for name in self.source.shapes}

    def scratch(self, length: int) -> torch.Tensor:
        """Return a buffer for `length` coordinates of every row."""
        # A little longer than necessary: rows a power of two apart would share the same cache
        # lines.
        return torch.empty(len(self.ids) + 1, length + 16, dtype=self.layout.row_dtype)

    def rows(self, start: int, stop: int, scratch: torch.Tensor | None) -> torch.Tensor:
        """Read the slices and subtract the global model from those of the clients."""
        assert scratch is not None
        length = stop - start
        buffer = scratch.numpy()
        raw = buffer.data.cast("B")  # sliced without a torch call per read: there are many reads
        parts = self.layout.overlapping(start, stop)

        def read(model: S, leaf: Leaf, low: int, high: int, row: int) -> None:
            """Read the coordinates from `low` to `high` of a model into a row of the buffer."""
            if leaf.dtype == scratch.dtype:
                first = row * buffer.strides[0] + (low - start) * buffer.itemsize
                part = raw[first : first + (high - low) * buffer.itemsize]
                model.read_bytes(leaf.name, (low - leaf.start) * buffer.itemsize, part)
            else:
                model.read(leaf.name, low - leaf.start, scratch[row, low - start : high - start])

        # The global model is the last row.
        for leaf, low, high in parts:
            read(self.source, leaf, low, high, len(self.ids))
        base = buffer[len(self.ids), :length]

        # The updates of the clients.
        for row, client in enumerate(self.ids):
            model = self.clients[client]
            for leaf, low, high in parts:
                columns = slice(low - start, high - start)
                values = model.peek(leaf.name)
                if values is not None and leaf.dtype == scratch.dtype:
                    values = values[low - leaf.start : high - leaf.start]
                else:
                    read(model, leaf, low, high, row)
                    values = buffer[row, columns]
                np.subtract(
                    values, base[columns], out=buffer[row, columns]
                )  # while it is in the cache
        rows = scratch[:, :length]
        if self.on_read is not None:
            self.on_read(rows.numel())
        return rows

    def stats(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the running statistics of the clients and of the global model."""
        return self._stats[:-1], self._stats[-1]

    @cached_property
    def _stats(self) -> torch.Tensor:
        """The running statistics `[K+1, s]`, with the global model in the last row."""
        out = torch.empty(len(self.ids) + 1, self.layout.stat_dim, dtype=torch.float64)
        table = out.numpy()
        models = [*(self.clients[client] for client in self.ids), self.source]
        for row, model in enumerate(models):
            for leaf in self.layout.stats:
                values = model.peek(leaf.name)
                if values is None:
                    model.read(leaf.name, 0, out[row, leaf.start : leaf.stop])
                else:
                    table[row, leaf.start : leaf.stop] = values
        return out

    def counts(self, leaf: Leaf) -> torch.Tensor:
        """Return one counter of all clients."""
        return torch.stack([self._count(client, leaf) for client in self.ids])

    def _count(self, client: ClientId, leaf: Leaf) -> torch.Tensor:
        """Return one counter of a client."""
        values = self.clients[client].peek(leaf.name)
        if values is None:
            return self.clients[client].load(leaf.name)
        return torch.tensor(values).view(leaf.shape)

    def base_counts(self) -> Mapping[str, torch.Tensor]:
        """Return the counters of the global model."""
        return {leaf.name: self.source.load(leaf.name) for leaf in self.layout.counts}

    def without(self, refused: Mapping[ClientId, str]) -> SliceStore[S]:
        """Return the store without these clients, quarantined with the reason."""
        refused = {client: reason for client, reason in refused.items() if client in self.ids}
        if not refused:
            return self
        ids = tuple(client for client in self.ids if client not in refused)
        return replace(self, ids=ids, quarantined={**self.quarantined, **refused})


def layout_of(source: Source, kinds: Mapping[str, Kind] | None = None) -> Layout:
    """Return the layout of a model without reading its tensors."""
    tensors = {}
    for name, (shape, dtype) in source.shapes.items():
        tensors[name] = torch.empty(shape, dtype=dtype, device="meta")
    return Layout.of(tensors, kinds)
