"""Random changes to training images: drawn with the batches, applied to a batch at a time, never in evaluation.

What is drawn is a function of (seed, round, client), like the batches: results do not depend on the executor, and a
run that is resumed sees the images it would have seen.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard.core import checks
from steelyard.core.errors import SteelyardError
from steelyard.core.registry import Registry
from steelyard.core.spec import parse
from steelyard.core.weighting import Info

AUGMENTATIONS = Registry("augmentation")


class Augmentation(ABC):
    """A random change to images.

    Attributes:
        name: the key in text form.
        info: what the command line says of it.
    """

    name: str
    info: Info

    @abstractmethod
    def check(self, inputs: torch.Tensor) -> None:
        """Refuses inputs it cannot change."""

    @abstractmethod
    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """What happens to each of `count` images, one row of whole numbers each."""

    @abstractmethod
    def background(self, inputs: torch.Tensor) -> torch.Tensor:
        """What lies outside an image, `[channels]`; a function of all training inputs, taken once."""

    @abstractmethod
    def __call__(self, images: torch.Tensor, drawn: torch.Tensor, background: torch.Tensor) -> torch.Tensor:
        """The changed images `[b, channels, height, width]`, in the memory format of the given ones."""


@AUGMENTATIONS.register
@dataclass(frozen=True)
class CropFlip(Augmentation):
    """torchvision's `RandomCrop(size, padding)` and `RandomHorizontalFlip`: what FedCos and FedDisco do to CIFAR.

    torchvision pads raw pixels with black and normalises afterwards, so what lies outside is `(0 - mean) / deviation`.
    Here inputs are normalised already, by whom we do not know; black is then the smallest value of each channel, in any
    data set that shows a black pixel. Where the smallest value is no black (noise was added, inputs are no pixels),
    give `fill`.

    Attributes:
        padding: images move by up to so many pixels each way.
        flip: probability that left and right change places; 0 for digits and letters.
        fill: what lies outside, instead of the smallest value of each channel.
    """

    padding: int = 4
    flip: float = 0.5
    fill: float | None = None

    name = "crop_flip"
    info = Info(
        "images moved by up to `padding` pixels, half of them mirrored", "Zhang et al. (FedCos), IoT Journal 2023"
    )

    def __post_init__(self) -> None:
        checks.integer("padding", self.padding)
        checks.number("flip", self.flip, 0.0, 1.0)
        if self.fill is not None:
            checks.number("fill", self.fill)

    def check(self, inputs: torch.Tensor) -> None:
        """Images only, larger than the padding."""
        if inputs.ndim != 4 or not inputs.is_floating_point():
            found = f"{str(inputs.dtype).removeprefix('torch.')} {list(inputs.shape[1:])}"
            raise SteelyardError(f"augment={self.name}: a sample is {found}, not an image [channels, height, width]")
        if self.padding >= min(inputs.shape[2:]):
            found = f"images are {inputs.shape[2]}x{inputs.shape[3]}"
            raise SteelyardError(f"augment={self.name}: padding={self.padding}, but {found}: use less")

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Per image the crop's top and left in the padded image, and 1 if it is mirrored; `[count, 3]`."""
        drawn = np.empty((count, 3), dtype=np.int64)
        drawn[:, :2] = rng.integers(0, 2 * self.padding + 1, (count, 2))
        drawn[:, 2] = rng.random(count) < self.flip
        return drawn

    def background(self, inputs: torch.Tensor) -> torch.Tensor:
        """`fill`, or the smallest value of each channel."""
        if self.fill is not None:
            return torch.full((inputs.shape[1],), self.fill, dtype=inputs.dtype, device=inputs.device)
        return inputs.amin(dim=(0, 2, 3))

    def __call__(self, images: torch.Tensor, drawn: torch.Tensor, background: torch.Tensor) -> torch.Tensor:
        """One copy into padded images, one of the lines of crops out of them, and mirrored ones turned around."""
        count, channels, height, width = images.shape
        pad = self.padding
        high, wide = height + 2 * pad, width + 2 * pad
        lines = background.repeat(wide).expand(count, high, wide * channels)  # long rows: they copy fast
        padded = lines.contiguous().view(count, high, wide, channels)
        padded[:, pad : pad + height, pad : pad + width] = images.permute(0, 2, 3, 1)
        top, left, mirrored = drawn.unbind(1)
        first = torch.arange(count, device=images.device) * high + top
        starts = (first.unsqueeze(1) + torch.arange(height, device=images.device)) * wide + left.unsqueeze(1)
        # the line of `width` pixels that starts at each pixel: views that overlap, of which lines of crops are copied
        every = padded.as_strided((count * high * wide - width + 1, width * channels), (channels, 1))
        crops = every.index_select(0, starts.view(-1)).view(count, height, width, channels)
        turned = mirrored.nonzero().squeeze(1)
        crops.index_copy_(0, turned, crops.index_select(0, turned).flip(2))
        moved = crops.permute(0, 3, 1, 2)
        return moved if images.is_contiguous(memory_format=torch.channels_last) else moved.contiguous()


def parse_augmentation(spec: Any) -> Augmentation | None:
    """An augmentation from its text form (`"crop_flip:padding=4"`); `"none"` and None are none."""
    if spec is None or spec == "none":
        return None
    made = parse(spec, AUGMENTATIONS) if isinstance(spec, str) else spec
    if not isinstance(made, Augmentation):
        raise SteelyardError(f"augment={spec!r} is a {type(made).__name__}, not an augmentation or its text form")
    return made
