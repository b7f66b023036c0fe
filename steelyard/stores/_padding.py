"""A model whose LoRA factors are read with more columns than it has: adapters of unequal ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import torch
from numpy.typing import NDArray

from steelyard.core._layout import Layout, LoraPair, find_rank_problem
from steelyard.stores._slices import Source

S = TypeVar("S", bound=Source)


class PaddedSource(Generic[S]):
    """Another source with its factors padded with zeros, and B multiplied by a scale (a `Source`).

    The products do not change by padding. Tensors that are not factors are those of the source.

    Attributes:
        source: the source.
        ranks: the rank of each adapter, by name. A factor with a higher rank stays as it is.
        scales: the factor of B, by name of the adapter; 1 if it is missing.
        dtype: the dtype of the factors; None for their own.
    """

    def __init__(
        self,
        source: S,
        layout: Layout,
        ranks: Mapping[str, int],
        scales: Mapping[str, float] | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.source = source
        self.ranks = ranks
        self.scales = scales or {}
        self.dtype = dtype
        self._pairs: dict[str, LoraPair] = {}  # by the names of both factors
        for pair in layout.pairs:
            self._pairs |= {pair.a.name: pair, pair.b.name: pair}

    @property
    def shapes(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of every tensor."""
        shapes = dict(self.source.shapes)
        for name in self._pairs.keys() & shapes.keys():
            shape, dtype = shapes[name]
            shapes[name] = (self._pad_shape(name, shape), self.dtype or dtype)
        return shapes

    def _pad_shape(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a factor with the padded rank."""
        pair = self._pairs[name]
        axis = 0 if name == pair.a.name else 1
        if len(shape) <= axis or shape[axis] >= self.ranks[pair.name]:
            return shape
        return (*shape[:axis], self.ranks[pair.name], *shape[axis + 1 :])

    def load(self, name: str) -> torch.Tensor:
        """Return one complete tensor in new memory."""
        tensor = self.source.load(name)
        pair = self._pairs.get(name)
        if pair is None:
            return tensor
        if self.dtype is not None:
            tensor = tensor.to(self.dtype)
        if name == pair.b.name and pair.name in self.scales:
            tensor = tensor * self.scales[pair.name]
        shape = self._pad_shape(name, tuple(tensor.shape))
        if shape == tuple(tensor.shape):
            return tensor
        padded = tensor.new_zeros(shape)
        padded[tuple(slice(length) for length in tensor.shape)] = tensor
        return padded

    def read(self, name: str, start: int, out: torch.Tensor) -> None:
        """Read elements of a tensor from position `start` on into `out`, cast to its dtype."""
        if name in self._pairs:
            out.copy_(self.load(name).flatten()[start : start + out.numel()])
        else:
            self.source.read(name, start, out)

    def read_bytes(self, name: str, start: int, out: memoryview) -> None:
        """Read bytes of a tensor from byte `start` on into `out`."""
        if name in self._pairs:
            values = self.load(name).flatten().view(torch.uint8).numpy()
            out[:] = values[start : start + len(out)].data
        else:
            self.source.read_bytes(name, start, out)

    def peek(self, name: str) -> NDArray[Any] | None:
        """Return the flat tensor if it is in memory and not a factor; None otherwise."""
        return None if name in self._pairs else self.source.peek(name)


def pad_to_layout(source: Source, layout: Layout) -> Source:
    """Return a source with its factors padded to the ranks of a layout, if some are smaller.

    Factors that do not form adapters stay as they are: `Layout.mismatch` says what is wrong.
    """
    shapes = source.shapes
    is_smaller = False
    for pair in layout.pairs:
        if pair.a.name not in shapes or pair.b.name not in shapes:
            return source
        shape_a = shapes[pair.a.name][0]
        shape_b = shapes[pair.b.name][0]
        if find_rank_problem(pair, shape_a, shape_b) is not None:
            return source
        is_smaller |= len(shape_a) > 1 and shape_a[0] < pair.rank
    if not is_smaller:
        return source
    return PaddedSource(source, layout, {pair.name: pair.rank for pair in layout.pairs})
