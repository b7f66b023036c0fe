"""Client models in safetensors files, read by slices.

Files are read with `pread` into buffers of the store: a memory map would count every page that is
read as resident, and this store exists to merge more models than fit into memory. The header is
parsed here, strictly (the format is eight bytes of length, that many bytes of JSON, then raw
tensors). No other format is read, and nothing is unpickled. Files are not trusted: headers and
indices are read in pieces, and refused at the first piece that is wrong.
"""

from __future__ import annotations

import errno
import math
import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from steelyard.core._errors import SteelyardError, shorten
from steelyard.core._layout import DTYPES, Kind
from steelyard.core._state import ClientId
from steelyard.stores._json_stream import JsonStream, open_regular
from steelyard.stores._padding import PaddedSource, pad_to_layout
from steelyard.stores._slices import SliceStore, Source, layout_of

INDEX = "model.safetensors.index.json"
_MAX_HEADER = 32_000_000  # bytes of a header or an index
_MAX_TENSORS = 100_000  # of one file
_MAX_EMPTY = 1_000  # tensors without elements: a file of any size could list any number of them
_MAX_METADATA = 8_000_000  # characters
_MAX_KEYS = 2_000  # of the metadata
_MAX_NAME = 1_000  # characters
_MAX_DIMENSIONS = 64  # as in torch and numpy
_MAX_SIZE = 1 << 62
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


@dataclass(frozen=True, slots=True)
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
    """A model on disk: one safetensors file, or a directory of shards with an index.

    Args:
        path: the file or directory.
        max_tensors: refuse a model with more tensors than this, as soon as the number is exceeded.
    """

    def __init__(self, path: str | os.PathLike[str], max_tensors: int = _MAX_TENSORS) -> None:
        self.path = Path(path)
        self.files, listed = _files(self.path, max_tensors)
        self.metadata: dict[str, str] = {}
        self.entries: dict[str, Entry] = {}
        self._handles: list[int] = []
        # Also runs when the interpreter exits, when `__del__` would be too late.
        weakref.finalize(self, _close, self._handles)
        for number, file in enumerate(self.files):
            self._handles.append(open_regular(file))
            entries, metadata = _read_header(file, self._handles[-1], number, max_tensors)
            duplicates = self.entries.keys() & entries.keys()
            if duplicates:
                raise SteelyardError(f"{self.path}: {min(duplicates)!r} is in more than one shard")
            self.entries.update(entries)
            self.metadata.update(metadata)
        for name, shard in listed.items():
            if name not in self.entries or self.files[self.entries[name].file].name != shard:
                raise SteelyardError(
                    f"{self.path}: the index lists {name!r} in {shard!r}, and it is not there"
                )

    @property
    def shapes(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of every tensor."""
        return {name: (entry.shape, entry.dtype) for name, entry in self.entries.items()}

    @property
    def num_bytes(self) -> int:
        """Total size of the tensors in bytes."""
        return sum(entry.size * entry.dtype.itemsize for entry in self.entries.values())

    def read(self, name: str, start: int, out: torch.Tensor) -> None:
        """Read elements of a tensor from position `start` on into `out`, cast to its dtype."""
        entry = self.entries[name]
        raw = out if out.dtype == entry.dtype else torch.empty(out.numel(), dtype=entry.dtype)
        if raw.numel():
            self.read_bytes(name, start * entry.dtype.itemsize, raw.view(torch.uint8).numpy().data)
        if raw is not out:
            out.copy_(raw)

    def read_bytes(self, name: str, start: int, out: memoryview) -> None:
        """Read bytes of a tensor from byte `start` on into `out`."""
        entry = self.entries[name]
        position = entry.offset + start
        while out:
            count = os.preadv(self._handles[entry.file], [out], position)
            if count == 0:
                raise SteelyardError(
                    f"{self.files[entry.file]}: ends inside {name!r}; the file changed while it "
                    f"was read"
                )
            out = out[count:]
            position += count

    def load(self, name: str) -> torch.Tensor:
        """Return one complete tensor."""
        entry = self.entries[name]
        out = torch.empty(entry.size, dtype=entry.dtype)
        self.read(name, 0, out)
        return out.view(entry.shape)

    def peek(self, name: str) -> None:
        """Return None: the tensor is on disk."""


class SafetensorsStore:
    """Opens stores of safetensors files."""

    @staticmethod
    def open(
        base: str | os.PathLike[str],
        clients: Mapping[ClientId, str | os.PathLike[str]],
        refused: Mapping[ClientId, str] | None = None,
        kinds: Mapping[str, Kind] | None = None,
    ) -> SliceStore[Source]:
        """Open the global checkpoint and those of the clients.

        LoRA adapters of smaller ranks than the global ones are padded with zeros.

        Args:
            base: the global checkpoint.
            clients: a checkpoint for each client.
            refused: clients to quarantine, with the reason; their files are not read.
            kinds: of the tensors, where the layout cannot tell from the name.
        """
        source = Checkpoint(base)
        # A client with other tensors is refused with their names; one with far more tensors is
        # refused early.
        max_tensors = 2 * len(source.entries) + 100
        quarantined = dict(refused or {})
        opened: dict[ClientId, Checkpoint] = {}
        for client in clients:
            if client not in quarantined:
                try:
                    opened[client] = Checkpoint(clients[client], max_tensors)
                except (ValueError, OSError) as error:  # a SteelyardError is a ValueError
                    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
                        raise SteelyardError(
                            f"{clients[client]}: too many open files for {len(clients)} clients: "
                            f"allow more (ulimit -n)"
                        ) from error
                    quarantined[client] = str(error)
        layout = layout_of(source, kinds)
        sources = {client: pad_to_layout(model, layout) for client, model in opened.items()}
        base_source: Source = source
        store = SliceStore.of(base_source, sources, quarantined, kinds)
        return replace(store, all_ids=tuple(clients))


def read_metadata(source: Source) -> Mapping[str, str]:
    """Return the metadata of the file of a model; empty if it has none."""
    checkpoint = source.source if isinstance(source, PaddedSource) else source
    return checkpoint.metadata if isinstance(checkpoint, Checkpoint) else {}


def _close(handles: list[int]) -> None:
    for handle in handles:
        os.close(handle)


def _files(path: Path, max_tensors: int) -> tuple[list[Path], Mapping[str, str]]:
    """Return the files of a model, and the shard of each tensor if there is an index."""
    if not path.exists():
        raise SteelyardError(f"{path}: no such file or directory")
    if not path.is_dir():
        return _read_index(path, max_tensors) if path.name.endswith(".json") else ([path], {})
    index = path / INDEX
    if index.exists():
        return _read_index(index, max_tensors)
    files = sorted(path.glob("*.safetensors"))
    if len(files) == 1:
        return files, {}
    pickles = sorted(file.name for file in path.iterdir() if file.suffix in _PICKLES)
    if not files and pickles:
        raise SteelyardError(f"{path}: {_describe_pickle(pickles[0])}")
    raise SteelyardError(
        f"{path}: expected one .safetensors file or {INDEX}, found {len(files)} files and no index"
    )


def _describe_pickle(name: str) -> str:
    return f"{name} is not a safetensors file, and pickled files are not read: convert it to .safetensors"


def _read_index(index: Path, max_tensors: int) -> tuple[list[Path], Mapping[str, str]]:
    """Return the shards that an index lists, and the shard of each tensor."""
    shard_of: dict[str, str] = {}
    handle = open_regular(index)
    try:
        # "weight_map" is the only member that matters; the others are small.
        size = os.fstat(handle).st_size
        if size > _MAX_HEADER:
            raise ValueError(f"{size} bytes, more than {_MAX_HEADER}")
        stream = JsonStream(handle, 0, size)
        has_map = False
        for key in stream.read_members():
            if key == "weight_map":
                has_map = True
                for name in stream.read_members():
                    shard_of[name] = stream.read_value()
                    if len(shard_of) > max_tensors or len(name) > _MAX_NAME:
                        raise ValueError("too many or too long names")
                    _check_shard_name(index, shard_of[name])
            else:
                stream.skip_value()
        stream.finish()
        if not has_map:
            raise ValueError("it has no weight_map")
    except SteelyardError:
        raise
    except (ValueError, RecursionError) as error:
        raise SteelyardError(f"{index}: not an index of shards ({error})") from None
    finally:
        os.close(handle)
    return [index.parent / name for name in sorted(set(shard_of.values()))], shard_of


def read_shard_names(index: Path) -> set[str]:
    """Return the names of the files that an index of shards lists."""
    return {file.name for file in _read_index(index, _MAX_TENSORS)[0]}


def _check_shard_name(index: Path, name: object) -> None:
    """Raise an error if a shard is not a file beside its index."""
    if not isinstance(name, str) or Path(name).name != name or len(name) > 255:
        raise SteelyardError(f"{index}: shard {shorten(name)} is not a plain file name")


def _read_header(
    file: Path, handle: int, number: int, max_tensors: int
) -> tuple[dict[str, Entry], dict[str, str]]:
    """Read the header of a file and check it.

    Args:
        file: for messages.
        handle: the open file.
        number: position of the file among the files of the model.
        max_tensors: refuse the file at the first tensor beyond this number.

    Returns:
        The tensors by name, all of known dtypes, which fill the file exactly; and the metadata.
    """
    # The length of the header.
    total = os.fstat(handle).st_size
    length = int.from_bytes(os.pread(handle, 8, 0), "little") if total >= 8 else -1
    if not 2 <= length <= min(_MAX_HEADER, total - 8):
        if file.suffix in _PICKLES:
            raise SteelyardError(f"{file}: {_describe_pickle(file.name)}")
        raise SteelyardError(
            f"{file}: not a safetensors file (header of {length} bytes in a file of {total})"
        )

    # Its entries, one at a time.
    entries: dict[str, Entry] = {}
    spans: list[tuple[int, int]] = []
    metadata: dict[str, str] = {}
    num_empty = 0
    stream = JsonStream(handle, 8, 8 + length)
    try:
        for name in stream.read_members():
            if name == "__metadata__":
                metadata = _read_metadata(stream)
                continue
            entry, begin, end = _check_entry(file, name, stream.read_value(), number, 8 + length)
            entries[name] = entry
            spans.append((begin, end))
            num_empty += begin == end
            if len(entries) > max_tensors or num_empty > _MAX_EMPTY or end > total - 8 - length:
                break
        else:
            stream.finish()
    except SteelyardError:
        raise
    except (ValueError, RecursionError) as error:
        raise SteelyardError(f"{file}: header is not valid JSON ({error})") from None

    # Check all entries together.
    if len(entries) > max_tensors:
        raise SteelyardError(
            f"{file}: has more than {max_tensors} tensors, the most that are expected"
        )
    if num_empty > _MAX_EMPTY:
        raise SteelyardError(f"{file}: has more than {_MAX_EMPTY} tensors without elements")
    position = 0
    for begin, end in sorted(spans):
        if begin != position:
            raise SteelyardError(f"{file}: tensors overlap or leave a gap at byte {position}")
        position = end
    if position != total - 8 - length:
        raise SteelyardError(
            f"{file}: has {total - 8 - length} bytes of tensors, its header says {position}: "
            f"truncated?"
        )
    return entries, metadata


def _read_metadata(stream: JsonStream) -> dict[str, str]:
    """Read texts by name, of limited total length."""
    metadata: dict[str, str] = {}
    num_characters = 0
    for key in stream.read_members():
        value = stream.read_value()
        metadata[key] = value if isinstance(value, str) else str(value)
        num_characters += len(key) + len(metadata[key])
        if num_characters > _MAX_METADATA or len(metadata) > _MAX_KEYS:
            raise ValueError(
                f"more than {_MAX_METADATA} characters or {_MAX_KEYS} keys of metadata"
            )
    return metadata


def _check_entry(
    file: Path, name: str, item: Any, number: int, data: int
) -> tuple[Entry, int, int]:
    """Check the header of one tensor; return its entry, and its first and last byte in the data."""
    # The name and the fields.
    if len(name) > _MAX_NAME:
        raise SteelyardError(f"{file}: {shorten(name)} has more than {_MAX_NAME} characters")
    try:
        dtype = DTYPES[item["dtype"]]
        shape = tuple(item["shape"])
        begin, end = item["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise SteelyardError(
            f"{file}: {shorten(name)} has an unknown dtype or a malformed entry"
        ) from None
    if len(shape) > _MAX_DIMENSIONS:
        raise SteelyardError(
            f"{file}: {shorten(name)} has {len(shape)} dimensions, more than {_MAX_DIMENSIONS}"
        )
    # The shape must fit the bytes.
    numbers_fit = all(type(n) is int and 0 <= n < _MAX_SIZE for n in (*shape, begin, end))
    if (
        not numbers_fit
        or math.prod(max(n, 1) for n in shape) * dtype.itemsize >= _MAX_SIZE
        or end - begin != math.prod(shape) * dtype.itemsize
    ):
        raise SteelyardError(
            f"{file}: {shorten(name)} has shape={shorten(shape)} that does not fit its bytes "
            f"{shorten(begin)}:{shorten(end)}"
        )
    return Entry(number, data + begin, dtype, shape), begin, end
