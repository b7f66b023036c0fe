"""Reading JSON from an untrusted file in pieces, so that no file can make the reader use much memory or time."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from steelyard.core.errors import SteelyardError, shorten

_FIRST_READ = 1 << 16
_LONGEST = 1 << 20  # bytes of one value; a thumbnail in the metadata of a file has some ten thousand
_MOST_TOKENS = 10_000
_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_OBJECT = rb'\{(?:[^{}"]++|' + _STRING + rb")*+\}"
_LIST = rb'\[[^][{}"]*+\]'
_VALUE = re.compile(b"|".join((_STRING, _OBJECT, _LIST, rb"[-+.\w]++(?=[\s,}])")), re.DOTALL)
_SPACE = re.compile(rb"[ \t\r\n]*+")
_TOKEN = re.compile(_STRING + rb"|[][{}:,]|[-+.\w]++(?=[\s,}\]])", re.DOTALL)


def open_regular(path: Path) -> int:
    """Opens a file for reading and returns the handle; refuses pipes, sockets and devices without waiting for them."""
    try:
        is_regular = stat.S_ISREG(os.stat(path).st_mode)
        if is_regular:
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            # The name may have been given to something else between the two calls.
            if stat.S_ISREG(os.fstat(handle).st_mode):
                return handle
            os.close(handle)
    except FileNotFoundError:
        raise SteelyardError(f"{path}: no such file") from None
    raise SteelyardError(f"{path}: not a regular file: only ordinary files are read")


class JsonStream:
    """A position in a stretch of a file that holds one JSON object.

    Args:
        handle: the open file.
        start: first byte of the object.
        stop: first byte behind it.

    Values are returned one at a time. Each is text, a number, true, false, null, a list without lists in it, or an
    object without objects in it, of at most 1 MB. Anything else is a `ValueError`, raised where it is met.
    """

    def __init__(self, handle: int, start: int, stop: int) -> None:
        self._handle = handle
        self._next_read = start
        self._stop = stop
        self._buffer = b""
        self._at = 0

    def read_members(self) -> Iterator[str]:
        """Yields the keys of the object that begins here; read the value of each before the next is asked for."""
        self._take(b"{")
        seen = set()
        is_first = True
        while self._peek() != b"}":
            if not is_first:
                self._take(b",")
            is_first = False
            key = self.read_value()
            if not isinstance(key, str):
                raise ValueError(f"{shorten(key)} is not a key")
            if key in seen:
                raise ValueError(f"duplicate keys {shorten(key)}")
            seen.add(key)
            self._take(b":")
            yield key
        self._take(b"}")

    def read_value(self) -> Any:
        """Reads one small value."""
        self._skip_space()
        while True:
            match = _VALUE.match(self._buffer, self._at)
            if match is not None:
                self._at = match.end()
                return json.loads(match.group().decode("utf-8"), object_pairs_hook=_refuse_duplicates)
            if not self._read_more():
                raise ValueError(f"a malformed, nested or too long value: {self._describe_rest()}")

    def skip_value(self) -> None:
        """Steps over one value of any kind, of at most 10,000 tokens."""
        depth = 0
        num_tokens = 0
        while num_tokens < _MOST_TOKENS:
            self._skip_space()
            match = _TOKEN.match(self._buffer, self._at)
            if match is None:
                if self._read_more():
                    continue
                break
            token = match.group()
            self._at = match.end()
            num_tokens += 1
            depth += (token in b"[{") - (token in b"]}")
            if depth == 0:
                return
        raise ValueError(f"a malformed or too long value: {self._describe_rest()}")

    def finish(self) -> None:
        """Checks that nothing but space is left."""
        if self._peek() or self._next_read < self._stop:
            raise ValueError(f"something behind its end: {self._describe_rest()}")

    def _peek(self) -> bytes:
        """Returns the next byte that is not space; none at the end."""
        self._skip_space()
        return self._buffer[self._at : self._at + 1]

    def _take(self, wanted: bytes) -> None:
        """Steps over one character."""
        if self._peek() != wanted:
            raise ValueError(f"expected {wanted.decode()!r}: {self._describe_rest()}")
        self._at += 1

    def _skip_space(self) -> None:
        while True:
            match = _SPACE.match(self._buffer, self._at)
            if match is None or match.end() < len(self._buffer) or not self._read_more():
                break
        if match is not None:
            self._at = match.end()

    def _read_more(self) -> bool:
        """Doubles what is seen of the file from here on; returns False at its end, or where a value is too long."""
        rest = len(self._buffer) - self._at
        size = min(max(_FIRST_READ, rest), self._stop - self._next_read)
        if rest >= _LONGEST or size <= 0:
            return False
        data = os.pread(self._handle, size, self._next_read)
        self._next_read += len(data)
        self._buffer = self._buffer[self._at :] + data
        self._at = 0
        return bool(data)

    def _describe_rest(self) -> str:
        rest = self._buffer[self._at : self._at + 40]
        return repr(rest.decode("utf-8", "replace")) if rest else "the end"


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("duplicate keys")
    return members
