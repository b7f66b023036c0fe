"""Client models that are read by slices, wherever they lie: in files, in messages, or some here and some there.

No row is ever whole in memory: the kernels ask for a stretch of coordinates, and every source hands in its part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard.core.client_state import ClientId, sort_key
from steelyard.core.errors import BAD_BASE, NOT_FINITE, SteelyardError
from steelyard.core.layout import Kind, Layout, Leaf
from steelyard.core.sums import are_finite


class Source(Protocol):
    """One model, of which any stretch of any tensor can be read."""

    @property
    def shapes(self) -> Mapping[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of every tensor."""

    def read(self, name: str, start: int, out: torch.Tensor) -> None:
        """Elements of a tensor from position `start` on into `out`, cast to its dtype."""

    def read_bytes(self, name: str, start: int, out: memoryview) -> None:
        """Bytes of a tensor from byte `start` on into `out`."""

    def load(self, name: str) -> torch.Tensor:
        """One whole tensor, in memory of its own."""

    def peek(self, name: str) -> NDArray[Any] | None:
        """The tensor, flat, if it lies in memory as it is."""


S = TypeVar("S", bound=Source)


@dataclass(frozen=True)
class SliceStore(Generic[S]):
    """K models and the global one. Build it with `SliceStore.of(base, {id: source, ...})`.

    Shapes are validated there; NaN and infinity are found in the first pass over the data. Either way a bad client is
    quarantined with the reason. Running statistics and counters are small and read at once. `on_read` is called with
    the number of coordinates after every read, from several threads: progress bars hang there.
    """

    layout: Layout
    source: S
    given: tuple[ClientId, ...]
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
        """Takes in the global model and every client's; those in `refused` may be missing, and are not looked at."""
        layout = layout_of(source, kinds)
        quarantined = dict(refused or {})
        given = (*clients, *(client for client in quarantined if client not in clients))
        fit: dict[ClientId, S] = {}
        for client in sorted(clients, key=sort_key):
            if client in quarantined:
                continue
            reason = layout.mismatch(clients[client].shapes)
            if reason is None:
                fit[client] = clients[client]
            else:
                quarantined[client] = reason
        store = SliceStore(layout, source, given, tuple(fit), quarantined, fit)
        statistics, own = store.stats()
        if not are_finite(own):
            raise SteelyardError(BAD_BASE)
        bad = ~torch.isfinite(statistics).all(dim=1)
        for leaf in layout.counts:
            if leaf.dtype.is_floating_point:
                bad |= torch.tensor([not are_finite(store._count(client, leaf)) for client in fit], dtype=torch.bool)
        wrong = torch.nonzero(bad).flatten().tolist()
        return store.without({store.ids[row]: NOT_FINITE for row in wrong})

    @cached_property
    def base(self) -> dict[str, torch.Tensor]:
        """The global model, loaded whole."""
        return {name: self.source.load(name) for name in self.source.shapes}

    def scratch(self, length: int) -> torch.Tensor:
        """Room for `length` coordinates of every row."""
        # A little longer than asked for: rows a power of two apart would fall on the same lines of the cache.
        return torch.empty(len(self.ids) + 1, length + 16, dtype=self.layout.row_dtype)

    def rows(self, start: int, stop: int, scratch: torch.Tensor | None) -> torch.Tensor:
        """Reads the slices and takes the global model off the clients'."""
        assert scratch is not None
        length = stop - start
        buffer = scratch.numpy()
        room = buffer.data.cast("B")  # sliced without a torch call per read: there are many
        parts = self.layout.overlapping(start, stop)

        def read(one: S, leaf: Leaf, left: int, right: int, row: int) -> None:
            if leaf.dtype == scratch.dtype:
                first = row * buffer.strides[0] + (left - start) * buffer.itemsize
                part = room[first : first + (right - left) * buffer.itemsize]
                one.read_bytes(leaf.name, (left - leaf.start) * buffer.itemsize, part)
            else:
                one.read(leaf.name, left - leaf.start, scratch[row, left - start : right - start])

        for leaf, left, right in parts:
            read(self.source, leaf, left, right, len(self.ids))
        base = buffer[len(self.ids), :length]
        for row, client in enumerate(self.ids):
            one = self.clients[client]
            for leaf, left, right in parts:
                there, here = one.peek(leaf.name), slice(left - start, right - start)
                if there is not None and leaf.dtype == scratch.dtype:
                    there = there[left - leaf.start : right - leaf.start]
                else:
                    read(one, leaf, left, right, row)
                    there = buffer[row, here]
                np.subtract(there, base[here], out=buffer[row, here])  # while it is still in the cache
        rows = scratch[:, :length]
        if self.on_read is not None:
            self.on_read(rows.numel())
        return rows

    def stats(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Running statistics of the clients and of the global model."""
        return self._stats[:-1], self._stats[-1]

    @cached_property
    def _stats(self) -> torch.Tensor:
        out = torch.empty(len(self.ids) + 1, self.layout.stat_dim, dtype=torch.float64)
        table = out.numpy()
        for row, one in enumerate([*(self.clients[client] for client in self.ids), self.source]):
            for leaf in self.layout.stats:
                there = one.peek(leaf.name)
                if there is None:
                    one.read(leaf.name, 0, out[row, leaf.start : leaf.stop])
                else:
                    table[row, leaf.start : leaf.stop] = there
        return out

    def counts(self, leaf: Leaf) -> torch.Tensor:
        """One of the clients' counters."""
        return torch.stack([self._count(client, leaf) for client in self.ids])

    def _count(self, client: ClientId, leaf: Leaf) -> torch.Tensor:
        there = self.clients[client].peek(leaf.name)
        return self.clients[client].load(leaf.name) if there is None else torch.tensor(there).view(leaf.shape)

    def base_counts(self) -> Mapping[str, torch.Tensor]:
        """The global model's counters."""
        return {leaf.name: self.source.load(leaf.name) for leaf in self.layout.counts}

    def without(self, refused: Mapping[ClientId, str]) -> SliceStore[S]:
        """The same store less these clients."""
        refused = {client: reason for client, reason in refused.items() if client in self.ids}
        if not refused:
            return self
        ids = tuple(client for client in self.ids if client not in refused)
        return replace(self, ids=ids, quarantined={**self.quarantined, **refused})


def layout_of(source: Source, kinds: Mapping[str, Kind] | None = None) -> Layout:
    """The layout of a model of which nothing is read."""
    return Layout.of(
        {name: torch.empty(shape, dtype=dtype, device="meta") for name, (shape, dtype) in source.shapes.items()}, kinds
    )
