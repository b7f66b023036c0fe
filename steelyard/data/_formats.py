"""Readers of file formats: idx, LIBSVM, MATLAB, npz and text, with limits against hostile files."""

from __future__ import annotations

import bz2
import gzip
import lzma
import math
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from steelyard.core._errors import SteelyardError

# Handle damaged and hostile files: one error for all decoders, a limit on the unpacked size.

_STEP = 1 << 20


@contextmanager
def reading(path: Path | str, what: str) -> Iterator[None]:
    """Turn any error of a decoder into a `SteelyardError` that names the file.

    Args:
        path: the file.
        what: the kind of file it should be.
    """
    try:
        yield
    except SteelyardError:
        raise
    except Exception as error:  # decoders raise all kinds of errors on damaged bytes
        reason = (str(error).splitlines() or [""])[0][:120] or type(error).__name__
        raise SteelyardError(
            f"{path} is not a complete {what} ({reason}): fetch it again"
        ) from error


def read_bounded(stream: IO[bytes], limit: int, path: Path | str) -> bytes:
    """Return the content of a stream; raise an error if it has more than `limit` bytes.

    A small file may unpack to any size.
    """
    parts = []
    remaining = limit
    while part := stream.read(min(_STEP, remaining + 1)):
        remaining -= len(part)
        if remaining < 0:
            raise SteelyardError(
                f"{path} unpacks to more than {limit:,} bytes, which cannot be right: fetch it "
                f"again"
            )
        parts.append(part)
    return b"".join(parts)


def write(out: IO[bytes], data: bytes, path: Path) -> None:
    """Write data, and turn an error into one that names `path`, the file the user asked for."""
    try:
        out.write(data)
    except OSError as error:
        raise SteelyardError(
            f"{path}: cannot be written ({error.strerror}): free some space and try again"
        ) from error


# Read the idx format of MNIST: two zero bytes, type, number of dimensions, sizes, data.

IDX_LIMIT = 1 << 28  # maximum number of bytes; MNIST has 47 million
_UNSIGNED_BYTES = 8


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Return the array in an idx file of unsigned bytes, compressed by gzip or not."""
    is_packed = path.suffix == ".gz"
    with (
        reading(path, "gzip file" if is_packed else "idx file"),
        cast("IO[bytes]", gzip.open(path)) if is_packed else path.open("rb") as stream,
    ):
        # The header: the type and the sizes.
        header = stream.read(4)
        if header != bytes((0, 0, _UNSIGNED_BYTES, dimensions)):
            raise SteelyardError(
                f"{path} starts with {header.hex() or 'nothing'} and is not an idx file of bytes "
                f"in {dimensions} dimensions: fetch it again"
            )
        shape = struct.unpack(f">{dimensions}I", stream.read(4 * dimensions))
        size = math.prod(shape)
        if size > IDX_LIMIT:
            raise SteelyardError(
                f"{path} has a header for {size} bytes, more than the {IDX_LIMIT} allowed: fetch "
                f"it again"
            )
        # The data: one byte more would show that the header is wrong.
        data = stream.read(size + 1)
    if len(data) != size:
        count = f"more than {size}" if len(data) > size else str(len(data))
        raise SteelyardError(
            f"{path} contains {count} bytes of data, not {size} as its header says: fetch it again"
        )
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)


# Read LIBSVM's text files in bzip2: `label 1:value 2:value ...`, with all values present.

LIBSVM_LIMIT = 1 << 27  # maximum number of bytes of text; USPS has 25 million


def read_libsvm(path: Path, width: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return values `[N, width]` and labels `[N]`."""
    with reading(path, "bzip2 file of LIBSVM's text"), bz2.open(path) as stream:
        text = read_bounded(stream, LIBSVM_LIMIT, path)
        lines = len(text.split(b"\n")) - (not text or text.endswith(b"\n"))
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # numpy only warns about text that is not a number
            numbers = np.fromstring(text.replace(b":", b" ").decode("ascii"), sep=" ")
        if not lines or len(numbers) != lines * (1 + 2 * width):
            raise SteelyardError(
                f"{path} contains {len(numbers)} numbers in {lines} lines, "
                f"not a label and {width} pairs in each line: fetch it again"
            )
    rows = numbers.reshape(lines, 1 + 2 * width)
    if not (rows[:, 1::2] == np.arange(1, width + 1)).all():
        raise SteelyardError(
            f"{path}: its values are not numbered 1 to {width} in each line: fetch it again"
        )
    return rows[:, 2::2], rows[:, 0]


# Read arrays from MATLAB's version 5 files: a header of 128 bytes, then tagged elements.
#
# SVHN is published in this format.
#
# This module does not use a library, because libraries trust the sizes in the tags. Here each
# size is
# compared with the number of bytes before it is used, and only plain arrays of numbers are read.

MATLAB_LIMIT = (
    1 << 29
)  # maximum number of bytes of an array, unpacked; SVHN's largest has 225 million
_MATRIX = 14
_PACKED = 15
_TYPES = {1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8"}


def read_matlab(path: Path, *names: str) -> list[NDArray[Any]]:
    """Return the arrays of these names, in MATLAB's order of dimensions."""
    with reading(path, "MATLAB file"):
        # The header.
        raw = memoryview(path.read_bytes())
        if len(raw) < 128 or bytes(raw[124:128]) != b"\x00\x01IM":
            raise ValueError("it is not of version 5, little-endian")
        # All arrays, unpacked if necessary.
        arrays: dict[str, NDArray[Any]] = {}
        for kind, data in _elements(raw[128:]):
            if kind == _PACKED:
                data = memoryview(_decompress(path, data))
                kind, data = next(_elements(data), (0, data))
            if kind == _MATRIX:
                name, array = _matrix(data)
                arrays[name] = array
        # Those asked for.
        for name in names:
            if name not in arrays:
                raise SteelyardError(
                    f"{path} has no array {name!r} (it has {sorted(arrays)}): fetch it again"
                )
        return [arrays[name] for name in names]


def _elements(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield type and content of each element."""
    position = 0
    while position + 8 <= len(data):
        kind, size = struct.unpack_from("<II", data, position)
        if kind >> 16:  # a small element: size, type and four bytes of content share the tag
            size = kind >> 16
            kind = kind & 0xFFFF
            start = position + 4
            if size > 4:
                raise ValueError(f"a small element of {size} bytes")
            position += 8
        else:
            start = position + 8
            padding = 0 if kind == _PACKED else -size % 8
            position = start + size + padding
        if start + size > len(data):
            raise ValueError(f"an element of {size} bytes where {len(data) - start} remain")
        yield kind, data[start : start + size]


def _decompress(path: Path, data: memoryview) -> bytes:
    """Return a packed element, unpacked."""
    unpacker = zlib.decompressobj()
    out = unpacker.decompress(data, MATLAB_LIMIT + 1024)
    if unpacker.unconsumed_tail:
        raise SteelyardError(
            f"{path} unpacks to more than {MATLAB_LIMIT} bytes, which cannot be right: fetch it "
            f"again"
        )
    if not unpacker.eof:
        raise ValueError("a packed element ends early")
    return out


def _matrix(data: memoryview) -> tuple[str, NDArray[Any]]:
    """Return name and content of an array; its parts are flags, dimensions, name and numbers."""
    parts = list(_elements(data))
    if len(parts) < 4:
        raise ValueError("an array without its four parts")
    shape = np.frombuffer(parts[1][1], dtype="<i4").tolist()
    name = bytes(parts[2][1]).decode("ascii")
    kind, numbers = parts[3]
    if kind not in _TYPES:
        raise ValueError(f"array {name[:20]!r} is of type {kind}")
    array = np.frombuffer(numbers, dtype=_TYPES[kind])
    if min(shape, default=-1) < 0 or math.prod(shape) != len(array):
        raise ValueError(f"array {name[:20]!r} has {len(array)} numbers for dimensions {shape[:6]}")
    return name, array.reshape(shape, order="F")


# Read arrays from numpy's .npz files, zip archives of arrays.
#
# Only plain arrays of bytes are read.

NPZ_LIMIT = 1 << 28  # maximum number of bytes of one array


def read_npz(path: Path, *names: str, dtype: str = "uint8") -> list[NDArray[np.uint8]]:
    """Return the arrays of these names; each must have this dtype and be in row-major order."""
    with reading(path, "npz file"), zipfile.ZipFile(path) as archive:
        entries = {info.filename: info for info in archive.infolist()}
        arrays = []
        for name in names:
            if f"{name}.npy" not in entries:
                available = ", ".join(sorted(entries)[:6]) or "nothing"
                raise SteelyardError(
                    f"{path} has no array {name!r} (it has {available}): fetch it again"
                )
            with archive.open(entries[f"{name}.npy"]) as stream:
                arrays.append(_array(path, name, stream, np.dtype(dtype)))
        return arrays


def _array(
    path: Path, name: str, stream: IO[bytes], dtype: np.dtype[np.uint8]
) -> NDArray[np.uint8]:
    """Return the array in a .npy stream; `path` and `name` are for error messages."""
    version = npy.read_magic(stream)
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, is_by_column, file_dtype = read_header(stream)
    label = f"{path}: array {name!r}"
    if file_dtype != dtype or is_by_column:
        order = " in column-major order" if is_by_column else ""
        raise SteelyardError(f"{label} is of {file_dtype}{order}, not of {dtype}: fetch it again")
    size = math.prod(shape) * dtype.itemsize
    if size > NPZ_LIMIT:
        raise SteelyardError(
            f"{label} has a header for {size} bytes, more than {NPZ_LIMIT}: fetch it again"
        )
    data = stream.read(size + 1)
    if len(data) != size:
        raise SteelyardError(
            f"{label} does not have the {size} bytes of its header: fetch it again"
        )
    return np.frombuffer(data, dtype=dtype).reshape(shape)


# Read text files, plain or compressed by xz, line by line within limits of size.
#
# A small compressed file can unpack to a very large one.

UNPACKED = 4 << 30
"""Maximum number of bytes of a file, unpacked: Sogou News, the largest one here, has 1.4 GB."""

LINE = 1 << 24
"""Maximum number of bytes of a line."""

_CHUNK = 1 << 20
_MEMORY = 1 << 28  # xz -9 needs a quarter of it; a header may ask for gigabytes


def lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file, each with its line end."""
    number = 1
    rest = b""
    for chunk in chunks(path):
        *complete_lines, rest = (rest + chunk).split(b"\n")
        for line in complete_lines:
            yield _decode(path, number, line + b"\n")
            number += 1
        if len(rest) > LINE:
            raise SteelyardError(
                f"{path}, line {number} has more than {LINE} bytes: it is not the expected file"
            )
    if rest:
        yield _decode(path, number, rest)


def chunks(path: Path, limit: int | None = None) -> Iterator[bytes]:
    """Yield the bytes of a file in blocks, unpacked if its name ends with .xz.

    Raise an error after `limit` bytes, by default `UNPACKED`.
    """
    limit = UNPACKED if limit is None else limit
    size = 0
    blocks = _decompress_chunks(path) if path.suffix == ".xz" else _read_chunks(path)
    try:
        for chunk in blocks:
            size += len(chunk)
            if size > limit:
                raise SteelyardError(
                    f"{path} has more than {limit} bytes: it is not the expected file"
                )
            yield chunk
    except (lzma.LZMAError, EOFError) as error:
        raise SteelyardError(
            f"{path} is not a complete xz file ({error}): fetch it again"
        ) from error
    except OSError as error:
        raise SteelyardError(
            f"{path} cannot be read ({error.strerror}): check that it is a file and that you may "
            f"read it"
        ) from error


def _read_chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def _decompress_chunks(path: Path) -> Iterator[bytes]:
    """Yield the unpacked bytes of an xz file in blocks; raise an error if it is not complete."""
    unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MEMORY)
    with path.open("rb") as file:
        while not unpacker.eof:
            packed = file.read(_CHUNK) if unpacker.needs_input else b""
            if unpacker.needs_input and not packed:
                raise EOFError("it ends too early")
            yield unpacker.decompress(packed, _CHUNK)
        if unpacker.unused_data or file.read(1):
            raise EOFError("there are more bytes after its end")


def _decode(path: Path, number: int, line: bytes) -> str:
    """Return a line as text; `number` is for the error message."""
    if b"\0" in line:
        raise SteelyardError(
            f"{path}, line {number} contains a NUL byte: it is not text, fetch it again"
        )
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise SteelyardError(
            f"{path}, line {number} is not UTF-8 ({error.reason}): fetch it again"
        ) from error
