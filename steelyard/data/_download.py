"""Download files: resume after interruptions, verify the checksum, then rename the file."""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from steelyard._version import __version__
from steelyard.core._errors import SteelyardError
from steelyard.data._archives import unpack
from steelyard.data._formats import write

Progress = Callable[[int, int | None], None]
"""Called with the number of bytes received so far, and the total number if it is known."""

LIMIT = 8 << 30  # maximum number of bytes of a file whose size is not known
TIMEOUT = 30.0
_STEP = 1 << 18
_RETRY = "try again, and it resumes from there"


def fetch(
    url: str,
    path: str | os.PathLike[str],
    *,
    sha256: str | None = None,
    md5: str | None = None,
    size: int | None = None,
    progress: Progress | None = None,
    timeout: float = TIMEOUT,
) -> Path:
    """Download a file and return its path; do nothing if the file is there and complete.

    The bytes are written to `path.part`. After an interruption the next call keeps them and asks
    the server for the rest. The file gets its final name only if its checksum is right. If two
    processes fetch the same file, one of them waits.

    Args:
        url: an http or https address.
        path: the file to write.
        sha256: the checksum; give this or `md5`.
        md5: the checksum; give this or `sha256`.
        size: the number of bytes, if known.
        progress: called as bytes arrive.
        timeout: stop after this many seconds without a byte.
    """
    # Check the arguments.
    target = Path(path)
    if not url.lower().startswith(("http://", "https://")):
        raise SteelyardError(f"{url}: only http and https are supported")
    if (sha256 is None) == (md5 is None):
        raise SteelyardError(f"{url}: give one checksum, sha256 or md5")
    checksum = (sha256 or md5 or "").lower()
    algorithm = "sha256" if sha256 else "md5"
    job = _Download(url, target, algorithm, checksum, size, progress or _ignore_progress, timeout)
    # Download to the partial file, unless the target is complete.
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if job.is_complete():
            return target
        partial = target.with_name(f"{target.name}.part")
        with _lock_file(partial) as part:
            if job.is_complete():  # another process has fetched it while this one waited
                return target
            if not job.run(part):
                partial.unlink()
                raise SteelyardError(
                    f"{url}: the file received has another {algorithm} than {checksum} and was "
                    f"removed: try again"
                )
            # Rename the verified file.
            os.fsync(part.fileno())
            os.replace(partial, target)
            _sync_directory(target.parent)
    except OSError as error:
        reason = error.strerror or error
        raise SteelyardError(
            f"{target}: cannot be written ({reason}): free some space or choose another directory"
        ) from error
    return target


class _Download:
    """The download of one file."""

    def __init__(
        self,
        url: str,
        target: Path,
        algorithm: str,
        checksum: str,
        size: int | None,
        progress: Progress,
        timeout: float,
    ) -> None:
        self.url = url
        self.target = target
        self.algorithm = algorithm
        self.checksum = checksum
        self.size = size
        self.progress = progress
        self.timeout = timeout

    def is_complete(self) -> bool:
        """Return whether the target is there and has the right checksum."""
        if not self.target.is_file():
            return False
        with self.target.open("rb") as stream:
            return self._has_right_checksum(stream)

    def run(self, part: IO[bytes]) -> bool:
        """Append the missing bytes to the partial file; return whether its checksum is right."""
        have = part.seek(0, os.SEEK_END)
        if self.size is not None and have > self.size:
            have = part.truncate(0)
        if have and self._has_right_checksum(part):
            return True
        self._receive(part, have)
        return self._has_right_checksum(part)

    def _has_right_checksum(self, stream: IO[bytes]) -> bool:
        stream.seek(0)
        digest = hashlib.file_digest(stream, self.algorithm)  # type: ignore[arg-type]
        return digest.hexdigest() == self.checksum

    def _receive(self, part: IO[bytes], have: int) -> None:
        """Write what the server sends, from byte `have` on, to the partial file."""
        with self._request(have) or self._request(0) as response:
            # Continue at the end of the partial file, or start again.
            have = part.seek(self._start(response, have))
            part.truncate()
            # Compare the size the server announces with the limit.
            length = response.headers.get("Content-Length") or ""
            total = have + int(length) if length.isdecimal() else self.size
            limit = LIMIT if self.size is None else self.size
            if (total or 0) > limit:
                raise SteelyardError(
                    f"{self.url}: the server announces {total} bytes, not {limit}: it is another "
                    f"file"
                )
            # Write block by block.
            while data := self._read(response, have):
                have += len(data)
                if have > limit:
                    raise SteelyardError(
                        f"{self.url}: received more than {limit} bytes: it is another file"
                    )
                write(part, data, self.target)
                self.progress(have, total)
            part.flush()
        if total is not None and have < total:
            raise SteelyardError(
                f"{self.url}: the connection ended at {have} of {total} bytes: {_RETRY}"
            )

    def _start(self, response: Any, requested: int) -> int:
        """Return the position of the first byte the server sends.

        A server that does not support ranges starts at byte 0.
        """
        if response.status != 206:
            return 0
        match = re.fullmatch(
            r"bytes (\d+)-\d+/(?:\d+|\*)", response.headers.get("Content-Range", "")
        )
        if match is None or int(match[1]) != requested:
            raise SteelyardError(
                f"{self.url}: the server did not send the part from byte {requested}: try again"
            )
        return requested

    def _request(self, have: int) -> Any:
        """Ask for the bytes from `have` on.

        Return the response, or None if there are no more bytes.
        """
        headers = {"User-Agent": f"steelyard/{__version__}"}
        if have:
            headers["Range"] = f"bytes={have}-"
        try:
            return _opener().open(
                urllib.request.Request(self.url, headers=headers), timeout=self.timeout
            )
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416 and have:
                return None
            raise SteelyardError(
                f"{self.url}: the server answered {error.code} {error.reason}: try again later"
            ) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._connection_error(error) from None

    def _read(self, response: Any, have: int) -> bytes:
        """Return the next block."""
        try:
            data: bytes = response.read1(
                _STEP
            )  # what has arrived, so that nothing is lost on a timeout
            return data
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._connection_error(error, f" after {have} bytes") from None

    def _connection_error(self, error: Exception, progress: str = "") -> SteelyardError:
        cause = getattr(error, "reason", error)
        if isinstance(cause, TimeoutError):
            return SteelyardError(
                f"{self.url}: no answer for {self.timeout:g} s{progress}: {_RETRY}"
            )
        reason = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
        return SteelyardError(f"{self.url}: the connection failed{progress} ({reason}): {_RETRY}")


def _opener() -> urllib.request.OpenerDirector:
    """Return an opener for http and https only, also after a redirect.

    urllib's default opener supports ftp too.
    """
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.UnknownHandler,
    ):
        opener.add_handler(handler())
    return opener


@contextmanager
def _lock_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file and lock it for this process; remove it at the end if it is empty."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    while True:
        with open(os.open(path, flags, 0o644), "r+b") as stream:
            _lock(stream)
            if not _is_same_file(stream, path):  # renamed while this process waited for the lock
                continue
            try:
                yield stream
            finally:
                if _is_same_file(stream, path) and path.stat().st_size == 0:
                    path.unlink()
            return


def _is_same_file(stream: IO[bytes], path: Path) -> bool:
    """Return whether the open file still has this path: another process may rename it."""
    try:
        return os.path.samestat(os.fstat(stream.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _lock(stream: IO[bytes]) -> None:
    """Wait for an exclusive lock; do nothing on Windows, which has no `fcntl`."""
    try:
        import fcntl
    except ModuleNotFoundError:
        return
    fcntl.flock(stream, fcntl.LOCK_EX)


def _sync_directory(folder: Path) -> None:
    """Write a new file name to disk, where directories can be opened."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _ignore_progress(have: int, total: int | None) -> None:
    """Do nothing."""


# Fetch data sets from the web. Each data set lists its files in `Source.downloads`.


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


DOWNLOADS: dict[str, tuple[File, ...]] = {}
"""The files of each data set that can be fetched; every `Source` enters its `downloads` here."""


def fetch_dataset(
    name: str, directory: Path, watch: Callable[[File], Progress] | None = None
) -> list[Path]:
    """Fetch the files of a data set and unpack them; files that are already there are not changed.

    Args:
        name: a key of `DOWNLOADS`.
        directory: the data directory.
        watch: called with each file; returns the function to call as its bytes arrive.

    Returns:
        The files, or the folders they were unpacked to.
    """
    paths = []
    for file in DOWNLOADS[name]:
        path = directory / file.path
        target = path if file.folder is None else path.with_name(file.folder)
        if file.folder is None or not target.is_dir():
            progress = None if watch is None else watch(file)
            fetch(
                file.url, path, md5=file.md5, sha256=file.sha256, size=file.size, progress=progress
            )
            if file.folder is not None:
                unpack(path, target)
                path.unlink(missing_ok=True)
        paths.append(target)
    return paths


def check_fetchable(name: str) -> str:
    """Return the name of a data set; raise an error if it cannot be fetched."""
    if name not in DOWNLOADS:
        raise SteelyardError(
            f"{name!r} cannot be fetched: use one of {', '.join(sorted(DOWNLOADS))}"
        )
    return name
