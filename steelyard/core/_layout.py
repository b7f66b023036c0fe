"""The layout of a model: which leaves it has and how each kind is aggregated.

A leaf is one tensor of a state dict. There are three kinds:

    param   part of the Gram and of the mixture
    stat    running mean and variance of BatchNorm: averaged with the weights, not part of the
            Gram, never shrunk
    count   `num_batches_tracked` (aggregated as the maximum over clients) and every other integer
            or boolean leaf (the median over clients, which a single client cannot change), in its
            own dtype

All parameters together form one flat vector, sorted by name; so do all statistics. Files and state
dicts hold the same tensors in different orders, and the bits of a sum depend on its order.

The factors A and B of a LoRA adapter are parameters that belong together: their product counts in
the Gram and in the mixture, not the two leaves (`Layout.pairs`, and `core/_lora.py`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard.core._errors import SteelyardError, shorten

Kind = Literal["param", "stat", "count"]
Params = torch.Tensor | Mapping[str, torch.Tensor]
Granularity = str | tuple[int, ...] | tuple[str, ...]

_GRANULARITIES = '"tensor", "module", a tuple of sizes or a tuple of name patterns'
T = TypeVar("T")

# The dtypes that leaves may have, by their names in safetensors.
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
}
FLAT = "params"  # the name of the only leaf of a flat model


@dataclass(frozen=True)
class Leaf:
    """One tensor of a model.

    Attributes:
        name: the key in the state dict.
        kind: how it is aggregated: see the module's docstring.
        shape: its shape.
        dtype: its dtype.
        start: its offset in the flat vector of its kind.
        size: its number of elements; 0 if it is tied.
        tied: the name of the leaf that it shares its memory with, if any.
    """

    name: str
    kind: Kind
    shape: tuple[int, ...]
    dtype: torch.dtype
    start: int
    size: int
    tied: str | None = None

    @property
    def stop(self) -> int:
        """The offset after the last element of the leaf."""
        return self.start + self.size


@dataclass(frozen=True)
class LoraPair:
    """The two factors of a LoRA adapter: `B A` is the change of a weight.

    Attributes:
        name: the name of the adapted module.
        a: the leaf A, `[rank, inputs, ...]`.
        b: the leaf B, `[outputs, rank, ...]`.
    """

    name: str
    a: Leaf
    b: Leaf

    @property
    def rank(self) -> int:
        """The rank of the product."""
        return self.a.shape[0]

    @property
    def inputs(self) -> int:
        """The number of columns of the product."""
        return math.prod(self.a.shape[1:])

    @property
    def outputs(self) -> int:
        """The number of rows of the product."""
        return self.b.shape[0]

    @property
    def max_rank(self) -> int:
        """The largest rank that makes sense."""
        return min(self.inputs, self.outputs)


@dataclass(frozen=True)
class Layers:
    """A partition of the model into layers.

    Attributes:
        names: the names of the layers.
        spans: the parts of the parameter vector, `(start, stop, layer)`, in order. LoRA adapters
            are not in them.
        pair_layers: the layer of each LoRA adapter, in the order of `Layout.pairs`.
    """

    names: tuple[str, ...]
    spans: tuple[tuple[int, int, int], ...]
    pair_layers: tuple[int, ...] = ()

    @cached_property
    def index(self) -> NDArray[np.intp]:
        """The layer of each span."""
        return np.array([layer for _, _, layer in self.spans], dtype=np.intp)

    def layer_at(self, position: int) -> int:
        """Return the layer of this coordinate."""
        return next(layer for start, stop, layer in self.spans if start <= position < stop)


@dataclass(frozen=True)
class Layout:
    """The leaves of a model.

    Attributes:
        leaves: all leaves, in the order of the state dict.
        flat: whether the model is one 1-D tensor instead of a state dict.
    """

    leaves: tuple[Leaf, ...]
    flat: bool

    @staticmethod
    def of(base: Params, kinds: Mapping[str, Kind] | None = None) -> Layout:
        """Return the layout of a model.

        Args:
            base: the global model, a 1-D float tensor or a state dict.
            kinds: kinds by name pattern; they take precedence over the default kinds.
        """
        # A flat model has a single leaf.
        if isinstance(base, torch.Tensor):
            if base.ndim != 1 or not base.is_floating_point():
                raise SteelyardError(
                    f"base is {base.dtype} of shape {tuple(base.shape)}: pass a 1-D float tensor "
                    f"or a state dict"
                )
            leaf = Leaf(FLAT, "param", tuple(base.shape), base.dtype, 0, base.numel())
            return _check_has_params(Layout((leaf,), flat=True))

        # Check the arguments.
        if not isinstance(base, Mapping):
            raise SteelyardError(
                f"base is a {type(base).__name__}: pass a 1-D float tensor or a state dict"
            )
        if kinds is not None and not isinstance(kinds, Mapping):
            raise SteelyardError(f"kinds={kinds!r}: pass a dict from name patterns to kinds")

        # Assign offsets in the order of the names.
        offsets: dict[Kind, int] = {"param": 0, "stat": 0, "count": 0}
        tied = _find_tied_leaves(base)
        leaves: dict[str, Leaf] = {}
        for name in sorted(base):
            tensor = base[name]
            kind = _kind(name, tensor, kinds or {})
            size = 0 if name in tied else tensor.numel()
            shape = tuple(tensor.shape)
            start = offsets[kind]
            leaves[name] = Leaf(name, kind, shape, tensor.dtype, start, size, tied.get(name))
            offsets[kind] += size
        return _check_has_params(Layout(tuple(leaves[name] for name in base), flat=False))

    @cached_property
    def params(self) -> tuple[Leaf, ...]:
        """The parameters in the order of the flat vector; tied leaves appear once."""
        return self._of_kind("param")

    @cached_property
    def stats(self) -> tuple[Leaf, ...]:
        """The running statistics."""
        return self._of_kind("stat")

    @cached_property
    def counts(self) -> tuple[Leaf, ...]:
        """The counters, masks and other integer leaves."""
        return self._of_kind("count")

    @cached_property
    def pairs(self) -> tuple[LoraPair, ...]:
        """The LoRA adapters, in the order of their names."""
        return _find_pairs(self.params)

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
        """The dtype of updates: float64 if a parameter is float64, otherwise float32."""
        has_float64 = any(leaf.dtype == torch.float64 for leaf in self.params)
        return torch.float64 if has_float64 else torch.float32

    def overlapping(self, start: int, stop: int) -> list[tuple[Leaf, int, int]]:
        """Return the parameters with coordinates in `start:stop`, each with its part of that range."""
        return [
            (leaf, max(start, leaf.start), min(stop, leaf.stop))
            for leaf in self.params
            if leaf.size and leaf.start < stop and leaf.stop > start
        ]

    def add_tied_leaves(self, leaves: Mapping[str, T]) -> Mapping[str, T]:
        """Return the leaves with missing tied weights added under their first name.

        A file may hold a tied weight under its second name only.
        """
        missing = {
            leaf.tied: leaves[leaf.name]
            for leaf in self.leaves
            if leaf.tied is not None and leaf.tied not in leaves and leaf.name in leaves
        }
        return {**leaves, **missing} if missing else leaves

    def mismatch(self, shapes: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> str | None:
        """Return why a model with these shapes and dtypes does not fit; None if it fits.

        Shapes and dtypes must be equal: nothing is broadcast or cast.
        """
        # Every leaf must be there; safetensors files hold tied weights once.
        for leaf in self.leaves:
            if leaf.name not in shapes and leaf.tied is None:
                return f"missing key {leaf.name!r}"

        # Both factors of an adapter must fit each other.
        for pair in self.pairs:
            problem = find_rank_problem(pair, shapes[pair.a.name][0], shapes[pair.b.name][0])
            if problem is not None:
                return problem

        # Shapes and dtypes.
        for leaf in self.leaves:
            if leaf.name not in shapes:
                continue
            shape, dtype = shapes[leaf.name]
            if shape != leaf.shape:
                return f"{leaf.name!r} has shape {shape}, expected {leaf.shape}"
            if dtype != leaf.dtype:
                return f"{leaf.name!r} is {dtype}, expected {leaf.dtype}"

        # No other key may be there.
        extra = sorted(set(shapes) - {leaf.name for leaf in self.leaves}, key=str)
        return f"unexpected key {extra[0]!r}" if extra else None

    def layers(self, granularity: Granularity | None) -> Layers:
        """Return the partition of the parameter vector into layers.

        Args:
            granularity: `None` for the whole model; `"tensor"` for one layer per leaf; `"module"`
                for one layer per module (`conv1.weight` and `conv1.bias` together); a tuple of
                sizes to cut a flat vector; a tuple of name patterns to group leaves (leaves that
                match no pattern form the layer `rest`).
        """
        # The whole model.
        if granularity is None and not self.pairs:
            return Layers((FLAT,), ((0, self.dim, 0),))
        if (
            isinstance(granularity, tuple)
            and granularity
            and all(isinstance(size, int) for size in granularity)
        ):
            return self._by_sizes(tuple(int(size) for size in granularity))

        # Label every parameter with its layer; both factors of an adapter have the same label.
        module_by_leaf: dict[str, str] = {}
        for pair in self.pairs:
            module_by_leaf |= {pair.a.name: pair.name, pair.b.name: pair.name}
        labels = []
        for leaf in self.params:
            labels.append(_label(leaf.name, module_by_leaf.get(leaf.name), granularity))

        # Neighbours of the same layer form one span; adapters are in none.
        names = tuple(dict.fromkeys(labels))
        spans: list[tuple[int, int, int]] = []
        layer_by_module = {}
        for leaf, label in zip(self.params, labels, strict=True):
            layer = names.index(label)
            if leaf.name in module_by_leaf:
                layer_by_module[module_by_leaf[leaf.name]] = layer
            elif spans and spans[-1][2] == layer and spans[-1][1] == leaf.start:
                spans[-1] = (spans[-1][0], leaf.stop, layer)
            else:
                spans.append((leaf.start, leaf.stop, layer))
        pair_layers = tuple(layer_by_module[pair.name] for pair in self.pairs)
        return Layers(names, tuple(spans), pair_layers)

    def all_spans(self, layers: Layers) -> list[tuple[int, int, int]]:
        """Return the spans of all parameters, with the factors of adapters as ordinary leaves."""
        spans = list(layers.spans)
        for pair, layer in zip(self.pairs, layers.pair_layers, strict=True):
            spans += [(leaf.start, leaf.stop, layer) for leaf in (pair.a, pair.b)]
        return sorted(spans)

    def stat_layer(self, leaf: Leaf, layers: Layers) -> int | None:
        """Return the layer whose weights a statistic uses: that of its module's first parameter.

        Return None if the module has no parameters.
        """
        module = _module(leaf.name)
        for param in self.params:
            if param.size and _module(param.name) == module:
                return layers.layer_at(param.start)
        return None

    def _by_sizes(self, sizes: tuple[int, ...]) -> Layers:
        """Return consecutive layers of these sizes, for a flat model."""
        if not self.flat:
            raise SteelyardError(
                f'layers={sizes}: sizes are for a flat tensor; for a state dict use name patterns or "tensor"'
            )
        if sum(sizes) != self.dim or min(sizes) < 1:
            raise SteelyardError(
                f"layers={sizes}: use positive sizes that add up to {self.dim}, the number of "
                f"parameters"
            )
        stops = np.cumsum(sizes).tolist()
        starts = [0, *stops[:-1]]
        spans = tuple(
            (start, stop, i) for i, (start, stop) in enumerate(zip(starts, stops, strict=True))
        )
        return Layers(tuple(f"{start}:{stop}" for start, stop, _ in spans), spans)


def check_granularity(layers: object) -> None:
    """Raise an error if `layers` is not a valid granularity for any model."""
    is_word = layers in ("tensor", "module")
    is_tuple = isinstance(layers, tuple) and len(layers) > 0
    items = layers if isinstance(layers, tuple) else ()
    are_sizes = is_tuple and all(type(size) is int and size > 0 for size in items)
    are_patterns = is_tuple and all(isinstance(name, str) and name for name in items)
    if not is_word and not are_sizes and not are_patterns:
        raise SteelyardError(f"layers={shorten(layers)}: use {_GRANULARITIES}")


def _check_has_params(layout: Layout) -> Layout:
    """Return the layout; raise an error if it has no parameters."""
    if not layout.dim:
        raise SteelyardError("base holds no float parameter: there is nothing to aggregate")
    return layout


def _find_tied_leaves(base: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Return the leaves that share their memory with an earlier leaf (by name), and its name."""
    first_names: dict[tuple[object, ...], str] = {}
    tied: dict[str, str] = {}
    for name in sorted(base):
        tensor = base[name]
        if not isinstance(tensor, torch.Tensor):
            raise SteelyardError(
                f"base[{name!r}] is a {type(tensor).__name__}, not a tensor: leave it out of the "
                f"state dict"
            )
        if tensor.is_complex():
            raise SteelyardError(
                f"base[{name!r}] is {tensor.dtype}: store real and imaginary parts as two tensors"
            )
        if tensor.dtype not in DTYPES.values():
            raise SteelyardError(
                f"base[{name!r}] is {tensor.dtype}, which cannot be aggregated: convert it first"
            )
        # Tensors without memory (empty, or on the meta device) have the address 0 and are not tied.
        if not tensor.data_ptr():
            continue
        memory = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride())
        first = first_names.setdefault(memory, name)
        if first != name:
            tied[name] = first
    return tied


def _kind(name: str, tensor: torch.Tensor, kinds: Mapping[str, Kind]) -> Kind:
    """Return the kind of a leaf: that of the first matching pattern, otherwise the default."""
    for pattern, kind in kinds.items():
        if fnmatchcase(name, pattern):
            if kind not in ("param", "stat", "count"):
                raise SteelyardError(
                    f'kinds[{pattern!r}] is {kind!r}: use "param", "stat" or "count"'
                )
            if kind != "count" and not tensor.is_floating_point():
                raise SteelyardError(
                    f"kinds[{pattern!r}] = {kind!r}, but {name!r} is {tensor.dtype}: only floats "
                    f"can be averaged"
                )
            return kind
    last = name.rpartition(".")[2]
    if not tensor.is_floating_point() or last == "num_batches_tracked":
        return "count"
    return "stat" if last in ("running_mean", "running_var") else "param"


def _module(name: str) -> str:
    """Return the name of the module that a leaf belongs to."""
    return name.rpartition(".")[0] or name


def _label(name: str, adapted_module: str | None, granularity: Granularity | None) -> str:
    """Return the layer of a parameter.

    Args:
        name: the name of the leaf.
        adapted_module: the module that the leaf adapts, if it is a factor of a LoRA adapter.
        granularity: what a layer is.
    """
    if granularity is None:
        return FLAT
    if granularity == "tensor":
        return adapted_module or name
    if granularity == "module":
        return adapted_module or _module(name)
    if isinstance(granularity, tuple) and granularity:
        return _first_match(name, [str(pattern) for pattern in granularity])
    raise SteelyardError(f"layers={shorten(granularity)}: use {_GRANULARITIES}")


# `layer.lora_A.weight`, `layer.lora_A.default.weight`, `layer.lora_embedding_A`, ...
_LORA = re.compile(r"(?P<module>.+)\.lora_(?P<kind>|embedding_)(?P<factor>[AB])(?P<rest>|\..+)")


def is_lora_factor(name: str) -> bool:
    """Return whether a tensor of this name is a factor of a LoRA adapter."""
    return _LORA.fullmatch(name) is not None


def _find_pairs(leaves: Sequence[Leaf]) -> tuple[LoraPair, ...]:
    """Return the LoRA adapters among the leaves.

    Raises:
        SteelyardError: if a factor has no counterpart, or their shapes do not fit.
    """
    by_name = {leaf.name: leaf for leaf in leaves}
    pairs = []
    for leaf in leaves:
        match = _LORA.fullmatch(leaf.name)
        if match is None:
            continue
        other_factor = "B" if match["factor"] == "A" else "A"
        prefix = f"{match['module']}.lora_{match['kind']}"
        other = by_name.get(f"{prefix}{other_factor}{match['rest']}")
        if other is None:
            raise SteelyardError(
                f"{leaf.name!r} is a factor of a LoRA adapter, and the other one is missing: "
                "keep both, or rename the leaf"
            )
        if match["factor"] == "B":
            continue
        pair = LoraPair(f"{match['module']}{match['rest'].removesuffix('.weight')}", leaf, other)
        if len(leaf.shape) < 2 or len(other.shape) < 2 or other.shape[1] != pair.rank:
            raise SteelyardError(
                f"{leaf.name!r} has shape {leaf.shape} and {other.name!r} {other.shape}: the "
                "factors of a LoRA adapter are [rank, inputs] and [outputs, rank]"
            )
        if math.prod(other.shape[2:]) != 1:
            raise SteelyardError(
                f"{other.name!r} has shape {other.shape}, expected [outputs, rank, 1, 1]"
            )
        pairs.append(pair)
    return tuple(pairs)


def find_rank_problem(pair: LoraPair, shape_a: Sequence[int], shape_b: Sequence[int]) -> str | None:
    """Return why two factors of a client do not form an adapter; None if they do."""
    if len(shape_a) != len(pair.a.shape) or len(shape_b) != len(pair.b.shape):
        return None  # the shapes are wrong in another way
    if shape_a[0] < 1:
        return f"adapter {pair.name!r} has rank 0"
    if shape_a[0] != shape_b[1]:
        return f"adapter {pair.name!r} has A of rank {shape_a[0]} and B of rank {shape_b[1]}"
    if shape_a[0] > max(pair.max_rank, pair.rank):
        return (
            f"adapter {pair.name!r} has rank {shape_a[0]}, more than {pair.max_rank}, the size of "
            "its weight"
        )
    return None


def _first_match(name: str, patterns: Sequence[str]) -> str:
    """Return the first pattern that matches the name, otherwise `rest`."""
    return next((pattern for pattern in patterns if fnmatchcase(name, pattern)), "rest")
