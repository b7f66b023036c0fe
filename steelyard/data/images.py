"""Data sets of images: digits, MNIST and its like, CIFAR. All share how pixels are scaled.

default    as the papers do it; docs/data.md says how for each set
unit       x / 255, in [0, 1]
half       (x / 255 - 0.5) / 0.5, in [-1, 1]
standard   less the mean and divided by the deviation of each channel, over the training images
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from steelyard.core import checks
from steelyard.core.errors import SteelyardError
from steelyard.core.weighting import Info
from steelyard.data import cifar, idx, npz, pictures
from steelyard.data.dataset import Dataset
from steelyard.data.sources import SOURCES, Source, Split, find

Bytes = NDArray[np.uint8]
Part = tuple[Bytes, Bytes]

DEBIAN = Path("/usr/share/datasets/fashion-mnist")  # of the package dataset-fashion-mnist


class Pictures(NamedTuple):
    """Images `[N, C, H, W]` with their labels, to train on and to test on, as bytes; and their groups, if any."""

    train: Part
    test: Part
    classes: int = 10
    groups: tuple[Bytes | None, Bytes | None] = (None, None)


@dataclass(frozen=True)
class Images(Source):
    """Labelled images.

    Attributes:
        usual: the scale called `default`.
        mean: of each channel of the training images, in [0, 1].
        deviation: likewise.
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
        """The images as they are in the files."""

    def __call__(self, directory: Path | None) -> Split:
        """Read, then scale."""
        found = self.read(directory)
        sides = zip((found.train, found.test), found.groups, strict=True)
        train, test = (self._scale_images(*part, found.classes, groups) for part, groups in sides)
        return train, test

    def _scale_images(self, images: Bytes, labels: Bytes, classes: int, groups: Bytes | None) -> Dataset:
        inputs = torch.from_numpy(np.ascontiguousarray(images, dtype=np.float32)).div_(self.top)
        scale = self.usual if self.scale == "default" else self.scale
        if scale != "unit":
            for channel, (mean, deviation) in enumerate(zip(self.mean, self.deviation, strict=True)):
                low, width = (0.5, 0.5) if scale == "half" else (mean, deviation)
                inputs[:, channel].sub_(low).div_(width)
        numbers = [None if array is None else torch.from_numpy(array.astype(np.int64)) for array in (labels, groups)]
        return Dataset(inputs, cast("torch.Tensor", numbers[0]), classes, self.name, numbers[1])


def check_images(path: Path, images: Bytes, labels: Bytes, shape: tuple[int, ...], beside: Path | None = None) -> Part:
    """Images and labels, if they are of this shape, as many, and digits.

    `path` is the file they are from; `beside` is that of the labels, if it is another.
    """
    if images.shape[1:] != shape or len(images) == 0:
        wanted = ", ".join(map(str, shape))
        raise SteelyardError(f"{path} holds images of shape {images.shape}, not [N, {wanted}]: fetch it again")
    if labels.shape != (len(images),):
        found = f"{labels.size} labels for {len(images)} images"
        raise SteelyardError(f"{beside or path} holds {found}: fetch {'both' if beside else 'it'} again")
    if labels.max() > 9:
        raise SteelyardError(f"{beside or path} has label {labels.max()}, not 0..9: fetch it again")
    return images, labels


@SOURCES.register
@dataclass(frozen=True)
class Digits(Images):
    """Scikit-learn's digits, from this package: 1437 to train on, 360 to test on.

    Sorted by class, and within a class in the order of the file, every fifth image is for testing.
    """

    usual = "unit"
    mean, deviation, top = (0.3058,), (0.3762,), 16
    name = "digits"
    info = Info("8x8 digits, in the package", "Alpaydin & Kaynak, UCI 1998")

    def locate(self, directory: Path | None) -> Path:
        """In the package."""
        return Path(__file__).with_name("digits.safetensors")

    def read(self, directory: Path | None) -> Pictures:
        """The images, and every fifth of them apart."""
        tensors = load_file(self.locate(None))
        images, labels = tensors["images"].numpy()[:, None].astype(np.uint8), tensors["labels"].numpy().astype(np.uint8)
        held_out = np.zeros(len(labels), dtype=np.bool_)
        held_out[np.argsort(labels, kind="stable")[::5]] = True
        return Pictures((images[~held_out], labels[~held_out]), (images[held_out], labels[held_out]))


@SOURCES.register
@dataclass(frozen=True)
class MNIST(Images):
    """Handwritten digits: the four original idx files, packed or not."""

    usual = "standard"  # FedAdp's
    mean, deviation = (0.1307,), (0.3081,)
    name = "mnist"
    info = Info("28x28 digits", "LeCun et al., 1998")

    def locate(self, directory: Path | None) -> Path:
        """The folder of the four files."""
        return self._file(directory, "train-images-idx3-ubyte").parent

    def read(self, directory: Path | None) -> Pictures:
        """The four files."""
        return Pictures(self._part(directory, "train"), self._part(directory, "t10k"))

    def _part(self, directory: Path | None, part: str) -> Part:
        files = [self._file(directory, f"{part}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1")]
        images, labels = check_images(files[0], idx.read(files[0], 3), idx.read(files[1], 1), (28, 28), files[1])
        return images[:, None], labels

    def _file(self, directory: Path | None, file: str) -> Path:
        return find(self.name, directory, *(f"{self.name}/{file}.gz", f"{self.name}/{file}", f"{file}.gz", file))


@SOURCES.register
@dataclass(frozen=True)
class FashionMNIST(MNIST):
    """Clothes in MNIST's form; if they are not in the directory, from Debian's package `dataset-fashion-mnist`."""

    usual = "unit"  # FedLAW's and FedAWA's
    mean, deviation = (0.2860,), (0.3530,)
    name = "fashion-mnist"
    info = Info("28x28 clothes", "Xiao et al., 2017")

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
    """Photographs of ten kinds: the Python version, the binary version, or a montage of tiles without loss.

    A montage is `data_batch_1.webp` to `data_batch_5.webp` and `test_batch.webp`, with the labels in `index.npz`.
    """

    mean, deviation = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    name = "cifar10"
    info = Info("32x32 photographs, 10 classes", "Krizhevsky, 2009")

    form: ClassVar[cifar.Form] = cifar.TEN

    def locate(self, directory: Path | None) -> Path:
        """The folder of the batches, or the file of labels of a montage."""
        folders = [self.form.python, f"{self.name}/{self.form.python}", self.form.binary]
        return find(self.name, directory, *folders, f"{self.name}/{self.form.binary}", f"{self.name}/index.npz")

    def read(self, directory: Path | None) -> Pictures:
        """Whichever is there."""
        place = self.locate(directory)
        if place.suffix != ".npz":
            return Pictures(*self.form.read(place), self.form.classes)
        labels = npz.read(place, "train_labels", "test_labels")
        names = (self.form.train, (self.form.test,))
        parts = [tiles(place, files, part) for files, part in zip(names, labels, strict=True)]
        return Pictures(parts[0], parts[1], self.form.classes)


@SOURCES.register
@dataclass(frozen=True)
class CIFAR100(CIFAR10):
    """Photographs of a hundred kinds, with their fine labels: the Python version or the binary version."""

    mean, deviation = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
    name = "cifar100"
    info = Info("32x32 photographs, 100 classes", "Krizhevsky, 2009")

    form = cifar.HUNDRED


def tiles(index: Path, files: tuple[str, ...], labels: Bytes) -> Part:
    """Images of 32x32 from montages beside the file of their labels."""
    found = []
    for file in files:
        path = index.with_name(f"{file}.webp")
        if not path.is_file():
            raise SteelyardError(f"{index} has labels of {path.name}, which is not beside it: fetch both again")
        found.append(pictures.montage(path, 32))
    return check_images(index, np.concatenate(found), labels, (3, 32, 32))
