"""Sends a round's messages and takes the replies in as they come.

What exceeds the memory budget goes to disk at once.

Flower's own grids hold all replies until the last one is there, clients x model, and look for them
every three seconds.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, Error, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from safetensors import SafetensorError
from safetensors.torch import save_file

from steelyard.core.errors import SteelyardError
from steelyard.core.layout import Layout
from steelyard.flower.handler import ServerFault, call_or_refuse
from steelyard.flower.records import RecordSource, num_bytes, to_state_dict
from steelyard.stores.safetensors import Checkpoint

TOLD = "steelyard.told"  # the record of changes in what a client keeps
MODEL = "model"
_POLL = 0.2  # seconds between looks for replies
_CALLS = 50  # looks are further apart where they take more calls than that a second
_OWN = 6  # models the server needs beside the replies: global, new, as sent, on the way in and out
_BESIDE = 8  # of memory=, all clients together may use this part for what is no model
_LEAST_BESIDE = 1 << 16  # bytes of a reply beside its model that are always allowed
_MOST_REASON = 10_000  # characters of a client's error that are kept
_MOST_ITEM = 8  # bytes of a number
_MOST_ENVELOPE = 1 << 13  # bytes of a vector's name and header
_VECTOR = 3  # the same for a vector that a client term sends or is told: kept, as sent, on the way


def budget(memory: int | str | None) -> int:
    """A number of bytes; `"2 GB"` is one, None half of this machine's memory."""
    if memory is None:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    if isinstance(memory, int) and not isinstance(memory, bool) and memory > 0:
        return memory
    match = (
        re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kMGT]?)(i?)B\s*", memory)
        if isinstance(memory, str)
        else None
    )
    if match is None:
        raise SteelyardError(
            f'memory={memory!r}: use a number of bytes, or text such as "2 GB" or "500 MiB"'
        )
    return int(float(match[1]) * (1024 if match[3] else 1000) ** " kMGT".index(match[2] or " "))


class Spool:
    """Replies' arrays within a budget: the first ones stay in memory, the others become files.

    Everything that a reply holds is counted. Models, and the vectors of client terms, go to disk
    when memory is short; what else a reply holds has to stay, so each reply has a limit for it.
    Which file is whose is kept here and never in the replies, which say what clients like; files
    are there until `clear`.
    """

    def __init__(self, limit: int, sent: int = 0, told: int = 0) -> None:
        self.limit, self.told, self.own = limit, told, _OWN + _VECTOR * (sent + told)
        self.home: Path | None = None
        self.folder: Path | None = None
        self.layout: Layout | None = None
        self.vectors: frozenset[str] = frozenset()
        self.most_beside = _LEAST_BESIDE
        self.held = self.files = 0
        self.aside: dict[tuple[int, str], Path] = {}
        self.refused: dict[int, str] = {}
        self.seen: set[int] = set()

    def live_in(self, home: Path) -> None:
        """Writes into this folder, not a temporary one.

        What a run that was killed left there goes.
        """
        self.home = home
        _sweep(home)

    def expect(
        self, clients: int, layout: Layout | None = None, vectors: Iterable[str] = ()
    ) -> None:
        """Forget the replies before, and prepare for the next.

        Args:
            clients: how many are asked.
            layout: of their models; None if they are asked to evaluate.
            vectors: names of the vectors that client terms are told.
        """
        self.clear()
        self.layout, self.vectors = layout, frozenset(vectors)
        self.most_beside = max(_LEAST_BESIDE, self.limit // (_BESIDE * max(1, clients)))

    def room(self, model: int) -> int:
        """How many more replies with a model of this size fit into memory."""
        return max(0, self.limit - self.own * model - self.held) // max(1, (1 + self.told) * model)

    def take(self, reply: Message, key: str | None) -> None:
        """Keep what a reply holds, or put its arrays aside.

        A reply that cannot be used is refused, and emptied.

        Args:
            reply: from a client.
            key: the name of the record with the model; None for replies without one, which are
                evaluations.
        """
        if reply.has_error():
            _shorten(reply.error)
        if not reply.has_content() or id(reply.content) in self.seen:
            return
        content = reply.content
        self.seen.add(id(content))
        _, reason = call_or_refuse(self._take, content, key)
        if reason:
            self.refused[id(content)] = reason
            _empty(content, self.most_beside)
            self.held += content_bytes(content)

    def check(self, content: RecordDict) -> None:
        """Raise an error with the reason if this reply was refused when it came."""
        reason = self.refused.get(id(content))
        if reason is not None:
            raise SteelyardError(reason)

    def find(self, content: RecordDict, name: str = MODEL) -> Checkpoint | None:
        """What was put aside of a reply, if it was."""
        path = self.aside.get((id(content), name))
        return None if path is None else Checkpoint(str(path))

    def _take(self, content: RecordDict, key: str | None) -> None:
        """Check sizes and shapes before anything is kept or written."""
        name = None if key is None else array_name(content, key)
        vectors = TOLD if name is not None and TOLD in content.array_records else None
        # What has to stay in memory.
        beside = content_bytes(content, but=(name, vectors))
        if beside > self.most_beside:
            suffix = "" if name is None else " beside the model"
            raise SteelyardError(
                f"its reply holds {beside} bytes{suffix}, at most {self.most_beside} are allowed: "
                f"send less, or raise "
                "memory="
            )
        # The model, and vectors of its size.
        if name is not None:
            self.check_model(content.array_records[name])
        if vectors is not None:
            self._check_vectors(content.array_records[vectors])
        self.held += beside
        if name is not None:
            room = self.limit - self.own * num_bytes(content.array_records[name])
            self._hold(content, name, MODEL, room)
            if vectors is not None:
                self._hold(content, vectors, TOLD, room)

    def check_model(self, record: ArrayRecord) -> None:
        """Raise an error with the reason if this is not a model of the layout that is expected."""
        if self.layout is None:
            return
        if len(record) > len(self.layout.leaves):
            raise SteelyardError(
                f"its model has {len(record)} tensors, {len(self.layout.leaves)} are expected"
            )
        reason = self.layout.mismatch(RecordSource(record).shapes)
        if reason is not None:
            raise SteelyardError(reason)

    def _check_vectors(self, record: ArrayRecord) -> None:
        """Drop vectors that nobody asked for; the others may have the model's size."""
        if self.layout is None:
            return
        for name in set(record) - self.vectors:
            del record[name]
        limit = self.told * (self.layout.dim * _MOST_ITEM + _MOST_ENVELOPE)
        size = record_bytes(record)
        if size > limit:
            raise SteelyardError(
                f"its record {TOLD!r} holds {size} bytes, at most {limit} are expected"
            )

    def _hold(self, content: RecordDict, name: str, suffix: str, room: int) -> None:
        """Keep a record in memory if there is room, else write it to a file."""
        record = content.array_records[name]
        size = num_bytes(record)
        if self.held + size <= room:
            self.held += size
            return
        state = to_state_dict(record)
        try:
            path = self._path()
            save_file(state, path)
        except (OSError, SafetensorError) as error:
            location = self.folder or self.home or "replies beyond memory="
            cure = "set TMPDIR to where there is" if self.home is None else "raise memory="
            raise ServerFault(
                f"{location}: {getattr(error, 'strerror', error)}: make room, or {cure}"
            ) from error
        self.aside[id(content), suffix] = path
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
        self.refused.clear()
        self.seen.clear()


def content_bytes(content: RecordDict, but: Iterable[str | None] = ()) -> int:
    """Return how much memory a reply takes up: arrays, metrics, configuration, and all names.

    Args:
        content: of the reply.
        but: names of records that are not counted.
    """
    left_out = set(but)
    return sum(
        sys.getsizeof(name) + record_bytes(record)
        for name, record in content.items()
        if name not in left_out
    )


def record_bytes(record: Mapping[str, Any]) -> int:
    """Return how much memory a record of any kind takes up."""
    return sum(sys.getsizeof(name) + _value_bytes(value) for name, value in record.items())


def _value_bytes(value: Any) -> int:
    if isinstance(value, Array):
        texts = sys.getsizeof(value.dtype) + sys.getsizeof(value.stype)
        return sys.getsizeof(value.data) + texts + _value_bytes(list(value.shape))
    if isinstance(value, (list, tuple)):
        return sys.getsizeof(value) + sum(sys.getsizeof(item) for item in value)
    return sys.getsizeof(value)


def _shorten(error: Error) -> None:
    """Cut the reason of an error that a client reports: it may be of any length."""
    reason = error.reason
    if reason is not None and len(reason) > _MOST_REASON:
        vars(error)["_reason"] = reason[:_MOST_REASON]


def _empty(content: RecordDict, limit: int) -> None:
    """Drop the arrays of a refused reply, and the rest too if it is large.

    It may hold the client's id.
    """
    for name in list(content.array_records):
        del content[name]
    if content_bytes(content) > limit:
        content.clear()


def _sweep(folder: Path) -> None:
    with contextlib.suppress(OSError):
        for file in folder.glob("*.safetensors"):
            file.unlink()
        folder.rmdir()


class StreamingGrid:
    """A grid that hands replies over one by one. All else is the grid's own."""

    def __init__(
        self,
        grid: Grid,
        timeout: float,
        receive: Callable[[Message, bool], None],
        room: Callable[[], int],
    ) -> None:
        self._grid, self._timeout, self._receive, self._room = grid, timeout, receive, room

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Pushes the messages and pulls replies until all are there or the time is up."""
        pushed = list(messages)
        waiting = {name for name in self._grid.push_messages(pushed) if name} if pushed else set()
        end = time.monotonic() + (self._timeout if timeout is None else timeout)
        replies: list[Message] = []
        while waiting:
            remaining, calls = sorted(waiting), 0
            while remaining:  # no more at a time than there is room for
                count = max(1, self._room())
                part, remaining = remaining[:count], remaining[count:]
                calls += 1
                for reply in self._grid.pull_messages(part):
                    self._receive(reply, _are_for_training(pushed))
                    replies.append(reply)
                    waiting.discard(reply.metadata.reply_to_message_id)
            rest = end - time.monotonic()
            if not waiting or rest <= 0:
                break
            time.sleep(min(max(_POLL, calls / _CALLS), rest))
        return replies


def _are_for_training(messages: Iterable[Message]) -> bool:
    """Return what clients were asked to do. What a reply says of itself is not believed."""
    return any(message.metadata.message_type.startswith(MessageType.TRAIN) for message in messages)


def array_name(content: RecordDict, key: str) -> str | None:
    """The name of the model in a message.

    The usual one, or that of the only record there is beside ours.
    """
    if key in content.array_records:
        return key
    names = [name for name in content.array_records if not name.startswith("steelyard.")]
    return names[0] if len(names) == 1 else None
