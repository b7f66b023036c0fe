"""Write a model chunk by chunk into safetensors files, atomically."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import TracebackType

import torch

from steelyard.core._errors import SteelyardError
from steelyard.core._layout import DTYPES, Layout, Leaf
from steelyard.stores._memory import cast_to_leaf
from steelyard.stores._safetensors import INDEX, Checkpoint, read_shard_names
from steelyard.stores._staging import Staging

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_MAX_COMPANION = 100_000_000  # bytes of a file beside the model; a large tokenizer has 40 million
_WEIGHTS = (
    ".safetensors",
    ".bin",
    ".pt",
    ".pth",
    ".ckpt",
    ".pkl",
    ".h5",
    ".msgpack",
    ".onnx",
    ".onnx_data",
    ".gguf",
    ".npz",
    ".index.json",
)


class FileSink:
    """A new checkpoint with the tensors, dtypes and shards of another one.

    It is written completely or not at all.

    Use it as a context manager: everything is written to a hidden directory beside `path`, which
    replaces `path` on a normal exit and is removed after an error. A hidden directory that a killed
    process has left behind is removed by the next sink for `path`.

    Args:
        path: the file or directory to write.
        like: the checkpoint whose tensors, dtypes and shards are used. A directory also gets the
            small files beside that checkpoint.
        layout: where the tensors are in the vector of parameters.
        metadata: of the files.
        force: replace what is at `path`. Files in a directory that do not belong to its model are
            kept.
    """

    def __init__(
        self,
        path: Path,
        like: Checkpoint,
        layout: Layout,
        metadata: dict[str, str],
        force: bool = False,
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
        """Raise an error if the directory contains another model: readers would mix them up."""
        if not self.path.is_dir():
            return
        foreign = {name for name in os.listdir(self.path) if name.endswith(".safetensors")}
        foreign -= self.replaced | {*self.names}
        if foreign:
            raise SteelyardError(
                f"{self.path} contains {min(foreign)!r} too, which is not part of the model to "
                f"replace: "
                "choose another directory"
            )

    def _begin(self, like: Checkpoint, metadata: dict[str, str]) -> None:
        """Write everything except the values of the tensors."""
        # The directory and the small files.
        folder = self.staging.directory
        if self.is_directory:
            folder = self.staging.new
            folder.mkdir()
            if os.path.lexists(self.path):
                self.staging.check_exchange()
            for file in self.companions:
                shutil.copyfile(file, folder / file.name)
        # The headers of the files.
        for number, name in enumerate(self.names):
            keys = [key for key, entry in like.entries.items() if entry.file == number]
            self._begin_file(folder / name, keys, like, metadata)
        # The index of the shards.
        if len(self.names) > 1:
            weight_map = {key: self.names[entry.file] for key, entry in like.entries.items()}
            index = {"metadata": {"total_size": like.num_bytes}, "weight_map": weight_map}
            (folder / INDEX).write_text(json.dumps(index, indent=2))

    def _begin_file(
        self, path: Path, keys: list[str], like: Checkpoint, metadata: dict[str, str]
    ) -> None:
        """Create a file of its final size with its header, and record where the tensors go."""
        # The header, padded to a multiple of eight bytes.
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
        # The file.
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        self.handles.append(handle)
        os.truncate(handle, 8 + len(text) + position)
        _write_all(handle, memoryview(len(text).to_bytes(8, "little") + text), 0)
        # The positions of the tensors.
        position = 8 + len(text)
        for key in keys:
            self.where[key] = (handle, position)
            position += like.entries[key].size * like.entries[key].dtype.itemsize

    def room(self, start: int, stop: int) -> None:
        """Return None: values are written to the file as they come."""

    def write(self, start: int, values: torch.Tensor) -> None:
        """Write a chunk, divided into the leaves it belongs to."""
        for leaf, low, high in self.layout.overlapping(start, start + values.numel()):
            self._write_leaf(
                leaf, low - leaf.start, cast_to_leaf(values[low - start : high - start], leaf)
            )

    def write_leaf(self, leaf: Leaf, values: torch.Tensor) -> None:
        """Write a statistic or a counter."""
        self._write_leaf(leaf, 0, values.reshape(-1))

    def _write_leaf(self, leaf: Leaf, start: int, values: torch.Tensor) -> None:
        handle, first = self.where[leaf.name]
        data = values.contiguous().view(torch.uint8).numpy().data
        _write_all(handle, data, first + start * leaf.dtype.itemsize)

    def __enter__(self) -> FileSink:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._publish()
        finally:
            self._end()

    def _publish(self) -> None:
        """Give the finished files their final names."""
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
        """Close the files and remove the hidden directory."""
        for handle in self.handles:
            os.close(handle)
        self.handles.clear()
        self.staging.remove()


def find_companions(checkpoint: Checkpoint) -> list[Path]:
    """Return the small files beside a checkpoint: `config.json`, the tokenizer and so on.

    Files with weights are left out.
    """
    path = checkpoint.path
    directory = path if path.is_dir() else path.parent
    if directory != path and not path.name.endswith(".json"):
        return []
    return [file for file in sorted(directory.iterdir()) if _is_companion(file)]


def _is_companion(file: Path) -> bool:
    if not file.is_file() or file.name.startswith("."):
        return False
    return not file.name.endswith(_WEIGHTS) and file.stat().st_size <= _MAX_COMPANION


def _check_target(path: Path, like: Checkpoint, force: bool, is_directory: bool) -> None:
    """Raise an error if the result cannot be written to this path."""
    if os.path.lexists(path) and not force:
        raise SteelyardError(
            f"{path} exists: choose another name, or pass force=True to replace it"
        )
    if not path.parent.is_dir():
        raise SteelyardError(f"{path.parent}: no such directory to write {path.name!r} into")
    if path.suffix == ".safetensors" and is_directory:
        raise SteelyardError(
            f"{path}: the base model has {len(like.files)} shards: name a directory for them"
        )
    if is_directory and path.is_symlink():
        raise SteelyardError(f"{path} is a symbolic link: name the directory itself")
    if is_directory and path.exists() and not path.is_dir():
        raise SteelyardError(
            f"{path} is a file, and the result is a directory: choose another name"
        )
    if not is_directory and path.is_dir():
        raise SteelyardError(
            f"{path} is a directory, and the result is a file: choose another name"
        )


def _find_replaced(path: Path) -> set[str]:
    """Return the names in a directory that belong to its model: the index and its shards."""
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
