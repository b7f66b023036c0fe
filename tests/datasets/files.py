"""Small files in the original formats, and where the real ones may be."""

import bz2
import gzip
import io
import os
import shutil
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

# Read when the tests start: tests of small files remove the variable for themselves.
_DIRECTORY = os.environ.get("STEELYARD_DATA")


def real(*marks):
    """The directory with the real data sets, if it holds one of these; else the test is skipped."""
    if _DIRECTORY and any((Path(_DIRECTORY) / mark).exists() for mark in marks):
        return Path(_DIRECTORY)
    return pytest.skip(f"no {' or '.join(marks)} in $STEELYARD_DATA")


def idx(array):
    return (
        bytes((0, 0, 8, array.ndim))
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.tobytes()
    )


def write_mnist(folder, packed=True, train=7, test=3):
    """The four files; returns the training images and labels."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    made = {}
    for part, size in (("train", train), ("t10k", test)):
        made[part] = (
            rng.integers(0, 256, (size, 28, 28), dtype=np.uint8),
            np.arange(size, dtype=np.uint8) % 10,
        )
        for array, kind in zip(made[part], ("images-idx3", "labels-idx1"), strict=True):
            raw = idx(array)
            name = f"{part}-{kind}-ubyte"
            (folder / (name + ".gz" if packed else name)).write_bytes(
                gzip.compress(raw) if packed else raw
            )
    return made["train"]


BATCHES = [f"data_batch_{n}" for n in range(1, 6)] + ["test_batch"]


def cifar_arrays(size=4):
    rng = np.random.default_rng(1)
    return {
        name: (
            rng.integers(0, 256, (size, 3072), dtype=np.uint8),
            rng.integers(0, 10, size, dtype=np.uint8),
        )
        for name in BATCHES
    }


def original_batch(images, labels, order=b"\x89", word=b"labels"):
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
        + images.tobytes("A")
        + b"tb"
    )
    names = b"](" + b"".join(text(b"cat_%d.png" % at) for at in range(len(labels))) + b"e"
    coarse = (
        text(b"coarse_labels") + b"](" + b"K\x07" * len(labels) + b"e" if word != b"labels" else b""
    )
    items = (
        coarse
        + text(word)
        + b"]("
        + numbers
        + b"e"
        + text(b"data")
        + array
        + text(b"filenames")
        + names
    )
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


def random_images(size, *shape, seed=2):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (size, *shape), dtype=np.uint8), rng.permutation(size).astype(
        np.uint8
    ) % 10


def packed(picture, kind, **options):
    """An image [H, W, 3] or [H, W] as the bytes of a file."""
    stream = io.BytesIO()
    Image.fromarray(picture).save(stream, kind, **options)
    return stream.getvalue()


def montage(images, columns=2):
    """Tiles [N, 3, 32, 32] as one lossless image."""
    tall = images.reshape(-1, columns, 3, 32, 32).transpose(0, 3, 1, 4, 2)
    return packed(tall.reshape(-1, 32 * columns, 3), "WEBP", lossless=True)


def write_cifar_montage(root):
    folder = root / "cifar10"
    folder.mkdir(parents=True)
    made = cifar_arrays()
    for name, (images, _) in made.items():
        (folder / f"{name}.webp").write_bytes(montage(images.reshape(-1, 3, 32, 32)))
    train = np.concatenate([made[name][1] for name in BATCHES[:5]])
    np.savez_compressed(folder / "index.npz", train_labels=train, test_labels=made["test_batch"][1])
    return made


def cifar100_arrays():
    """Images and fine labels of train (20) and test (4)."""
    rng = np.random.default_rng(3)
    return {
        name: (
            rng.integers(0, 256, (size, 3072), dtype=np.uint8),
            rng.integers(0, 100, size, dtype=np.uint8),
        )
        for name, size in (("train", 20), ("test", 4))
    }


def write_cifar100_python(root):
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    made = cifar100_arrays()
    for name, arrays in made.items():
        (folder / name).write_bytes(original_batch(*arrays, word=b"fine_labels"))
    return made


def write_cifar100_archive(root):
    """The Python version as its authors publish it: a folder in a tar.gz file."""
    made = write_cifar100_python(root / "unpacked")
    folder = root / "unpacked" / "cifar-100-python"
    (folder / "meta").write_bytes(b"not read")
    with tarfile.open(root / "cifar-100-python.tar.gz", "w:gz") as archive:
        archive.add(folder, folder.name)
    shutil.rmtree(root / "unpacked")
    return made


def write_cifar100_subset(root):
    """Montages of 2 x 4 training images and 4 test images."""
    folder = root / "cifar100_subset"
    folder.mkdir(parents=True)
    images, labels = cifar100_arrays()["train"]
    test_images, test_labels = cifar100_arrays()["test"]
    for name, part in (("train_1", images[:4]), ("train_2", images[4:8]), ("test", test_images)):
        (folder / f"{name}.webp").write_bytes(montage(part.reshape(-1, 3, 32, 32)))
    np.savez_compressed(
        folder / "index.npz",
        train_labels=labels[:8],
        test_labels=test_labels,
        classes=np.array(["apple", "aquarium_fish"]),
    )
    return {"train": (images[:8], labels[:8]), "test": (test_images, test_labels)}


def write_cifar100_binary(root):
    folder = root / "cifar-100-binary"
    folder.mkdir(parents=True)
    made = cifar100_arrays()
    for name, (images, labels) in made.items():
        rows = np.hstack([np.full((len(labels), 1), 7, dtype=np.uint8), labels[:, None], images])
        (folder / f"{name}.bin").write_bytes(rows.tobytes())
    return made


def write_svhn(root, compressed=True, prefix=""):
    root.mkdir(parents=True, exist_ok=True)
    made = {}
    for part, size in (("train", 12), ("test", 5)):
        images, labels = made[part] = random_images(size, 3, 32, 32)
        content = {
            "X": images.transpose(2, 3, 1, 0),
            "y": np.where(labels == 0, 10, labels)[:, None],
        }
        savemat(root / f"{prefix}{part}_32x32.mat", content, do_compression=compressed)
    return made


def write_usps_libsvm(root):
    root.mkdir(parents=True, exist_ok=True)
    made = {}
    for file, size in (("usps.bz2", 12), ("usps.t.bz2", 3)):
        images, labels = made[file] = random_images(size, 16, 16)
        lines = [
            f"{label + 1} "
            + " ".join(f"{at}:{pixel / 127.5 - 1:.7f}" for at, pixel in enumerate(image.ravel(), 1))
            for image, label in zip(images, labels, strict=True)
        ]
        (root / file).write_bytes(bz2.compress("\n".join([*lines, ""]).encode()))
    return made


def write_usps_npz(root):
    root.mkdir(parents=True, exist_ok=True)
    (train, train_labels), (test, test_labels) = made = (
        random_images(12, 16, 16),
        random_images(3, 16, 16),
    )
    arrays = {
        "train_images": train,
        "train_labels": train_labels,
        "test_images": test,
        "test_labels": test_labels,
    }
    np.savez_compressed(root / "usps_uint8.npz", **arrays)
    return made


def write_fonts(root):
    root.mkdir(parents=True, exist_ok=True)
    images, labels = random_images(20, 28, 28)
    font = np.arange(1, 21, dtype=np.uint16)
    np.savez_compressed(
        root / "chars74k_fnt_digits_28x28.npz", images=images, labels=labels, font_index=font
    )
    return images, labels


def write_mnist_m(root):
    folder = root / "mnist_m"
    made = {}
    for part, size in (("train", 10), ("test", 3)):
        images, labels = made[part] = random_images(size, 32, 32, 3)
        (folder / f"mnist_m_{part}").mkdir(parents=True)
        names = [f"{at:08d}.png" for at in range(size)]
        for name, image in zip(names, images, strict=True):
            (folder / f"mnist_m_{part}" / name).write_bytes(packed(image, "PNG"))
        lines = [f"{name} {label}\n" for name, label in zip(names, labels, strict=True)]
        (folder / f"mnist_m_{part}_labels.txt").write_text("".join(lines))
    return made


def write_mnist_m_montage(root):
    folder = root / "mnist_m_subset"
    folder.mkdir(parents=True)
    made = {part: random_images(size, 3, 32, 32) for part, size in (("train", 10), ("test", 4))}
    for part, (images, _) in made.items():
        (folder / f"{part}.webp").write_bytes(montage(images))
    np.savez_compressed(
        folder / "index.npz", **{f"{part}_labels": labels for part, (_, labels) in made.items()}
    )
    return made


WNIDS = ("n02", "n01", "n03")


def tiny_files(authors=True):
    """Path and content of 3 x 2 images to train on and 3 to test on; each is of one colour, the first is grey."""
    out, notes = {}, []
    for number, wnid in enumerate(WNIDS):
        for at in range(2):
            grey = number == at == 0
            picture = np.full(
                (64, 64) if grey else (64, 64, 3), 40 * number + 100 * at + 10, dtype=np.uint8
            )
            folder = f"train/{wnid}/images" if authors else f"train/{wnid}"
            out[f"{folder}/{wnid}_{at}.JPEG"] = packed(picture, "JPEG")
        held_out = packed(np.full((64, 64, 3), 50 * number, dtype=np.uint8), "JPEG")
        out[f"val/images/val_{number}.JPEG" if authors else f"val/{wnid}/val_{number}.JPEG"] = (
            held_out
        )
        notes.append(f"val_{number}.JPEG\t{wnid}\t0\t0\t62\t62\n")
    return out | (
        {"val/val_annotations.txt": "".join(notes).encode(), "wnids.txt": b"n02\n"}
        if authors
        else {}
    )


def write_tiny_folder(root):
    for name, content in tiny_files().items():
        path = root / "tiny-imagenet-200" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def write_tiny_zip(root):
    root.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(root / "tiny-imagenet-200.zip", "w") as archive:
        for name, content in tiny_files().items():
            archive.writestr(f"tiny-imagenet-200/{name}", content)


def write_tiny_tar(root):
    folder = root / "tiny_imagenet_subset"
    folder.mkdir(parents=True)
    with tarfile.open(folder / "tiny-imagenet-20.tar.xz", "w:xz") as archive:
        for name, content in tiny_files(authors=False).items():
            add(archive, f"tiny-imagenet-20/{name}", content)


def add(archive, name, content=b"", **fields):
    """One more member of a tar archive."""
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    archive.addfile(info, io.BytesIO(content))
