"""Writing a model chunk by chunk into safetensors files, atomically."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import TracebackType

import torch

from steelyard.core.errors import SteelyardError
from steelyard.core.layout import DTYPES, Layout, Leaf
from steelyard.stores.memory import narrowed
from steelyard.stores.safetensors import INDEX, Checkpoint, read_shard_names
from steelyard.stores.staging import Staging

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_MAX_COMPANION = 100_000_000  # bytes of a file beside the model; a large tokenizer has 40 million
_WEIGHTS = (
    *(".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack", ".onnx", ".onnx_data", ".gguf"),
    *(".npz", ".index.json"),
)


class FileSink:
    """A new checkpoint with the tensors, dtypes and shards of another one, complete or not there at all.

    Use it as a context manager: everything goes to a hidden neighbour of `path`, which takes its place on a clean
    exit and is removed on any other. One that was left by a killed process is removed by the next sink for `path`.

    Args:
        path: the file or directory to write.
        like: the checkpoint whose form it has. A directory also gets the small files beside that one.
        layout: where in the vector of parameters the tensors lie.
        metadata: of the files.
        force: replace what is at `path`. Files in a directory that do not belong to the model in it are kept.
    """

    def __init__(
        self, path: Path, like: Checkpoint, layout: Layout, metadata: dict[str, str], force: bool = False
    ) -> None:
        self.path = path
        self.layout = layout
        self.force = force
        self.is_directory = len(like.files) > 1 or path.suffix != ".safetensors"
        self.names = [file.name if self.is_directory else "new" for file in like.files]
        self.companions = find_companions(like) if self.is_directory else []
        _check_target(path, like, force, self.is_directory)
        self.replaced = _find_replaced(path) if self.is_directory and force else set[str]()
        self._check_others()
        self.where: dict[str, tuple[int, int]] = {}  # name: (handle, first byte)
        self.handles: list[int] = []
        self.staging = Staging(path)
        try:
            self._begin(like, metadata)
        except BaseException:
            self._end()
            raise

    def _check_others(self) -> None:
        """Refuses a directory that holds another model too: nobody could tell the two apart."""
        if not self.path.is_dir():
            return
        others = {name for name in os.listdir(self.path) if name.endswith(".safetensors")}
        others -= self.replaced | {*self.names}
        if others:
            raise SteelyardError(
                f"{self.path} holds {min(others)!r} too, which is not part of the model to replace: "
                "choose another directory"
            )

    def _begin(self, like: Checkpoint, metadata: dict[str, str]) -> None:
        """Writes all but the values of the tensors."""
        folder = self.staging.directory
        if self.is_directory:
            folder = self.staging.new
            folder.mkdir()
            if os.path.lexists(self.path):
                self.staging.check_exchange()
            for file in self.companions:
                shutil.copyfile(file, folder / file.name)
        for number, name in enumerate(self.names):
            keys = [key for key, entry in like.entries.items() if entry.file == number]
            self._begin_file(folder / name, keys, like, metadata)
        if len(self.names) > 1:
            weight_map = {key: self.names[entry.file] for key, entry in like.entries.items()}
            index = {"metadata": {"total_size": like.num_bytes}, "weight_map": weight_map}
            (folder / INDEX).write_text(json.dumps(index, indent=2))

    def _begin_file(self, path: Path, keys: list[str], like: Checkpoint, metadata: dict[str, str]) -> None:
        """Makes a file of its final size with its header, and notes where the tensors go."""
        header: dict[str, object] = {"__metadata__": metadata}
        position = 0
        for key in keys:
            entry = like.entries[key]
            size = entry.size * entry.dtype.itemsize
            header[key] = {
                "dtype": _NAMES[entry.dtype],
                "shape": list(entry.shape),
                "data_offsets": [position, position + size],
            }
            position += size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        self.handles.append(handle)
        os.truncate(handle, 8 + len(text) + position)
        _write_all(handle, memoryview(len(text).to_bytes(8, "little") + text), 0)
        position = 8 + len(text)
        for key in keys:
            self.where[key] = (handle, position)
            position += like.entries[key].size * like.entries[key].dtype.itemsize

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
        _write_all(handle, data, first + start * leaf.dtype.itemsize)

    def __enter__(self) -> FileSink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._publish()
        finally:
            self._end()

    def _publish(self) -> None:
        """Gives the finished files their names."""
        for handle in self.handles:
            os.fsync(handle)
        if not self.is_directory:
            self.staging.publish_file(self.force)
            return
        for name in (INDEX, *(file.name for file in self.companions)):
            if (self.staging.new / name).exists():
                _sync_file(self.staging.new / name)
        self.staging.publish_directory(self.force, self.replaced)

    def _end(self) -> None:
        """Closes the files and removes what is hidden."""
        for handle in self.handles:
            os.close(handle)
        self.handles.clear()
        self.staging.remove()


def find_companions(checkpoint: Checkpoint) -> list[Path]:
    """The small files in a checkpoint's directory that hold no weights: `config.json`, the tokenizer and the like."""
    directory = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
    if directory == checkpoint.path or checkpoint.path.name.endswith(".json"):
        return [
            file
            for file in sorted(directory.iterdir())
            if file.is_file()
            and not file.name.startswith(".")
            and not file.name.endswith(_WEIGHTS)
            and file.stat().st_size <= _MAX_COMPANION
        ]
    return []


def _check_target(path: Path, like: Checkpoint, force: bool, is_directory: bool) -> None:
    """Refuses a place that the result cannot have."""
    if os.path.lexists(path) and not force:
        raise SteelyardError(f"{path} exists: choose another name, or pass force=True to replace it")
    if not path.parent.is_dir():
        raise SteelyardError(f"{path.parent}: no such directory to write {path.name!r} into")
    if path.suffix == ".safetensors" and is_directory:
        raise SteelyardError(f"{path}: the base model has {len(like.files)} shards; name a directory to hold as many")
    if is_directory and path.is_symlink():
        raise SteelyardError(f"{path} is a symbolic link: name the directory itself")
    if is_directory and path.exists() and not path.is_dir():
        raise SteelyardError(f"{path} is a file, and the result is a directory: choose another name")
    if not is_directory and path.is_dir():
        raise SteelyardError(f"{path} is a directory, and the result is a file: choose another name")


def _find_replaced(path: Path) -> set[str]:
    """The names in a directory that are the model in it: its index, and the shards that the index lists."""
    if not (path / INDEX).exists():
        return set()
    try:
        return {INDEX, *read_shard_names(path / INDEX)}
    except (SteelyardError, OSError):
        return {INDEX}


def _sync_file(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_all(handle: int, data: memoryview, position: int) -> None:
    while data:
        count = os.pwrite(handle, data, position)
        data = data[count:]
        position += count
