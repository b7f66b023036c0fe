"""Writing a model chunk by chunk into safetensors files, atomically."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType

import torch

from steelyard.core.errors import SteelyardError
from steelyard.core.layout import DTYPES, Layout, Leaf
from steelyard.stores.memory import narrowed
from steelyard.stores.safetensors import INDEX, Checkpoint

_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class FileSink:
    """A new checkpoint with the tensors, dtypes and shards of another one, complete or not there at all.

    Use it as a context manager: everything goes to a hidden neighbour of `path`, which takes its place on a clean
    exit and is removed on any other.
    """

    def __init__(
        self, path: Path, like: Checkpoint, layout: Layout, metadata: dict[str, str], force: bool = False
    ) -> None:
        self.path, self.layout = path, layout
        sharded = len(like.files) > 1
        if path.exists() and not force:
            raise SteelyardError(f"{path} exists: choose another name, or overwrite it with --force (force=True)")
        if not path.parent.is_dir():
            raise SteelyardError(f"{path.parent}: no such directory to write {path.name!r} into")
        if sharded and path.suffix == ".safetensors":
            raise SteelyardError(
                f"{path}: the base model has {len(like.files)} shards; name a directory to hold as many"
            )
        self.directory = sharded or path.suffix != ".safetensors"
        self.names = [file.name if self.directory else path.name for file in like.files]
        others = sorted({file.name for file in path.iterdir()} - {*self.names, INDEX}) if path.is_dir() else []
        if others:
            raise SteelyardError(f"{path} holds {others[0]!r} too, which would be lost: name another directory")
        self.hidden = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
        self.where: dict[str, tuple[int, int]] = {}  # name: (handle, first byte)
        self.handles: list[int] = []
        for number, name in enumerate(self.names):
            self._begin(name, [key for key, entry in like.entries.items() if entry.file == number], like, metadata)
        if sharded:
            weight_map = {key: self.names[entry.file] for key, entry in like.entries.items()}
            index = {"metadata": {"total_size": like.num_bytes}, "weight_map": weight_map}
            (self.hidden / INDEX).write_text(json.dumps(index, indent=2))

    def _begin(self, name: str, keys: list[str], like: Checkpoint, metadata: dict[str, str]) -> None:
        header: dict[str, object] = {"__metadata__": metadata}
        at = 0
        for key in keys:
            entry = like.entries[key]
            size = entry.size * entry.dtype.itemsize
            header[key] = {
                "dtype": _NAMES[entry.dtype],
                "shape": list(entry.shape),
                "data_offsets": [at, at + size],
            }
            at += size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        handle = os.open(self.hidden / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        self.handles.append(handle)
        os.truncate(handle, 8 + len(text) + at)
        os.pwrite(handle, len(text).to_bytes(8, "little") + text, 0)
        at = 8 + len(text)
        for key in keys:
            self.where[key] = (handle, at)
            at += like.entries[key].size * like.entries[key].dtype.itemsize

    def room(self, start: int, stop: int) -> None:
        """None: values are written to the file as they come."""

    def write(self, start: int, values: torch.Tensor) -> None:
        """Cuts the chunk into the leaves it belongs to."""
        for leaf, left, right in self.layout.overlapping(start, start + values.numel()):
            self._bytes(leaf, left - leaf.start, narrowed(values[left - start : right - start], leaf))

    def put(self, leaf: Leaf, values: torch.Tensor) -> None:
        """Writes a statistic or a counter."""
        self._bytes(leaf, 0, values.reshape(-1))

    def _bytes(self, leaf: Leaf, start: int, values: torch.Tensor) -> None:
        handle, first = self.where[leaf.name]
        data = values.contiguous().view(torch.uint8).numpy().data
        position = first + start * leaf.dtype.itemsize
        while data:
            count = os.pwrite(handle, data, position)
            data, position = data[count:], position + count

    def __enter__(self) -> FileSink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for handle in self.handles:
                if kind is None:
                    os.fsync(handle)
                os.close(handle)
            if kind is None:
                self._replace()
        finally:
            shutil.rmtree(self.hidden, ignore_errors=True)

    def _replace(self) -> None:
        if not self.directory:
            os.replace(self.hidden / self.names[0], self.path)
            return
        old = None
        if self.path.exists():
            old = Path(tempfile.mkdtemp(dir=self.path.parent, prefix=f".{self.path.name}.old."))
            os.rename(self.path, old / "old")
        try:
            os.rename(self.hidden, self.path)
        except OSError:
            if old is not None:
                os.rename(old / "old", self.path)
                old.rmdir()
            raise
        self.path.chmod(0o755)
        if old is not None:
            shutil.rmtree(old)
