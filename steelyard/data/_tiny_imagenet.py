"""Tiny-ImageNet: JPEG files in a folder or an archive.

The layout is the authors' or one folder per class.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from steelyard.core._errors import SteelyardError
from steelyard.core._weighting import Info
from steelyard.data import _archives as archives
from steelyard.data import _pictures as pictures
from steelyard.data._download import File
from steelyard.data._formats import reading
from steelyard.data._images import Images, Part, Pictures
from steelyard.data._sources import SOURCES, Size, find

ANNOTATIONS = "val_annotations.txt"
_SUFFIX = ".jpeg"


@SOURCES.register
@dataclass(frozen=True)
class TinyImageNet(Images):
    """Photographs of 200 classes, or fewer: the authors' folder or zip file, or a subset as tar.xz.

    Classes are numbered in the order of their WordNet ids; images are sorted by class and name. The
    test part is `val`, because the authors' test part has no labels. Greyscale images become RGB.
    """

    mean = (0.4802, 0.4481, 0.3975)
    deviation = (0.2770, 0.2691, 0.2821)
    name = "tiny-imagenet"
    info = Info("64x64 photographs, 200 classes", "Le & Yang, CS231n 2015")
    default_model = "resnet20"
    published_size = Size(100_000, 10_000, (3, 64, 64), 200)
    downloads = (
        File(
            "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            "tiny-imagenet/tiny-imagenet-200.zip",
            md5="90528d7ca1a48142e341f4ef8d21d0de",
            size=248_100_043,
        ),
    )

    def locate(self, directory: Path | None) -> Path:
        """Return the folder or the archive."""
        names = ("tiny-imagenet-200", "tiny-imagenet-200.zip")
        subset = "tiny_imagenet_subset/tiny-imagenet-20.tar.xz"
        return find(
            self.name, directory, *names, *(f"{self.name}/{name}" for name in names), subset
        )

    def read(self, directory: Path | None) -> Pictures:
        """Read the folder or the archive, whichever is there."""
        source = self.locate(directory)
        # Read all files into memory.
        parts: dict[str, list[Image]] = {"train": [], "val": []}
        annotations = b""
        with reading(source, "set of images"):
            for name, content in _folder(source) if source.is_dir() else _archive(source):
                path = PurePosixPath(name)
                if path.name == ANNOTATIONS:
                    annotations = content
                else:
                    part, label = _part_and_class(path)
                    parts[part].append(Image(label, path.name, content))
            rows = (
                line.split("\t")[:2] for line in annotations.decode("utf-8").splitlines() if line
            )
            label_by_name = dict(rows)

        # The classes are those of the training part.
        classes = sorted({image.label for image in parts["train"]})
        if len(classes) > 200:
            raise SteelyardError(
                f"{source} contains {len(classes)} classes, more than 200: fetch it again"
            )

        # In the authors' layout, the classes of the test part are in the file of annotations.
        val = []
        for image in parts["val"]:
            label = image.label or label_by_name.get(image.name, "")
            val.append(image._replace(label=label))
        return Pictures(
            _decode(source, parts["train"], classes), _decode(source, val, classes), len(classes)
        )


class Image(NamedTuple):
    """A file: the class (a WordNet id, or empty if the path does not tell it), name and content."""

    label: str
    name: str
    content: bytes


def _decode(source: Path, images: list[Image], classes: list[str]) -> Part:
    """Return the images, decoded and sorted by class and name, and the numbers of their classes."""
    if not images:
        raise SteelyardError(f"{source} has no images in train or none in val: fetch it again")
    for image in images:
        if image.label not in classes:
            raise SteelyardError(
                f"{source}: {image.name} is of class {image.label or 'unknown'!r}, "
                "which is not a class of train: fetch it again"
            )
    images.sort(key=lambda image: image[:2])
    files = ((f"{source}: {image.name}", image.content) for image in images)
    pixels = pictures.stack(files, len(images), 64, "JPEG")
    numbers = {label: number for number, label in enumerate(classes)}
    return pixels, np.array([numbers[image.label] for image in images], dtype=np.uint8)


def _part_and_class(path: PurePosixPath) -> tuple[str, str]:
    """Return part and class of an image from its path.

    The path is `train/<class>/images/x` or `train/<class>/x`; `val/images/x` has no class.
    """
    folders = [folder for folder in path.parts[:-1] if folder != "images"]
    part = "train" if "train" in folders else "val"
    label = "" if folders[-1] in ("train", "val") else folders[-1]
    return part, label


def _is_needed(name: str) -> bool:
    """Return whether a file is an image or the file of annotations of a part that is read."""
    path = PurePosixPath(name)
    parts = {"train", "val"} & set(path.parts[:-1])
    return bool(parts) and (path.suffix.lower() == _SUFFIX or path.name == ANNOTATIONS)


def _folder(source: Path) -> Iterator[tuple[str, bytes]]:
    """Yield relative path and content of the files in a folder."""
    for part in ("train", "val"):
        for path in sorted((source / part).rglob("*")):
            name = path.relative_to(source).as_posix()
            if _is_needed(name) and path.is_file():
                yield name, pictures.content(path)


def _archive(source: Path) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of the files in an archive."""
    for name, size, stream in archives.members(source):
        if _is_needed(name):
            if size > pictures.MOST:
                raise SteelyardError(
                    f"{source}: {name} has {size} bytes, too many for a small image: fetch it again"
                )
            yield name, stream.read()
