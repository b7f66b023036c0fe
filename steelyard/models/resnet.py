"""Residual networks for small images: He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, 4.2.

Depth 6n + 2: one convolution, three stages of n blocks with 16, 32, 64 channels, one linear layer. Where the shape
changes the shortcut is a 1x1 convolution with BatchNorm, as in FedLAW's and FedAWA's code: 272,474 parameters at depth
20, where He et al., who pad with zeros, have 269,722. The mean over the image replaces the codes' pooling of 8x8 (the
same at 32x32), so that other sizes work too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from steelyard.core.errors import SteelyardError
from steelyard.core.weighting import Card
from steelyard.models.registry import MODELS, Architecture, Shape, image_shape

_CARD = Card("residual network with projection shortcuts", "He et al., CVPR 2016")


@MODELS.register
@dataclass(frozen=True)
class ResNet(Architecture):
    """The network at any depth 6n + 2."""

    depth: int = 20

    name = "resnet"
    card = _CARD

    def __post_init__(self) -> None:
        if not isinstance(self.depth, int) or self.depth < 8 or self.depth % 6 != 2:
            raise SteelyardError(f"depth={self.depth!r}: use 6n + 2, e.g. 20, 56 or 110")

    def __call__(self, input_shape: Shape, classes: int) -> nn.Module:
        """Stem, three stages, mean, linear layer."""
        channels, _, _ = image_shape(self.name, input_shape, low=4)
        layers: list[nn.Module] = [_convolution(channels, 16, 3, 1), nn.BatchNorm2d(16), nn.ReLU()]
        before = 16
        for stage, planes in enumerate((16, 32, 64)):
            for block in range((self.depth - 2) // 6):
                layers.append(Block(before, planes, stride=2 if stage > 0 and block == 0 else 1))
                before = planes
        return nn.Sequential(*layers, Mean(), nn.Linear(64, classes))


def resnet20() -> ResNet:
    """Depth 20: 272,474 parameters and 1,589 numbers in buffers on CIFAR-10."""
    return ResNet(20)


MODELS.alias("resnet20", _CARD, resnet20)


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, before: int, planes: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            _convolution(before, planes, 3, stride),
            nn.BatchNorm2d(planes),
            nn.ReLU(),
            _convolution(planes, planes, 3, 1),
            nn.BatchNorm2d(planes),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != planes:
            self.shortcut = nn.Sequential(_convolution(before, planes, 1, stride), nn.BatchNorm2d(planes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """ReLU of the sum."""
        return torch.relu(self.residual(x) + self.shortcut(x))


class Mean(nn.Module):
    """The mean over the image, `[N, C, H, W]` to `[N, C]`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Global average pooling."""
        return x.mean(dim=(2, 3))


def _convolution(before: int, planes: int, size: int, stride: int) -> nn.Conv2d:
    """Without bias: BatchNorm follows."""
    return nn.Conv2d(before, planes, size, stride=stride, padding=size // 2, bias=False)
