"""Readers of the original formats, on small files and, where they are, on the real ones."""

import gzip
import pickle

import numpy as np
import pytest
import torch

from steelyard.core._errors import SteelyardError
from steelyard.data import Federation, load
from steelyard.data import _cifar as cifar
from steelyard.data import _images as images
from tests.datasets import files


@pytest.fixture(autouse=True)
def _no_data_around(monkeypatch, tmp_path):
    monkeypatch.delenv("STEELYARD_DATA", raising=False)
    monkeypatch.setattr(images, "DEBIAN", tmp_path / "nowhere")


def test_digits():
    train, test = load("digits")
    assert train.inputs.shape == (1437, 1, 8, 8)
    assert test.inputs.shape == (360, 1, 8, 8)
    assert (train.inputs.min(), train.inputs.max(), train.classes) == (0.0, 1.0, 10)
    counts = np.bincount(train.targets) + np.bincount(test.targets)
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]  # scikit-learn's
    assert np.abs(np.bincount(test.targets) - counts / 5).max() <= 1
    assert (
        float((train.inputs.sum() + test.inputs.sum()) * 16) == 561718
    )  # scikit-learn's digits.data.sum()


def test_digits_can_be_learned():
    train, test = load("digits")
    nearest = torch.cdist(test.inputs.flatten(1), train.inputs.flatten(1)).argmin(dim=1)
    assert (train.targets[nearest] == test.targets).float().mean() > 0.97


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize(
    ("name", "mean", "deviation"), [("mnist", 0.1307, 0.3081), ("fashion-mnist", 0.0, 1.0)]
)
def test_idx_files(tmp_path, packed, nested, name, mean, deviation):
    pixels, labels = files.write_mnist(tmp_path / name if nested else tmp_path, packed)
    train, test = load(name, tmp_path)
    np.testing.assert_allclose(train.inputs[:, 0], (pixels / 255 - mean) / deviation, atol=1e-6)
    assert train.targets.tolist() == labels.tolist()
    assert (len(train), len(test), train.name, train.classes) == (7, 3, name, 10)


def test_the_directory_may_come_from_the_environment(tmp_path, monkeypatch):
    files.write_mnist(tmp_path / "mnist")
    monkeypatch.delenv("STEELYARD_DATA", raising=False)
    with pytest.raises(SteelyardError, match="set STEELYARD_DATA"):
        load("mnist")
    monkeypatch.setenv("STEELYARD_DATA", str(tmp_path))
    assert len(load("mnist")[0]) == 7


IMAGES, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"
WRONG_SIZE = np.zeros((7, 8, 8), dtype=np.uint8)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (IMAGES, lambda raw: raw[: len(raw) // 2], "complete gzip file"),
        (IMAGES, lambda raw: b"<html>", "complete gzip file"),
        (IMAGES, lambda raw: raw[:200] + b"\0\0\0\0" + raw[204:], "complete gzip file"),
        (IMAGES, lambda raw: gzip.compress(gzip.decompress(raw)[:-1]), "5487 bytes of data.* 5488"),
        (IMAGES, lambda raw: gzip.compress(gzip.decompress(raw) + b"x"), "more than 5488 bytes"),
        (
            IMAGES,
            lambda raw: gzip.compress(b"\0\0\x08\x01" + gzip.decompress(raw)[4:]),
            "starts with 00000801",
        ),
        (IMAGES, lambda raw: gzip.compress(b""), "starts with nothing"),
        (
            IMAGES,
            lambda raw: gzip.compress(b"\0\0\x08\x03" + b"\xff" * 12),
            "more than the 268435456",
        ),
        (IMAGES, lambda raw: gzip.compress(files.idx(WRONG_SIZE)), r"shape \(7, 8, 8\)"),
        (
            LABELS,
            lambda raw: gzip.compress(files.idx(np.zeros(6, dtype=np.uint8))),
            "6 labels for 7 images",
        ),
        (LABELS, lambda raw: gzip.compress(files.idx(np.full(7, 11, dtype=np.uint8))), "label 11"),
    ],
)
def test_a_bad_idx_file_is_named_with_the_cure(tmp_path, name, change, message):
    files.write_mnist(tmp_path)
    path = tmp_path / name
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(SteelyardError, match=message) as caught:
        load("mnist", tmp_path)
    assert str(path) in str(caught.value)
    assert str(caught.value).endswith("again")


def test_missing_files_and_directories(tmp_path):
    with pytest.raises(SteelyardError, match="nowhere is not a directory"):
        load("mnist", tmp_path / "nowhere")
    files.write_mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(
        SteelyardError,
        match=r"no t10k-labels-idx1-ubyte\.gz or .*fetch it: steelyard data fetch mnist --dir /",
    ):
        load("mnist", tmp_path)
    with pytest.raises(
        SteelyardError, match=r"no cifar-10-batches-py or cifar-10-batches-bin or .*index"
    ):
        load("cifar10", tmp_path)
    with pytest.raises(SteelyardError, match="did you mean 'mnist'"):
        load("mnits", tmp_path)


def resaved(images, labels):
    """As today's Python writes it."""
    content = {b"data": images, "labels": labels.tolist(), "filenames": ["x.png"] * len(labels)}
    return pickle.dumps(content, protocol=4)


def assert_is_cifar(split, made):
    train, test = split
    images = np.concatenate([made[name][0] for name in files.BATCHES[:5]]).reshape(-1, 3, 32, 32)
    np.testing.assert_allclose(train.inputs, (images / 255 - 0.5) / 0.5, atol=1e-6)
    assert (
        train.targets.tolist()
        == np.concatenate([made[name][1] for name in files.BATCHES[:5]]).tolist()
    )
    assert test.targets.tolist() == made["test_batch"][1].tolist()


def by_column(images, labels):
    return files.original_batch(np.asfortranarray(images), labels, b"\x88")


@pytest.mark.parametrize("batch", [files.original_batch, resaved, by_column])
def test_cifar_python_files(tmp_path, batch):
    made = files.write_cifar_python(tmp_path, batch)
    assert_is_cifar(load("cifar10", tmp_path), made)


def test_cifar_binary_files(tmp_path, monkeypatch):
    monkeypatch.setattr(cifar, "BATCH", 4)
    made = files.write_cifar_binary(tmp_path / "cifar10")
    assert_is_cifar(load("cifar10", tmp_path), made)
    assert_is_cifar(load("cifar10", tmp_path / "cifar10" / "cifar-10-batches-bin"), made)


def test_the_small_batches_are_true_pickles():
    images, labels = files.cifar_arrays()["test_batch"]
    content = pickle.loads(files.original_batch(images, labels), encoding="bytes")  # noqa: S301
    assert (content[b"data"] == images).all()
    assert content[b"labels"] == labels.tolist()


def test_a_batch_is_never_run(tmp_path):
    victim = tmp_path / "victim"
    attack = (
        b"cos\nmkdir\n(X" + len(str(victim)).to_bytes(4, "little") + str(victim).encode() + b"tR0"
    )
    files.write_cifar_python(
        tmp_path, lambda *arrays: b"\x80\x02" + attack + files.original_batch(*arrays)[2:]
    )
    load("cifar10", tmp_path)
    assert not victim.exists()
    pickle.loads((tmp_path / "cifar-10-batches-py" / "test_batch").read_bytes(), encoding="bytes")  # noqa: S301
    assert victim.exists()  # it would have worked


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (lambda images, labels: files.original_batch(images, labels)[:-200], "complete batch"),
        (lambda images, labels: files.original_batch(images, labels)[:5000], "complete batch"),
        (lambda images, labels: b"<html>", "complete batch"),
        (lambda images, labels: b"", "complete batch"),
        (
            lambda images, labels: files.original_batch(images[1:], labels),
            "9216 bytes of images and 4 labels",
        ),
        (
            lambda images, labels: files.original_batch(images, labels[:0]),
            "12288 bytes of images and 0 labels",
        ),
        (
            lambda images, labels: files.original_batch(images, labels + 10),
            r"has labels in 1\d\.\.1\d, not 0\.\.9",
        ),
        (
            lambda images, labels: files.original_batch(images, labels, b"N"),
            "numpy's flag for their order",
        ),
    ],
)
def test_a_bad_batch_is_named_with_the_cure(tmp_path, batch, message):
    files.write_cifar_python(tmp_path, batch)
    with pytest.raises(SteelyardError, match=message) as caught:
        load("cifar10", tmp_path)
    assert "data_batch_1" in str(caught.value)
    assert str(caught.value).endswith("fetch it again")


def test_bad_binary_batches(tmp_path, monkeypatch):
    files.write_cifar_binary(tmp_path)
    with pytest.raises(SteelyardError, match=r"data_batch_1\.bin has 12292 bytes.* 30730000"):
        load("cifar10", tmp_path)
    monkeypatch.setattr(cifar, "BATCH", 4)
    (tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin").unlink()
    with pytest.raises(SteelyardError, match=r"data_batch_3\.bin .*: unpack the archive again"):
        load("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("name", "counts", "mean"),
    [
        ("mnist", [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949], 0.0),
        ("fashion-mnist", [6000] * 10, 0.2860),
    ],
)
def test_the_real_idx_files(name, counts, mean):
    train, test = load(name, files.real(name, IMAGES))
    assert (train.inputs.shape, len(test)) == ((60_000, 1, 28, 28), 10_000)
    assert np.bincount(train.targets).tolist() == counts
    assert float(train.inputs.mean()) == pytest.approx(mean, abs=2e-4)
    fed = Federation.partitioned(train, test, "dirichlet:alpha=0.1", 20, seed=0)
    assert fed.label_counts().sum(axis=0).tolist() == counts
