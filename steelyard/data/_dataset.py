"""Samples in memory, and federations: one data set and, for each client, positions in it."""

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

from steelyard.core._errors import SteelyardError
from steelyard.core._spec import parse
from steelyard.core._state import ClientId, client_id
from steelyard.data import _adapters as adapters
from steelyard.data import _hugging_face as hugging_face
from steelyard.data._hugging_face import Columns
from steelyard.data._partitions import PARTITIONS, Index, Partition
from steelyard.data._partitions import partition as distribute
from steelyard.data._text import Vocabulary

_SAMPLE_BYTES = 1 << 19  # a fingerprint reads about this much of the inputs of train and of test


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples and their targets.

    Attributes:
        inputs: float32 `[N, ...]`, or int64 tokens.
        targets: int64 labels `[N]`, or anything `[N, ...]`.
        classes: the number of classes, if targets are labels.
        name: for reports.
        groups: int64 `[N]`, the origin of each sample (a role, a domain), for `by_group`.
        subset: what part of a published data set it was read from; empty for the whole set.
        group_names: the names of the groups, by number. With names, a run records the accuracy on
            the test samples of each group.
    """

    inputs: torch.Tensor
    targets: torch.Tensor
    classes: int | None = None
    name: str = ""
    groups: torch.Tensor | None = None
    subset: str = ""
    group_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.inputs.ndim == 0 or self.targets.ndim == 0 or len(self.inputs) != len(self.targets):
            shapes = f"{tuple(self.inputs.shape)} and {tuple(self.targets.shape)}"
            raise SteelyardError(
                f"{self._label}inputs and targets are {shapes}: give one target per input"
            )
        if self.inputs.dtype not in (torch.float32, torch.int64):
            raise SteelyardError(
                f"{self._label}inputs are {self.inputs.dtype}: use float32, or int64 for tokens"
            )
        groups = self.groups
        if groups is not None and (
            groups.dtype != torch.int64 or groups.shape != (len(self.inputs),)
        ):
            raise SteelyardError(
                f"{self._label}groups are {groups.dtype} {tuple(groups.shape)}: "
                f"give one int64 number per sample, [{len(self)}]"
            )
        self._check_group_names()
        if not _is_finite(self.inputs):
            raise SteelyardError(
                f"{self._label}inputs contain NaN or infinity: remove these samples first"
            )
        if self.classes is not None and self.targets.ndim == 1 and len(self):
            low = int(self.targets.min())
            high = int(self.targets.max())
            if low < 0 or high >= self.classes:
                raise SteelyardError(
                    f"{self._label}targets lie in {low}..{high}: with classes={self.classes} use "
                    f"0..{self.classes - 1}"
                )

    def _check_group_names(self) -> None:
        """Raise an error unless every group has a name of its own, or there are no names."""
        names = self.group_names
        if not names:
            return
        if self.groups is None:
            raise SteelyardError(f"{self._label}group_names without groups: give groups, too")
        if len(set(names)) < len(names) or not all(names):
            raise SteelyardError(f"{self._label}group_names={names!r}: use distinct names")
        numbers = self.groups
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(names):
            raise SteelyardError(
                f"{self._label}groups lie in {int(numbers.min())}..{int(numbers.max())}, but "
                f"group_names has {len(names)} names: give one name per group"
            )

    @property
    def _label(self) -> str:
        """The start of an error message."""
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
        """Return a data set from any of the supported forms.

        Args:
            data: a `Dataset`, a pair (inputs, targets) of tensors or arrays, a map-style torch data
                set or a Hugging Face data set.
            name: for reports.
            inputs: the column of a Hugging Face data set; by default the first with a usual name.
            targets: the column of the targets; by default the first with a usual name.
            groups: the column with the origin of each sample, for `by_group`.
            vocabulary: turns a column of text into tokens.
            length: tokens per text.
        """
        # A Hugging Face data set: the only form with named columns.
        columns = Columns(inputs, targets, groups, vocabulary, length)
        if hugging_face.is_table(data):
            table = hugging_face.read(data, columns)
            return cls(table.inputs, table.targets, table.classes, name, table.groups)
        if columns != Columns():
            raise SteelyardError(
                f"data is a {type(data).__name__}: "
                "inputs, targets, groups and vocabulary are for Hugging Face data sets only"
            )
        # The other forms.
        if isinstance(data, Dataset):
            return data
        if isinstance(data, torch.utils.data.Dataset):
            x, y = adapters.read_torch_dataset(data)
        elif isinstance(data, (tuple, list)) and len(data) == 2:
            x = adapters.tensor("inputs", data[0])
            y = adapters.tensor("targets", data[1])
        else:
            raise SteelyardError(
                f"data is a {type(data).__name__}: use a Dataset, a pair (inputs, targets), "
                "a map-style torch data set or a Hugging Face data set"
            )
        y = adapters.as_targets(y)
        return cls(adapters.as_inputs(x), y, adapters.classes(y), name)

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, index: slice | Index | torch.Tensor) -> Dataset:
        """Return the samples at these positions; a slice returns views."""
        positions = torch.from_numpy(index) if isinstance(index, np.ndarray) else index
        groups = None if self.groups is None else self.groups[positions]
        return replace(
            self, inputs=self.inputs[positions], targets=self.targets[positions], groups=groups
        )


@dataclass(frozen=True, eq=False)
class Federation:
    """Clients and their data.

    Attributes:
        train: the samples of all clients.
        ids: the clients.
        index: per client, positions in `train`. Clients may share samples or have none, and samples
            may belong to no client.
        test: the data for the server's evaluation.
        name: for reports.
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
                f"{len(self.ids)} ids and {len(self.index)} index lists: give one list per "
                f"distinct id"
            )
        for client, positions in zip(self.ids, self.index, strict=True):
            _check_positions(client, positions, len(self.train))
        if not self.sizes.any():
            raise SteelyardError(
                f"{len(self.ids)} clients have no samples: give data to at least one of them"
            )
        if self.test is not None:
            _check_test(self.train, self.test)

    @classmethod
    def of(
        cls, clients: Mapping[ClientId, Any] | Sequence[Any], test: Any = None, name: str = ""
    ) -> Federation:
        """Build a federation from one data set per client.

        Args:
            clients: a dict by client id, or a list for clients 0, 1, .... Each data set is anything
                `Dataset.of` accepts; a client without data has an empty one.
            test: the server's test set.
            name: for reports.
        """
        # Read the data of each client; None stands for a client without data.
        by_id = clients if isinstance(clients, Mapping) else dict(enumerate(clients))
        parts: dict[ClientId, Dataset | None] = {}
        for client, data in by_id.items():
            parts[client] = None if adapters.is_empty(data) else _read(f"client {client!r}", data)
        nonempty = {client: part for client, part in parts.items() if part is not None}
        if not nonempty:
            raise SteelyardError(
                f"{len(parts)} clients have no samples: give data to at least one of them"
            )
        _check_same_form(nonempty)

        # Join them to one data set.
        datasets = list(nonempty.values())
        counts = [part.classes for part in datasets if part.classes is not None]
        train = Dataset(
            torch.cat([part.inputs for part in datasets]),
            torch.cat([part.targets for part in datasets]),
            max(counts) if len(counts) == len(datasets) else None,
            name,
        )
        index = slices([0 if part is None else len(part) for part in parts.values()])
        test_set = None if test is None else _read("test", test, "test")
        return cls(train, tuple(parts), index, test_set, name)

    @classmethod
    def partitioned(
        cls, train: Any, test: Any, partition: str | Partition, clients: int, seed: int
    ) -> Federation:
        """Distribute one data set over clients 0, 1, ... by a partition.

        Args:
            train: the samples to distribute, anything `Dataset.of` accepts.
            test: the server's test set, or None.
            partition: a partition or its spec string, such as `dirichlet:alpha=0.1`.
            clients: the number of clients.
            seed: of the partition's random draws.
        """
        data = _read("train", train, "train")
        rule = partition if isinstance(partition, Partition) else parse(partition, PARTITIONS)
        index = distribute(rule, _partition_keys(data, rule), clients, seed)
        test_set = None if test is None else _read("test", test, "test")
        return cls(data, tuple(range(clients)), tuple(index), test_set, data.name)

    @property
    def classes(self) -> int | None:
        """The number of classes of train and test together; None if targets are not labels."""
        if self.train.classes is None:
            return None
        if self.test is None:
            return self.train.classes
        return max(self.train.classes, self.test.classes or 0)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Samples per client, `[K]`."""
        return np.array([len(positions) for positions in self.index], dtype=np.int64)

    def label_counts(self) -> NDArray[np.int64]:
        """Return the number of samples per client and class, `[K, classes]`."""
        if self.classes is None or self.train.targets.ndim != 1:
            raise SteelyardError(
                "targets are not labels of a known number of classes: there is nothing to count"
            )
        labels = self.train.targets.numpy()
        counts = [
            np.bincount(labels[positions], minlength=self.classes) for positions in self.index
        ]
        return np.stack(counts).astype(np.int64)

    def group_counts(self) -> NDArray[np.int64]:
        """Return the number of samples per client and group, `[K, groups]`."""
        if self.train.groups is None:
            raise SteelyardError("the data has no groups: give Dataset(..., groups=...)")
        numbers = self.train.groups.numpy()
        groups = int(numbers.max()) + 1
        counts = [np.bincount(numbers[positions], minlength=groups) for positions in self.index]
        return np.stack(counts).astype(np.int64)

    def group_by_client(self) -> Federation:
        """Return the same federation with the samples of each client next to each other.

        Each client is then a slice. Samples that belong to no client are dropped; samples of
        several clients are copied. If the copies would need more memory than the data does now, the
        federation is returned unchanged.
        """
        if int(self.sizes.sum()) > len(self.train):
            return self
        index = slices(self.sizes.tolist())
        return replace(self, train=self.train.take(np.concatenate(self.index)), index=index)

    def fingerprint(self) -> str:
        """Return a hash of ids, sizes, shapes, all targets and a sample of the inputs.

        It follows the order of the clients, so `group_by_client` does not change it.
        """
        digest = hashlib.sha256()
        header = {"ids": list(self.ids), "sizes": self.sizes.tolist(), "classes": self.classes}
        digest.update(json.dumps(header).encode())
        _update_digest(digest, self.train, np.concatenate(self.index))
        if self.test is not None:
            _update_digest(digest, self.test, np.arange(len(self.test), dtype=np.int64))
        return digest.hexdigest()


def slices(sizes: list[int]) -> tuple[Index, ...]:
    """Return the positions of consecutive slices of these sizes."""
    ends = np.cumsum(sizes)
    return tuple(
        np.arange(end - size, end, dtype=np.int64) for size, end in zip(sizes, ends, strict=True)
    )


def _read(role: str, data: Any, name: str = "") -> Dataset:
    """Read a data set of any form; an error starts with its role (`train`, `client 3`)."""
    try:
        return Dataset.of(data, name)
    except SteelyardError as error:
        reason = str(error)
        for label in ("data set: ", f"data set {name!r}: "):
            reason = reason.removeprefix(label)
        raise SteelyardError(f"{role}: {reason}") from error


def _is_finite(inputs: torch.Tensor) -> bool:
    """Return whether all inputs are finite.

    A finite sum has finite terms, so one pass without a temporary tensor is enough in most cases.
    If the sum overflows, every value is checked.
    """
    if not inputs.is_floating_point() or bool(inputs.sum().isfinite()):
        return True
    return bool(inputs.isfinite().all())


def _partition_keys(data: Dataset, rule: Partition) -> Index:
    """Return what the partition looks at: labels, groups, or zeros if it needs neither."""
    if rule.by_groups:
        if data.groups is None:
            raise SteelyardError(
                f"partition={rule.name}: the data has no groups: give Dataset(..., groups=...)"
            )
        return data.groups.numpy()
    if not rule.needs_labels:
        return np.zeros(len(data), dtype=np.int64)
    if data.targets.dtype != torch.int64 or data.targets.ndim != 1:
        raise SteelyardError(
            f"targets are {data.targets.dtype} of shape {tuple(data.targets.shape)}: "
            f"partition={rule.name} needs int64 labels [N]: use partition=iid or quantity"
        )
    return data.targets.numpy()


def _check_positions(client: ClientId, positions: Index, size: int) -> None:
    """Raise an error if positions are not int64 `[n]` in the range of the data."""
    if positions.dtype != np.int64 or positions.ndim != 1:
        raise SteelyardError(
            f"index of client {client!r} is {positions.dtype} {positions.shape}: use int64 [n]"
        )
    if len(positions) and not 0 <= positions.min() <= positions.max() < size:
        raise SteelyardError(
            f"index of client {client!r} lies in {positions.min()}..{positions.max()}: "
            f"train has positions 0..{size - 1}"
        )


def _check_test(train: Dataset, test: Dataset) -> None:
    """Raise an error if the test set is empty or has another form than the training set."""
    if len(test) == 0:
        raise SteelyardError("test has no samples: use test=None to run without a test set")
    if _form(test) != _form(train):
        raise SteelyardError(
            f"a test sample is {_form(test)}, a training sample {_form(train)}: use the same form"
        )


def _check_same_form(parts: Mapping[ClientId, Dataset]) -> None:
    """Raise an error if the samples of two clients differ in shape or type."""
    first = next(iter(parts))
    for client, part in parts.items():
        if _form(part) != _form(parts[first]):
            raise SteelyardError(
                f"a sample of client {client!r} is {_form(part)}, of client {first!r} "
                f"{_form(parts[first])}: "
                "use the same form"
            )


def _form(data: Dataset) -> str:
    """Return shape and type of one sample as text, such as `float32 [1, 8, 8] -> int64 []`."""
    tensors = (data.inputs, data.targets)
    return " -> ".join(
        f"{str(value.dtype).removeprefix('torch.')} {list(value.shape[1:])}" for value in tensors
    )


def _update_digest(digest: hashlib._Hash, data: Dataset, order: Index) -> None:
    """Add samples to a hash: all targets, and every `step`-th value of the inputs."""
    inputs = data.inputs.contiguous()
    rows = torch.from_numpy(order)
    # The form, the number of samples, and all targets.
    digest.update(f"{_form(data)} {len(order)}".encode())
    digest.update(data.targets[rows].contiguous().numpy().tobytes())
    # The inputs. The step has no divisor in common with the width of a sample: otherwise only some
    # of the columns would ever be read.
    width = math.prod(inputs.shape[1:])
    total = width * len(order)
    step = max(1, -(-total * inputs.element_size() // _SAMPLE_BYTES))
    while width > 1 and math.gcd(step, width) > 1:
        step += 1
    offsets = torch.arange(0, total, step)
    digest.update(
        inputs.view(-1)[rows[offsets // width] * width + offsets % width].numpy().tobytes()
    )
