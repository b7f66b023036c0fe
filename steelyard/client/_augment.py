"""Augmentation: random changes to training images, applied batch by batch, never in evaluation.

The random numbers are drawn with the batches, as a function of (seed, round, client): results do
not depend on the executor, and a resumed run sees the same images as an uninterrupted one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard.core import checks
from steelyard.core._errors import SteelyardError
from steelyard.core._registry import Registry
from steelyard.core._spec import parse
from steelyard.core._weighting import Info

AUGMENTATIONS = Registry("augmentation")


class Augmentation(ABC):
    """A random change to images.

    Attributes:
        name: the key in spec strings.
        info: title and paper, shown by the command line.
    """

    name: str
    info: Info

    @abstractmethod
    def check(self, inputs: torch.Tensor) -> None:
        """Raise an error for inputs that it cannot change."""

    @abstractmethod
    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return random numbers for `count` images, one row of whole numbers each."""

    @abstractmethod
    def background(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the pixel outside an image, `[channels]`, computed once from all training inputs."""

    @abstractmethod
    def __call__(
        self, images: torch.Tensor, changes: torch.Tensor, background: torch.Tensor
    ) -> torch.Tensor:
        """Return the changed images `[b, channels, height, width]`, in the same memory format.

        Args:
            images: the images.
            changes: the numbers that `draw` returned for them.
            background: the pixel that `background` returned.
        """


@AUGMENTATIONS.register
@dataclass(frozen=True)
class CropFlip(Augmentation):
    """torchvision's `RandomCrop(size, padding)` and `RandomHorizontalFlip`, as FedCos and FedDisco use.

    torchvision pads raw pixels with black and normalises afterwards, so that the padding is
    `(0 - mean) / deviation`. Here inputs are normalised already, in an unknown way. Black is then
    the smallest value of each channel, if the data set has a black pixel. If the smallest value is
    not black (noise was added, or inputs are not pixels), set `fill`.

    Attributes:
        padding: number of pixels by which images move at most, in each direction.
        flip: probability of a horizontal flip; use 0 for digits and letters.
        fill: value of the padding, instead of the smallest value of each channel.
    """

    padding: int = 4
    flip: float = 0.5
    fill: float | None = None

    name = "crop_flip"
    info = Info(
        "images moved by up to `padding` pixels, half of them mirrored",
        "Zhang et al. (FedCos), IoT Journal 2023",
    )

    def __post_init__(self) -> None:
        checks.integer("padding", self.padding)
        checks.number("flip", self.flip, 0.0, 1.0)
        if self.fill is not None:
            checks.number("fill", self.fill)

    def check(self, inputs: torch.Tensor) -> None:
        """Raise an error unless inputs are images larger than the padding."""
        if inputs.ndim != 4 or not inputs.is_floating_point():
            sample = f"{str(inputs.dtype).removeprefix('torch.')} {list(inputs.shape[1:])}"
            raise SteelyardError(
                f"augment={self.name}: a sample is {sample}: use images [channels, height, width], "
                f"or leave augment out"
            )
        if self.padding >= min(inputs.shape[2:]):
            size = f"{inputs.shape[2]}x{inputs.shape[3]}"
            raise SteelyardError(
                f"augment={self.name}: padding={self.padding}, but images are {size}: use less"
            )

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return top and left of the crop in the padded image, and 1 for a flip; `[count, 3]`."""
        changes = np.empty((count, 3), dtype=np.int64)
        changes[:, :2] = rng.integers(0, 2 * self.padding + 1, (count, 2))
        changes[:, 2] = rng.random(count) < self.flip
        return changes

    def background(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return `fill`, or the smallest value of each channel."""
        if self.fill is not None:
            return torch.full(
                (inputs.shape[1],), self.fill, dtype=inputs.dtype, device=inputs.device
            )
        return inputs.amin(dim=(0, 2, 3))

    def __call__(
        self, images: torch.Tensor, changes: torch.Tensor, background: torch.Tensor
    ) -> torch.Tensor:
        """Return the cropped and flipped images."""
        # Copy the images into padded ones. Long rows of background are fast to copy.
        count, channels, height, width = images.shape
        pad = self.padding
        padded_height = height + 2 * pad
        padded_width = width + 2 * pad
        row = background.repeat(padded_width)
        rows = row.expand(count, padded_height, padded_width * channels)
        padded = rows.contiguous().view(count, padded_height, padded_width, channels)
        padded[:, pad : pad + height, pad : pad + width] = images.permute(0, 2, 3, 1)

        # The position of the first pixel of each line of each crop.
        tops, lefts, flips = changes.unbind(1)
        first = torch.arange(count, device=images.device) * padded_height + tops
        line_numbers = first.unsqueeze(1) + torch.arange(height, device=images.device)
        starts = line_numbers * padded_width + lefts.unsqueeze(1)

        # Overlapping views: the line of `width` pixels that starts at each pixel. Copy the lines of
        # the crops.
        view_count = count * padded_height * padded_width - width + 1
        lines = padded.as_strided((view_count, width * channels), (channels, 1))
        crops = lines.index_select(0, starts.view(-1)).view(count, height, width, channels)

        # Flip.
        flipped = flips.nonzero().squeeze(1)
        crops.index_copy_(0, flipped, crops.index_select(0, flipped).flip(2))
        result = crops.permute(0, 3, 1, 2)
        if images.is_contiguous(memory_format=torch.channels_last):
            return result
        return result.contiguous()


def parse_augmentation(spec: Any) -> Augmentation | None:
    """Return the augmentation of a spec string (`"crop_flip:padding=4"`); None for `"none"`."""
    if spec is None or spec == "none":
        return None
    augmentation = parse(spec, AUGMENTATIONS) if isinstance(spec, str) else spec
    if not isinstance(augmentation, Augmentation):
        kind = type(augmentation).__name__
        raise SteelyardError(
            f"augment={spec!r} is a {kind}: pass an augmentation or its spec string"
        )
    return augmentation
