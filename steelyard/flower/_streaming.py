"""Receive replies one by one and keep them within a memory budget.

Flower's own grids keep all replies in memory until the last one arrives, and look for replies every
three seconds. Here, each reply is checked when it arrives, and arrays that exceed the memory budget
are written to files.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

from flwr.app import Array, ArrayRecord, Error, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from safetensors import SafetensorError
from safetensors.torch import save_file

from steelyard.core._errors import SteelyardError, describe_error
from steelyard.core._layout import Layout
from steelyard.core._side_channel import Specs
from steelyard.flower._array_records import RecordSource, num_bytes, to_state_dict
from steelyard.flower._messages import (
    REPORTED_VECTORS_RECORD,
    TENSORS_RECORD,
    find_model_record,
)
from steelyard.stores._padding import pad_to_layout
from steelyard.stores._safetensors import Checkpoint

P = ParamSpec("P")
T = TypeVar("T")

_MODEL = "model"  # names the file of a model; that of vectors is named after their record

# How often the server looks for replies.
_POLL_SECONDS = 0.2
_CALLS_PER_SECOND = 50  # a pass over all messages that takes more calls is repeated less often

# Memory of the server, beside the replies.
_SERVER_MODELS = 6  # the global model, the new one, as sent, and copies on the way in and out
_COPIES_PER_VECTOR = 3  # of each vector of a client term: stored, as sent, on the way

# Limits for a single reply.
_SHARE_FOR_OTHERS = 8  # 1/8 of the budget, for all clients, is for what is not a model
_MIN_OTHER_BYTES = 1 << 16  # bytes beside the model that every reply may contain
_MAX_REASON = 10_000  # characters of a client's error
_MAX_NUMBER_BYTES = 8
_MAX_HEADER_BYTES = 1 << 13  # bytes of a vector's name and header


class ServerFault(SteelyardError):
    """The server itself cannot continue, for instance because its disk is full.

    No client is the cause.
    """


def call_or_refuse(
    function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> tuple[T | None, str]:
    """Call a function that reads what a client sent. All such calls go through this function.

    Returns:
        What the function returns, and an empty text; or None, and the reason to quarantine the
        client.

    Raises:
        ServerFault: if the function raises it. Every other exception is a reason.
    """
    try:
        return function(*args, **kwargs), ""
    except ServerFault:
        raise
    except Exception as error:  # no client can end the run, whatever it sends
        return None, describe_error(error)


def parse_memory(memory: int | str | None) -> int:
    """Return a memory budget in bytes.

    Args:
        memory: a number of bytes, or text such as `"2 GB"`; None for half of the machine's memory.
    """
    if memory is None:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    if isinstance(memory, int) and not isinstance(memory, bool) and memory > 0:
        return memory
    match = None
    if isinstance(memory, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kMGT]?)(i?)B\s*", memory)
    if match is None:
        raise SteelyardError(
            f'memory={memory!r}: use a number of bytes, or text such as "2 GB" or "500 MiB"'
        )
    number, prefix, is_binary = match.groups()
    base = 1024 if is_binary else 1000
    return int(float(number) * base ** " kMGT".index(prefix or " "))


class ReplyStorage:
    """The replies of a round within a memory budget.

    Models, and the vectors of client terms, stay in memory while there is space; the others are
    written to files. Everything else in a reply stays in memory, so its size is limited. Only this
    class decides which file belongs to which reply; nothing that a client sends can name a file.
    Files are deleted by `clear`.

    Attributes:
        limit: the budget in bytes.
        server_models: how many models the server needs beside the replies.
        bytes_in_memory: bytes of the replies in memory.
        file_count: number of files of this round.
    """

    def __init__(self, limit: int, sent_vectors: int = 0, reported_vectors: int = 0) -> None:
        """Create an empty storage.

        Args:
            limit: the budget in bytes.
            sent_vectors: number of vectors that the server sends for client terms.
            reported_vectors: number of vectors that each reply contains for client terms.
        """
        self.limit = limit
        self.server_models = _SERVER_MODELS + _COPIES_PER_VECTOR * (sent_vectors + reported_vectors)
        self.bytes_in_memory = 0
        self.file_count = 0
        self._reported_vectors = reported_vectors
        self._run_folder: Path | None = None  # the folder in the run directory
        self._folder: Path | None = None  # the folder of this round, once there is a file
        self._layout: Layout | None = None
        self._vector_names: frozenset[str] = frozenset()
        self._specs: Specs = {}
        self._max_other_bytes = _MIN_OTHER_BYTES
        # By the identity of the content: a reply could contain the same text as another.
        self._files: dict[tuple[int, str], Path] = {}
        self._refused: dict[int, str] = {}
        self._received: set[int] = set()

    def use_folder(self, folder: Path) -> None:
        """Write to this folder, not to a temporary one; delete files of a run that was killed."""
        self._run_folder = folder
        _delete_files(folder)

    def begin_round(
        self,
        clients: int,
        layout: Layout | None = None,
        vector_names: Iterable[str] = (),
        specs: Specs = MappingProxyType({}),
    ) -> None:
        """Drop the previous replies, and prepare for the next ones.

        Args:
            clients: number of clients that get a message.
            layout: the layout of their models; None if clients evaluate.
            vector_names: names of the vectors that replies contain for client terms.
            specs: declarations of the small tensors that replies contain for feature terms.
        """
        self.clear()
        self._specs = specs
        self._layout = layout
        self._vector_names = frozenset(vector_names)
        share = self.limit // (_SHARE_FOR_OTHERS * max(1, clients))
        self._max_other_bytes = max(_MIN_OTHER_BYTES, share)

    def count_free_places(self, model_bytes: int) -> int:
        """Return how many more replies with a model of this size fit into memory."""
        free = max(0, self.limit - self.server_models * model_bytes - self.bytes_in_memory)
        tensor_bytes = sum(spec.num_bytes for spec in self._specs.values())
        return free // max(1, (1 + self._reported_vectors) * model_bytes + tensor_bytes)

    def add(self, reply: Message, arrays_key: str | None) -> None:
        """Keep a reply in memory, or write its arrays to files.

        If a reply cannot be used, it is refused, and its arrays are dropped.

        Args:
            reply: what a client sent.
            arrays_key: the name of the record with the model; None for evaluations, which have no
                model.
        """
        if reply.has_error():
            _shorten_reason(reply.error)
        if not reply.has_content() or id(reply.content) in self._received:
            return
        content = reply.content
        self._received.add(id(content))
        _, reason = call_or_refuse(self._add_content, content, arrays_key)
        if reason:
            self._refused[id(content)] = reason
            _drop_arrays(content, self._max_other_bytes)
            self.bytes_in_memory += content_bytes(content)

    def check(self, content: RecordDict) -> None:
        """Raise an error with the reason if this reply was refused when it arrived."""
        reason = self._refused.get(id(content))
        if reason is not None:
            raise SteelyardError(reason)

    def check_model(self, record: ArrayRecord) -> None:
        """Raise an error with the reason if a model does not have the layout of this round."""
        if self._layout is None:
            return
        expected = len(self._layout.leaves)
        if len(record) > expected:
            raise SteelyardError(f"its model has {len(record)} tensors, {expected} are expected")
        reason = self._layout.mismatch(pad_to_layout(RecordSource(record), self._layout).shapes)
        if reason is not None:
            raise SteelyardError(reason)

    def find_file(self, content: RecordDict, name: str = _MODEL) -> Checkpoint | None:
        """Return the file that contains the model, or the vectors, of a reply, if there is one."""
        path = self._files.get((id(content), name))
        return None if path is None else Checkpoint(str(path))

    def clear(self) -> None:
        """Drop the replies of this round, and delete their files."""
        if self._folder is not None:
            _delete_files(self._folder)
        self._folder = None
        self.bytes_in_memory = 0
        self.file_count = 0
        self._files.clear()
        self._refused.clear()
        self._received.clear()

    def _add_content(self, content: RecordDict, arrays_key: str | None) -> None:
        """Check sizes and shapes before anything is kept or written."""
        model_name = None
        vectors_name = None
        if arrays_key is not None:
            model_name = find_model_record(content, arrays_key)
        if model_name is not None and REPORTED_VECTORS_RECORD in content.array_records:
            vectors_name = REPORTED_VECTORS_RECORD
        tensors_name = None
        if self._specs and TENSORS_RECORD in content.array_records:
            tensors_name = TENSORS_RECORD

        # What must stay in memory.
        other_bytes = content_bytes(content, without=(model_name, vectors_name, tensors_name))
        if other_bytes > self._max_other_bytes:
            suffix = "" if model_name is None else " beside the model"
            raise SteelyardError(
                f"its reply contains {other_bytes} bytes{suffix}, at most {self._max_other_bytes} "
                "are allowed: send less, or raise memory="
            )

        # The model, and vectors of its size.
        if model_name is not None:
            self.check_model(content.array_records[model_name])
        if vectors_name is not None:
            self._check_vectors(content.array_records[vectors_name])
        self.bytes_in_memory += other_bytes
        if tensors_name is not None:
            self.bytes_in_memory += self._check_tensors(content.array_records[tensors_name])
        if model_name is not None:
            model_bytes = num_bytes(content.array_records[model_name])
            available = self.limit - self.server_models * model_bytes
            self._store(content, model_name, _MODEL, available)
            if vectors_name is not None:
                self._store(content, vectors_name, vectors_name, available)

    def _check_vectors(self, record: ArrayRecord) -> None:
        """Drop vectors that the server does not need, and limit the size of the others."""
        if self._layout is None:
            return
        for name in set(record) - self._vector_names:
            del record[name]
        vector_bytes = self._layout.dim * _MAX_NUMBER_BYTES + _MAX_HEADER_BYTES
        limit = self._reported_vectors * vector_bytes
        size = record_bytes(record)
        if size > limit:
            raise SteelyardError(
                f"its record {REPORTED_VECTORS_RECORD!r} contains {size} bytes, at most {limit} "
                "are expected"
            )

    def _check_tensors(self, record: ArrayRecord) -> int:
        """Drop small tensors that the server does not need, and limit the size of the others.

        Returns:
            Their number of bytes; they stay in memory.
        """
        for name in set(record) - set(self._specs):
            del record[name]
        limit = sum(spec.num_bytes + _MAX_HEADER_BYTES for spec in self._specs.values())
        size = record_bytes(record)
        if size > limit:
            raise SteelyardError(
                f"its record {TENSORS_RECORD!r} contains {size} bytes, at most {limit} are expected"
            )
        return size

    def _store(self, content: RecordDict, record_name: str, file_of: str, available: int) -> None:
        """Leave a record in memory if there is space, else move it to a file."""
        record = content.array_records[record_name]
        size = num_bytes(record)
        if self.bytes_in_memory + size <= available:
            self.bytes_in_memory += size
            return
        state = to_state_dict(record)
        try:
            path = self._next_path()
            save_file(state, path)
        except (OSError, SafetensorError) as error:
            location = self._folder or self._run_folder or "replies beyond memory="
            advice = "raise memory="
            if self._run_folder is None:
                advice = "set TMPDIR to a disk with space"
            raise ServerFault(
                f"{location}: {getattr(error, 'strerror', error)}: free some space, or {advice}"
            ) from error
        self._files[id(content), file_of] = path
        del content[record_name]

    def _next_path(self) -> Path:
        """Return the path of a new file; create the folder for the first one."""
        if self._folder is None:
            if self._run_folder is not None:
                self._run_folder.mkdir(parents=True, exist_ok=True)
                self._folder = self._run_folder
            else:
                self._folder = Path(tempfile.mkdtemp(prefix="steelyard-spool-"))
        self.file_count += 1
        return self._folder / f"{self.file_count:06d}.safetensors"


def content_bytes(content: RecordDict, without: Collection[str | None] = ()) -> int:
    """Return the memory that a reply uses: arrays, metrics, configuration, and all names.

    Args:
        content: of the reply.
        without: names of records that are not counted.
    """
    return sum(
        sys.getsizeof(name) + record_bytes(record)
        for name, record in content.items()
        if name not in without
    )


def record_bytes(record: Mapping[str, Any]) -> int:
    """Return the memory that a record of any kind uses."""
    return sum(sys.getsizeof(name) + _value_bytes(value) for name, value in record.items())


def _value_bytes(value: Any) -> int:
    if isinstance(value, Array):
        texts = sys.getsizeof(value.dtype) + sys.getsizeof(value.stype)
        return sys.getsizeof(value.data) + texts + _value_bytes(list(value.shape))
    if isinstance(value, (list, tuple)):
        return sys.getsizeof(value) + sum(sys.getsizeof(item) for item in value)
    return sys.getsizeof(value)


def _shorten_reason(error: Error) -> None:
    """Cut the reason of a client's error, which can have any length."""
    reason = error.reason
    if reason is not None and len(reason) > _MAX_REASON:
        vars(error)["_reason"] = reason[:_MAX_REASON]


def _drop_arrays(content: RecordDict, limit: int) -> None:
    """Drop the arrays of a refused reply, and everything else if it is larger than the limit.

    The rest may contain the client's id.
    """
    for name in list(content.array_records):
        del content[name]
    if content_bytes(content) > limit:
        content.clear()


def _delete_files(folder: Path) -> None:
    """Delete the replies in a folder, and the folder if it is empty then."""
    with contextlib.suppress(OSError):
        for file in folder.glob("*.safetensors"):
            file.unlink()
        folder.rmdir()


class StreamingGrid:
    """A grid that passes on each reply when it arrives. Everything else is left to the real grid."""

    def __init__(
        self,
        grid: Grid,
        timeout: float,
        receive: Callable[[Message, bool], None],
        count_free_places: Callable[[], int],
    ) -> None:
        """Wrap a grid.

        Args:
            grid: the real grid.
            timeout: seconds to wait for replies.
            receive: called with each reply, and whether clients were told to train.
            count_free_places: returns how many more replies fit into memory.
        """
        self._grid = grid
        self._timeout = timeout
        self._receive = receive
        self._count_free_places = count_free_places

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Push the messages and pull replies until all have arrived or the time is over."""
        # What a reply says of itself is not used: the messages decide whether clients train.
        messages = list(messages)
        is_training = any(
            message.metadata.message_type.startswith(MessageType.TRAIN) for message in messages
        )
        waiting: set[str] = set()
        if messages:
            waiting = {name for name in self._grid.push_messages(messages) if name}
        end = time.monotonic() + (self._timeout if timeout is None else timeout)
        replies: list[Message] = []
        while waiting:
            # One pass over the messages without a reply, at most as many at a time as fit into
            # memory.
            remaining = sorted(waiting)
            calls = 0
            while remaining:
                count = max(1, self._count_free_places())
                part = remaining[:count]
                remaining = remaining[count:]
                calls += 1
                for reply in self._grid.pull_messages(part):
                    self._receive(reply, is_training)
                    replies.append(reply)
                    waiting.discard(reply.metadata.reply_to_message_id)
            seconds_left = end - time.monotonic()
            if not waiting or seconds_left <= 0:
                break
            time.sleep(min(max(_POLL_SECONDS, calls / _CALLS_PER_SECOND), seconds_left))
        return replies
