"""Sends a round's messages and takes the replies in as they come: what exceeds the memory budget goes to disk at once.

Flower's own grids hold all replies until the last one is there, clients x model, and look for them every three seconds.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from safetensors.torch import save_file

from steelyard.core.errors import SteelyardError
from steelyard.flower.records import num_bytes, to_state_dict
from steelyard.stores.safetensors import Checkpoint

TOLD = "steelyard.told"  # the record of changes in what a client keeps
SPOOLED = "steelyard.spool"  # the record that stands for a model on disk
SPOOLED_TOLD = f"{SPOOLED}.told"
_POLL = 0.2  # seconds between looks for replies
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

    Client terms send and are told vectors of the model's size beside the model.
    """

    def __init__(self, limit: int, sent: int = 0, told: int = 0) -> None:
        self.limit, self.told, self.own = limit, told, _OWN + _VECTOR * (sent + told)
        self.folder: Path | None = None
        self.held = self.files = 0

    def room(self, model: int) -> int:
        """How many more replies with a model of this size fit into memory."""
        return max(0, self.limit - self.own * model - self.held) // max(1, (1 + self.told) * model)

    def take(self, reply: Message, key: str) -> None:
        """Keeps the reply's arrays, or puts them aside and leaves a note."""
        if not reply.has_content():
            return
        name = array_name(reply.content, key)
        if name is None:
            return
        left = self.limit - self.own * num_bytes(reply.content.array_records[name])
        self._hold(reply.content, name, SPOOLED, left)
        if TOLD in reply.content.array_records:
            self._hold(reply.content, TOLD, SPOOLED_TOLD, left)

    def _hold(self, content: RecordDict, name: str, note: str, left: int) -> None:
        record = content.array_records[name]
        size = num_bytes(record)
        if self.held + size <= left:
            self.held += size
            return
        try:
            path = self._path()
            save_file(to_state_dict(record), path)
        except SteelyardError:  # not a model: it stays as it is, to be quarantined with the reason
            return
        except OSError as error:
            raise SteelyardError(
                f"{self.folder}: {error.strerror}: make room, or set TMPDIR to where there is"
            ) from error
        content[note] = ConfigRecord({"path": str(path)})
        del content[name]

    def _path(self) -> Path:
        if self.folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix="steelyard-spool-"))
        self.files += 1
        return self.folder / f"{self.files:06d}.safetensors"

    def clear(self) -> None:
        """Forgets this round's replies."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder, self.held, self.files = None, 0, 0


def spooled(content: RecordDict, note: str = SPOOLED) -> Checkpoint | None:
    """The arrays that were put aside, if they were."""
    found = content.config_records.get(note)
    return None if found is None else Checkpoint(str(found["path"]))


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
            for reply in self._pull(waiting):
                self._receive(reply)
                replies.append(reply)
                waiting.discard(reply.metadata.reply_to_message_id)
            if not waiting or time.monotonic() >= end:
                break
            time.sleep(_POLL)
        return replies

    def _pull(self, waiting: set[str]) -> Iterable[Message]:
        """Replies that are there, no more at a time than there is room for."""
        left = sorted(waiting)
        while left:
            count = max(1, self._room())
            part, left = left[:count], left[count:]
            yield from self._grid.pull_messages(part)


def array_name(content: RecordDict, key: str) -> str | None:
    """The name of the model in a reply: the usual one, or that of the only record there is."""
    names = [name for name in content.array_records if not name.startswith("steelyard")]
    return key if key in names else names[0] if len(names) == 1 else None
