"""Data sets by name: `mnist`, `cifar10:scale=standard`, `digits-5:domains=[mnist,usps]`.

A source is a frozen dataclass of options, called with the directory to look in. Files are read in the form their
authors publish them, and nothing is downloaded: that is `steelyard data fetch`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from steelyard.core.errors import SteelyardError, shorten
from steelyard.core.registry import Registry
from steelyard.core.spec import parse
from steelyard.core.weighting import Info
from steelyard.data.catalog import HOMES
from steelyard.data.dataset import Dataset

Split = tuple[Dataset, Dataset]

VARIABLE = "STEELYARD_DATA"

_BESIDE_THE_REPOSITORY = Path(__file__).parents[3] / "shared" / "data"


class Source(ABC):
    """A data set but for where its files are.

    Attributes:
        name: the key in text form, and the name of the data.
        info: what the command line says of it.
    """

    name: str
    info: Info

    @abstractmethod
    def __call__(self, directory: Path | None) -> Split:
        """Train and test part, from the files in a directory."""

    def locate(self, directory: Path | None) -> Path:
        """The file or folder that would be read; an error says how to get it, if there is none."""
        return find(self.name, directory, self.name)


SOURCES = Registry("data set", Source, "steelyard.datasets")


def load(source: str | Source, directory: str | os.PathLike[str] | None = None) -> Split:
    """Train and test part of a data set; files are looked for in `directory`, else in `$STEELYARD_DATA`.

    Example: `load("cifar10:scale=standard")`.

    Examples:
        >>> train, test = load("digits")
        >>> train.inputs.shape[1:], train.classes
        (torch.Size([1, 8, 8]), 10)
    """
    made: Source = parse(source, SOURCES) if isinstance(source, str) else source
    try:
        return made(data_directory(directory))
    except MemoryError:
        raise SteelyardError(
            f"{shorten(str(made), 200)}: the data does not fit into memory: use fewer samples, or shorter ones"
        ) from None


def data_directory(given: str | os.PathLike[str] | None) -> Path | None:
    """The directory to look in: the one given, `$STEELYARD_DATA`, or in development the one beside the repository."""
    chosen = given if given is not None else os.environ.get(VARIABLE)
    if chosen:
        return Path(chosen)
    return _BESIDE_THE_REPOSITORY if _BESIDE_THE_REPOSITORY.is_dir() else None


def find(name: str, directory: Path | None, *places: str) -> Path:
    """The first of these files or folders that is in the directory."""
    where = existing(name, directory)
    for place in places:
        if where.name == place.split("/")[-1]:
            return where
        if (where / place).exists():
            return where / place
    wanted = " or ".join(dict.fromkeys(place.split("/")[-1] for place in places))
    raise SteelyardError(f"{name}: there is no {wanted} in {where}; {_cure(name, where)}")


def existing(name: str, directory: Path | None) -> Path:
    """The directory, if it is one."""
    cure = _cure(name, directory)
    if directory is None:
        raise SteelyardError(f"{name} is read from files; name their directory, or set {VARIABLE} to it, or {cure}")
    if not directory.is_dir():
        raise SteelyardError(f"{name}: {directory} is no directory; name the one that holds the files, or {cure}")
    return directory


def first(name: str, directory: Path | None, folders: Sequence[str], files: Sequence[str]) -> Path:
    """The first of these files that is there, plain or packed by xz, in the directory or one of its folders."""
    where = existing(name, directory)
    for folder in (*(where / folder for folder in folders), where):
        for file in files:
            for path in (folder / file, folder / f"{file}.xz"):
                if path.is_file():
                    return path
    raise SteelyardError(f"{name}: there is no {' or '.join(files)} in {where}; {_cure(name, where)}")


def _cure(name: str, directory: Path | None) -> str:
    if name not in HOMES:
        return "put it there, it has no public home"
    return f"fetch it: steelyard data fetch {name} --dir {directory or 'DIR'}"
