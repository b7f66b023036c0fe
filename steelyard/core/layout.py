"""What the leaves of a model are, decided once.

Leaves of a state dict are not all alike:

    param   in the Gram and in the mixture
    stat    BatchNorm running mean and variance: averaged with the weights, not in the Gram, never shrunk
    count   `num_batches_tracked` (the most of any client) and every other integer or boolean leaf (what half the
            clients reach: one of them changes nothing), in its own dtype

Parameters are thought of as one flat vector, in the order of their names, statistics as another: files and state
dicts hold the same tensors in different orders, and the order of a sum is part of its bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard.core.errors import SteelyardError, shorten

Kind = Literal["param", "stat", "count"]
Params = torch.Tensor | Mapping[str, torch.Tensor]
Granularity = str | tuple[int, ...] | tuple[str, ...]

_CUTS = '"tensor", "module", a tuple of sizes or a tuple of name patterns'
T = TypeVar("T")

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}  # what leaves may be, by the names that safetensors has for them
FLAT = "params"  # the name of the only leaf of a flat model


@dataclass(frozen=True)
class Leaf:
    """One tensor of a model: `start` is its offset in the flat vector of its kind, `tied` the leaf it repeats."""

    name: str
    kind: Kind
    shape: tuple[int, ...]
    dtype: torch.dtype
    start: int
    size: int
    tied: str | None = None

    @property
    def stop(self) -> int:
        """The offset just past the leaf."""
        return self.start + self.size


@dataclass(frozen=True)
class Layers:
    """A partition of the parameter vector: `spans` are `(start, stop, layer)` in order."""

    names: tuple[str, ...]
    spans: tuple[tuple[int, int, int], ...]

    @cached_property
    def index(self) -> NDArray[np.intp]:
        """The layer of each span."""
        return np.array([layer for _, _, layer in self.spans], dtype=np.intp)

    def layer_at(self, position: int) -> int:
        """The layer that holds this coordinate."""
        return next(layer for start, stop, layer in self.spans if start <= position < stop)


@dataclass(frozen=True)
class Layout:
    """The leaves of a model, listed in the order of its state dict; `flat` if the model is one 1-D tensor."""

    leaves: tuple[Leaf, ...]
    flat: bool

    @staticmethod
    def of(base: Params, kinds: Mapping[str, Kind] | None = None) -> Layout:
        """Reads the layout off the global model; `kinds` maps name patterns to kinds and overrides the default."""
        if isinstance(base, torch.Tensor):
            if base.ndim != 1 or not base.is_floating_point():
                raise SteelyardError(
                    f"base must be a 1-D float tensor or a state dict, found {base.dtype} of shape {tuple(base.shape)}"
                )
            return _filled(Layout((Leaf(FLAT, "param", tuple(base.shape), base.dtype, 0, base.numel()),), flat=True))
        if not isinstance(base, Mapping):
            raise SteelyardError(f"base is a {type(base).__name__}: pass a 1-D float tensor or a state dict")
        if kinds is not None and not isinstance(kinds, Mapping):
            raise SteelyardError(f"kinds={kinds!r}: pass a dict from name patterns to kinds")
        offsets: dict[Kind, int] = {"param": 0, "stat": 0, "count": 0}
        tied = _ties(base)
        leaves: dict[str, Leaf] = {}
        for name in sorted(base):
            tensor = base[name]
            kind = _kind(name, tensor, kinds or {})
            size = 0 if name in tied else tensor.numel()
            leaves[name] = Leaf(name, kind, tuple(tensor.shape), tensor.dtype, offsets[kind], size, tied.get(name))
            offsets[kind] += size
        return _filled(Layout(tuple(leaves[name] for name in base), flat=False))

    @cached_property
    def params(self) -> tuple[Leaf, ...]:
        """The leaves that are parameters, tied ones once, in the order of the flat vector."""
        return self._of_kind("param")

    @cached_property
    def stats(self) -> tuple[Leaf, ...]:
        """The leaves that are running statistics."""
        return self._of_kind("stat")

    @cached_property
    def counts(self) -> tuple[Leaf, ...]:
        """The leaves that are counters, masks or other integers."""
        return self._of_kind("count")

    def _of_kind(self, kind: Kind) -> tuple[Leaf, ...]:
        own = [leaf for leaf in self.leaves if leaf.kind == kind and leaf.tied is None]
        return tuple(sorted(own, key=lambda leaf: leaf.name))

    @cached_property
    def dim(self) -> int:
        """Length of the parameter vector."""
        return sum(leaf.size for leaf in self.params)

    @cached_property
    def stat_dim(self) -> int:
        """Length of the vector of statistics."""
        return sum(leaf.size for leaf in self.stats)

    @cached_property
    def row_dtype(self) -> torch.dtype:
        """What updates are held and added in: float32, or float64 if a parameter is. Never half precision."""
        wide = any(leaf.dtype == torch.float64 for leaf in self.params)
        return torch.float64 if wide else torch.float32

    def overlapping(self, start: int, stop: int) -> list[tuple[Leaf, int, int]]:
        """The parameters that have coordinates in `start:stop`, and from where to where."""
        return [
            (leaf, max(start, leaf.start), min(stop, leaf.stop))
            for leaf in self.params
            if leaf.size and leaf.start < stop and leaf.stop > start
        ]

    def completed(self, leaves: Mapping[str, T]) -> Mapping[str, T]:
        """A model that holds a tied weight under its other name alone, as files may, with the one looked for too."""
        missing = {
            leaf.tied: leaves[leaf.name]
            for leaf in self.leaves
            if leaf.tied is not None and leaf.tied not in leaves and leaf.name in leaves
        }
        return {**leaves, **missing} if missing else leaves

    def mismatch(self, shapes: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> str | None:
        """Why a client of these shapes and dtypes does not fit, or None if it does. No broadcasting, no casting."""
        for leaf in self.leaves:
            if leaf.name not in shapes:
                if leaf.tied is not None:
                    continue  # safetensors files hold tied weights once
                return f"missing key {leaf.name!r}"
            shape, dtype = shapes[leaf.name]
            if shape != leaf.shape:
                return f"{leaf.name!r} has shape {shape}, expected {leaf.shape}"
            if dtype != leaf.dtype:
                return f"{leaf.name!r} is {dtype}, expected {leaf.dtype}"
        extra = sorted(set(shapes) - {leaf.name for leaf in self.leaves}, key=str)
        return f"unexpected key {extra[0]!r}" if extra else None

    def layers(self, granularity: Granularity | None) -> Layers:
        """The parameter vector cut into layers.

        `None` is the whole model; `"tensor"` one layer per leaf; `"module"` one per module (`conv1.weight` and
        `conv1.bias` together); a tuple of sizes cuts the flat vector; a tuple of name patterns groups the leaves
        (what no pattern matches forms the layer `rest`).
        """
        if granularity is None:
            return Layers((FLAT,), ((0, self.dim, 0),))
        if isinstance(granularity, tuple) and granularity and all(isinstance(size, int) for size in granularity):
            return self._by_sizes(tuple(int(size) for size in granularity))
        if granularity == "tensor":
            labels = [leaf.name for leaf in self.params]
        elif granularity == "module":
            labels = [_module(leaf.name) for leaf in self.params]
        elif isinstance(granularity, tuple) and granularity:
            labels = [_first_match(leaf.name, [str(pattern) for pattern in granularity]) for leaf in self.params]
        else:
            raise SteelyardError(f"layers={shorten(granularity)}: use {_CUTS}")
        names = tuple(dict.fromkeys(labels))
        spans: list[tuple[int, int, int]] = []
        for leaf, label in zip(self.params, labels, strict=True):
            layer = names.index(label)
            if spans and spans[-1][2] == layer and spans[-1][1] == leaf.start:
                spans[-1] = (spans[-1][0], leaf.stop, layer)  # neighbours of one layer are one span
            else:
                spans.append((leaf.start, leaf.stop, layer))
        return Layers(names, tuple(spans))

    def stat_layer(self, leaf: Leaf, layers: Layers) -> int | None:
        """The layer whose weights a statistic follows: that of its module's parameters, if it has any."""
        module = _module(leaf.name)
        sibling = next((other for other in self.params if _module(other.name) == module and other.size), None)
        return None if sibling is None else layers.layer_at(sibling.start)

    def _by_sizes(self, sizes: tuple[int, ...]) -> Layers:
        if not self.flat:
            raise SteelyardError(f'layers={sizes}: sizes cut a flat tensor; for a state dict use names or "tensor"')
        if sum(sizes) != self.dim or min(sizes) < 1:
            raise SteelyardError(f"layers={sizes}: sizes must be positive and add up to the {self.dim} parameters")
        stops = np.cumsum(sizes).tolist()
        starts = [0, *stops[:-1]]
        spans = tuple((start, stop, i) for i, (start, stop) in enumerate(zip(starts, stops, strict=True)))
        return Layers(tuple(f"{start}:{stop}" for start, stop, _ in spans), spans)


def check_granularity(layers: object) -> None:
    """Refuse what does not say how to cut any model into layers."""
    names = layers in ("tensor", "module")
    is_tuple = isinstance(layers, tuple) and len(layers) > 0
    sizes = is_tuple and all(type(size) is int and size > 0 for size in layers)  # type: ignore[attr-defined]
    patterns = is_tuple and all(isinstance(name, str) and name for name in layers)  # type: ignore[attr-defined]
    if not names and not sizes and not patterns:
        raise SteelyardError(f"layers={shorten(layers)}: use {_CUTS}")


def _filled(layout: Layout) -> Layout:
    if not layout.dim:
        raise SteelyardError("base holds no float parameter: there is nothing to weigh")
    return layout


def _ties(base: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Leaves that share all their memory with one of an earlier name, and that name."""
    seen: dict[tuple[object, ...], str] = {}
    tied: dict[str, str] = {}
    for name in sorted(base):
        tensor = base[name]
        if not isinstance(tensor, torch.Tensor):
            raise SteelyardError(
                f"base[{name!r}] is a {type(tensor).__name__}, not a tensor: leave it out of the state dict"
            )
        if tensor.is_complex():
            raise SteelyardError(f"base[{name!r}] is {tensor.dtype}: store real and imaginary parts as two tensors")
        if tensor.dtype not in DTYPES.values():
            raise SteelyardError(f"base[{name!r}] is {tensor.dtype}, which cannot be added up: convert it first")
        # Tensors without memory (empty, or on the meta device) all have the address 0: they are not tied.
        first = (
            seen.setdefault((tensor.data_ptr(), tuple(tensor.shape), tensor.stride()), name)
            if tensor.data_ptr()
            else name
        )
        if first != name:
            tied[name] = first
    return tied


def _kind(name: str, tensor: torch.Tensor, kinds: Mapping[str, Kind]) -> Kind:
    for pattern, kind in kinds.items():
        if fnmatchcase(name, pattern):
            if kind not in ("param", "stat", "count"):
                raise SteelyardError(f'kinds[{pattern!r}] is {kind!r}: use "param", "stat" or "count"')
            if kind != "count" and not tensor.is_floating_point():
                raise SteelyardError(
                    f"kinds[{pattern!r}] = {kind!r}, but {name!r} is {tensor.dtype}: only floats can be averaged"
                )
            return kind
    last = name.rpartition(".")[2]
    if not tensor.is_floating_point() or last == "num_batches_tracked":
        return "count"
    return "stat" if last in ("running_mean", "running_var") else "param"


def _module(name: str) -> str:
    return name.rpartition(".")[0] or name


def _first_match(name: str, patterns: Sequence[str]) -> str:
    return next((pattern for pattern in patterns if fnmatchcase(name, pattern)), "rest")
