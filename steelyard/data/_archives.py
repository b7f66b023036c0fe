"""Read zip and tar archives file by file, or unpack them.

Nothing is ever written outside the target folder.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import shutil
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from steelyard.core._errors import SteelyardError
from steelyard.data._formats import reading, write

LIMIT = 4 << 30  # maximum number of bytes after unpacking
MEMBERS = 1_000_000  # maximum number of files

_OPENERS: dict[str, Any] = {
    ".gz": gzip.open,
    ".tgz": gzip.open,
    ".xz": lzma.open,
    ".bz2": bz2.open,
    ".tar": open,
}
_STEP = 1 << 20


class _LimitedStream:
    """A stream that raises an error after `limit` bytes.

    No header can then make tarfile read forever.
    """

    def __init__(self, stream: IO[bytes], limit: int, path: Path) -> None:
        self.stream = stream
        self.limit = limit
        self.path = path
        self.remaining = limit

    def read(self, size: int) -> bytes:
        data = self.stream.read(size)
        self.remaining -= len(data)
        if self.remaining < 0:
            raise _too_large(self.path, self.limit)
        return data


def members(path: Path, limit: int = LIMIT) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Yield name, size and stream of each regular file, in the order of the archive.

    Read each stream before you advance to the next one. Raise an error for links, devices, names
    that are absolute or contain `..`, and archives of more than `limit` bytes in total.
    """
    files = _read_zip(path, limit) if path.suffix == ".zip" else _read_tar(path, limit)
    for count, (name, size, stream) in enumerate(files):
        if count >= MEMBERS:
            raise SteelyardError(
                f"{path} contains more than {MEMBERS} files, which cannot be right: fetch it again"
            )
        parts = PurePosixPath(name).parts
        is_absolute = not parts or name.startswith("/") or ":" in parts[0]
        if is_absolute or ".." in parts or "\\" in name or "\0" in name:
            raise SteelyardError(
                f"{path} contains {name[:80]!r}, a path that leads out of its folder: do not use "
                f"this archive"
            )
        yield name, size, stream


def unpack(archive: Path, target: Path, limit: int = LIMIT) -> None:
    """Unpack the top folder of an archive to `target`, completely or not at all.

    Args:
        archive: the zip or tar file; its top folder must have the same name as `target`.
        target: the folder to create.
        limit: the maximum number of bytes after unpacking.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    # Unpack to a temporary folder beside the target.
    hidden = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        with reading(archive, "archive"):
            for name, _, stream in members(archive, limit):
                path = hidden / name
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("xb") as out:
                    while data := stream.read(_STEP):
                        write(out, data, target)
        if not (hidden / target.name).is_dir():
            raise SteelyardError(
                f"{archive} does not contain a folder {target.name!r}: fetch it again"
            )
        # Rename it when it is complete.
        try:
            os.rename(hidden / target.name, target)
        except OSError:
            if not target.is_dir():  # otherwise another process has just unpacked it
                raise
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def _read_zip(path: Path, limit: int) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Yield name, size and stream of each file of a zip archive."""
    with zipfile.ZipFile(path) as archive:
        infos = archive.infolist()
        if sum(info.file_size for info in infos) > limit:
            raise _too_large(path, limit)
        for info in infos:
            if stat.S_ISLNK(info.external_attr >> 16):
                raise _not_regular(path, info.filename)
            if not info.is_dir():
                with archive.open(info) as stream:  # yields file_size bytes at most
                    yield info.filename, info.file_size, stream


def _read_tar(path: Path, limit: int) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Yield name, size and stream of each file of a tar archive, compressed or not."""
    if path.suffix not in _OPENERS:
        raise SteelyardError(
            f"{path} is not an archive: use {', '.join(sorted({*_OPENERS, '.zip'}))}"
        )
    with _OPENERS[path.suffix](path, "rb") as raw:
        limited = cast("IO[bytes]", _LimitedStream(raw, limit, path))
        with tarfile.open(fileobj=limited, mode="r|") as archive:
            remaining = limit
            for info in archive:
                if info.isdir():
                    continue
                stream = archive.extractfile(info) if info.isreg() else None
                if stream is None:
                    raise _not_regular(path, info.name)
                remaining -= info.size  # a sparse file is larger than its part of the archive
                if remaining < 0:
                    raise _too_large(path, limit)
                yield info.name, info.size, stream
        while limited.read(_STEP):  # read to the end, where the checksum is
            pass


def _too_large(path: Path, limit: int) -> SteelyardError:
    return SteelyardError(
        f"{path} unpacks to more than {limit:,} bytes, which cannot be right: fetch it again"
    )


def _not_regular(path: Path, name: str) -> SteelyardError:
    return SteelyardError(
        f"{path} contains {name[:80]!r}, a link or a device: do not use this archive"
    )
