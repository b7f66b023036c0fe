"""Which sentence a hostile file gets: that it is refused for its size, and not by luck."""

import bz2
import io

import numpy as np
import pytest

from steelyard.core._errors import SteelyardError
from steelyard.data import load
from steelyard.data._formats import read_bounded, reading
from tests.datasets import files, test_fuzz


def test_a_stream_has_a_limit():
    assert read_bounded(io.BytesIO(b"x" * 10), 10, "file") == b"x" * 10
    with pytest.raises(SteelyardError, match="file unpacks to more than 10 bytes"):
        read_bounded(io.BytesIO(b"x" * 11), 10, "file")


def test_any_error_becomes_one_line_that_names_the_file():
    with (
        pytest.raises(SteelyardError, match=r"^x\.bin .*image \(first\): fetch it again$"),
        reading("x.bin", "image"),
    ):
        raise RuntimeError("first\nsecond")
    with pytest.raises(SteelyardError, match=r"\(MemoryError\)"), reading("x.bin", "image"):
        raise MemoryError


def line(label=1, start=1, value="0"):
    return bz2.compress(
        (f"{label} " + " ".join(f"{at}:{value}" for at in range(start, start + 256))).encode()
    )


SETS = {
    "usps/usps_uint8.npz": files.write_usps_npz,
    "usps/usps.bz2": files.write_usps_libsvm,
    "svhn/train_32x32.mat": files.write_svhn,
    "mnist-m/mnist_m_subset/train.webp": files.write_mnist_m_montage,
    "mnist-m/mnist_m/mnist_m_train/00000000.png": files.write_mnist_m,
}


@pytest.mark.parametrize(
    ("place", "content", "message"),
    [
        ("usps/usps_uint8.npz", test_fuzz.HOSTILE[".npz"][0], r"array 'train_images' .*other\.npy"),
        (
            "usps/usps_uint8.npz",
            test_fuzz.HOSTILE[".npz"][1],
            "3136000000000 bytes, more than 268435456",
        ),
        ("usps/usps_uint8.npz", test_fuzz.HOSTILE[".npz"][2], "is of object, not of uint8"),
        ("usps/usps_uint8.npz", test_fuzz.HOSTILE[".npz"][3], "is of float64, not of uint8"),
        ("usps/usps.bz2", line(value="2.5"), r"has values outside \[-1, 1\]"),
        ("usps/usps.bz2", line(value="nan"), r"has values outside \[-1, 1\]"),
        ("usps/usps.bz2", line(label=3.5), r"labels .*1\.\.10"),
        ("usps/usps.bz2", line(label=11), r"labels .*1\.\.10"),
        ("usps/usps.bz2", line(start=0), "not numbered 1 to 256"),
        ("usps/usps.bz2", bz2.compress(b"1 1:0 2:0\n"), "5 numbers in 1 lines"),
        ("svhn/train_32x32.mat", test_fuzz.matrix((2**31 - 1,) * 4), "64 numbers for dimensions"),
        ("svhn/train_32x32.mat", test_fuzz.matrix((-1, -64)), "64 numbers for dimensions"),
        (
            "svhn/train_32x32.mat",
            test_fuzz.matrix((64,), declared=2**32 - 1),
            "an element of 4294967295 bytes where",
        ),
        ("svhn/train_32x32.mat", test_fuzz.matrix((8,), kind=14), "is of type 14"),
        ("svhn/train_32x32.mat", test_fuzz.HOSTILE[".mat"][-1], "a packed element ends early"),
        (
            "svhn/train_32x32.mat",
            test_fuzz.matrix((64,))[:128] + b"\1\0\5\0" * 30,
            "a small element of 5 bytes",
        ),
        (
            "mnist-m/mnist_m_subset/train.webp",
            test_fuzz.webp(16_384, 16_384),
            "16384x16384, not tiles of 32x32",
        ),
        ("mnist-m/mnist_m_subset/train.webp", test_fuzz.webp(64, 64, b"VP8X"), "another format"),
        (
            "mnist-m/mnist_m/mnist_m_train/00000000.png",
            test_fuzz.png(60_000, 60_000),
            "exceeds|60000x60000, not 32x32",
        ),
        (
            "mnist-m/mnist_m/mnist_m_train/00000000.png",
            test_fuzz.png(9_000, 9_000),
            "of 9000x9000, not 32x32",
        ),
    ],
)
def test_the_sentence(tmp_path, place, content, message):
    name, _, rest = place.partition("/")
    SETS[place](tmp_path / name if rest.count("/") == 0 else tmp_path)
    (tmp_path / (place if rest.count("/") == 0 else rest)).write_bytes(content)
    with pytest.raises(SteelyardError, match=message):
        load(name, tmp_path)


def test_a_packed_matrix_has_a_limit(tmp_path, monkeypatch):
    files.write_svhn(tmp_path)
    monkeypatch.setattr("steelyard.data._formats.MATLAB_LIMIT", 10_000)
    with pytest.raises(SteelyardError, match="unpacks to more than 10000 bytes"):
        load("svhn", tmp_path)


def test_labels_and_images_must_be_as_many(tmp_path):
    files.write_mnist_m_montage(tmp_path)
    labels = {f"{part}_labels": np.zeros(3, dtype=np.uint8) for part in ("train", "test")}
    np.savez(tmp_path / "mnist_m_subset" / "index.npz", **labels)
    with pytest.raises(SteelyardError, match="3 labels for 10 images"):
        load("mnist-m", tmp_path)


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (0, "has 3000000 bytes, too many for a small image"),
        (1, "leads out of its folder"),
        (2, "300 classes, more than 200"),
    ],
)
def test_the_sentence_on_an_archive_of_images(tmp_path, number, message):
    (tmp_path / "tiny-imagenet-200.zip").write_bytes(test_fuzz.HOSTILE[".zip"][number])
    with pytest.raises(SteelyardError, match=message):
        load("tiny-imagenet", tmp_path)
