"""The file `grams.bin` of a run directory: the inner products and reports of every round.

The file is a list of entries, one per round that was not void:

    magic (4 bytes), length of the data, CRC-32 of the data (4 bytes each), data

The data is compressed. It has a header of JSON (clients, names of metrics and layers) and float64
numbers. The products are symmetric: only one triangle is stored. An entry that is not complete can
only be the last one, written when the process was killed; it is dropped when the run is resumed.
"""

from __future__ import annotations

import json
import os
import struct
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.core._errors import SteelyardError, shorten
from steelyard.core._gram import Array, Gram, StepProducts
from steelyard.core._layout import Granularity
from steelyard.core._round_gram import LayeredGram, RoundGram
from steelyard.runs._files import GRAM_MAGIC
from steelyard.runs._lock import close_private, is_same_file, open_private

MAX_CLIENTS = 100  # per round, recorded by default
_FRAME = struct.Struct("<4sII")
FRAME_SIZE = _FRAME.size  # bytes of an entry before its data
_HEADER = struct.Struct("<I")
# Higher levels, or a search for longer repetitions than runs of a byte, save 1 % and take two to
# three times as long.
_LEVEL = 1
_STRATEGY = zlib.Z_RLE
_JSON = json.JSONEncoder(separators=(",", ":"))
_DELAY = 1.0  # seconds that an entry may wait before it is written
_MAX_ENTRY = 1 << 30  # bytes of an entry, before and after compression


@dataclass(frozen=True)
class Recording:
    """What a run records: the value of the option `record`.

    Attributes:
        layers: a granularity whose Gram is recorded beside that of the whole model, if any.
        max_clients: the largest number of clients per round that is recorded; None for any.
    """

    layers: str | None = None
    max_clients: int | None = None

    @property
    def is_default(self) -> bool:
        """Whether nobody asked for the recording."""
        return self.max_clients is not None

    def includes(self, round_gram: RoundGram) -> bool:
        """Return whether a round is recorded."""
        return self.max_clients is None or len(round_gram.ids) <= self.max_clients


def parse_recording(text: str) -> Recording | None:
    """Return what to record; None for nothing.

    Args:
        text: `auto` (rounds of up to 100 clients), `gram`, `gram:layers=tensor`,
            `gram:layers=module`, or `none`.
    """
    if text == "none":
        return None
    if text == "auto":
        return Recording(max_clients=MAX_CLIENTS)
    if text == "gram":
        return Recording()
    layers = text.removeprefix("gram:layers=")
    if layers in ("tensor", "module"):
        return Recording(layers)
    raise SteelyardError(
        f"record={shorten(text)}: use auto, gram, gram:layers=tensor, gram:layers=module, or none"
    )


class GramLog:
    """The file of a run, open for appending.

    Entries are collected and written together, at most a second later: in runs of short rounds,
    writing takes longer than making the entries. A run that resumes repeats the rounds after its
    last checkpoint, so entries must be in the file only before a checkpoint is written (`flush`).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: int | None = None
        self._entries: list[bytes] = []
        self._last_write = 0.0

    def open(self, rounds: int, is_expected: bool = True) -> str | None:
        """Open the file, and remove entries after the round `rounds`.

        Args:
            rounds: the last round to keep.
            is_expected: whether a missing file deserves a warning. Runs of earlier versions have
                none.

        Returns:
            A warning if entries of earlier rounds cannot be read; None otherwise.
        """
        # Find where the entries to keep end.
        warning = None
        end = 0
        if self.path.exists():
            try:
                for start, data in split_entries(self.path.read_bytes()):
                    if _read_round(data) > rounds:
                        break
                    end = start + FRAME_SIZE + len(data)
            except SteelyardError as error:
                warning = f"{self.path}: {error}: later rounds up to {rounds} cannot be replayed"
        elif rounds and is_expected:
            warning = f"{self.path}: missing: rounds 1 to {rounds} cannot be replayed"

        # Cut off the rest.
        try:
            self.file = open_private(self.path, os.O_WRONLY | os.O_APPEND)
            os.ftruncate(self.file, end)
        except OSError as error:
            raise SteelyardError(f"{self.path}: cannot be written: {error.strerror}") from error
        return warning

    def append(self, round_gram: RoundGram) -> None:
        """Append the entry of a round."""
        data = encode(round_gram)
        self._entries.append(_FRAME.pack(GRAM_MAGIC, len(data), zlib.crc32(data)) + data)
        if time.monotonic() - self._last_write > _DELAY:
            self.flush()

    def flush(self) -> None:
        """Write all entries to the file."""
        if not self._entries:
            return
        assert self.file is not None
        if not is_same_file(self.path, self.file):
            self._entries.clear()
            raise SteelyardError(
                f"{self.path}: was removed or replaced during the run: the run stops. Restore the "
                "file and resume, or start again (overwrite=True, --overwrite)"
            )
        entries = b"".join(self._entries)
        self._entries.clear()
        self._last_write = time.monotonic()
        try:
            while entries:  # the last bytes of a disk are taken without an error
                entries = entries[os.write(self.file, entries) :]
        except OSError as error:
            raise SteelyardError(
                f"{self.path}: {error.strerror}: make room, then resume"
            ) from error

    def close(self) -> None:
        """Write what is left, and close the file."""
        if self.file is None:
            return
        try:
            self.flush()
        finally:
            close_private(self.file)
            self.file = None


def read_grams(path: Path) -> Iterator[RoundGram]:
    """Yield the recorded rounds of a file, in order.

    An entry at the end that is not complete is left out.

    Raises:
        SteelyardError: if the file is missing or damaged.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SteelyardError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        for _, data in split_entries(content):
            yield decode(data)
    except SteelyardError as error:
        raise SteelyardError(f"{path}: {error}") from None


def split_entries(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the start and the data of each entry.

    Stop at an entry that is not complete.

    Raises:
        SteelyardError: if an entry is damaged.
    """
    start = 0
    while start + FRAME_SIZE <= len(content):
        magic, length, checksum = _FRAME.unpack_from(content, start)
        data = content[start + FRAME_SIZE : start + FRAME_SIZE + length]
        if magic != GRAM_MAGIC or length > _MAX_ENTRY:
            raise SteelyardError(f"damaged at byte {start}")
        if len(data) < length:
            return
        if zlib.crc32(data) != checksum:
            # The last entry may have been written in part, over room that the disk gave already.
            if start + FRAME_SIZE + length == len(content):
                return
            raise SteelyardError(f"damaged at byte {start}")
        yield start, data
        start += FRAME_SIZE + length


def encode(round_gram: RoundGram) -> bytes:
    """Return a recorded round as compressed bytes; equal rounds have equal bytes."""
    # What is in the arrays.
    count = len(round_gram.ids)
    triangle = _list_triangle(count + 1)
    arrays: list[Array] = [round_gram.weights, round_gram.base]
    header: dict[str, Any] = {
        "round": round_gram.round,
        "ids": list(round_gram.ids),
        "global_lr": round_gram.global_lr,
        "population_examples": round_gram.population_examples,
        "has_norms": round_gram.norms is not None,
        "layers": round_gram.layers,
        "weighted_layers": len(round_gram.base),
        "metrics": {},
        "grams": [],
    }
    if round_gram.step_weight is not None:
        header["has_step_weight"] = True
        arrays.append(round_gram.step_weight)
    if round_gram.norms is not None:
        arrays.append(round_gram.norms)
    for name in sorted(round_gram.metrics):
        values = round_gram.metrics[name]
        header["metrics"][name] = None if values.ndim == 1 else values.shape[1]
        arrays.append(values)
    for layers, entry in round_gram.grams.items():
        part: dict[str, Any] = {"layers": layers, "names": list(entry.names)}
        products = _to_products(entry.gram)
        arrays += [products.reshape(len(products), -1)[:, triangle], entry.gram.dims]
        last_step = entry.gram.last_step
        if last_step is not None:
            part["has_last_step"] = True
            arrays += [last_step.dots, last_step.theta_dot, last_step.square]
        header["grams"].append(part)

    # The bytes of the numbers, first bytes first: those that are alike are side by side.
    text = _JSON.encode(header).encode()
    numbers = np.concatenate([np.ravel(array) for array in arrays]).astype("<f8")
    columns = numbers.view(np.uint8).reshape(-1, 8).T
    content = _HEADER.pack(len(text)) + text + columns.tobytes()
    compressor = zlib.compressobj(_LEVEL, strategy=_STRATEGY)
    return compressor.compress(content) + compressor.flush()


@lru_cache(maxsize=16)
def _list_triangle(count: int) -> NDArray[np.intp]:
    """Return the positions of the lower triangle in a flat matrix, row by row."""
    rows, columns = np.tril_indices(count)
    positions: NDArray[np.intp] = rows * count + columns
    positions.setflags(write=False)
    return positions


def decode(data: bytes) -> RoundGram:
    """Return the recorded round of an entry.

    Raises:
        SteelyardError: if it is not an entry.
    """
    header, content = _read_header(data)
    try:
        columns = np.frombuffer(content, dtype=np.uint8).reshape(8, -1)
        numbers = np.ascontiguousarray(columns.T).view("<f8").ravel().astype(np.float64)
        return _build(header, numbers)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SteelyardError(f"an entry cannot be read ({error})") from None


def _build(header: dict[str, Any], numbers: Array) -> RoundGram:
    """Return a recorded round from its header and numbers."""
    ids = tuple(header["ids"])
    count = len(ids)
    position = 0

    def take(*shape: int) -> Array:
        nonlocal position
        size = int(np.prod(shape))
        values = numbers[position : position + size].reshape(shape)
        position += size
        return values

    layers = header["weighted_layers"]
    weights = take(layers, count)
    base = take(layers)
    step_weight = take(layers) if header.get("has_step_weight") else None
    norms = take(count) if header["has_norms"] else None
    metrics: dict[str, Array] = {}
    for name, width in header["metrics"].items():
        metrics[name] = take(count) if width is None else take(count, width)
    grams: dict[Granularity | None, LayeredGram] = {}
    rows, columns = np.tril_indices(count + 1)
    for entry in header["grams"]:
        names = tuple(entry["names"])
        products = np.zeros((len(names), count + 1, count + 1))
        values = take(len(names), len(rows))
        products[:, rows, columns] = values
        products[:, columns, rows] = values
        gram = Gram.of_rows(products, take(len(names)))
        if entry.get("has_last_step"):
            last_step = StepProducts(take(len(names), count), take(len(names)), take(len(names)))
            gram = replace(gram, last_step=last_step)
        grams[_to_granularity(entry["layers"])] = LayeredGram(gram, names)
    if position != len(numbers):
        raise ValueError(f"{len(numbers)} numbers instead of {position}")
    return RoundGram(
        round=header["round"],
        ids=ids,
        grams=grams,
        metrics=metrics,
        weights=weights,
        base=base,
        step_weight=step_weight,
        layers=_to_granularity(header["layers"]),
        norms=norms,
        global_lr=header["global_lr"],
        population_examples=header["population_examples"],
    )


def _to_granularity(layers: Any) -> Granularity | None:
    """Return a granularity that was JSON."""
    return tuple(layers) if isinstance(layers, list) else layers


def _to_products(gram: Gram) -> Array:
    """Return the products of all rows, `[g, K+1, K+1]`; the global model is the last row."""
    layers, count = gram.theta_dots.shape
    products = np.zeros((layers, count + 1, count + 1))
    products[:, :-1, :-1] = gram.dots
    products[:, -1, :-1] = gram.theta_dots
    products[:, -1, -1] = gram.theta_sq
    return products


def _read_round(data: bytes) -> int:
    """Return the number of the round of an entry."""
    header, _ = _read_header(data)
    number = header.get("round")
    if not isinstance(number, int):
        raise SteelyardError("an entry has no round")
    return number


def _read_header(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the header of an entry and the bytes of its numbers."""
    try:
        decompressor = zlib.decompressobj()
        content = decompressor.decompress(data, _MAX_ENTRY)
        if not decompressor.eof:
            raise ValueError("too long")
        (length,) = _HEADER.unpack_from(content)
        header = json.loads(content[_HEADER.size : _HEADER.size + length])
    except (zlib.error, struct.error, ValueError, RecursionError) as error:
        raise SteelyardError(f"an entry cannot be read ({error})") from None
    if not isinstance(header, dict):
        raise SteelyardError("an entry has no header")
    return header, content[_HEADER.size + length :]
