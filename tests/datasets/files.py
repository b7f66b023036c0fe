"""Small files in the original formats, and where the real ones may be."""

import gzip
import os
import struct
from pathlib import Path

import numpy as np
import pytest


def real(*marks):
    """The directory with the real data sets, if it holds one of these; else the test is skipped."""
    beside = Path(__file__).parents[3] / "shared" / "data"
    for directory in (os.environ.get("STEELYARD_DATA"), beside):
        if directory and any((Path(directory) / mark).exists() for mark in marks):
            return Path(directory)
    return pytest.skip(f"no {' or '.join(marks)} in $STEELYARD_DATA or ../shared/data")


def idx(array):
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_mnist(folder, packed=True, train=7, test=3):
    """The four files; returns the training images and labels."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    made = {}
    for part, size in (("train", train), ("t10k", test)):
        made[part] = rng.integers(0, 256, (size, 28, 28), dtype=np.uint8), np.arange(size, dtype=np.uint8) % 10
        for array, kind in zip(made[part], ("images-idx3", "labels-idx1"), strict=True):
            raw = idx(array)
            name = f"{part}-{kind}-ubyte"
            (folder / (name + ".gz" if packed else name)).write_bytes(gzip.compress(raw) if packed else raw)
    return made["train"]


BATCHES = [f"data_batch_{n}" for n in range(1, 6)] + ["test_batch"]


def cifar_arrays(size=4):
    rng = np.random.default_rng(1)
    return {
        name: (rng.integers(0, 256, (size, 3072), dtype=np.uint8), rng.integers(0, 10, size, dtype=np.uint8))
        for name in BATCHES
    }


def original_batch(images, labels, order=b"\x89"):
    """A batch as Python 2 pickled it (protocol 2); `order` is numpy's flag, false for row-major."""

    def text(word):
        return b"U" + bytes((len(word),)) + word

    numbers = b"".join(b"K" + bytes((int(label),)) for label in labels)
    shape = b"K\x01M" + struct.pack("<H", len(images)) + b"M\x00\x0c\x86"
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R("
        + shape
        + b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        + order
        + b"T"
        + struct.pack("<I", images.nbytes)
        + images.tobytes()
        + b"tb"
    )
    names = b"](" + b"".join(text(b"cat_%d.png" % at) for at in range(len(labels))) + b"e"
    items = text(b"labels") + b"](" + numbers + b"e" + text(b"data") + array + text(b"filenames") + names
    return b"\x80\x02}(" + items + b"u."


def write_cifar_python(root, batch=original_batch):
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    made = cifar_arrays()
    for name, (images, labels) in made.items():
        (folder / name).write_bytes(batch(images, labels))
    return made


def write_cifar_binary(root):
    folder = root / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    made = cifar_arrays()
    for name, (images, labels) in made.items():
        (folder / f"{name}.bin").write_bytes(np.hstack([labels[:, None], images]).tobytes())
    return made
