"""LoRA adapters in PEFT directories: `adapter_config.json` and `adapter_model.safetensors`.

The factors are read as they act: B is multiplied by the scale of the configuration (alpha / r, or
alpha / sqrt(r)), and both are padded with zeros to a common rank. Files are not trusted.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from steelyard.core._errors import SteelyardError, shorten
from steelyard.core._layout import Layout, LoraPair
from steelyard.core._lora import find_common_ranks
from steelyard.core._state import ClientId
from steelyard.stores._json_stream import open_regular
from steelyard.stores._padding import PaddedSource
from steelyard.stores._safetensors import Checkpoint
from steelyard.stores._slices import SliceStore, Source, layout_of

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
_MAX_CONFIG = 1_000_000  # bytes
_MAX_RANK = 1 << 16
PREFIX = "base_model.model."  # of the names of modules that PEFT wrapped

Shapes = Mapping[str, tuple[tuple[int, ...], torch.dtype]]


@dataclass(frozen=True)
class AdapterConfig:
    """What `adapter_config.json` says of the factors.

    Attributes:
        rank: r.
        alpha: lora_alpha.
        ranks: r of single modules, by a pattern of their names.
        alphas: lora_alpha of single modules.
        uses_sqrt: whether the scale is alpha / sqrt(r) (rsLoRA).
        values: the whole configuration.
    """

    rank: int
    alpha: float
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]
    uses_sqrt: bool
    values: Mapping[str, Any]

    def rank_of(self, module: str) -> int:
        """Return the rank of a module."""
        rank: int = _find_by_pattern(self.ranks, module, self.rank)
        return rank

    def scale_of(self, module: str) -> float:
        """Return the factor of the product `B A` of a module."""
        rank = self.rank_of(module)
        alpha: float = _find_by_pattern(self.alphas, module, self.alpha)
        return alpha / (math.sqrt(rank) if self.uses_sqrt else rank)


def _find_by_pattern(values: Mapping[str, Any], module: str, default: Any) -> Any:
    """Return the value of the first pattern that matches the end of a module's name."""
    for pattern, value in values.items():
        try:
            if re.fullmatch(rf"(.*\.)?({pattern})", module):
                return value
        except re.error:
            continue
    return default


def read_adapter_config(path: Path) -> AdapterConfig:
    """Read the configuration of a PEFT directory.

    Raises:
        SteelyardError: if it is missing, damaged, or not of LoRA.
    """
    file = path / CONFIG
    try:
        handle = open_regular(file)
        try:
            size = os.fstat(handle).st_size
            if size > _MAX_CONFIG:
                raise SteelyardError(f"{file}: {size} bytes, more than {_MAX_CONFIG}")
            values = json.loads(os.pread(handle, size, 0))
        finally:
            os.close(handle)
    except OSError as error:
        raise SteelyardError(f"{file}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, SteelyardError):
            raise
        raise SteelyardError(f"{file}: not valid JSON ({error})") from None
    if not isinstance(values, dict) or str(values.get("peft_type")).upper() != "LORA":
        raise SteelyardError(f"{file}: not the configuration of a LoRA adapter")
    return AdapterConfig(
        rank=_check_rank(file, "r", values.get("r")),
        alpha=_check_number(file, "lora_alpha", values.get("lora_alpha")),
        ranks={
            str(key): _check_rank(file, f"rank_pattern[{key!r}]", value)
            for key, value in _check_dict(file, "rank_pattern", values).items()
        },
        alphas={
            str(key): _check_number(file, f"alpha_pattern[{key!r}]", value)
            for key, value in _check_dict(file, "alpha_pattern", values).items()
        },
        uses_sqrt=values.get("use_rslora") is True,
        values=values,
    )


def _check_rank(file: Path, name: str, value: Any) -> int:
    if type(value) is not int or not 1 <= value <= _MAX_RANK:
        raise SteelyardError(f"{file}: {name} = {shorten(value)}: expected 1 to {_MAX_RANK}")
    return value


def _check_number(file: Path, name: str, value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < abs(value) < 1e9:
        raise SteelyardError(f"{file}: {name} = {shorten(value)}: expected a number")
    return float(value)


def _check_dict(file: Path, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    value = values.get(name) or {}
    if not isinstance(value, dict) or len(value) > 10_000:
        raise SteelyardError(f"{file}: {name} = {shorten(value)}: expected a table")
    return value


class Adapter:
    """A PEFT directory, of which any part of any tensor can be read (a `Source`)."""

    def __init__(self, path: str | os.PathLike[str], max_tensors: int = 100_000) -> None:
        self.path = Path(path)
        self.config = read_adapter_config(self.path)
        self.checkpoint = Checkpoint(self.path / WEIGHTS, max_tensors)

    @property
    def shapes(self) -> Shapes:
        """Shape and dtype of every tensor."""
        return self.checkpoint.shapes

    def check_ranks(self, layout: Layout) -> None:
        """Raise an error if a factor has another rank than the configuration says."""
        for pair in layout.pairs:
            if pair.a.name not in self.shapes:
                continue
            shape, _ = self.shapes[pair.a.name]
            rank = shape[0] if shape else 0
            expected = self.config.rank_of(_module_of(pair))
            if rank != expected:
                raise SteelyardError(
                    f"{self.path}: {pair.a.name!r} has rank {rank}, and {CONFIG} says {expected}"
                )

    def scales(self, layout: Layout) -> dict[str, float]:
        """Return the factor of the product of each adapter, by name."""
        return {pair.name: self.config.scale_of(_module_of(pair)) for pair in layout.pairs}

    def read(self, name: str, start: int, out: torch.Tensor) -> None:
        """Read elements of a tensor from position `start` on into `out`, cast to its dtype."""
        self.checkpoint.read(name, start, out)

    def read_bytes(self, name: str, start: int, out: memoryview) -> None:
        """Read bytes of a tensor from byte `start` on into `out`."""
        self.checkpoint.read_bytes(name, start, out)

    def load(self, name: str) -> torch.Tensor:
        """Return one complete tensor."""
        return self.checkpoint.load(name)

    def peek(self, name: str) -> NDArray[Any] | None:
        """Return None: the tensor is on disk."""


class ZeroModel:
    """A model of zeros: the global model where adapters are merged (a `Source`)."""

    def __init__(self, shapes: Shapes) -> None:
        self.shapes = dict(shapes)

    def read(self, name: str, start: int, out: torch.Tensor) -> None:
        """Fill `out` with zeros."""
        out.zero_()

    def read_bytes(self, name: str, start: int, out: memoryview) -> None:
        """Fill `out` with zeros."""
        out[:] = bytes(len(out))

    def load(self, name: str) -> torch.Tensor:
        """Return zeros."""
        shape, dtype = self.shapes[name]
        return torch.zeros(shape, dtype=dtype)

    def peek(self, name: str) -> NDArray[Any] | None:
        """Return None: the zeros are not in memory."""


def _module_of(pair: LoraPair) -> str:
    """Return the name of the adapted module as `adapter_config.json` writes it."""
    return pair.name.removeprefix(PREFIX)


@dataclass(frozen=True)
class AdapterStore:
    """PEFT directories, and their updates to a global model of zeros.

    Attributes:
        updates: the products as rules see them: scaled, and padded to common ranks.
        adapters: the directories that could be opened.
    """

    updates: SliceStore[Source]
    adapters: Mapping[ClientId, Adapter]


def open_adapters(directories: Mapping[ClientId, str | os.PathLike[str]]) -> AdapterStore:
    """Open PEFT directories.

    An adapter that cannot be read, or has other modules than the first one, is quarantined.

    Args:
        directories: a PEFT directory for each client.

    Raises:
        SteelyardError: if no adapter can be read.
    """
    # Open the directories.
    adapters: dict[ClientId, Adapter] = {}
    quarantined: dict[ClientId, str] = {}
    for client, path in directories.items():
        try:
            adapters[client] = Adapter(path)
        except (SteelyardError, OSError) as error:
            quarantined[client] = str(error)
    if not adapters:
        reasons = "; ".join(f"{client!r}: {reason}" for client, reason in quarantined.items())
        raise SteelyardError(f"no adapter can be read: {reasons}")

    # The largest rank of each module, over all adapters.
    first = next(iter(adapters.values()))
    layout = layout_of(first)
    shape_lists = []
    for adapter in adapters.values():
        shape_lists.append({name: shape for name, (shape, _) in adapter.shapes.items()})
    ranks = find_common_ranks(layout, shape_lists)

    # The factors as they act: scaled and padded.
    padded: dict[ClientId, Source] = {}
    for client, adapter in adapters.items():
        try:
            adapter.check_ranks(layout)
        except SteelyardError as error:
            quarantined[client] = str(error)
        scales = adapter.scales(layout)
        padded[client] = PaddedSource(adapter, layout, ranks, scales, torch.float32)

    # The first valid adapter says which tensors there are.
    valid = [source for client, source in padded.items() if client not in quarantined]
    like = valid[0] if valid else next(iter(padded.values()))
    zeros: Source = ZeroModel(like.shapes)
    return AdapterStore(SliceStore.of(zeros, padded, quarantined), adapters)
