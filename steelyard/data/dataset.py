"""Samples in memory, and the federation that shares them: one data set and, per client, positions in it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard.core.client_state import ClientId, client_id
from steelyard.core.errors import SteelyardError
from steelyard.core.spec import parse
from steelyard.data import adapters, hugging_face
from steelyard.data.hugging_face import Columns
from steelyard.data.partitions import PARTITIONS, Index, Partition
from steelyard.data.partitions import partition as spread
from steelyard.data.text import Vocabulary

_SAMPLE_BYTES = 1 << 19  # of the inputs of train and of test each: what a fingerprint looks at


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples and what to predict of them.

    Attributes:
        inputs: float32 `[N, ...]`, or int64 tokens.
        targets: int64 labels `[N]`, or anything `[N, ...]`.
        classes: the number of classes, if targets are labels.
        name: what reports call it.
        groups: int64 `[N]`, who or where each sample comes from (a role, a domain), for `by_group`.
    """

    inputs: torch.Tensor
    targets: torch.Tensor
    classes: int | None = None
    name: str = ""
    groups: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if self.inputs.ndim == 0 or self.targets.ndim == 0 or len(self.inputs) != len(self.targets):
            shapes = f"{tuple(self.inputs.shape)} and {tuple(self.targets.shape)}"
            raise SteelyardError(f"{self._label}inputs and targets are {shapes}: give one target per input")
        if self.inputs.dtype not in (torch.float32, torch.int64):
            raise SteelyardError(f"{self._label}inputs are {self.inputs.dtype}: use float32, or int64 for tokens")
        groups = self.groups
        if groups is not None and (groups.dtype != torch.int64 or groups.shape != (len(self.inputs),)):
            found = f"{groups.dtype} {tuple(groups.shape)}"
            raise SteelyardError(f"{self._label}groups are {found}: give an int64 number per sample, [{len(self)}]")
        if not _is_finite(self.inputs):
            raise SteelyardError(f"{self._label}inputs hold NaN or infinity: clean them first")
        if self.classes is not None and self.targets.ndim == 1 and len(self):
            low, high = int(self.targets.min()), int(self.targets.max())
            if low < 0 or high >= self.classes:
                found = f"targets lie in {low}..{high}"
                raise SteelyardError(f"{self._label}{found}: with classes={self.classes} use 0..{self.classes - 1}")

    @property
    def _label(self) -> str:
        return f"data set {self.name!r}: " if self.name else "data set: "

    @classmethod
    def of(
        cls,
        data: Any,
        name: str = "",
        *,
        inputs: str | None = None,
        targets: str | None = None,
        groups: str | None = None,
        vocabulary: Vocabulary | None = None,
        length: int = 64,
    ) -> Dataset:
        """From a Dataset, a pair (inputs, targets) of tensors or arrays, a torch or a Hugging Face data set.

        Args:
            data: the samples.
            name: what reports call them.
            inputs: the column of a Hugging Face data set; without it, the first with a usual name.
            targets: likewise.
            groups: the column that says where each sample comes from, for `by_group`.
            vocabulary: what makes tokens of a column of text.
            length: tokens per text.
        """
        columns = Columns(inputs, targets, groups, vocabulary, length)
        if hugging_face.is_table(data):
            table = hugging_face.read(data, columns)
            return cls(table.inputs, table.targets, table.classes, name, table.groups)
        if columns != Columns():
            found = f"data is a {type(data).__name__}"
            raise SteelyardError(f"{found}: inputs, targets, groups and vocabulary are for Hugging Face data sets only")
        if isinstance(data, Dataset):
            return data
        if isinstance(data, torch.utils.data.Dataset):
            x, y = adapters.materialised(data)
        elif isinstance(data, (tuple, list)) and len(data) == 2:
            x, y = adapters.tensor("inputs", data[0]), adapters.tensor("targets", data[1])
        else:
            known = "a Dataset, a pair (inputs, targets), a map-style torch data set or one of Hugging Face's"
            raise SteelyardError(f"data is a {type(data).__name__}: use {known}")
        y = adapters.as_targets(y)
        return cls(adapters.as_inputs(x), y, adapters.classes(y), name)

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, index: slice | Index | torch.Tensor) -> Dataset:
        """The samples at these positions; a slice gives views."""
        at = torch.from_numpy(index) if isinstance(index, np.ndarray) else index
        groups = None if self.groups is None else self.groups[at]
        return replace(self, inputs=self.inputs[at], targets=self.targets[at], groups=groups)


@dataclass(frozen=True, eq=False)
class Federation:
    """Clients and their data.

    Attributes:
        train: the samples of all clients.
        ids: the clients.
        index: per client, positions in `train`. Clients may share samples, have none, and leave some out.
        test: what the server evaluates on.
        name: what reports call it.
    """

    train: Dataset
    ids: tuple[ClientId, ...]
    index: tuple[Index, ...]
    test: Dataset | None = None
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", tuple(map(client_id, self.ids)))
        if len(self.ids) != len(self.index) or len(set(self.ids)) != len(self.ids) or not self.ids:
            raise SteelyardError(
                f"{len(self.ids)} ids and {len(self.index)} index lists: give one list per distinct id"
            )
        for client, positions in zip(self.ids, self.index, strict=True):
            _check_positions(client, positions, len(self.train))
        if not self.sizes.any():
            raise SteelyardError(f"{len(self.ids)} clients hold no sample: give at least one of them some data")
        if self.test is not None:
            _check_test(self.train, self.test)

    @classmethod
    def of(cls, clients: Mapping[ClientId, Any] | Sequence[Any], test: Any = None, name: str = "") -> Federation:
        """Build a federation from one data set per client.

        Args:
            clients: a dict by client id, or a list for clients 0, 1, .... Each data set is anything `Dataset.of` takes;
                an empty one is a client without data.
            test: the server's test set.
            name: what reports call the federation.
        """
        by_id = clients if isinstance(clients, Mapping) else dict(enumerate(clients))
        parts = {
            client: None if adapters.is_empty(data) else _read(f"client {client!r}", data)
            for client, data in by_id.items()
        }
        held = {client: part for client, part in parts.items() if part is not None}
        if not held:
            raise SteelyardError(f"{len(parts)} clients hold no sample: give at least one of them some data")
        _check_alike(held)
        filled = list(held.values())
        known = [part.classes for part in filled if part.classes is not None]
        train = Dataset(
            torch.cat([part.inputs for part in filled]),
            torch.cat([part.targets for part in filled]),
            max(known) if len(known) == len(filled) else None,
            name,
        )
        index = _slices([0 if part is None else len(part) for part in parts.values()])
        return cls(train, tuple(parts), index, None if test is None else _read("test", test, "test"), name)

    @classmethod
    def partitioned(cls, train: Any, test: Any, partition: str | Partition, clients: int, seed: int) -> Federation:
        """One data set spread over clients 0, 1, ... by a partition such as `dirichlet:alpha=0.1`."""
        data = _read("train", train, "train")
        rule = partition if isinstance(partition, Partition) else parse(partition, PARTITIONS)
        index = spread(rule, _looked_at(data, rule), clients, seed)
        held_out = None if test is None else _read("test", test, "test")
        return cls(data, tuple(range(clients)), tuple(index), held_out, data.name)

    @property
    def classes(self) -> int | None:
        """The number of classes, of train and test together; None if targets are no labels."""
        if self.train.classes is None:
            return None
        return max(self.train.classes, (self.test.classes or 0) if self.test is not None else 0)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Samples per client, `[K]`."""
        return np.array([len(positions) for positions in self.index], dtype=np.int64)

    def label_counts(self) -> NDArray[np.int64]:
        """Samples per client and class, `[K, classes]`."""
        if self.classes is None or self.train.targets.ndim != 1:
            raise SteelyardError("targets are not labels of a known number of classes: there is nothing to count")
        labels = self.train.targets.numpy()
        return np.stack([np.bincount(labels[at], minlength=self.classes) for at in self.index]).astype(np.int64)

    def group_counts(self) -> NDArray[np.int64]:
        """Samples per client and group, `[K, groups]`."""
        if self.train.groups is None:
            raise SteelyardError("the data has no groups: give Dataset(..., groups=...)")
        numbers = self.train.groups.numpy()
        most = int(numbers.max()) + 1
        return np.stack([np.bincount(numbers[at], minlength=most) for at in self.index]).astype(np.int64)

    def group_by_client(self) -> Federation:
        """The same federation with each client's samples side by side, so that a client is a slice.

        Samples of no client are dropped; one that several clients share is copied. Where copies would take more room
        than the data does now, the federation stays as it is.
        """
        if int(self.sizes.sum()) > len(self.train):
            return self
        index = _slices(self.sizes.tolist())
        return replace(self, train=self.train.take(np.concatenate(self.index)), index=index)

    def fingerprint(self) -> str:
        """A hash that tells federations apart: of ids, sizes, shapes, all targets and a sample of the inputs.

        It follows the clients' order, so arranging a federation does not change it.
        """
        digest = hashlib.sha256()
        heads = {"ids": list(self.ids), "sizes": self.sizes.tolist(), "classes": self.classes}
        digest.update(json.dumps(heads).encode())
        order = np.concatenate(self.index)
        _digest(digest, self.train, order)
        if self.test is not None:
            _digest(digest, self.test, np.arange(len(self.test), dtype=np.int64))
        return digest.hexdigest()


def _read(place: str, data: Any, name: str = "") -> Dataset:
    """Read a data set of any form; an error says which one it was."""
    try:
        return Dataset.of(data, name)
    except SteelyardError as error:
        reason = str(error)
        for label in ("data set: ", f"data set {name!r}: "):
            reason = reason.removeprefix(label)
        raise SteelyardError(f"{place}: {reason}") from error


def _is_finite(inputs: torch.Tensor) -> bool:
    """One pass without a temporary: a finite sum has finite terms. Only if it overflows, look closely."""
    if not inputs.is_floating_point() or bool(inputs.sum().isfinite()):
        return True
    return bool(inputs.isfinite().all())


def _looked_at(data: Dataset, rule: Partition) -> Index:
    """The labels a partition spreads by, or the groups."""
    if rule.by_groups:
        if data.groups is None:
            raise SteelyardError(f"partition={rule.name}: the data has no groups: give Dataset(..., groups=...)")
        return data.groups.numpy()
    if not rule.needs_labels:
        return np.zeros(len(data), dtype=np.int64)
    if data.targets.dtype != torch.int64 or data.targets.ndim != 1:
        found = f"{data.targets.dtype} of shape {tuple(data.targets.shape)}"
        raise SteelyardError(
            f"targets are {found}: partition={rule.name} needs int64 labels [N]: use partition=iid or quantity"
        )
    return data.targets.numpy()


def _slices(sizes: list[int]) -> tuple[Index, ...]:
    ends = np.cumsum(sizes)
    return tuple(np.arange(end - size, end, dtype=np.int64) for size, end in zip(sizes, ends, strict=True))


def _check_positions(client: ClientId, positions: Index, size: int) -> None:
    if positions.dtype != np.int64 or positions.ndim != 1:
        raise SteelyardError(f"index of client {client!r} is {positions.dtype} {positions.shape}: use int64 [n]")
    if len(positions) and not 0 <= positions.min() <= positions.max() < size:
        found = f"{positions.min()}..{positions.max()}"
        raise SteelyardError(f"index of client {client!r} lies in {found}: train has positions 0..{size - 1}")


def _check_test(train: Dataset, test: Dataset) -> None:
    if len(test) == 0:
        raise SteelyardError("test holds no sample: use test=None to go without")
    if _kind(test) != _kind(train):
        raise SteelyardError(f"a test sample is {_kind(test)}, a training sample {_kind(train)}: make them alike")


def _check_alike(parts: Mapping[ClientId, Dataset]) -> None:
    first = next(iter(parts))
    for client, part in parts.items():
        if _kind(part) != _kind(parts[first]):
            found = f"a sample of client {client!r} is {_kind(part)}, of client {first!r} {_kind(parts[first])}"
            raise SteelyardError(f"{found}: make them alike")


def _kind(data: Dataset) -> str:
    """Shape and type of one sample, in words."""
    sides = (data.inputs, data.targets)
    return " -> ".join(f"{str(side.dtype).removeprefix('torch.')} {list(side.shape[1:])}" for side in sides)


def _digest(digest: hashlib._Hash, data: Dataset, order: Index) -> None:
    inputs, targets = data.inputs.contiguous(), data.targets
    rows = torch.from_numpy(order)
    digest.update(f"{_kind(data)} {len(order)}".encode())
    digest.update(targets[rows].contiguous().numpy().tobytes())
    width = math.prod(inputs.shape[1:])
    total = width * len(order)
    step = max(1, -(-total * inputs.element_size() // _SAMPLE_BYTES))
    while width > 1 and math.gcd(step, width) > 1:  # else it would see the same few columns of every sample
        step += 1
    at = torch.arange(0, total, step)
    digest.update(inputs.view(-1)[rows[at // width] * width + at % width].numpy().tobytes())
