"""Merges LoRA adapters: PEFT directories in, a PEFT directory out."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from steelyard._version import __version__
from steelyard.api import Metrics
from steelyard.core import _round as rounds
from steelyard.core._errors import SteelyardError
from steelyard.core._evidence import part_needing_proxy_data
from steelyard.core._gram import Array
from steelyard.core._layout import DTYPES, Layout, Leaf, LoraPair
from steelyard.core._lora import LoraOutput, parse_lora
from steelyard.core._spec import to_text
from steelyard.core._state import ClientId
from steelyard.core._weighting import Weighting
from steelyard.metrics import find_invalid_clients, metric_table
from steelyard.rules._combinators import parse_rule, with_default_source
from steelyard.stores._adapters import CONFIG, PREFIX, WEIGHTS, Adapter, open_adapters
from steelyard.stores._memory import cast_to_leaf
from steelyard.stores._staging import Staging

_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class AdapterMerge:
    """A merge of LoRA adapters: the constructor opens the directories, `run` merges.

    Rules see the products of the factors, and the products are averaged, not the factors.

    Args:
        adapters: PEFT directories by id, or in a list.
        rule: a rule or its spec string; by default `fedavg` if sizes are given, or else `uniform`.
            Without sizes, a rule that adapts weights starts from equal ones.
        lora: `stack` (exact; ranks add up), or `svd:16` (the best approximation of rank 16), or
            `factors` (mean factors).
        metrics: values that are known of the adapters, such as `num_examples`.
        allow_partial: whether to leave out adapters that cannot be merged instead of raising an
            error.
    """

    def __init__(
        self,
        adapters: Mapping[ClientId, str | os.PathLike[str]] | Sequence[str | os.PathLike[str]],
        rule: str | Weighting | None = None,
        *,
        lora: str = "stack",
        metrics: Metrics | None = None,
        allow_partial: bool = False,
    ) -> None:
        directories: dict[ClientId, str | os.PathLike[str]]
        if isinstance(adapters, Mapping):
            directories = dict(adapters)
        else:
            directories = {str(path): path for path in adapters}
        self.lora = parse_lora(lora)
        if self.lora.kind == "residual":
            raise SteelyardError(
                "lora=residual: a directory of adapters cannot hold what is to be added to the "
                "base model: use lora=stack"
            )
        self.allow_partial = allow_partial

        # The directories.
        opened = open_adapters(directories)
        self.adapters = opened.adapters
        self._check_clients(opened.updates.quarantined)

        # The rule. Without sizes, adapters start with equal weights.
        self.table = metric_table(metrics, tuple(directories))
        has_sizes = "num_examples" in self.table
        self.rule = _choose_rule(rule, has_sizes)
        self.root = with_default_source(self.rule)
        if self.root.needs.probe:
            raise SteelyardError(
                f"{part_needing_proxy_data(self.root)} needs proxy data, which a merge does not "
                "have: use another rule"
            )
        store = opened.updates
        self.store = store.without(find_invalid_clients(self.root, self.table, store.ids))
        self._check_clients(self.store.quarantined)

    def run(self, out: str | os.PathLike[str], *, force: bool = False) -> rounds.Outcome:
        """Write the merged adapter to the directory `out`, atomically.

        Args:
            out: the directory to write.
            force: whether to replace an existing directory.

        Returns:
            The outcome: weights, and a report with the error of each module.
        """
        path = Path(out)
        if os.path.lexists(path) and not force:
            raise SteelyardError(f"{path} exists: choose another name, or replace it (force=True)")
        job = rounds.Round(self.table, {}, 1, diagnose=True, lora=self.lora, record_layers="module")
        metadata = {
            "format": "pt",
            "merged_by": f"steelyard {__version__}",
            "rule": to_text(self.rule),
            "lora": str(self.lora),
        }
        accepted = [self.adapters[client] for client in self.store.ids]
        with AdapterSink(path, self.store.layout, accepted, self.lora, metadata, force) as sink:
            outcome = rounds.run(self.root, self.store, job, sink)
            if outcome.void:
                raise SteelyardError(f"nothing is written: {outcome.report['void']}")
            self._check_clients(outcome.store.quarantined)
        return outcome

    def _check_clients(self, quarantined: Mapping[ClientId, str]) -> None:
        """Raise an error if adapters are quarantined, unless `allow_partial` is set."""
        if not quarantined or self.allow_partial:
            return
        reasons = [f"{client!r}: {reason}" for client, reason in list(quarantined.items())[:5]]
        raise SteelyardError(
            f"{'; '.join(reasons)}. Nothing is written: correct this, or pass allow_partial=True "
            "to leave these adapters out"
        )


def _choose_rule(rule: str | Weighting | None, has_sizes: bool) -> Weighting:
    """Return the rule of a merge: without sizes, one that starts from equal weights.

    Args:
        rule: the rule that the user gave, if any.
        has_sizes: whether the number of examples of each adapter is known.
    """
    if rule is None:
        return parse_rule("fedavg" if has_sizes else "uniform")
    parsed = parse_rule(rule)
    needed = with_default_source(parsed).needs.metrics
    if has_sizes or "num_examples" not in needed:
        return parsed
    text = to_text(parsed)
    try:
        return parse_rule(f"uniform|{text}")
    except SteelyardError:
        raise SteelyardError(
            f"{text} needs the number of examples of each adapter: give "
            "metrics={'num_examples': ...} (--metrics FILE), or use uniform"
        ) from None


@dataclass(frozen=True)
class MergeSummary:
    """What a merge of adapters did, and whether they fit together.

    Attributes:
        ids: the adapters.
        weights: their weights, means over modules, `[K]`.
        norms: the norms of their products over all modules, `[K]`.
        cosines: the cosines between them, `[K, K]`.
        modules: the names of the modules.
        module_norms: the norms of the products of each module, `[modules, K]`.
        effective: one divided by the sum of squared shares of the weights.
        length: the norm of the exact merge, as a multiple of the mean norm of the adapters.
        errors: the distance of what was written from the exact merge, as a share of the exact
            merge, by module.
        error: the same of all modules together.
    """

    ids: tuple[ClientId, ...]
    weights: Array
    norms: Array
    cosines: Array
    modules: tuple[str, ...]
    module_norms: Array
    effective: float
    length: float
    errors: Mapping[str, float]
    error: float

    @property
    def mean_cosine(self) -> float:
        """The mean cosine over pairs of adapters; 1 for a single one."""
        count = len(self.ids)
        if count == 1:
            return 1.0
        return float((self.cosines.sum() - np.trace(self.cosines)) / (count * (count - 1)))


def summarize_merge(outcome: rounds.Outcome) -> MergeSummary:
    """Return the summary of a merge from what `AdapterMerge.run` returned."""
    assert outcome.round_gram is not None
    gram = outcome.round_gram.whole
    layers = outcome.round_gram.grams["module"]
    weights = np.broadcast_to(outcome.weights, layers.gram.norms.shape)
    steps = layers.gram.mixture_sq_norm(weights)  # of the exact merge, by module
    errors = {str(name): float(value) for name, value in outcome.report["lora_error"].items()}
    error_by_module = np.array([errors.get(name, 0.0) for name in layers.names])
    total = float(steps.sum())
    means = outcome.weights.mean(axis=0)
    shares = np.abs(means) / np.abs(means).sum()
    mean_norm = float(gram.norms[0].mean())
    return MergeSummary(
        ids=outcome.round_gram.ids,
        weights=means,
        norms=gram.norms[0],
        cosines=gram.cosines()[0],
        modules=tuple(layers.names),
        module_norms=layers.gram.norms,
        effective=float(1 / (shares**2).sum()),
        length=math.sqrt(total) / mean_norm if mean_norm > 0 else 0.0,
        errors=errors,
        error=math.sqrt(float((error_by_module**2 * steps).sum()) / total) if total > 0 else 0.0,
    )


@dataclass
class _Slot:
    """Where a tensor is written: its first byte in the file, its dtype and its shape."""

    position: int
    dtype: torch.dtype
    shape: tuple[int, ...]


class AdapterSink:
    """A new PEFT directory, written completely or not at all (a `Sink` and a context manager)."""

    def __init__(
        self,
        path: Path,
        layout: Layout,
        adapters: Sequence[Adapter],
        lora: LoraOutput,
        metadata: Mapping[str, str],
        force: bool,
    ) -> None:
        """Create the directory, under a hidden name.

        Args:
            path: the directory.
            layout: the tensors of the padded adapters.
            adapters: the adapters that are merged; the configuration is that of the first.
            lora: what is written.
            metadata: of the file of the tensors.
            force: whether to replace an existing directory.
        """
        self.layout = layout
        self.force = force
        self._ranks = {pair.name: _new_rank(pair, adapters, lora) for pair in layout.pairs}
        self.staging = Staging(path)
        self._handle = -1
        try:
            folder = self.staging.new
            folder.mkdir()
            self._slots = self._begin(folder / WEIGHTS, adapters[0], metadata)
            text = json.dumps(self._make_config(adapters[0]), indent=2, sort_keys=True)
            (folder / CONFIG).write_text(text + "\n", encoding="utf-8")
        except BaseException:
            self._end()
            raise

    def _begin(self, path: Path, first: Adapter, metadata: Mapping[str, str]) -> dict[str, _Slot]:
        """Create the file of the tensors with its header; return where they go."""
        # The shapes with the new ranks, in the dtypes of the first adapter.
        slots: dict[str, _Slot] = {}
        header: dict[str, object] = {"__metadata__": dict(metadata)}
        position = 0
        for leaf in self.layout.leaves:
            dtype = first.shapes[leaf.name][1]
            shape = self._new_shape(leaf)
            size = dtype.itemsize * torch.Size(shape).numel()
            header[leaf.name] = {
                "dtype": _NAMES[dtype],
                "shape": list(shape),
                "data_offsets": [position, position + size],
            }
            slots[leaf.name] = _Slot(position, dtype, shape)
            position += size

        # The header, padded to a multiple of eight bytes.
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        os.truncate(self._handle, 8 + len(text) + position)
        os.pwrite(self._handle, len(text).to_bytes(8, "little") + text, 0)
        for slot in slots.values():
            slot.position += 8 + len(text)
        return slots

    def _new_shape(self, leaf: Leaf) -> tuple[int, ...]:
        """Return the shape of a leaf in the new adapter."""
        for pair in self.layout.pairs:
            if leaf.name == pair.a.name:
                return (self._ranks[pair.name], *leaf.shape[1:])
            if leaf.name == pair.b.name:
                return (leaf.shape[0], self._ranks[pair.name], *leaf.shape[2:])
        return leaf.shape

    def _make_config(self, first: Adapter) -> dict[str, Any]:
        """Return the configuration: that of the first adapter, with the new ranks.

        The scale is part of B: alpha is the rank.
        """
        ranks = set(self._ranks.values())
        common = max(ranks, key=lambda rank: list(self._ranks.values()).count(rank))
        others = {
            pair.name.removeprefix(PREFIX): self._ranks[pair.name]
            for pair in self.layout.pairs
            if self._ranks[pair.name] != common
        }
        return {
            **first.config.values,
            "r": common,
            "lora_alpha": common,
            "rank_pattern": others,
            "alpha_pattern": others,
            "use_rslora": False,
            "inference_mode": True,
        }

    def room(self, start: int, stop: int) -> None:
        """Return None: values are written to the file as they come."""

    def write(self, start: int, values: torch.Tensor) -> None:
        """Write a chunk, divided into the leaves it belongs to."""
        for leaf, low, high in self.layout.overlapping(start, start + values.numel()):
            self._write(leaf, low - leaf.start, values[low - start : high - start])

    def write_leaf(self, leaf: Leaf, values: torch.Tensor) -> None:
        """Write a complete tensor; a factor of a smaller rank is padded with zeros."""
        shape = self._slots[leaf.name].shape
        if tuple(values.shape) != shape:
            padded = values.new_zeros(shape)
            padded[tuple(slice(length) for length in values.shape)] = values
            values = padded
        self._write(leaf, 0, values.reshape(-1))

    def _write(self, leaf: Leaf, start: int, values: torch.Tensor) -> None:
        """Write elements of a leaf from position `start` on."""
        slot = self._slots[leaf.name]
        cast = cast_to_leaf(values, replace(leaf, dtype=slot.dtype))
        data = cast.contiguous().view(torch.uint8).numpy().data
        position = slot.position + start * slot.dtype.itemsize
        while data:
            count = os.pwrite(self._handle, data, position)
            data = data[count:]
            position += count

    def __enter__(self) -> AdapterSink:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                os.fsync(self._handle)
                self.staging.publish_directory(self.force, {WEIGHTS, CONFIG})
        finally:
            self._end()

    def _end(self) -> None:
        """Close the file and remove the hidden directory."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
        self.staging.remove()


def _new_rank(pair: LoraPair, adapters: Sequence[Adapter], lora: LoraOutput) -> int:
    """Return the rank of a merged adapter."""
    if lora.kind == "stack":
        return sum(adapter.shapes[pair.a.name][0][0] for adapter in adapters)
    return pair.rank if lora.rank is None else lora.rank
