"""Decode image files with Pillow. Sizes are read and checked before anything is decoded."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.core._errors import SteelyardError
from steelyard.data._formats import reading

Bytes = NDArray[np.uint8]

LIMIT = 1 << 25  # maximum number of pixels of a montage; CIFAR-10's have 10 million
MOST = 1 << 20  # maximum number of bytes of one small image


def stack(files: Iterable[tuple[str, bytes]], count: int, side: int, kind: str) -> Bytes:
    """Return the images of several files as one array `[N, 3, side, side]`.

    Args:
        files: name and content of each file.
        count: the number of files.
        side: width and height every image must have.
        kind: the format of all files, `PNG` or `JPEG`.
    """
    image = _pillow()
    out = np.empty((count, side, side, 3), dtype=np.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns about sizes too late; they are checked here
        for position, (name, raw) in enumerate(files):
            with reading(name, f"{kind} image"):
                picture = image.open(io.BytesIO(raw), formats=(kind,))
                if picture.size != (side, side):
                    size = "x".join(map(str, picture.size))
                    raise SteelyardError(
                        f"{name} is an image of {size}, not {side}x{side}: fetch it again"
                    )
                out[position] = np.asarray(picture.convert("RGB"))
    return out.transpose(0, 3, 1, 2)


def montage(path: Path, side: int) -> Bytes:
    """Return the tiles `[N, 3, side, side]` of a lossless WebP file, row by row."""
    raw = path.read_bytes()
    image = _pillow()
    with reading(path, "lossless WebP image"):
        if raw[:4] != b"RIFF" or raw[8:16] != b"WEBPVP8L" or raw[20:21] != b"\x2f":
            raise ValueError("another format")
        bits = int.from_bytes(raw[21:25], "little")  # 14 bits each: width - 1, height - 1
        width = (bits & 0x3FFF) + 1
        height = (bits >> 14 & 0x3FFF) + 1
        if width * height > LIMIT or width % side or height % side:
            raise SteelyardError(
                f"{path} is an image of {width}x{height}, not tiles of {side}x{side} "
                f"with at most {LIMIT} pixels: fetch it again"
            )
        with image.open(io.BytesIO(raw), formats=("WEBP",)) as picture:
            pixels = np.asarray(picture.convert("RGB"))
        tiles = pixels.reshape(height // side, side, width // side, side, 3)
    return tiles.transpose(0, 2, 4, 1, 3).reshape(-1, 3, side, side)


def content(path: Path) -> bytes:
    """Return the bytes of a small image file; raise an error if it is large, without reading it."""
    size = path.stat().st_size
    if size > MOST:
        raise SteelyardError(f"{path} has {size} bytes, too many for a small image: fetch it again")
    return path.read_bytes()


def _pillow() -> Any:
    """Return the module `PIL.Image`."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise SteelyardError(
            'these images need Pillow, which is not installed: pip install "steelyard[data]"'
        ) from None
    return Image
