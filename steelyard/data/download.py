"""Downloads: to a neighbour of the file, resumed where they stopped, verified, and only then given the file's name."""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from steelyard._version import __version__
from steelyard.core.errors import SteelyardError
from steelyard.data.damage import write

Progress = Callable[[int, int | None], None]
"""Called with the bytes there are, and with all there will be if that is known."""

LIMIT = 8 << 30  # bytes of a file whose size is not known
TIMEOUT = 30.0
_STEP = 1 << 18


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
    """Downloads a file, or leaves it as it is if it is there and whole.

    Bytes go to `path.part`; what an interrupted download left there is kept, and the rest asked for. The file gets its
    name when its checksum is right, and never otherwise. Of two processes that fetch the same file, one waits.

    Args:
        url: where it is, by http or https.
        path: where it shall be.
        sha256: its checksum; or
        md5: an older one.
        size: its bytes, if known.
        progress: called as bytes come in.
        timeout: seconds without a byte that end it.
    """
    target = Path(path)
    if not url.lower().startswith(("http://", "https://")):
        raise SteelyardError(f"{url}: only http and https are fetched")
    if (sha256 is None) == (md5 is None):
        raise SteelyardError(f"{url}: give one checksum, sha256 or md5")
    wanted = (sha256 or md5 or "").lower()
    job = _Job(url, target, "sha256" if sha256 else "md5", wanted, size, progress or _silent, timeout)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_file() and job.digest_of(target) == wanted:
            return target
        beside = target.with_name(f"{target.name}.part")
        with _lock_file(beside) as part:
            if not (target.is_file() and job.digest_of(target) == wanted):  # else another process was first
                if not job.run(part):
                    beside.unlink()
                    raise SteelyardError(
                        f"{url}: what came has another {job.algorithm} than {wanted} and was removed: try again"
                    )
                os.fsync(part.fileno())
                os.replace(beside, target)
                _settle(target.parent)
    except OSError as error:
        reason = error.strerror or error
        raise SteelyardError(f"{target}: cannot be written ({reason}): make room or choose another place") from error
    return target


class _Job:
    """One file: what it is, and how it comes in."""

    def __init__(
        self, url: str, target: Path, algorithm: str, wanted: str, size: int | None, progress: Progress, timeout: float
    ) -> None:
        self.url, self.target, self.algorithm, self.wanted = url, target, algorithm, wanted
        self.size, self.progress, self.timeout = size, progress, timeout

    def digest_of(self, path: Path) -> str:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, self.algorithm).hexdigest()

    def run(self, part: IO[bytes]) -> bool:
        """Fills the file, from where it ends; whether its checksum is right."""
        have = part.seek(0, os.SEEK_END)
        if self.size is not None and have > self.size:
            have = part.truncate(0)
        if have and self._right(part):
            return True
        self._receive(part, have)
        return self._right(part)

    def _right(self, part: IO[bytes]) -> bool:
        part.seek(0)
        return hashlib.file_digest(part, self.algorithm).hexdigest() == self.wanted  # type: ignore[arg-type]

    def _receive(self, part: IO[bytes], have: int) -> None:
        with self._answer(have) or self._answer(0) as response:
            have = part.seek(self._start(response, have))
            part.truncate()
            length = response.headers.get("Content-Length") or ""
            total = have + int(length) if length.isdecimal() else self.size
            limit = LIMIT if self.size is None else self.size
            if (total or 0) > limit:
                raise SteelyardError(f"{self.url}: the server says {total} bytes, not {limit}: it is another file")
            while data := self._read(response, have):
                have += len(data)
                if have > limit:
                    raise SteelyardError(f"{self.url}: more than {limit} bytes came: it is another file")
                write(part, data, self.target)
                self.progress(have, total)
            part.flush()
        if total is not None and have < total:
            raise SteelyardError(f"{self.url}: the connection ended at {have} of {total} bytes: {_AGAIN}")

    def _start(self, response: Any, asked: int) -> int:
        """Where the bytes that come belong: a server may not know of ranges, and begin anew."""
        if response.status != 206:
            return 0
        match = re.fullmatch(r"bytes (\d+)-\d+/(?:\d+|\*)", response.headers.get("Content-Range", ""))
        if match is None or int(match[1]) != asked:
            raise SteelyardError(f"{self.url}: the server sent another part than the one asked for: try again")
        return asked

    def _answer(self, have: int) -> Any:
        """The server's answer to a request for what follows these bytes; None if nothing does."""
        headers = {"User-Agent": f"steelyard/{__version__}"} | ({"Range": f"bytes={have}-"} if have else {})
        try:
            return _opener().open(urllib.request.Request(self.url, headers=headers), timeout=self.timeout)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416 and have:
                return None
            raise SteelyardError(f"{self.url}: the server says {error.code} {error.reason}: try again later") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._broken(error) from None

    def _read(self, response: Any, have: int) -> bytes:
        try:
            data: bytes = response.read1(_STEP)  # what there is: none of it shall be lost if no more comes
            return data
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._broken(error, f" after {have} bytes") from None

    def _broken(self, error: Exception, when: str = "") -> SteelyardError:
        cause = getattr(error, "reason", error)
        if isinstance(cause, TimeoutError):
            return SteelyardError(f"{self.url}: no answer for {self.timeout:g} s{when}: {_AGAIN}")
        reason = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
        return SteelyardError(f"{self.url}: the connection failed{when} ({reason}): {_AGAIN}")


_AGAIN = "try again, and it goes on from there"


def _opener() -> urllib.request.OpenerDirector:
    """For http and https alone, also after a redirect: urllib's own would open ftp as well."""
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
    """The file, open for this process alone; it stays, unless it is empty."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    while True:
        with open(os.open(path, flags, 0o644), "r+b") as stream:
            _lock(stream)
            if not _is(stream, path):  # while we waited, it was given the file's name
                continue
            try:
                yield stream
            finally:
                if _is(stream, path) and path.stat().st_size == 0:
                    path.unlink()
            return


def _is(stream: IO[bytes], path: Path) -> bool:
    """Whether this open file still has this name, which another process may take from it at any moment."""
    try:
        return os.path.samestat(os.fstat(stream.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _lock(stream: IO[bytes]) -> None:
    try:
        import fcntl  # not on Windows, where the second process would have to wait by itself
    except ModuleNotFoundError:
        return
    fcntl.flock(stream, fcntl.LOCK_EX)


def _settle(folder: Path) -> None:
    """Makes a new name last, where folders can be opened."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _silent(done: int, total: int | None) -> None:
    """Says nothing."""
