"""Digits from elsewhere (house numbers, post, coloured, printed), and the set of all these domains."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard.core import checks
from steelyard.core.errors import SteelyardError
from steelyard.core.spec import parse
from steelyard.core.weighting import Info
from steelyard.data import libsvm, matlab, npz, pictures
from steelyard.data.images import Bytes, Images, Part, Pictures, check_images, tiles
from steelyard.data.sources import SOURCES, find

MANY = 1_000_000  # lines of a file of labels

DOMAINS = ("mnist", "mnist-m", "svhn", "synth", "usps")


@SOURCES.register
@dataclass(frozen=True)
class SVHN(Images):
    """House numbers: `train_32x32.mat` and `test_32x32.mat`, in which a 0 is labelled 10."""

    mean, deviation = (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)
    name = "svhn"
    info = Info("32x32 house numbers", "Netzer et al., 2011")

    file: ClassVar[str] = "{}_32x32.mat"

    def locate(self, directory: Path | None) -> Path:
        """The folder of the two files."""
        return self._file(directory, "train").parent

    def read(self, directory: Path | None) -> Pictures:
        """Both files."""
        train, test = (self._part(self._file(directory, part)) for part in ("train", "test"))
        return Pictures(train, test)

    def _file(self, directory: Path | None, part: str) -> Path:
        file = self.file.format(part)
        return find(self.name, directory, f"{self.name}/{file}", file)

    def _part(self, path: Path) -> Part:
        images, labels = matlab.read(path, "X", "y")
        if images.dtype != np.uint8 or images.ndim != 4:
            raise SteelyardError(
                f"{path}: X is {images.dtype} {images.shape}, not bytes [32, 32, 3, N]: fetch it again"
            )
        numbers = _check_labels(path, labels.reshape(-1), 0, 10) % 10
        return check_images(path, images.transpose(3, 2, 0, 1), numbers, (3, 32, 32))


@SOURCES.register
@dataclass(frozen=True)
class Synth(SVHN):
    """Printed digits: Ganin's SYN as `synth_train_32x32.mat` and `synth_test_32x32.mat`, or Chars74K's fonts.

    Of the fonts (`chars74k_fnt_digits/*.npz`), every fifth is for testing.
    """

    mean, deviation = (0.1627,) * 3, (0.3585,) * 3  # of Chars74K's fonts
    name = "synth"
    info = Info("printed digits: SYN, or the fonts of Chars74K", "Ganin et al., JMLR 2016; de Campos et al., 2009")

    file = "synth_{}_32x32.mat"
    fonts: ClassVar[str] = "chars74k_fnt_digits_28x28.npz"

    def locate(self, directory: Path | None) -> Path:
        """The folder of SYN's files, or the file of the fonts."""
        file, folder = self.file.format("train"), self.fonts.removesuffix("_28x28.npz")
        found = find(self.name, directory, f"synth/{file}", file, f"{folder}/{self.fonts}", self.fonts)
        return found if found.suffix == ".npz" else found.parent

    def read(self, directory: Path | None) -> Pictures:
        """SYN, or the fonts."""
        path = self.locate(directory)
        if path.suffix != ".npz":
            return super().read(directory)
        images, labels = npz.read(path, "images", "labels")
        (font,) = npz.read(path, "font_index", dtype="uint16")
        check_images(path, images, labels, (28, 28))
        if font.shape != labels.shape or not 0 < (font % 5 == 0).sum() < len(font):
            raise SteelyardError(f"{path} has fonts {font.shape} for {len(labels)} images: fetch it again")
        coloured = np.broadcast_to(images[:, None], (len(images), 3, 28, 28))
        held_out = font % 5 == 0
        return Pictures((coloured[~held_out], labels[~held_out]), (coloured[held_out], labels[held_out]))


@SOURCES.register
@dataclass(frozen=True)
class USPS(Images):
    """Digits from envelopes: LIBSVM's `usps.bz2` and `usps.t.bz2`, or the same as bytes in `usps_uint8.npz`."""

    usual = "unit"
    mean, deviation = (0.2539,), (0.3842,)
    name = "usps"
    info = Info("16x16 digits from envelopes", "Hull, IEEE TPAMI 1994")

    def locate(self, directory: Path | None) -> Path:
        """The first file of either form."""
        return find(self.name, directory, "usps/usps.bz2", "usps.bz2", "usps/usps_uint8.npz", "usps_uint8.npz")

    def read(self, directory: Path | None) -> Pictures:
        """Whichever is there."""
        path = self.locate(directory)
        if path.suffix == ".npz":
            sides = npz.read(path, "train_images", "train_labels", "test_images", "test_labels")
            for images, labels in (sides[:2], sides[2:]):
                check_images(path, images, labels, (16, 16))
            return Pictures((sides[0][:, None], sides[1]), (sides[2][:, None], sides[3]))
        test = path.with_name("usps.t.bz2")
        if not test.is_file():
            raise SteelyardError(f"{path} is here without {test.name}: fetch both again")
        return Pictures(self._part(path), self._part(test))

    def _part(self, path: Path) -> Part:
        values, labels = libsvm.read(path, 256)
        if not (np.abs(values) <= 1).all():
            raise SteelyardError(f"{path} has values outside [-1, 1]: fetch it again")
        images = ((values + 1) / 2 * 255).astype(np.uint8).reshape(-1, 1, 16, 16)
        return check_images(path, images, _check_labels(path, labels, 1, 10) - 1, (1, 16, 16))


@SOURCES.register
@dataclass(frozen=True)
class MNISTM(Images):
    """MNIST's digits over photographs: the authors' folders of PNG files, or a subset as a montage of tiles."""

    mean, deviation = (0.4553, 0.4589, 0.4020), (0.2538, 0.2393, 0.2607)  # of the subset
    name = "mnist-m"
    info = Info("32x32 coloured digits", "Ganin et al., JMLR 2016")

    def locate(self, directory: Path | None) -> Path:
        """The folder with the files of labels, or the file of labels of the montage."""
        return find(self.name, directory, "mnist_m", f"{self.name}/mnist_m", "mnist_m_subset/index.npz")

    def read(self, directory: Path | None) -> Pictures:
        """Whichever is there."""
        place = self.locate(directory)
        if place.suffix != ".npz":
            return Pictures(self._part(place, "train"), self._part(place, "test"))
        labels = npz.read(place, "train_labels", "test_labels")
        return Pictures(tiles(place, ("train",), labels[0]), tiles(place, ("test",), labels[1]))

    def _part(self, folder: Path, part: str) -> Part:
        path, images = folder / f"mnist_m_{part}_labels.txt", folder / f"mnist_m_{part}"
        if not path.is_file():
            raise SteelyardError(f"{self.name}: there is no {path}: unpack the archive again")
        rows = [line.split() for line in path.read_bytes()[: MANY * 16].splitlines()]
        for number, row in enumerate(rows, 1):
            if len(row) != 2 or b"/" in row[0] or not row[0].endswith(b".png") or row[1] not in _DIGITS:
                raise SteelyardError(f"{path}, line {number}, is not the name of an image and a digit: fetch it again")
        files = [images / row[0].decode("utf-8", "replace") for row in rows]
        for file in files:
            if not file.is_file():
                raise SteelyardError(f"{path} names {file.name}, which is not in {images}: unpack the archive again")
        named = ((str(file), pictures.content(file)) for file in files)
        labels = np.array([int(row[1]) for row in rows], dtype=np.uint8)
        return check_images(path, pictures.stack(named, len(files), 32, "PNG"), labels, (3, 32, 32))


_DIGITS = {str(digit).encode() for digit in range(10)}


@SOURCES.register
@dataclass(frozen=True)
class Digits5(Images):
    """Digits of several domains, alike in size and colour, for federations whose clients differ in where they look.

    A sample's group is the place of its domain in `domains`, so that `by_group` gives each client one domain. With
    `samples`, each domain has so many images to train on, at most.
    """

    domains: tuple[str, ...] = DOMAINS
    size: int = 32
    samples: int | None = None

    mean, deviation = (0.5,) * 3, (0.5,) * 3  # no scale=standard: that domains differ is what the set is for
    name = "digits-5"
    info = Info("digits of five domains, for by_group", "Peng et al., ICCV 2019; Li et al. (FedBN), ICLR 2021")

    def __post_init__(self) -> None:
        checks.one_of("scale", self.scale, "default", "unit", "half")
        if not isinstance(self.domains, tuple) or not self.domains or len(set(self.domains)) < len(self.domains):
            raise SteelyardError(f"domains={self.domains!r}: use a list of distinct domains, e.g. [mnist,usps]")
        for domain in self.domains:
            checks.one_of("domains", domain, *DOMAINS)
        checks.one_of("size", self.size, 28, 32)
        if self.samples is not None:
            checks.integer("samples", self.samples, 1)

    def locate(self, directory: Path | None) -> Path:
        """The directory, if it holds every domain."""
        missing = {domain: _missing(domain, directory) for domain in self.domains}
        for domain, reason in missing.items():
            if reason:
                here = ",".join(other for other in self.domains if not missing[other])
                without = f", or leave it out: digits-5:domains=[{here}]" if here else ""
                raise SteelyardError(f"digits-5: domain {domain!r} is missing: {reason}{without}")
        return directory or Path()

    def read(self, directory: Path | None) -> Pictures:
        """All domains, one after another."""
        self.locate(directory)
        found: list[Pictures] = [parse(domain, SOURCES).read(directory) for domain in self.domains]
        trains = [self._some(*domain.train) for domain in found]
        (train, groups), (test, test_groups) = (
            self._join_parts(trains),
            self._join_parts([domain.test for domain in found]),
        )
        return Pictures(train, test, groups=(groups, test_groups))

    def _some(self, images: Bytes, labels: Bytes) -> Part:
        """At most `samples`, evenly spaced: some sets are sorted by class."""
        count = min(self.samples or len(labels), len(labels))
        kept = np.arange(count) * len(labels) // count
        return images[kept], labels[kept]

    def _join_parts(self, parts: list[Part]) -> tuple[Part, Bytes]:
        images = np.concatenate([_resize_images(images, self.size) for images, _ in parts])
        labels = np.concatenate([labels for _, labels in parts])
        groups = np.repeat(np.arange(len(parts), dtype=np.uint8), [len(labels) for _, labels in parts])
        return (images, labels), groups


def _missing(domain: str, directory: Path | None) -> str:
    """Why a domain cannot be read; empty if it can."""
    try:
        parse(domain, SOURCES).locate(directory)
    except SteelyardError as error:
        return str(error)
    return ""


def _resize_images(images: Bytes, size: int) -> Bytes:
    """The images in colour, `[N, 3, size, size]`, resized by linear interpolation."""
    out = np.empty((len(images), 3, size, size), dtype=np.uint8)
    for start in range(0, len(images), 4096):  # as floats they take four times the room
        some = torch.from_numpy(np.ascontiguousarray(images[start : start + 4096], dtype=np.float32))
        if some.shape[-1] != size:
            some = torch.nn.functional.interpolate(some, (size, size), mode="bilinear", antialias=True)
        out[start : start + 4096] = some.round_().clamp_(0, 255).numpy()
    return out


def _check_labels(path: Path, labels: NDArray[np.generic], low: int, high: int) -> Bytes:
    """Labels as bytes, if they are whole numbers in a range."""
    numbers = labels.astype(np.float64)
    if not ((numbers >= low) & (numbers <= high) & (numbers == np.floor(numbers))).all():
        raise SteelyardError(f"{path} has labels that are not whole numbers in {low}..{high}: fetch it again")
    return numbers.astype(np.uint8)
