"""Tiny-ImageNet: JPEG files in a folder or in an archive, in the authors' layout or one folder per class."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from steelyard.core.errors import SteelyardError
from steelyard.core.weighting import Info
from steelyard.data import archives, pictures
from steelyard.data.damage import reading
from steelyard.data.images import Images, Part, Pictures
from steelyard.data.sources import SOURCES, find

ANNOTATIONS = "val_annotations.txt"
_SUFFIX = ".jpeg"


@SOURCES.register
@dataclass(frozen=True)
class TinyImageNet(Images):
    """Photographs of 200 kinds, or of those there are: the folder or zip of the authors, or a subset as tar.xz.

    Classes are numbered in the order of their WordNet ids, images sorted by class and name. The test part is `val`,
    the authors' own having no labels. Greyscale images become coloured ones.
    """

    mean, deviation = (0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)
    name = "tiny-imagenet"
    info = Info("64x64 photographs, 200 classes", "Le & Yang, CS231n 2015")

    def locate(self, directory: Path | None) -> Path:
        """The folder or the archive."""
        whole = ("tiny-imagenet-200", "tiny-imagenet-200.zip")
        subset = "tiny_imagenet_subset/tiny-imagenet-20.tar.xz"
        return find(self.name, directory, *whole, *(f"{self.name}/{place}" for place in whole), subset)

    def read(self, directory: Path | None) -> Pictures:
        """Whichever is there."""
        place = self.locate(directory)
        parts: dict[str, list[tuple[str, str, bytes]]] = {"train": [], "val": []}  # class, name, content
        notes = b""
        with reading(place, "set of images"):
            for name, content in _folder(place) if place.is_dir() else _archive(place):
                path = PurePosixPath(name)
                if path.name == ANNOTATIONS:
                    notes = content
                else:
                    part, kind = _place(path)
                    parts[part].append((kind, path.name, content))
            kinds = dict(line.split("\t")[:2] for line in notes.decode("utf-8").splitlines() if line)
        classes = sorted({kind for kind, _, _ in parts["train"]})
        if len(classes) > 200:
            raise SteelyardError(f"{place} holds {len(classes)} classes, more than 200: fetch it again")
        named = [(kinds.get(name, "") if kind == "" else kind, name, content) for kind, name, content in parts["val"]]
        train, test = (_part(place, found, classes) for found in (parts["train"], named))
        return Pictures(train, test, len(classes))


def _part(place: Path, found: list[tuple[str, str, bytes]], classes: list[str]) -> Part:
    if not found:
        raise SteelyardError(f"{place} holds no images in train or none in val: fetch it again")
    for kind, name, _ in found:
        if kind not in classes:
            raise SteelyardError(f"{place}: {name} is of class {kind or 'unknown'!r}, not of train's: fetch it again")
    found.sort(key=lambda one: one[:2])
    images = pictures.stack(((f"{place}: {name}", raw) for _, name, raw in found), len(found), 64, "JPEG")
    numbers = {kind: number for number, kind in enumerate(classes)}
    return images, np.array([numbers[kind] for kind, _, _ in found], dtype=np.uint8)


def _place(path: PurePosixPath) -> tuple[str, str]:
    """Part and class of an image, from `train/<class>/images/x`, `train/<class>/x`; no class in `val/images/x`."""
    folders = [folder for folder in path.parts[:-1] if folder != "images"]
    return ("train" if "train" in folders else "val"), (folders[-1] if folders[-1] not in ("train", "val") else "")


def _is_wanted_file(name: str) -> bool:
    path = PurePosixPath(name)
    inside = {"train", "val"} & set(path.parts[:-1])
    return bool(inside) and (path.suffix.lower() == _SUFFIX or path.name == ANNOTATIONS)


def _folder(place: Path) -> Iterator[tuple[str, bytes]]:
    for part in ("train", "val"):
        for path in sorted((place / part).rglob("*")):
            name = path.relative_to(place).as_posix()
            if _is_wanted_file(name) and path.is_file():
                yield name, pictures.content(path)


def _archive(place: Path) -> Iterator[tuple[str, bytes]]:
    for name, size, stream in archives.members(place):
        if _is_wanted_file(name):
            if size > pictures.MOST:
                raise SteelyardError(f"{place}: {name} has {size} bytes, too many for a small image: fetch it again")
            yield name, stream.read()
