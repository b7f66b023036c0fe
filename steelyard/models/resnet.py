"""Residual networks for small images: He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, 4.2.

Depth 6n + 2: one convolution, three stages of n blocks with 16, 32, 64 channels, one linear layer. Where the shape
changes the shortcut is a 1x1 convolution with a norm, as in FedLAW's and FedAWA's code: 272,474 parameters at depth
20, where He et al., who pad with zeros, have 269,722. The mean over the image replaces the codes' pooling of 8x8 (the
same at 32x32), so that other sizes work too.

`width` multiplies all channels, the first convolution's too. FedLAW's and FedAWA's "WRN56_2" and "WRN56_4" are this
network at depth 56, not the pre-activation network of Zagoruyko & Komodakis (BMVC 2016); CReFF's ResNet-8 with
"scaling=4" is depth 8 and width 4. FedLAW's own ResNet-8 is not in its repository: depth 8 here counts as CReFF's does.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from steelyard.core import checks
from steelyard.core.errors import SteelyardError
from steelyard.core.weighting import Info
from steelyard.models.registry import MODELS, Architecture, Shape, image_shape

_CARD = Info("residual network with projection shortcuts", "He et al., CVPR 2016")


@MODELS.register
@dataclass(frozen=True)
class ResNet(Architecture):
    """The network at any depth 6n + 2.

    Attributes:
        depth: 6n + 2; He et al. have 20, 32, 44, 56 and 110.
        norm: `batch`, or `group` for GroupNorm in its place everywhere. Both have as many parameters.
        width: channels in units of 16, 32 and 64.
        groups: of GroupNorm. No paper says how many for these networks: 8 leaves groups of 2 to 8 channels.
    """

    depth: int = 20
    norm: str = "batch"
    width: int = 1
    groups: int = 8

    name = "resnet"
    info = _CARD

    def __post_init__(self) -> None:
        checks.integer("depth", self.depth, 8, 10_000)
        if self.depth % 6 != 2:
            raise SteelyardError(f"depth={self.depth}: use 6n + 2, e.g. 20, 56 or 110")
        checks.one_of("norm", self.norm, "batch", "group")
        checks.integer("width", self.width, 1)
        checks.integer("groups", self.groups, 1)
        check_groups(self.groups, 16 * self.width)

    def __call__(self, input_shape: Shape, classes: int) -> nn.Module:
        """Stem, three stages, mean, linear layer."""
        channels, _, _ = image_shape(self.name, input_shape, low=4)
        norm = Norm(self.groups if self.norm == "group" else None)
        before = 16 * self.width
        layers: list[nn.Module] = [convolution(channels, before, 3, 1), norm(before), nn.ReLU()]
        for stage, planes in enumerate((16 * self.width, 32 * self.width, 64 * self.width)):
            for block in range((self.depth - 2) // 6):
                layers.append(Block(before, planes, 2 if stage > 0 and block == 0 else 1, norm, norm))
                before = planes
        return nn.Sequential(*layers, Mean(), nn.Linear(before, classes))


def resnet20() -> ResNet:
    """Depth 20: 272,474 parameters and 1,589 numbers in buffers on CIFAR-10."""
    return ResNet(20)


def wrn56_2() -> ResNet:
    """Depth 56, twice as wide: 3,412,394 parameters and 8,569 numbers in buffers on CIFAR-10."""
    return ResNet(56, width=2)


def wrn56_4() -> ResNet:
    """Depth 56, four times as wide: 13,628,234 parameters and 17,081 numbers in buffers on CIFAR-10."""
    return ResNet(56, width=4)


MODELS.alias("resnet20", _CARD, resnet20)
MODELS.alias("wrn56_2", Info("resnet:depth=56 of twice the width", "Li et al. (FedLAW), ICML 2023"), wrn56_2)
MODELS.alias("wrn56_4", Info("resnet:depth=56 of four times the width", "Li et al. (FedLAW), ICML 2023"), wrn56_4)


@dataclass(frozen=True)
class Norm:
    """Makes a norm of so many channels: GroupNorm, or BatchNorm if there are no groups."""

    groups: int | None = None

    def __call__(self, planes: int) -> nn.Module:
        """The layer, at scale 1 and shift 0."""
        return nn.BatchNorm2d(planes) if self.groups is None else nn.GroupNorm(self.groups, planes)


def check_groups(groups: int, planes: int) -> None:
    """Every stage doubles the channels of the one before, so what divides the first stage's divides all."""
    if planes % groups:
        raise SteelyardError(f"groups={groups}: use a divisor of {planes}, the channels of the first stage")


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, before: int, planes: int, stride: int, norm: Norm, shortcut_norm: Norm) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            convolution(before, planes, 3, stride),
            norm(planes),
            nn.ReLU(),
            convolution(planes, planes, 3, 1),
            norm(planes),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != planes:
            self.shortcut = nn.Sequential(convolution(before, planes, 1, stride), shortcut_norm(planes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """ReLU of the sum."""
        return torch.relu(self.residual(x) + self.shortcut(x))


class Mean(nn.Module):
    """The mean over the image, `[N, C, H, W]` to `[N, C]`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Global average pooling."""
        return x.mean(dim=(2, 3))


def convolution(before: int, planes: int, size: int, stride: int) -> nn.Conv2d:
    """Without bias: a norm follows."""
    return nn.Conv2d(before, planes, size, stride=stride, padding=size // 2, bias=False)
