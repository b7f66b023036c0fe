"""Replace files and directories in one step, completely or not at all.

This also holds if the process is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import shutil
import stat
import tempfile
from pathlib import Path

from steelyard.core._errors import SteelyardError

_EXCHANGE = 2  # RENAME_EXCHANGE of Linux, RENAME_SWAP of macOS
_HERE = -100  # AT_FDCWD of Linux
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)


class Staging:
    """A hidden directory beside `path`, in which its new content is built under the name `new`.

    A process holds a lock on its directory as long as it lives. This distinguishes directories in
    use from those that a killed process has left behind; making a `Staging` for the same `path`
    removes the latter.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        prefix = f".{path.name[:100]}.steelyard-"
        _remove_leftovers(path.parent, prefix)
        while True:
            self.directory = Path(tempfile.mkdtemp(dir=path.parent, prefix=prefix))
            try:
                lock = _lock_directory(self.directory)
            except BaseException:
                self.directory.rmdir()
                raise
            if lock is not None:
                break
        self._lock: int = lock
        self.new = self.directory / "new"

    def remove(self) -> None:
        """Remove the directory and everything in it."""
        shutil.rmtree(self.directory, ignore_errors=True)
        os.close(self._lock)

    def publish_file(self, force: bool) -> None:
        """Rename the file `new` to `path`; without `force`, only if nothing exists at `path`."""
        if force:
            if self.path.is_file() and not self.path.is_symlink():
                self.new.chmod(stat.S_IMODE(self.path.stat().st_mode))
            os.replace(self.new, self.path)
        else:
            _move_exclusively(self.new, self.path)
        sync_directory(self.path.parent)

    def publish_directory(self, force: bool, replaced: set[str]) -> None:
        """Rename the directory `new` to `path`; without `force`, only if nothing exists at `path`.

        Args:
            force: whether a directory at `path` may be replaced. Its content is kept, except for
                the names in `replaced` and in `new`.
            replaced: names in that directory that belong to the model that is replaced.
        """
        sync_directory(self.new)
        if force and os.path.lexists(self.path):
            # Hard links cost nothing, and the old directory stays complete until the exchange.
            outdated = replaced | {*os.listdir(self.new)}
            for name in {*os.listdir(self.path)} - outdated:
                _link(self.path / name, self.new / name)
            self.new.chmod(stat.S_IMODE(self.path.stat().st_mode))
            sync_directory(self.new)
            exchange(self.new, self.path)
            self._rescue_changes(outdated)
        else:
            try:
                os.rename(self.new, self.path)
            except OSError as error:
                if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                    raise SteelyardError(_describe_late(self.path)) from None
                raise
        sync_directory(self.path.parent)

    def check_exchange(self) -> None:
        """Raise an error, before any work, if the file system cannot exchange two directories."""
        probe = self.directory / "probe"
        probe.mkdir()
        exchange(self.new, probe)
        probe.rmdir()

    def _rescue_changes(self, outdated: set[str]) -> None:
        """Move files that others wrote just before the exchange to the new directory."""
        old = self.new
        for name in {*os.listdir(old)} - outdated:
            source = old / name
            target = self.path / name
            is_linked = os.path.lexists(target) and os.path.samestat(
                os.lstat(source), os.lstat(target)
            )
            if not is_linked and (not source.is_dir() or not target.exists()):
                os.replace(source, target)


def exchange(first: Path, second: Path) -> None:
    """Exchange the names of two files or directories in one step."""
    library = ctypes.CDLL(None, use_errno=True)
    names = (os.fsencode(first), os.fsencode(second))
    if hasattr(library, "renameat2"):
        failed = library.renameat2(_HERE, names[0], _HERE, names[1], _EXCHANGE)
    elif hasattr(library, "renamex_np"):
        failed = library.renamex_np(*names, _EXCHANGE)
    else:
        failed = -1
        ctypes.set_errno(errno.ENOSYS)
    if not failed:
        return
    code = ctypes.get_errno()
    if code in _UNSUPPORTED:
        raise SteelyardError(
            f"{second}: this system cannot replace a directory in one step: remove it first, or "
            f"choose another name"
        )
    raise OSError(code, os.strerror(code), str(first), None, str(second))


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory are on disk.

    Do nothing if the file system does not support it.
    """
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    finally:
        os.close(handle)


def _move_exclusively(source: Path, target: Path) -> None:
    """Rename a file; raise an error if the new name exists."""
    try:
        os.link(source, target)
        return
    except FileExistsError:
        raise SteelyardError(_describe_late(target)) from None
    except OSError as error:
        if error.errno not in (*_UNSUPPORTED, errno.EPERM, errno.EMLINK):
            raise
    # A file system without links: an empty file claims the name.
    try:
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        raise SteelyardError(_describe_late(target)) from None
    try:
        os.replace(source, target)
    except BaseException:
        os.unlink(target)
        raise


def _describe_late(path: Path) -> str:
    return f"{path} appeared while the merge ran and was not changed: choose another name, or pass force=True"


def _link(source: Path, target: Path) -> None:
    """Make a hard link to a file, or copy it if that is impossible.

    Copy a directory with links to its files.
    """
    if source.is_dir() and not source.is_symlink():
        shutil.copytree(
            source, target, symlinks=True, copy_function=lambda a, b: _link(Path(a), Path(b))
        )
        return
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def _lock_directory(path: Path) -> int | None:
    """Lock a directory and return the handle of the lock.

    Return None if another process is removing it.
    """
    import fcntl  # not on Windows, where the package can be imported

    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    except OSError:
        return handle  # a file system without locks: no other process will treat it as left behind
    if not os.path.isdir(path):  # removed before it was locked
        os.close(handle)
        return None
    return handle


def _remove_leftovers(parent: Path, prefix: str) -> None:
    """Remove the hidden directories of killed processes."""
    import fcntl

    pattern = re.compile(re.escape(prefix) + r"[a-z0-9_]{8}")
    for name in os.listdir(parent):
        directory = parent / name
        if not pattern.fullmatch(name) or directory.is_symlink():
            continue
        with contextlib.suppress(OSError):
            handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if {*os.listdir(directory)} <= {"new", "probe"}:
                    shutil.rmtree(directory)
            finally:
                os.close(handle)
