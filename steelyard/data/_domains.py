"""Digits of other domains (house numbers, envelopes, coloured, printed), and of all domains."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard.core import checks
from steelyard.core._errors import SteelyardError
from steelyard.core._spec import parse
from steelyard.core._weighting import Info
from steelyard.data import _pictures as pictures
from steelyard.data._download import File
from steelyard.data._formats import read_libsvm, read_matlab, read_npz
from steelyard.data._images import (
    MNIST,
    Bytes,
    Images,
    Part,
    Pictures,
    check_images,
    split_pictures,
    tiles,
)
from steelyard.data._sources import SOURCES, Size, Split, find

MAX_LINES = 1_000_000  # of a file of labels

TRAIN_SIZES = {"mnist": 60_000, "mnist-m": 59_001, "svhn": 73_257, "synth": 479_400, "usps": 7_291}
TEST_SIZES = {"mnist": 10_000, "mnist-m": 9_001, "svhn": 26_032, "synth": 9_553, "usps": 2_007}
DOMAINS = ("mnist", "mnist-m", "svhn", "synth", "usps")

_DIGITS = {str(digit).encode() for digit in range(10)}


@SOURCES.register
@dataclass(frozen=True)
class SVHN(Images):
    """House numbers: `train_32x32.mat` and `test_32x32.mat`, in which the label of 0 is 10."""

    mean = (0.4377, 0.4438, 0.4728)
    deviation = (0.1980, 0.2010, 0.1970)
    name = "svhn"
    info = Info("32x32 house numbers", "Netzer et al., 2011")
    default_model = "simple_cnn"
    downloads: ClassVar[tuple[File, ...]] = (
        File(
            "http://ufldl.stanford.edu/housenumbers/train_32x32.mat",
            "svhn/train_32x32.mat",
            md5="e26dedcc434d2e4c54c9b2d4a06d8373",
            size=182_040_794,
        ),
        File(
            "http://ufldl.stanford.edu/housenumbers/test_32x32.mat",
            "svhn/test_32x32.mat",
            md5="eb5a983be6a315427106f1b164d9cef3",
            size=64_275_384,
        ),
    )

    file: ClassVar[str] = "{}_32x32.mat"

    def locate(self, directory: Path | None) -> Path:
        """Return the folder of the two files."""
        return self._file(directory, "train").parent

    def read(self, directory: Path | None) -> Pictures:
        """Read both files."""
        train = self._part(self._file(directory, "train"))
        test = self._part(self._file(directory, "test"))
        return Pictures(train, test)

    def _file(self, directory: Path | None, part: str) -> Path:
        file = self.file.format(part)
        return find(self.name, directory, f"{self.name}/{file}", file)

    def _part(self, path: Path) -> Part:
        """Return images and labels of one file."""
        images, labels = read_matlab(path, "X", "y")
        if images.dtype != np.uint8 or images.ndim != 4:
            raise SteelyardError(
                f"{path}: X is {images.dtype} {images.shape}, not bytes [32, 32, 3, N]: fetch it "
                f"again"
            )
        numbers = _check_labels(path, labels.reshape(-1), 0, 10) % 10
        return check_images(path, images.transpose(3, 2, 0, 1), numbers, (3, 32, 32))


@SOURCES.register
@dataclass(frozen=True)
class Synth(SVHN):
    """Printed digits: Ganin's SYN, or the fonts of Chars74K.

    SYN is `synth_train_32x32.mat` and `synth_test_32x32.mat`. Every fifth font of Chars74K
    (`chars74k_fnt_digits/*.npz`) is for testing.
    """

    mean = (0.1627,) * 3  # of the fonts of Chars74K
    deviation = (0.3585,) * 3
    name = "synth"
    info = Info(
        "printed digits: SYN, or the fonts of Chars74K",
        "Ganin et al., JMLR 2016; de Campos et al., 2009",
    )
    downloads = ()

    file = "synth_{}_32x32.mat"
    fonts: ClassVar[str] = "chars74k_fnt_digits_28x28.npz"

    def locate(self, directory: Path | None) -> Path:
        """Return the folder of SYN's files, or the file of the fonts."""
        file = self.file.format("train")
        folder = self.fonts.removesuffix("_28x28.npz")
        path = find(
            self.name, directory, f"synth/{file}", file, f"{folder}/{self.fonts}", self.fonts
        )
        return path if path.suffix == ".npz" else path.parent

    def read(self, directory: Path | None) -> Pictures:
        """Read SYN, or the fonts."""
        path = self.locate(directory)
        if path.suffix != ".npz":
            return super().read(directory)
        images, labels = read_npz(path, "images", "labels")
        (font,) = read_npz(path, "font_index", dtype="uint16")
        check_images(path, images, labels, (28, 28))
        if font.shape != labels.shape or not 0 < (font % 5 == 0).sum() < len(font):
            raise SteelyardError(
                f"{path} has fonts {font.shape} for {len(labels)} images: fetch it again"
            )
        coloured = np.broadcast_to(images[:, None], (len(images), 3, 28, 28))
        return split_pictures(coloured, labels, font % 5 == 0)


@SOURCES.register
@dataclass(frozen=True)
class USPS(Images):
    """Digits from envelopes: LIBSVM's `usps.bz2` and `usps.t.bz2`, or bytes in `usps_uint8.npz`."""

    usual = "unit"
    mean = (0.2539,)
    deviation = (0.3842,)
    name = "usps"
    info = Info("16x16 digits from envelopes", "Hull, IEEE TPAMI 1994")
    default_model = "mcmahan_cnn"
    downloads = (
        File(
            "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass/usps.bz2",
            "usps/usps.bz2",
            md5="ec16c51db3855ca6c91edd34d0e9b197",
        ),
        File(
            "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass/usps.t.bz2",
            "usps/usps.t.bz2",
            md5="8ea070ee2aca1ac39742fdd1ef5ed118",
        ),
    )

    def locate(self, directory: Path | None) -> Path:
        """Return the first file of either form."""
        return find(
            self.name,
            directory,
            "usps/usps.bz2",
            "usps.bz2",
            "usps/usps_uint8.npz",
            "usps_uint8.npz",
        )

    def read(self, directory: Path | None) -> Pictures:
        """Read the form that is there."""
        path = self.locate(directory)
        if path.suffix == ".npz":
            names = ("train_images", "train_labels", "test_images", "test_labels")
            train_images, train_labels, test_images, test_labels = read_npz(path, *names)
            check_images(path, train_images, train_labels, (16, 16))
            check_images(path, test_images, test_labels, (16, 16))
            return Pictures(
                (train_images[:, None], train_labels), (test_images[:, None], test_labels)
            )
        test = path.with_name("usps.t.bz2")
        if not test.is_file():
            raise SteelyardError(f"{path} is there, but {test.name} is missing: fetch both again")
        return Pictures(self._part(path), self._part(test))

    def _part(self, path: Path) -> Part:
        """Return images and labels of one LIBSVM file."""
        values, labels = read_libsvm(path, 256)
        if not (np.abs(values) <= 1).all():
            raise SteelyardError(f"{path} has values outside [-1, 1]: fetch it again")
        images = ((values + 1) / 2 * 255).astype(np.uint8).reshape(-1, 1, 16, 16)
        return check_images(path, images, _check_labels(path, labels, 1, 10) - 1, (1, 16, 16))


@SOURCES.register
@dataclass(frozen=True)
class MNISTM(Images):
    """MNIST's digits over photographs: the authors' PNG files, or a subset as montages."""

    mean = (0.4553, 0.4589, 0.4020)  # of the subset
    deviation = (0.2538, 0.2393, 0.2607)
    name = "mnist-m"
    info = Info("32x32 coloured digits", "Ganin et al., JMLR 2016")
    default_model = "simple_cnn"
    published_size = Size(59_001, 9_001, (3, 32, 32), 10)
    downloads = (
        File(  # pytorch-adapt's copy: the authors' own is behind a page of Google Drive
            "https://cornell.box.com/shared/static/jado7quprg6hzzdubvwzh9umr75damwi",
            "mnist-m/mnist_m.tar.gz",
            md5="859df31c91afe82e80e5012ba928f279",
            folder="mnist_m",
        ),
    )

    def locate(self, directory: Path | None) -> Path:
        """Return the folder with the files of labels, or the file of labels of the montages."""
        return find(
            self.name, directory, "mnist_m", f"{self.name}/mnist_m", "mnist_m_subset/index.npz"
        )

    def read(self, directory: Path | None) -> Pictures:
        """Read the form that is there."""
        path = self.locate(directory)
        if path.suffix != ".npz":
            return Pictures(self._part(path, "train"), self._part(path, "test"))
        labels = read_npz(path, "train_labels", "test_labels")
        return Pictures(tiles(path, ("train",), labels[0]), tiles(path, ("test",), labels[1]))

    def _part(self, folder: Path, part: str) -> Part:
        """Return images and labels of the authors' folder, `part` being `train` or `test`."""
        path = folder / f"mnist_m_{part}_labels.txt"
        images = folder / f"mnist_m_{part}"
        if not path.is_file():
            raise SteelyardError(f"{self.name}: {path} is missing: unpack the archive again")
        # Each line has the name of an image and its digit.
        rows = [line.split() for line in path.read_bytes()[: MAX_LINES * 16].splitlines()]
        for number, row in enumerate(rows, 1):
            if (
                len(row) != 2
                or b"/" in row[0]
                or not row[0].endswith(b".png")
                or row[1] not in _DIGITS
            ):
                raise SteelyardError(
                    f"{path}, line {number}, is not the name of an image and a digit: fetch it "
                    f"again"
                )
        # Every image must be there.
        files = [images / row[0].decode("utf-8", "replace") for row in rows]
        for file in files:
            if not file.is_file():
                raise SteelyardError(
                    f"{path} names {file.name}, which is not in {images}: unpack the archive again"
                )
        # Decode the images.
        contents = ((str(file), pictures.content(file)) for file in files)
        labels = np.array([int(row[1]) for row in rows], dtype=np.uint8)
        return check_images(
            path, pictures.stack(contents, len(files), 32, "PNG"), labels, (3, 32, 32)
        )


@SOURCES.register
@dataclass(frozen=True)
class Digits5(Images):
    """Digits of several domains in one size and in colour, for federations of different domains.

    The group of a sample is the position of its domain in `domains`, so that `by_group` gives one
    domain to each client. `samples` is the maximum number of training images per domain.
    """

    domains: tuple[str, ...] = DOMAINS
    size: int = 32
    samples: int | None = None

    # There is no scale=standard: the difference between domains is the purpose of this data set.
    mean = (0.5,) * 3
    deviation = (0.5,) * 3
    name = "digits-5"
    info = Info(
        "digits of five domains, for by_group",
        "Peng et al., ICCV 2019; Li et al. (FedBN), ICLR 2021",
    )
    default_model = "simple_cnn"
    downloads = (*MNIST.downloads, *MNISTM.downloads, *SVHN.downloads, *USPS.downloads)

    @property
    def published_size(self) -> Size:  # type: ignore[override]
        """The images of the domains, of each at most `samples` to train on."""
        train = [TRAIN_SIZES[domain] for domain in self.domains]
        if self.samples is not None:
            train = [min(count, self.samples) for count in train]
        test = sum(TEST_SIZES[domain] for domain in self.domains)
        return Size(sum(train), test, (3, self.size, self.size), 10)

    def __post_init__(self) -> None:
        checks.one_of("scale", self.scale, "default", "unit", "half")
        if (
            not isinstance(self.domains, tuple)
            or not self.domains
            or len(set(self.domains)) < len(self.domains)
        ):
            raise SteelyardError(
                f"domains={self.domains!r}: use a list of distinct domains, e.g. [mnist,usps]"
            )
        for domain in self.domains:
            checks.one_of("domains", domain, *DOMAINS)
        checks.one_of("size", self.size, 28, 32)
        if self.samples is not None:
            checks.integer("samples", self.samples, 1)

    def locate(self, directory: Path | None) -> Path:
        """Return the directory; raise an error if a domain is missing from it."""
        errors = {domain: _missing(domain, directory) for domain in self.domains}
        for domain, reason in errors.items():
            if reason:
                available = ",".join(name for name in self.domains if not errors[name])
                hint = f", or leave it out: digits-5:domains=[{available}]" if available else ""
                raise SteelyardError(f"digits-5: domain {domain!r} is missing: {reason}{hint}")
        return directory or Path()

    def __call__(self, directory: Path | None) -> Split:
        """Read the images and scale them; groups have the names of the domains."""
        train, test = super().__call__(directory)
        train = replace(train, group_names=self.domains)
        return train, replace(test, group_names=self.domains)

    def read(self, directory: Path | None) -> Pictures:
        """Read all domains, one after another."""
        self.locate(directory)
        domains: list[Pictures] = [
            parse(domain, SOURCES).read(directory) for domain in self.domains
        ]
        train, groups = self._join_parts([self._thin_out(*domain.train) for domain in domains])
        test, test_groups = self._join_parts([domain.test for domain in domains])
        return Pictures(train, test, groups=(groups, test_groups))

    def _thin_out(self, images: Bytes, labels: Bytes) -> Part:
        """Return at most `samples` images, evenly spaced because some sets are sorted by class."""
        count = min(self.samples or len(labels), len(labels))
        positions = np.arange(count) * len(labels) // count
        return images[positions], labels[positions]

    def _join_parts(self, parts: list[Part]) -> tuple[Part, Bytes]:
        """Return the images and labels of all domains, and the group of each image."""
        images = np.concatenate([_resize_images(images, self.size) for images, _ in parts])
        labels = np.concatenate([labels for _, labels in parts])
        groups = np.repeat(
            np.arange(len(parts), dtype=np.uint8), [len(labels) for _, labels in parts]
        )
        return (images, labels), groups


def _missing(domain: str, directory: Path | None) -> str:
    """Return why a domain cannot be read; an empty string if it can."""
    try:
        parse(domain, SOURCES).locate(directory)
    except SteelyardError as error:
        return str(error)
    return ""


def _resize_images(images: Bytes, size: int) -> Bytes:
    """Return the images in colour, `[N, 3, size, size]`, resized by linear interpolation."""
    out = np.empty((len(images), 3, size, size), dtype=np.uint8)
    for start in range(
        0, len(images), 4096
    ):  # in blocks, because floats need four times the memory
        block = torch.from_numpy(
            np.ascontiguousarray(images[start : start + 4096], dtype=np.float32)
        )
        if block.shape[-1] != size:
            block = torch.nn.functional.interpolate(
                block, (size, size), mode="bilinear", antialias=True
            )
        out[start : start + 4096] = block.round_().clamp_(0, 255).numpy()
    return out


def _check_labels(path: Path, labels: NDArray[np.generic], low: int, high: int) -> Bytes:
    """Return labels as bytes; raise an error if they are not integers in this range."""
    numbers = labels.astype(np.float64)
    if not ((numbers >= low) & (numbers <= high) & (numbers == np.floor(numbers))).all():
        raise SteelyardError(
            f"{path} has labels that are not integers in {low}..{high}: fetch it again"
        )
    return numbers.astype(np.uint8)
