"""Client models in safetensors files, read by slices.

Files are read with `pread` into buffers of the store's own: a memory map would count every page it touches as resident,
and the point of this store is to merge more than memory holds. The header is parsed here, strictly (the format is eight
bytes of length, that much JSON, then raw tensors); no other format is read, nothing is unpickled.
"""

from __future__ import annotations

import errno
import json
import math
import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from steelyard.core.errors import SteelyardError
from steelyard.core.layout import DTYPES, Kind
from steelyard.core.table import ClientId
from steelyard.stores.slices import SliceStore

INDEX = "model.safetensors.index.json"
_MAX_HEADER = 100_000_000


@dataclass(frozen=True)
class Entry:
    """One tensor of a file: `offset` is its first byte."""

    file: int
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


class Checkpoint:
    """A model on disk: one safetensors file, or a directory of shards with an index."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.files, listed = _files(self.path)
        self.metadata: dict[str, str] = {}
        self.entries: dict[str, Entry] = {}
        self._handles: list[int] = []
        weakref.finalize(
            self, _close, self._handles
        )  # also at the interpreter's end, when `__del__` would come too late
        for number, file in enumerate(self.files):
            self._handles.append(os.open(file, os.O_RDONLY))
            entries, metadata = _header(file, self._handles[-1], number)
            twice = self.entries.keys() & entries.keys()
            if twice:
                raise SteelyardError(f"{self.path}: {min(twice)!r} is in more than one shard")
            self.entries.update(entries)
            self.metadata.update(metadata)
        for name, shard in listed.items():
            if name not in self.entries or self.files[self.entries[name].file].name != shard:
                raise SteelyardError(f"{self.path}: the index lists {name!r} in {shard!r}, and it is not there")

    @property
    def shapes(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of every tensor."""
        return {name: (entry.shape, entry.dtype) for name, entry in self.entries.items()}

    @property
    def num_bytes(self) -> int:
        """Size of the tensors."""
        return sum(entry.size * entry.dtype.itemsize for entry in self.entries.values())

    def read(self, name: str, start: int, out: torch.Tensor) -> None:
        """Elements of a tensor from position `start` on into `out`, cast to its dtype."""
        entry = self.entries[name]
        raw = out if out.dtype == entry.dtype else torch.empty(out.numel(), dtype=entry.dtype)
        if raw.numel():
            self.read_bytes(name, start * entry.dtype.itemsize, raw.view(torch.uint8).numpy().data)
        if raw is not out:
            out.copy_(raw)

    def read_bytes(self, name: str, start: int, out: memoryview) -> None:
        """Bytes of a tensor from byte `start` on into `out`."""
        entry = self.entries[name]
        position = entry.offset + start
        while out:
            count = os.preadv(self._handles[entry.file], [out], position)
            if count == 0:
                raise SteelyardError(
                    f"{self.files[entry.file]}: ends inside {name!r}; the file changed while it was read"
                )
            out, position = out[count:], position + count

    def load(self, name: str) -> torch.Tensor:
        """One whole tensor."""
        entry = self.entries[name]
        out = torch.empty(entry.size, dtype=entry.dtype)
        self.read(name, 0, out)
        return out.view(entry.shape)

    def peek(self, name: str) -> None:
        """Nothing: it is on disk."""


class SafetensorsStore:
    """A store of files, by slices."""

    @staticmethod
    def open(
        base: str | os.PathLike[str],
        clients: Mapping[ClientId, str | os.PathLike[str]],
        refused: Mapping[ClientId, str] | None = None,
        kinds: Mapping[str, Kind] | None = None,
    ) -> SliceStore[Checkpoint]:
        """Opens the global checkpoint and every client's; those in `refused` are not looked at."""
        source = Checkpoint(base)
        quarantined = dict(refused or {})
        opened: dict[ClientId, Checkpoint] = {}
        for client in clients:
            if client not in quarantined:
                try:
                    opened[client] = Checkpoint(clients[client])
                except (ValueError, OSError) as error:  # a SteelyardError is a ValueError
                    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
                        raise SteelyardError(
                            f"{clients[client]}: too many open files for {len(clients)} clients: allow more (ulimit -n)"
                        ) from error
                    quarantined[client] = str(error)
        return replace(SliceStore.of(source, opened, quarantined, kinds), given=tuple(clients))


def _close(handles: list[int]) -> None:
    for handle in handles:
        os.close(handle)


def _files(path: Path) -> tuple[list[Path], Mapping[str, str]]:
    """The files of a model, and which shard holds which tensor, if there is an index that says so."""
    if not path.exists():
        raise SteelyardError(f"{path}: no such file or directory")
    if path.is_file():
        return _shards(path) if path.name.endswith(".json") else ([path], {})
    index = path / INDEX
    if index.exists():
        return _shards(index)
    files = sorted(path.glob("*.safetensors"))
    if len(files) != 1:
        raise SteelyardError(
            f"{path}: expected one .safetensors file or {INDEX}, found {len(files)} files and no index"
        )
    return files, {}


def _shards(index: Path) -> tuple[list[Path], Mapping[str, str]]:
    try:
        listed = dict(json.loads(index.read_bytes())["weight_map"])
        names = sorted(set(listed.values()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SteelyardError(f"{index}: not an index of shards ({error})") from None
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise SteelyardError(f"{index}: shard {name!r} is not a plain file name")
    return [index.parent / name for name in names], listed


def _header(file: Path, handle: int, number: int) -> tuple[dict[str, Entry], dict[str, str]]:
    """The table of contents, checked: known dtypes, sizes that fit shapes, tensors that fill the file exactly."""
    total = os.fstat(handle).st_size
    length = int.from_bytes(os.pread(handle, 8, 0), "little") if total >= 8 else -1
    if not 2 <= length <= min(_MAX_HEADER, total - 8):
        raise SteelyardError(f"{file}: not a safetensors file (header of {length} bytes in a file of {total})")
    try:
        header = json.loads(os.pread(handle, length, 8), object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:
        raise SteelyardError(f"{file}: header is not valid JSON ({error})") from None
    if not isinstance(header, dict):
        raise SteelyardError(f"{file}: header is not a JSON object")
    metadata = header.pop("__metadata__", {})
    entries: dict[str, Entry] = {}
    spans = []
    for name, item in header.items():
        entry, begin, end = _entry(file, name, item, number, 8 + length)
        entries[name] = entry
        spans.append((begin, end))
    at = 0
    for begin, end in sorted(spans):
        if begin != at:
            raise SteelyardError(f"{file}: tensors overlap or leave a hole at byte {at}")
        at = end
    if at != total - 8 - length:
        raise SteelyardError(f"{file}: holds {total - 8 - length} bytes of tensors, its header says {at}: truncated?")
    return entries, {str(key): str(value) for key, value in metadata.items()} if isinstance(metadata, dict) else {}


def _entry(file: Path, name: str, item: Any, number: int, data: int) -> tuple[Entry, int, int]:
    try:
        dtype, shape, (begin, end) = DTYPES[item["dtype"]], tuple(item["shape"]), item["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise SteelyardError(f"{file}: {name!r} has an unknown dtype or a malformed entry") from None
    whole = all(type(n) is int and 0 <= n < 1 << 62 for n in (*shape, begin, end))
    if not whole or end - begin != math.prod(shape) * dtype.itemsize:
        raise SteelyardError(f"{file}: {name!r} has {shape=} that does not fit its bytes {begin}:{end}")
    return Entry(number, data + begin, dtype, shape), begin, end


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("duplicate keys")
    return made
