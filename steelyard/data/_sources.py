"""Data sets by name: `mnist`, `cifar10:scale=standard`, `digits-5:domains=[mnist,usps]`.

A source is a frozen dataclass of options that is called with the data directory. It is the one
entry of its data set: name, title, paper, files to fetch, options and reader. Files are read in the
format in which their authors publish them. Nothing is downloaded here: `steelyard data fetch` does
that.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from steelyard.core._errors import SteelyardError, shorten
from steelyard.core._registry import Registry
from steelyard.core._spec import parse
from steelyard.core._weighting import Info
from steelyard.data._dataset import Dataset
from steelyard.data._download import DOWNLOADS, File

Split = tuple[Dataset, Dataset]

VARIABLE = "STEELYARD_DATA"


class Size(NamedTuple):
    """The size of a data set as published: samples to train and test on, shape of one, classes."""

    train: int
    test: int
    shape: tuple[int, ...]
    classes: int


class Source(ABC):
    """A data set, except for the directory of its files.

    Attributes:
        name: in spec strings, and the name of the data.
        info: title and paper, for the command line.
        downloads: the files that `steelyard data fetch` fetches; none for data that is not public.
        default_model: the spec string of the network for runs that name none.
        published_size: for estimates of a run's cost, and to mark subsets; None if it is not known.
    """

    name: str
    info: Info
    downloads: ClassVar[tuple[File, ...]] = ()
    default_model: ClassVar[str] = "mlp:hidden=[64]"
    published_size: ClassVar[Size | None] = None

    def __init_subclass__(cls, **options: Any) -> None:
        """Enter the files of a new data set into `DOWNLOADS`; a subclass does not inherit them."""
        super().__init_subclass__(**options)
        if vars(cls).get("downloads"):
            DOWNLOADS[cls.name] = cls.downloads

    @abstractmethod
    def __call__(self, directory: Path | None) -> Split:
        """Return the training and the test part, from the files in a directory."""

    def locate(self, directory: Path | None) -> Path:
        """Return the file or folder to read; the error says how to get it if there is none."""
        return find(self.name, directory, self.name)


SOURCES = Registry("data set", Source, "steelyard.datasets")


def load(source: str | Source, directory: str | os.PathLike[str] | None = None) -> Split:
    """Return the training and the test part of a data set.

    Example: `load("cifar10:scale=standard")`.

    Args:
        source: a source or its spec string.
        directory: where its files are; by default `$STEELYARD_DATA`.

    Examples:
        >>> train, test = load("digits")
        >>> train.inputs.shape[1:], train.classes
        (torch.Size([1, 8, 8]), 10)
    """
    reader: Source = parse(source, SOURCES) if isinstance(source, str) else source
    try:
        train, test = reader(data_directory(directory))
        subset = _describe_subset(reader, train, test)
        return (replace(train, subset=subset), test) if subset else (train, test)
    except MemoryError:
        raise SteelyardError(
            f"{shorten(str(reader), 200)}: the data does not fit into memory: use fewer samples, "
            f"or shorter ones"
        ) from None


def _describe_subset(source: Source, train: Dataset, test: Dataset) -> str:
    """Return what part of the published data set the files contain; empty if it is the whole."""
    size = getattr(source, "published_size", None)
    if size is None or (len(train) >= size.train and len(test) >= size.test):
        return ""
    parts = [f"{len(train):,} of {size.train:,} training samples"]
    parts.append(f"{len(test):,} of {size.test:,} test samples")
    if train.classes is not None and train.classes < size.classes:
        parts.append(f"{train.classes} of {size.classes} classes")
    return f"subset: {', '.join(parts)}"


def data_directory(directory: str | os.PathLike[str] | None) -> Path | None:
    """Return the data directory: `directory`, or else `$STEELYARD_DATA`.

    None if neither is given.
    """
    path = directory if directory is not None else os.environ.get(VARIABLE)
    return Path(path) if path else None


def find(name: str, directory: Path | None, *paths: str) -> Path:
    """Return the first of these files or folders that exists in the directory.

    The directory itself may be the folder.
    """
    folder = check_directory(name, directory)
    for path in paths:
        if folder.name == path.split("/")[-1]:
            return folder
        if (folder / path).exists():
            return folder / path
    names = " or ".join(dict.fromkeys(path.split("/")[-1] for path in paths))
    raise SteelyardError(f"{name}: there is no {names} in {folder}; {_remedy(name, folder)}")


def check_directory(name: str, directory: Path | None) -> Path:
    """Return the directory; raise an error if it is None or does not exist."""
    remedy = _remedy(name, directory)
    if directory is None:
        raise SteelyardError(
            f"{name} is read from files; name their directory, or set {VARIABLE} to it, or {remedy}"
        )
    if not directory.is_dir():
        raise SteelyardError(
            f"{name}: {directory} is not a directory; name the one that contains the files, or "
            f"{remedy}"
        )
    return directory


def find_file(
    name: str, directory: Path | None, folders: Sequence[str], files: Sequence[str]
) -> Path:
    """Return the first of these files that exists in the directory or one of its folders.

    A file may be compressed by xz.
    """
    parent = check_directory(name, directory)
    for folder in (*(parent / folder for folder in folders), parent):
        for file in files:
            for path in (folder / file, folder / f"{file}.xz"):
                if path.is_file():
                    return path
    raise SteelyardError(
        f"{name}: there is no {' or '.join(files)} in {parent}; {_remedy(name, parent)}"
    )


def _remedy(name: str, directory: Path | None) -> str:
    """Return how to get the files of a data set."""
    if name not in DOWNLOADS:
        return "put it there, it cannot be fetched"
    return f"fetch it: steelyard data fetch {name} --dir {directory or 'DIR'}"
