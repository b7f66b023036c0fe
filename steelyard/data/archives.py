"""Archives, zip and tar: their files one by one, or unpacked whole. Nothing is ever written outside the target."""

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

from steelyard.core.errors import SteelyardError
from steelyard.data.damage import reading, write

LIMIT = 4 << 30  # bytes unpacked
MEMBERS = 1_000_000

_OPENERS: dict[str, Any] = {".gz": gzip.open, ".tgz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open, ".tar": open}
_STEP = 1 << 20


class _Counted:
    """A stream that ends in an error past a limit, so that no header makes tarfile read without end."""

    def __init__(self, stream: IO[bytes], limit: int, path: Path) -> None:
        self.stream, self.left, self.limit, self.path = stream, limit, limit, path

    def read(self, size: int) -> bytes:
        data = self.stream.read(size)
        self.left -= len(data)
        if self.left < 0:
            raise _too_large(self.path, self.limit)
        return data


def members(path: Path, limit: int = LIMIT) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Name, size and stream of each regular file, in the archive's order; read a stream before going on.

    Links, devices, and names that are absolute or lead upwards are refused; so is more than `limit` bytes in all.
    """
    for count, (name, size, stream) in enumerate(_zipped(path, limit) if _is_zip(path) else _tarred(path, limit)):
        if count >= MEMBERS:
            raise SteelyardError(f"{path} holds more than {MEMBERS} files, far beyond its kind: fetch it again")
        parts = PurePosixPath(name).parts
        if not parts or name.startswith("/") or ".." in parts or "\\" in name or "\0" in name or ":" in parts[0]:
            raise SteelyardError(f"{path} holds {name[:80]!r}, which leads out of its folder: do not use this archive")
        yield name, size, stream


def unpack(archive: Path, target: Path, limit: int = LIMIT) -> None:
    """Unpacks the archive's top folder, which must have the name of `target`, to there: whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
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
            raise SteelyardError(f"{archive} holds no folder {target.name!r}: fetch it again")
        try:
            os.rename(hidden / target.name, target)
        except OSError:
            if not target.is_dir():  # else somebody else has just unpacked it
                raise
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def _is_zip(path: Path) -> bool:
    return path.suffix == ".zip"


def _zipped(path: Path, limit: int) -> Iterator[tuple[str, int, IO[bytes]]]:
    with zipfile.ZipFile(path) as archive:
        infos = archive.infolist()
        if sum(info.file_size for info in infos) > limit:
            raise _too_large(path, limit)
        for info in infos:
            if stat.S_ISLNK(info.external_attr >> 16):
                raise _link(path, info.filename)
            if not info.is_dir():
                with archive.open(info) as stream:  # gives file_size bytes at most
                    yield info.filename, info.file_size, stream


def _tarred(path: Path, limit: int) -> Iterator[tuple[str, int, IO[bytes]]]:
    if path.suffix not in _OPENERS:
        raise SteelyardError(f"{path} is no archive: use {', '.join(sorted({*_OPENERS, '.zip'}))}")
    with _OPENERS[path.suffix](path, "rb") as raw:
        counted = cast("IO[bytes]", _Counted(raw, limit, path))
        with tarfile.open(fileobj=counted, mode="r|") as archive:
            left = limit
            for info in archive:
                if info.isdir():
                    continue
                stream = archive.extractfile(info) if info.isreg() else None
                if stream is None:
                    raise _link(path, info.name)
                left -= info.size  # a sparse file has more of it than the archive
                if left < 0:
                    raise _too_large(path, limit)
                yield info.name, info.size, stream
        while counted.read(_STEP):  # to the end, where the checksum is
            pass


def _too_large(path: Path, limit: int) -> SteelyardError:
    return SteelyardError(f"{path} unpacks to more than {limit:,} bytes, far beyond its kind: fetch it again")


def _link(path: Path, name: str) -> SteelyardError:
    return SteelyardError(f"{path} holds {name[:80]!r}, a link or a device: do not use this archive")
