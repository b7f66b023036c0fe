"""Read JSON from an untrusted file in pieces, with limits on memory and time."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from steelyard.core._errors import SteelyardError, shorten

_FIRST_READ = 1 << 16
_LONGEST = (
    1 << 20
)  # bytes of one value; a thumbnail in the metadata of a file has about ten thousand
_MOST_TOKENS = 10_000
_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_OBJECT = rb'\{(?:[^{}"]++|' + _STRING + rb")*+\}"
_LIST = rb'\[[^][{}"]*+\]'
_VALUE = re.compile(b"|".join((_STRING, _OBJECT, _LIST, rb"[-+.\w]++(?=[\s,}])")), re.DOTALL)
_SPACE = re.compile(rb"[ \t\r\n]*+")
_TOKEN = re.compile(_STRING + rb"|[][{}:,]|[-+.\w]++(?=[\s,}\]])", re.DOTALL)


def open_regular(path: Path) -> int:
    """Open a file for reading and return the handle.

    Refuse pipes, sockets and devices without waiting for them.
    """
    try:
        is_regular = stat.S_ISREG(os.stat(path).st_mode)
        if is_regular:
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            # The path may have been given to something else between the two calls.
            if stat.S_ISREG(os.fstat(handle).st_mode):
                return handle
            os.close(handle)
    except FileNotFoundError:
        raise SteelyardError(f"{path}: no such file") from None
    raise SteelyardError(f"{path}: not a regular file: only ordinary files are read")


class JsonStream:
    """A position in a part of a file that contains one JSON object.

    Args:
        handle: the open file.
        start: first byte of the object.
        stop: first byte after it.

    Values are returned one at a time. Each is text, a number, true, false, null, a list without
    nested lists, or an object without nested objects, of at most 1 MB. Anything else is a
    `ValueError`, raised at the first value that is wrong.
    """

    def __init__(self, handle: int, start: int, stop: int) -> None:
        self._handle = handle
        self._next_read = start
        self._stop = stop
        self._buffer = b""
        self._position = 0

    def read_members(self) -> Iterator[str]:
        """Yield the keys of the object that begins here.

        Read the value of each key before the next key.
        """
        self._skip_character(b"{")
        keys = set()
        is_first = True
        while self._peek() != b"}":
            if not is_first:
                self._skip_character(b",")
            is_first = False
            key = self.read_value()
            if not isinstance(key, str):
                raise ValueError(f"{shorten(key)} is not a key")
            if key in keys:
                raise ValueError(f"duplicate keys {shorten(key)}")
            keys.add(key)
            self._skip_character(b":")
            yield key
        self._skip_character(b"}")

    def read_value(self) -> Any:
        """Read and return one small value."""
        self._skip_space()
        while True:
            match = _VALUE.match(self._buffer, self._position)
            if match is not None:
                self._position = match.end()
                return json.loads(
                    match.group().decode("utf-8"), object_pairs_hook=_refuse_duplicates
                )
            if not self._read_more():
                raise ValueError(f"a malformed, nested or too long value: {self._describe_rest()}")

    def skip_value(self) -> None:
        """Skip one value of any kind, of at most 10,000 tokens."""
        depth = 0
        num_tokens = 0
        while num_tokens < _MOST_TOKENS:
            self._skip_space()
            match = _TOKEN.match(self._buffer, self._position)
            if match is None:
                if self._read_more():
                    continue
                break
            token = match.group()
            self._position = match.end()
            num_tokens += 1
            depth += (token in b"[{") - (token in b"]}")
            if depth == 0:
                return
        raise ValueError(f"a malformed or too long value: {self._describe_rest()}")

    def finish(self) -> None:
        """Raise an error if anything but space follows."""
        if self._peek() or self._next_read < self._stop:
            raise ValueError(f"more text after its end: {self._describe_rest()}")

    def _peek(self) -> bytes:
        """Return the next byte that is not space; an empty one at the end."""
        self._skip_space()
        return self._buffer[self._position : self._position + 1]

    def _skip_character(self, character: bytes) -> None:
        """Skip one character; raise an error if the next one is another."""
        if self._peek() != character:
            raise ValueError(f"expected {character.decode()!r}: {self._describe_rest()}")
        self._position += 1

    def _skip_space(self) -> None:
        """Move to the next byte that is not space."""
        while True:
            match = _SPACE.match(self._buffer, self._position)
            if match is None or match.end() < len(self._buffer) or not self._read_more():
                break
        if match is not None:
            self._position = match.end()

    def _read_more(self) -> bool:
        """Double the buffer from this position on.

        Return False at the end, or if a value is too long.
        """
        rest = len(self._buffer) - self._position
        size = min(max(_FIRST_READ, rest), self._stop - self._next_read)
        if rest >= _LONGEST or size <= 0:
            return False
        data = os.pread(self._handle, size, self._next_read)
        self._next_read += len(data)
        self._buffer = self._buffer[self._position :] + data
        self._position = 0
        return bool(data)

    def _describe_rest(self) -> str:
        rest = self._buffer[self._position : self._position + 40]
        return repr(rest.decode("utf-8", "replace")) if rest else "the end"


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("duplicate keys")
    return members
