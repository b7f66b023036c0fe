"""Fetch data sets from the web. Each data set lists its files in `Source.downloads`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from steelyard.core.errors import SteelyardError
from steelyard.data.archives import unpack
from steelyard.data.download import Progress, fetch


@dataclass(frozen=True)
class File:
    """A file to fetch; the checksum is the one of its publisher or of the usual libraries.

    Attributes:
        url: its address.
        path: where to write it, below the data directory.
        md5: the checksum; give this or `sha256`.
        sha256: the checksum; give this or `md5`.
        size: the number of bytes, if known.
        folder: the folder, beside the file, that an archive is unpacked to; the archive is then
            removed.
    """

    url: str
    path: str
    md5: str | None = None
    sha256: str | None = None
    size: int | None = None
    folder: str | None = None


HOMES: dict[str, tuple[File, ...]] = {}
"""The files of each data set that can be fetched; every `Source` enters its `downloads` here."""


def bring(name: str, directory: Path, watch: Callable[[File], Progress] | None = None) -> list[Path]:
    """Fetch the files of a data set and unpack them; files that are already there are not changed.

    Args:
        name: a key of `HOMES`.
        directory: the data directory.
        watch: called with each file; returns the function to call as its bytes arrive.

    Returns:
        The files, or the folders they were unpacked to.
    """
    paths = []
    for file in HOMES[name]:
        path = directory / file.path
        target = path if file.folder is None else path.with_name(file.folder)
        if file.folder is None or not target.is_dir():
            progress = None if watch is None else watch(file)
            fetch(file.url, path, md5=file.md5, sha256=file.sha256, size=file.size, progress=progress)
            if file.folder is not None:
                unpack(path, target)
                path.unlink(missing_ok=True)
        paths.append(target)
    return paths


def find_name(name: str) -> str:
    """Return the name of a data set; raise an error if it cannot be fetched."""
    if name not in HOMES:
        raise SteelyardError(f"{name!r} cannot be fetched: use one of {', '.join(sorted(HOMES))}")
    return name
