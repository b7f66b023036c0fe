"""Sends a round's messages and takes the replies in as they come: what exceeds the memory budget goes to disk at once.

Flower's own grids hold all replies until the last one is there, clients x model, and look for them every three seconds.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from safetensors import SafetensorError
from safetensors.torch import save_file

from steelyard.core.errors import SteelyardError
from steelyard.flower.records import num_bytes, to_state_dict
from steelyard.stores.safetensors import Checkpoint

TOLD = "steelyard.told"  # the record of changes in what a client keeps
MODEL = "model"
_POLL = 0.2  # seconds between looks for replies
_CALLS = 50  # looks are further apart where they take more calls than that a second
_OWN = 6  # models the server needs beside the replies: global, new, as sent, on the way in and out
_VECTOR = 3  # the same for a vector that a client term sends or is told: kept, as sent, on the way


def budget(memory: int | str | None) -> int:
    """A number of bytes; `"2 GB"` is one, None half of this machine's memory."""
    if memory is None:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    if isinstance(memory, int) and not isinstance(memory, bool) and memory > 0:
        return memory
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kMGT]?)(i?)B\s*", memory) if isinstance(memory, str) else None
    if match is None:
        raise SteelyardError(f'memory={memory!r}: use a number of bytes, or text such as "2 GB" or "500 MiB"')
    return int(float(match[1]) * (1024 if match[3] else 1000) ** " kMGT".index(match[2] or " "))


class Spool:
    """Replies' arrays within a budget: the first ones stay in memory, the others become files.

    Client terms send and are told vectors of the model's size beside the model. Which file is whose is kept here and
    never in the replies, which say what clients like; they are there until `clear`.
    """

    def __init__(self, limit: int, sent: int = 0, told: int = 0) -> None:
        self.limit, self.told, self.own = limit, told, _OWN + _VECTOR * (sent + told)
        self.home: Path | None = None
        self.folder: Path | None = None
        self.held = self.files = 0
        self.aside: dict[tuple[int, str], Path] = {}

    def live_in(self, home: Path) -> None:
        """Writes into this folder, not a temporary one; what a run that was killed left there goes."""
        self.home = home
        _sweep(home)

    def room(self, model: int) -> int:
        """How many more replies with a model of this size fit into memory."""
        return max(0, self.limit - self.own * model - self.held) // max(1, (1 + self.told) * model)

    def take(self, reply: Message, key: str) -> None:
        """Keeps the reply's arrays, or puts them aside."""
        if not reply.has_content():
            return
        name = array_name(reply.content, key)
        if name is None:
            return
        left = self.limit - self.own * num_bytes(reply.content.array_records[name])
        self._hold(reply.content, name, MODEL, left)
        if TOLD in reply.content.array_records:
            self._hold(reply.content, TOLD, TOLD, left)

    def find(self, content: RecordDict, what: str = MODEL) -> Checkpoint | None:
        """What was put aside of a reply, if it was."""
        path = self.aside.get((id(content), what))
        return None if path is None else Checkpoint(str(path))

    def _hold(self, content: RecordDict, name: str, what: str, left: int) -> None:
        record = content.array_records[name]
        size = num_bytes(record)
        if self.held + size <= left:
            self.held += size
            return
        try:
            path = self._path()
            save_file(to_state_dict(record), path)
        except ValueError:  # not a model: it stays as it is, to be quarantined with the reason
            return
        except (OSError, SafetensorError) as error:
            place = self.folder or self.home or "replies beyond memory="
            cure = "set TMPDIR to where there is" if self.home is None else "raise memory="
            raise SteelyardError(f"{place}: {getattr(error, 'strerror', error)}: make room, or {cure}") from error
        self.aside[id(content), what] = path
        del content[name]

    def _path(self) -> Path:
        if self.folder is None:
            if self.home is not None:
                self.home.mkdir(parents=True, exist_ok=True)
            self.folder = self.home or Path(tempfile.mkdtemp(prefix="steelyard-spool-"))
        self.files += 1
        return self.folder / f"{self.files:06d}.safetensors"

    def clear(self) -> None:
        """Forgets this round's replies."""
        if self.folder is not None:
            _sweep(self.folder)
        self.folder, self.held, self.files = None, 0, 0
        self.aside.clear()


def _sweep(folder: Path) -> None:
    with contextlib.suppress(OSError):
        for file in folder.glob("*.safetensors"):
            file.unlink()
        folder.rmdir()


class Courier:
    """A grid that hands replies over one by one. All else is the grid's own."""

    def __init__(self, grid: Grid, timeout: float, receive: Callable[[Message], None], room: Callable[[], int]) -> None:
        self._grid, self._timeout, self._receive, self._room = grid, timeout, receive, room

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Pushes the messages and pulls replies until all are there or the time is up."""
        pushed = list(messages)
        waiting = {name for name in self._grid.push_messages(pushed) if name} if pushed else set()
        end = time.monotonic() + (self._timeout if timeout is None else timeout)
        replies: list[Message] = []
        while waiting:
            left, calls = sorted(waiting), 0
            while left:  # no more at a time than there is room for
                count = max(1, self._room())
                part, left = left[:count], left[count:]
                calls += 1
                for reply in self._grid.pull_messages(part):
                    self._receive(reply)
                    replies.append(reply)
                    waiting.discard(reply.metadata.reply_to_message_id)
            rest = end - time.monotonic()
            if not waiting or rest <= 0:
                break
            time.sleep(min(max(_POLL, calls / _CALLS), rest))
        return replies


def array_name(content: RecordDict, key: str) -> str | None:
    """The name of the model in a message: the usual one, or that of the only record there is beside ours."""
    if key in content.array_records:
        return key
    names = [name for name in content.array_records if not name.startswith("steelyard.")]
    return names[0] if len(names) == 1 else None
