"""Data sets of images: digits, MNIST and similar sets, CIFAR. All scale pixels in the same ways.

default    as the papers do it; docs/data.md says how for each set
unit       x / 255, in [0, 1]
half       (x / 255 - 0.5) / 0.5, in [-1, 1]
standard   minus the mean, divided by the deviation of each channel, over the training images
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from steelyard.core import checks
from steelyard.core._errors import SteelyardError
from steelyard.core._weighting import Info
from steelyard.data import _cifar as cifar
from steelyard.data import _pictures as pictures
from steelyard.data._dataset import Dataset
from steelyard.data._download import File
from steelyard.data._formats import read_idx, read_npz
from steelyard.data._sources import SOURCES, Size, Source, Split, find

Bytes = NDArray[np.uint8]
Part = tuple[Bytes, Bytes]

DEBIAN = Path("/usr/share/datasets/fashion-mnist")  # from Debian's package dataset-fashion-mnist


class Pictures(NamedTuple):
    """Images `[N, C, H, W]` with their labels for training and testing, as bytes.

    And their groups.
    """

    train: Part
    test: Part
    classes: int = 10
    groups: tuple[Bytes | None, Bytes | None] = (None, None)


@dataclass(frozen=True)
class Images(Source):
    """Labelled images.

    Attributes:
        usual: the scale that `default` stands for.
        mean: of each channel of the training images, in [0, 1].
        deviation: the standard deviation of each channel of the training images.
        top: the value of a white pixel.
    """

    scale: str = "default"

    usual: ClassVar[str] = "half"
    mean: ClassVar[tuple[float, ...]]
    deviation: ClassVar[tuple[float, ...]]
    top: ClassVar[int] = 255

    def __post_init__(self) -> None:
        checks.one_of("scale", self.scale, "default", "unit", "half", "standard")

    @abstractmethod
    def read(self, directory: Path | None) -> Pictures:
        """Return the images as they are in the files."""

    def __call__(self, directory: Path | None) -> Split:
        """Read the images and scale them."""
        data = self.read(directory)
        train = self._scale_images(*data.train, data.classes, data.groups[0])
        test = self._scale_images(*data.test, data.classes, data.groups[1])
        return train, test

    def _scale_images(
        self, images: Bytes, labels: Bytes, classes: int, groups: Bytes | None
    ) -> Dataset:
        """Return a data set of images as float32."""
        inputs = torch.from_numpy(np.ascontiguousarray(images, dtype=np.float32)).div_(self.top)
        scale = self.usual if self.scale == "default" else self.scale
        if scale != "unit":
            for channel, (mean, deviation) in enumerate(
                zip(self.mean, self.deviation, strict=True)
            ):
                low, width = (0.5, 0.5) if scale == "half" else (mean, deviation)
                inputs[:, channel].sub_(low).div_(width)
        targets = torch.from_numpy(labels.astype(np.int64))
        numbers = None if groups is None else torch.from_numpy(groups.astype(np.int64))
        return Dataset(inputs, targets, classes, self.name, numbers)


def idx_files(url: str, name: str, *files: tuple[str, str, int]) -> tuple[File, ...]:
    """Return the downloads of a data set in MNIST's format: name, md5 and size of each file."""
    return tuple(
        File(f"{url}{file}.gz", f"{name}/{file}.gz", md5=md5, size=size)
        for file, md5, size in files
    )


def check_images(
    path: Path,
    images: Bytes,
    labels: Bytes,
    shape: tuple[int, ...],
    label_path: Path | None = None,
    classes: int = 10,
) -> Part:
    """Return images and labels; raise an error if a shape or a label is wrong.

    Args:
        path: the file of the images.
        images: `[N, *shape]`.
        labels: `[N]`, below `classes`.
        shape: of one image.
        label_path: the file of the labels, if it is another one.
        classes: the number of classes.
    """
    if images.shape[1:] != shape or len(images) == 0:
        expected = ", ".join(map(str, shape))
        raise SteelyardError(
            f"{path} contains images of shape {images.shape}, not [N, {expected}]: fetch it again"
        )
    label_file = label_path or path
    if labels.shape != (len(images),):
        raise SteelyardError(
            f"{label_file} contains {labels.size} labels for {len(images)} images: "
            f"fetch {'both' if label_path else 'it'} again"
        )
    if labels.max() >= classes:
        raise SteelyardError(
            f"{label_file} has label {labels.max()}, not 0..{classes - 1}: fetch it again"
        )
    return images, labels


def split_pictures(images: Bytes, labels: Bytes, is_test: NDArray[np.bool_]) -> Pictures:
    """Return images and labels, divided into those for training and those for testing."""
    return Pictures((images[~is_test], labels[~is_test]), (images[is_test], labels[is_test]))


@SOURCES.register
@dataclass(frozen=True)
class Digits(Images):
    """The digits of scikit-learn, included in this package: 1437 to train on, 360 to test on.

    Every fifth image is for testing, after sorting by class; within a class images keep their
    order.
    """

    usual = "unit"
    mean = (0.3058,)
    deviation = (0.3762,)
    top = 16
    name = "digits"
    info = Info("8x8 digits, in the package", "Alpaydin & Kaynak, UCI 1998")
    published_size = Size(1437, 360, (1, 8, 8), 10)

    def locate(self, directory: Path | None) -> Path:
        """Return the file in this package."""
        return Path(__file__).with_name("digits.safetensors")

    def read(self, directory: Path | None) -> Pictures:
        """Read the images and separate every fifth for testing."""
        tensors = load_file(self.locate(None))
        images = tensors["images"].numpy()[:, None].astype(np.uint8)
        labels = tensors["labels"].numpy().astype(np.uint8)
        is_test = np.zeros(len(labels), dtype=np.bool_)
        is_test[np.argsort(labels, kind="stable")[::5]] = True
        return split_pictures(images, labels, is_test)


@SOURCES.register
@dataclass(frozen=True)
class MNIST(Images):
    """Handwritten digits: the four original idx files, compressed or not."""

    usual = "standard"  # FedAdp's
    mean = (0.1307,)
    deviation = (0.3081,)
    name = "mnist"
    info = Info("28x28 digits", "LeCun et al., 1998")
    default_model = "mcmahan_cnn"
    published_size = Size(60_000, 10_000, (1, 28, 28), 10)
    downloads = idx_files(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "mnist",
        ("train-images-idx3-ubyte", "f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
        ("train-labels-idx1-ubyte", "d53e105ee54ea40749a09fcbcd1e9432", 28_881),
        ("t10k-images-idx3-ubyte", "9fb629c4189551a2d022fa330f9573f3", 1_648_877),
        ("t10k-labels-idx1-ubyte", "ec29112dd5afa0611ce80d1b7f02629c", 4_542),
    )

    def locate(self, directory: Path | None) -> Path:
        """Return the folder of the four files."""
        return self._file(directory, "train-images-idx3-ubyte").parent

    def read(self, directory: Path | None) -> Pictures:
        """Read the four files."""
        return Pictures(self._part(directory, "train"), self._part(directory, "t10k"))

    def _part(self, directory: Path | None, part: str) -> Part:
        """Return images and labels, `part` being `train` or `t10k`."""
        image_file = self._file(directory, f"{part}-images-idx3-ubyte")
        label_file = self._file(directory, f"{part}-labels-idx1-ubyte")
        images = read_idx(image_file, 3)
        labels = read_idx(label_file, 1)
        check_images(image_file, images, labels, (28, 28), label_file)
        return images[:, None], labels

    def _file(self, directory: Path | None, file: str) -> Path:
        """Return the path of one file, compressed or not."""
        return find(
            self.name,
            directory,
            f"{self.name}/{file}.gz",
            f"{self.name}/{file}",
            f"{file}.gz",
            file,
        )


@SOURCES.register
@dataclass(frozen=True)
class FashionMNIST(MNIST):
    """Clothes in MNIST's format.

    From the directory, or else from Debian's package `dataset-fashion-mnist`.
    """

    usual = "unit"  # FedLAW's and FedAWA's
    mean = (0.2860,)
    deviation = (0.3530,)
    name = "fashion-mnist"
    info = Info("28x28 clothes", "Xiao et al., 2017")
    downloads = idx_files(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "fashion-mnist",
        ("train-images-idx3-ubyte", "8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
        ("train-labels-idx1-ubyte", "25c81989df183df01b3e8a0aad5dffbe", 29_515),
        ("t10k-images-idx3-ubyte", "bef4ecab320f06d8554ea6380940ec79", 4_422_102),
        ("t10k-labels-idx1-ubyte", "bb300cfdad3c16e7a12a480ee83cd310", 5_148),
    )

    def _file(self, directory: Path | None, file: str) -> Path:
        try:
            return super()._file(directory, file)
        except SteelyardError:
            if (DEBIAN / f"{file}.gz").is_file():
                return DEBIAN / f"{file}.gz"
            raise


@SOURCES.register
@dataclass(frozen=True)
class CIFAR10(Images):
    """Photographs of ten classes: the Python version, the binary version, or lossless montages.

    The Python version may be a folder or its archive. The montages are `data_batch_1.webp` to
    `data_batch_5.webp` and `test_batch.webp`, with the labels in `index.npz`.
    """

    mean = (0.4914, 0.4822, 0.4465)
    deviation = (0.2470, 0.2435, 0.2616)
    name = "cifar10"
    info = Info("32x32 photographs, 10 classes", "Krizhevsky, 2009")
    default_model = "simple_cnn"
    published_size = Size(50_000, 10_000, (3, 32, 32), 10)
    downloads = (
        File(
            "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            "cifar10/cifar-10-python.tar.gz",
            md5="c58f30108f718f92721af3b95e74349a",
            size=170_498_071,
            folder=cifar.TEN.python,
        ),
    )

    form: ClassVar[cifar.Form] = cifar.TEN
    montage_labels: ClassVar[str] = "cifar10/index.npz"

    def locate(self, directory: Path | None) -> Path:
        """Return the folder of the batches, its archive, or the file of labels of the montages."""
        sources = (self.form.python, self.form.binary, self.form.archive)
        paths = []
        for source in sources:
            paths += [source, f"{self.name}/{source}"]
        return find(self.name, directory, *paths, self.montage_labels)

    def read(self, directory: Path | None) -> Pictures:
        """Read the version that is there."""
        path = self.locate(directory)
        if path.suffix != ".npz":
            return Pictures(*self.form.read(path), self.form.classes)
        train_labels, test_labels = read_npz(path, "train_labels", "test_labels")
        classes = self.form.classes
        train = tiles(path, self.form.montages, train_labels, classes)
        test = tiles(path, (self.form.test,), test_labels, classes)
        return Pictures(train, test, classes)


@SOURCES.register
@dataclass(frozen=True)
class CIFAR100(CIFAR10):
    """Photographs of a hundred classes, with fine labels: the Python or the binary version.

    Or a subset as lossless montages: `cifar100_subset/train_1.webp`, `train_2.webp` and
    `test.webp`, with the fine labels in `index.npz`.
    """

    mean = (0.5071, 0.4865, 0.4409)
    deviation = (0.2673, 0.2564, 0.2762)
    name = "cifar100"
    info = Info("32x32 photographs, 100 classes", "Krizhevsky, 2009")
    published_size = Size(50_000, 10_000, (3, 32, 32), 100)
    downloads = (
        File(
            "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            "cifar100/cifar-100-python.tar.gz",
            md5="eb9058c3a382ffc7106e4002c42a8d85",
            size=169_001_437,
            folder=cifar.HUNDRED.python,
        ),
    )

    form = cifar.HUNDRED
    montage_labels = "cifar100_subset/index.npz"


def tiles(index: Path, files: tuple[str, ...], labels: Bytes, classes: int = 10) -> Part:
    """Return the images of 32x32 in montages beside the file of their labels, and the labels."""
    montages = []
    for file in files:
        path = index.with_name(f"{file}.webp")
        if not path.is_file():
            raise SteelyardError(
                f"{index} has labels of {path.name}, which is not beside it: fetch both again"
            )
        montages.append(pictures.montage(path, 32))
    return check_images(index, np.concatenate(montages), labels, (3, 32, 32), classes=classes)
