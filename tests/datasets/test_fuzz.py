"""Damaged and hostile files: every image loader gives a result or one sentence, runs nothing, and writes nothing.

Each case is a small set of files; one of them at a time is truncated, flipped or replaced.
"""

import bz2
import gzip
import io
import lzma
import os
import pickle
import struct
import tarfile
import zipfile
import zlib

import numpy as np
import pytest
from PIL import Image

from steelyard.core._errors import SteelyardError
from steelyard.data import _cifar as cifar
from steelyard.data import _images as images
from steelyard.data import load
from tests.datasets import files

WRITERS = {
    "mnist": ("mnist", files.write_mnist),
    "mnist-plain": ("mnist", lambda root: files.write_mnist(root, packed=False)),
    "cifar10-python": ("cifar10", files.write_cifar_python),
    "cifar10-binary": ("cifar10", files.write_cifar_binary),
    "cifar10-montage": ("cifar10", files.write_cifar_montage),
    "cifar100-python": ("cifar100", files.write_cifar100_python),
    "cifar100-binary": ("cifar100", files.write_cifar100_binary),
    "cifar100-archive": ("cifar100", files.write_cifar100_archive),
    "cifar100-subset": ("cifar100", files.write_cifar100_subset),
    "svhn": ("svhn", files.write_svhn),
    "svhn-plain": ("svhn", lambda root: files.write_svhn(root, compressed=False)),
    "usps-libsvm": ("usps", files.write_usps_libsvm),
    "usps-npz": ("usps", files.write_usps_npz),
    "synth-fonts": ("synth", files.write_fonts),
    "mnist-m": ("mnist-m", files.write_mnist_m),
    "mnist-m-montage": ("mnist-m", files.write_mnist_m_montage),
    "tiny-folder": ("tiny-imagenet", files.write_tiny_folder),
    "tiny-zip": ("tiny-imagenet", files.write_tiny_zip),
    "tiny-tar": ("tiny-imagenet", files.write_tiny_tar),
}
TRIES = 40


class Case:
    """A set of files in a folder, with nothing else in it."""

    def __init__(self, key, root):
        self.source, write = WRITERS[key]
        self.root = root / "data"
        self.root.mkdir()
        write(self.root)
        self.contents = {
            path: path.read_bytes() for path in sorted(self.root.rglob("*")) if path.is_file()
        }
        self.outside = root
        self.before = self.names()

    def names(self):
        return sorted(str(path) for path in self.outside.rglob("*"))

    def kinds(self):
        """One file of each form: the first of each suffix and size, those of labels among them."""
        chosen = {}
        for path, content in self.contents.items():
            if path.name != "wnids.txt":  # which is not read
                chosen.setdefault((path.parent.name, path.suffix, len(content) < 1000), path)
        return list(chosen.values())

    def check(self, path, content):
        """Loads with this content in place of a file's; true if that gave data."""
        path.write_bytes(content)
        sentence = ""
        try:
            train, _ = load(self.source, self.root)
            assert len(train)
        except SteelyardError as error:
            sentence = str(error)
        finally:
            path.write_bytes(self.contents[path])
        assert self.names() == self.before
        assert "\n" not in sentence
        assert str(self.root) in sentence or not sentence
        assert len(sentence) < 400 + 3 * len(str(self.root))
        return not sentence


@pytest.fixture(params=WRITERS)
def case(request, tmp_path, monkeypatch):
    monkeypatch.delenv("STEELYARD_DATA", raising=False)
    monkeypatch.setattr(images, "DEBIAN", tmp_path / "nowhere")
    monkeypatch.setattr(cifar, "BATCH", 4)
    monkeypatch.chdir(tmp_path)
    made = Case(request.param, tmp_path)
    path, content = next(iter(made.contents.items()))
    assert made.check(path, content)  # as it is, it can be read
    return made


def test_truncated_files(case):
    for path in case.kinds():
        content = case.contents[path]
        cuts = sorted(
            {
                *range(min(len(content), 12)),
                *np.linspace(0, len(content) - 1, TRIES // 4, dtype=int),
            }
        )
        results = [case.check(path, content[:cut]) for cut in cuts]
        assert not results[0]
        if path.suffix not in (
            ".txt",
            ".JPEG",
            ".png",
        ):  # a list may end early, and an image may lack its end mark
            assert not any(results), path


def test_flipped_bits(case):
    rng = np.random.default_rng(5)
    for path in case.kinds():
        for _ in range(TRIES // 4):
            content = bytearray(case.contents[path])
            for at in rng.integers(0, len(content), rng.integers(1, 4)):
                content[at] ^= 1 << int(rng.integers(8))
            case.check(path, bytes(content))
        for at in range(0, min(64, len(content)), 5):  # headers, whole bytes
            content = bytearray(case.contents[path])
            content[at] = 255
            case.check(path, bytes(content))


@pytest.mark.parametrize("size", [1, 200, 5000])
def test_random_bytes(case, size):
    for seed, path in enumerate(case.kinds()):
        assert not case.check(path, np.random.default_rng(seed).bytes(size))


class Attack:
    def __init__(self, victim):
        self.victim = victim

    def __reduce__(self):
        return os.mkdir, (self.victim,)


def test_pickles_are_not_run(case):
    victim = str(case.outside / "victim")
    attack = pickle.dumps(Attack(victim), protocol=2)
    objects = io.BytesIO()
    np.save(objects, np.array([Attack(victim)], dtype=object), allow_pickle=True)
    hostile = {
        ".npz": lambda: zip_of({f"{name}.npy": objects.getvalue() for name in NAMES}),
        ".gz": lambda: gzip.compress(attack),
        ".bz2": lambda: bz2.compress(attack),
        ".xz": lambda: lzma.compress(attack),
    }
    for path in case.kinds():
        for content in (attack, hostile.get(path.suffix, bytes)()):
            assert not case.check(path, content)
    pickle.loads(attack)  # noqa: S301
    assert os.path.isdir(victim)  # it would have worked


NAMES = (
    "images",
    "labels",
    "font_index",
    "train_images",
    "train_labels",
    "test_images",
    "test_labels",
)


def zip_of(members):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


def npy(header, data=b""):
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def tar_of(*members):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content, fields in members:
            files.add(archive, name, content, **fields)
    return lzma.compress(stream.getvalue())


def png(width, height):
    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(bytes(1000)))
        + chunk(b"IEND", b"")
    )


def webp(width, height, kind=b"VP8L"):
    bits = (width - 1) | (height - 1) << 14
    body = b"\x2f" + bits.to_bytes(4, "little") + bytes(20)
    return (
        b"RIFF"
        + struct.pack("<I", len(body) + 12)
        + b"WEBP"
        + kind
        + struct.pack("<I", len(body))
        + body
    )


def picture(mode, kind, side):
    stream = io.BytesIO()
    Image.new(mode, (side, side)).save(stream, kind)
    return stream.getvalue()


def matrix(dimensions, kind=2, declared=None, data=bytes(64)):
    def element(kind, content, size=None):
        return (
            struct.pack("<II", kind, len(content) if size is None else size)
            + content
            + bytes(-len(content) % 8)
        )

    shape = b"".join(struct.pack("<i", n) for n in dimensions)
    parts = (
        element(6, bytes(8)) + element(5, shape) + element(1, b"X") + element(kind, data, declared)
    )
    return b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM" + element(14, parts)


HUGE = "{'descr': '|u1', 'fortran_order': False, 'shape': (4000000000, 28, 28), }"
HOSTILE = {
    ".gz": [
        gzip.compress(b"\0\0\x08\x03" + b"\xff" * 12),
        gzip.compress(b"\0\0\x08\x03" + struct.pack(">III", 100_000, 28, 28)),
        gzip.compress(bytes(50_000_000)),
        gzip.compress(b"\0\0\x08\x01" + struct.pack(">I", 0)),
    ],
    ".npz": [
        zip_of({"other.npy": b"x"}),
        zip_of({f"{name}.npy": npy(HUGE) for name in NAMES}),
        zip_of(
            {
                f"{name}.npy": npy("{'descr': '|O', 'fortran_order': False, 'shape': (3,), }")
                for name in NAMES
            }
        ),
        zip_of(
            {
                f"{name}.npy": npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1,), }")
                for name in NAMES
            }
        ),
        zip_of(
            {
                f"{name}.npy": npy("{'descr': '|u1', 'fortran_order': True, 'shape': (-1,), }")
                for name in NAMES
            }
        ),
        zip_of({f"{name}.npy": npy("__import__('os').mkdir('victim')") for name in NAMES}),
        zip_of({f"{name}.npy": npy("(" * 100) for name in NAMES}),
        zip_of({f"../{name}.npy": b"x" for name in NAMES}),
    ],
    ".mat": [
        matrix((2**31 - 1, 2**31 - 1, 2**31 - 1, 2**31 - 1)),
        matrix((-1, -64)),
        matrix((), data=b""),
        matrix((32, 32, 3, 1), declared=2**32 - 1),
        matrix((1, 8), kind=9),
        matrix((1,), kind=14),
        matrix((1, 64))[:128]
        + struct.pack("<II", 15, 1000)
        + zlib.compress(bytes(10_000_000))[:1000],
    ],
    ".bz2": [
        bz2.compress(bytes(50_000_000)),
        bz2.compress(b"1 " + b" ".join(b"%d:2.5" % at for at in range(1, 257))),
        bz2.compress(b"1 " + b" ".join(b"%d:nan" % at for at in range(1, 257))),
        bz2.compress(b"3.5 " + b" ".join(b"%d:0" % at for at in range(1, 257))),
        bz2.compress(b"1 " + b" ".join(b"%d:0" % at for at in range(256))),
        bz2.compress(b"1 1:0 __import__('os')"),
    ],
    ".png": [
        png(2**31 - 1, 2**31 - 1),
        png(60_000, 60_000),
        png(0, 0),
        picture("RGB", "BMP", 32),
        picture("1", "GIF", 32),
    ],
    ".JPEG": [
        picture("RGB", "JPEG", 65),
        picture("RGB", "PNG", 64),
        png(2**31 - 1, 64),
        bytes(2_000_000),
    ],
    ".webp": [
        webp(16_384, 16_384),
        webp(33, 32),
        webp(64, 320),
        webp(64, 64, b"VP8X"),
        picture("RGB", "PNG", 64),
    ],
    ".zip": [
        zip_of({"tiny-imagenet-200/train/n01/images/a.JPEG": bytes(3_000_000)}),
        zip_of({"tiny-imagenet-200/../../train/n01/images/a.JPEG": b""}),
        zip_of({f"t/train/n{number}/a.JPEG": b"" for number in range(300)}),
        zip_of({"other.txt": b""}),
        zip_of({}),
    ],
    ".xz": [
        tar_of(("t/train/n01/a.JPEG", bytes(3_000_000), {})),
        tar_of(("/train/n01/a.JPEG", b"", {})),
        tar_of(("t/train/n01/a.JPEG", b"", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"})),
        lzma.compress(bytes(20_000_000)),
    ],
    ".txt": [b"\xff\xfe", b"a\n" * 1000, b"../x.png 1\n", b"x.png 1\n", b"\0" * 5000],
    ".bin": [b"\xff" * (4 * 3073), b"\xff" * (20 * 3074)],
    "": [
        files.original_batch(*files.cifar_arrays()["test_batch"])[:-20] + b"T\xff\xff\xff\x7f",
        b"\x80\x02U\x06labels\x8a\xff" + b"\x7f" * 255 + b".",
        b"\x80\x04X\xff\xff\xff\xff.",
        b"(" * 10_000 + b".",
    ],
}


def test_hostile_files(case):
    tried = 0
    for path in case.kinds():
        for content in HOSTILE.get(path.suffix, []):
            tried += 1
            assert not case.check(path, content), (path.suffix, content[:60])
    assert tried or case.source == "mnist"  # packed or not, its files are tried above
    assert not os.path.exists("victim")


@pytest.mark.parametrize(
    ("mode", "kind"), [("L", "PNG"), ("P", "PNG"), ("RGBA", "PNG"), ("I;16", "PNG"), ("1", "PNG")]
)
def test_images_of_other_modes_become_coloured(tmp_path, mode, kind):
    files.write_mnist_m(tmp_path)
    (tmp_path / "mnist_m" / "mnist_m_test" / "00000000.png").write_bytes(picture(mode, kind, 32))
    _, test = load("mnist-m:unit", tmp_path)
    assert test.inputs.shape == (3, 3, 32, 32)
    assert test.inputs[0].max() == 0
