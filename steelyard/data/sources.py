"""Data sets by name. Nothing is downloaded: files are read in the form their authors publish them.

digits          in the package: 1797 images 8x8
mnist           (x / 255 - 0.1307) / 0.3081, as FedAdp does
fashion-mnist   x / 255, as FedLAW and FedAWA do
cifar10         (x / 255 - 0.5) / 0.5, as FedLAW and FedAWA do
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from steelyard.core.errors import SteelyardError
from steelyard.core.registry import Registry
from steelyard.core.text import parse
from steelyard.core.weighting import Card
from steelyard.data import cifar, idx
from steelyard.data.dataset import Dataset

Split = tuple[Dataset, Dataset]

SOURCES = Registry("data set")

VARIABLE = "STEELYARD_DATA"
NORMALISATION = {"mnist": (0.1307, 0.3081), "fashion-mnist": (0.0, 1.0), "cifar10": (0.5, 0.5)}  # mean, deviation
"""What is subtracted from pixels in [0, 1], and what they are then divided by."""

_BESIDE_THE_REPOSITORY = Path(__file__).parents[3] / "shared" / "data"


def load(spec: str, directory: str | os.PathLike[str] | None = None) -> Split:
    """Train and test part of a data set; files are looked for in `directory`, else in `$STEELYARD_DATA`."""
    return source(spec)(_directory(directory))


def source(spec: str) -> Callable[[Path | None], Split]:
    """What reads a data set, by name, with options if it has any: `ag-news:length=32`."""
    name, options, _ = spec.partition(":")
    make: Any = SOURCES[name].make
    if isinstance(make, type):
        make = parse(spec, SOURCES)
    elif options:
        raise SteelyardError(f"data set {spec!r}: {name} has no options")
    read: Callable[[Path | None], Split] = make
    return read


def _directory(given: str | os.PathLike[str] | None) -> Path | None:
    chosen = given if given is not None else os.environ.get(VARIABLE)
    if chosen:
        return Path(chosen)
    return _BESIDE_THE_REPOSITORY if _BESIDE_THE_REPOSITORY.is_dir() else None


def digits(directory: Path | None = None) -> Split:  # noqa: ARG001
    """Scikit-learn's digits, from this package: 1437 to train on, 360 to test on.

    Sorted by class, and within a class in the order of the file, every fifth image is for testing.
    """
    tensors = load_file(Path(__file__).with_name("digits.safetensors"))
    images, labels = tensors["images"].float().div_(16).unsqueeze(1), tensors["labels"].long()
    by_class = np.argsort(labels.numpy(), kind="stable")
    held_out = np.zeros(len(labels), dtype=np.bool_)
    held_out[by_class[::5]] = True
    whole = Dataset(images, labels, 10, "digits")
    return whole.take(np.flatnonzero(~held_out)), whole.take(np.flatnonzero(held_out))


def _idx_source(name: str) -> Callable[[Path | None], Split]:
    def read(directory: Path | None) -> Split:
        where = existing(name, directory)
        return _idx_part(name, where, "train"), _idx_part(name, where, "t10k")

    return read


def _idx_part(name: str, where: Path, part: str) -> Dataset:
    files = [_idx_file(name, where, f"{part}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1")]
    images, labels = idx.read(files[0], 3), idx.read(files[1], 1)
    if images.shape[1:] != (28, 28) or len(images) == 0:
        raise SteelyardError(f"{files[0]} holds images of shape {images.shape}, not [N, 28, 28]: fetch it again")
    if len(images) != len(labels):
        raise SteelyardError(f"{files[1]} holds {len(labels)} labels for {len(images)} images: fetch both again")
    if labels.max() > 9:
        raise SteelyardError(f"{files[1]} has label {labels.max()}, not 0..9: fetch it again")
    return _dataset(name, images[:, None], labels)


def _idx_file(name: str, where: Path, file: str) -> Path:
    for folder in (where / name, where):
        for path in (folder / f"{file}.gz", folder / file):
            if path.is_file():
                return path
    raise SteelyardError(
        f"{name}: there is no {file}.gz in {where / name} or {where}: put the four original files there"
    )


def cifar10(directory: Path | None) -> Split:
    """CIFAR-10 from its Python version or its binary version, unpacked."""
    where = existing("cifar10", directory)
    for folder in ("cifar-10-batches-py", "cifar-10-batches-bin"):
        for path in (where / folder, where / "cifar10" / folder, where):
            if path.name == folder and path.is_dir():
                return _cifar_part(path, [f"data_batch_{n}" for n in range(1, 6)]), _cifar_part(path, ["test_batch"])
    raise SteelyardError(
        f"cifar10: there is no folder cifar-10-batches-py or cifar-10-batches-bin in {where}: unpack the archive there"
    )


def _cifar_part(folder: Path, files: list[str]) -> Dataset:
    binary = folder.name.endswith("bin")
    parts = []
    for file in files:
        path = folder / (f"{file}.bin" if binary else file)
        if not path.is_file():
            raise SteelyardError(f"cifar10: there is no {path}: unpack the archive again")
        parts.append(cifar.read_binary(path) if binary else cifar.read_python(path))
    images, labels = (np.concatenate(side) for side in zip(*parts, strict=True))
    return _dataset("cifar10", images, labels)


def existing(name: str, directory: Path | None) -> Path:
    """The directory, if there is one."""
    if directory is None:
        raise SteelyardError(f"{name} is read from files: name their directory, or set {VARIABLE} to it")
    if not directory.is_dir():
        raise SteelyardError(f"{name}: {directory} is no directory: name the one that holds the files")
    return directory


def _dataset(name: str, images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> Dataset:
    mean, deviation = NORMALISATION[name]
    inputs = torch.from_numpy(images.astype(np.float32)).div_(255).sub_(mean).div_(deviation)
    return Dataset(inputs, torch.from_numpy(labels.astype(np.int64)), 10, name)


SOURCES.alias("digits", Card("8x8 digits, in the package", "Alpaydin & Kaynak, UCI 1998"), digits)
SOURCES.alias("mnist", Card("28x28 digits", "LeCun et al., 1998"), _idx_source("mnist"))
SOURCES.alias("fashion-mnist", Card("28x28 clothes", "Xiao et al., 2017"), _idx_source("fashion-mnist"))
SOURCES.alias("cifar10", Card("32x32 photographs, 10 classes", "Krizhevsky, 2009"), cifar10)
