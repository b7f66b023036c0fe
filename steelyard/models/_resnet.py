"""Residual networks for small images.

He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, 4.2.

Depth 6n + 2: one convolution, three stages of n blocks with 16, 32, 64 channels, one linear layer.
Where the shape changes, the shortcut is a 1x1 convolution with a norm, as in the code of FedLAW and
FedAWA: 272,474 parameters at depth 20 (He et al., who pad with zeros, have 269,722). The mean over
the image replaces the 8x8 pooling of that code (the same at 32x32), so that other sizes work too.

`width` multiplies all channels, also those of the first convolution. "WRN56_2" and "WRN56_4" of
FedLAW and FedAWA are this network at depth 56, not the pre-activation network of Zagoruyko &
Komodakis (BMVC 2016); CReFF's ResNet-8 with "scaling=4" is depth 8 and width 4. FedLAW's own
ResNet-8 is not in its repository: depth 8 is counted here as in CReFF.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from steelyard.core import checks
from steelyard.core._errors import SteelyardError
from steelyard.core._weighting import Info
from steelyard.models._registry import MODELS, Architecture, Shape, image_shape

# ResNet-18 for small images.
#
# He et al., CVPR 2016, with a first convolution of 3x3 at stride 1 and no pooling.
#
# Four stages of two blocks with 64, 128, 256, 512 channels: 11,173,962 parameters at 10 classes,
# as
# in the code of CriticalFL and FedAWA. The mean over the image replaces the 4x4 pooling of that
# code,
# so that other sizes work too.

_INFO = Info("residual network with projection shortcuts", "He et al., CVPR 2016")


@MODELS.register
@dataclass(frozen=True)
class ResNet(Architecture):
    """The network at any depth 6n + 2.

    Attributes:
        depth: 6n + 2; He et al. have 20, 32, 44, 56 and 110.
        norm: `batch`, or `group` for GroupNorm instead. Both have the same number of parameters.
        width: channels in units of 16, 32 and 64.
        groups: of GroupNorm. No paper gives their number for these networks: 8 makes groups of 2 to
            8 channels.
    """

    depth: int = 20
    norm: str = "batch"
    width: int = 1
    groups: int = 8

    name = "resnet"
    info = _INFO

    def __post_init__(self) -> None:
        checks.integer("depth", self.depth, 8, 10_000)
        if self.depth % 6 != 2:
            raise SteelyardError(f"depth={self.depth}: use 6n + 2, e.g. 20, 56 or 110")
        checks.one_of("norm", self.norm, "batch", "group")
        checks.integer("width", self.width, 1)
        checks.integer("groups", self.groups, 1)
        check_groups(self.groups, 16 * self.width)

    def __call__(self, input_shape: Shape, classes: int) -> nn.Module:
        """Return the network: stem, three stages, mean, linear layer."""
        channels, _, _ = image_shape(self.name, input_shape, low=4)
        norm = Norm(self.groups if self.norm == "group" else None)
        before = 16 * self.width
        layers: list[nn.Module] = [convolution(channels, before, 3, 1), norm(before), nn.ReLU()]
        for stage, planes in enumerate((16 * self.width, 32 * self.width, 64 * self.width)):
            for block in range((self.depth - 2) // 6):
                stride = 2 if stage > 0 and block == 0 else 1
                layers.append(Block(before, planes, stride, norm, norm))
                before = planes
        return nn.Sequential(*layers, Mean(), nn.Linear(before, classes))


def resnet20() -> ResNet:
    """Return depth 20: 272,474 parameters and 1,589 numbers in buffers on CIFAR-10."""
    return ResNet(20)


def wrn56_2() -> ResNet:
    """Return depth 56, twice as wide.

    3,412,394 parameters and 8,569 numbers in buffers on CIFAR-10.
    """
    return ResNet(56, width=2)


def wrn56_4() -> ResNet:
    """Return depth 56, four times as wide.

    13,628,234 parameters and 17,081 numbers in buffers on CIFAR-10.
    """
    return ResNet(56, width=4)


MODELS.alias("resnet20", _INFO, resnet20)
MODELS.alias(
    "wrn56_2", Info("resnet:depth=56 of twice the width", "Li et al. (FedLAW), ICML 2023"), wrn56_2
)
MODELS.alias(
    "wrn56_4",
    Info("resnet:depth=56 of four times the width", "Li et al. (FedLAW), ICML 2023"),
    wrn56_4,
)


@dataclass(frozen=True)
class Norm:
    """Builds norm layers: GroupNorm, or BatchNorm if `groups` is None."""

    groups: int | None = None

    def __call__(self, planes: int) -> nn.Module:
        """Return a norm of this number of channels, at scale 1 and shift 0."""
        return nn.BatchNorm2d(planes) if self.groups is None else nn.GroupNorm(self.groups, planes)


def check_groups(groups: int, planes: int) -> None:
    """Raise an error if `groups` does not divide the channels of the first stage.

    Every stage doubles the channels, so a divisor of the first stage divides all of them.
    """
    if planes % groups:
        raise SteelyardError(
            f"groups={groups}: use a divisor of {planes}, the channels of the first stage"
        )


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(
        self, before: int, planes: int, stride: int, norm: Norm, shortcut_norm: Norm
    ) -> None:
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
            self.shortcut = nn.Sequential(
                convolution(before, planes, 1, stride), shortcut_norm(planes)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the ReLU of the sum."""
        return torch.relu(self.residual(x) + self.shortcut(x))


class Mean(nn.Module):
    """Global average pooling, `[N, C, H, W]` to `[N, C]`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the mean over the image."""
        return x.mean(dim=(2, 3))


def convolution(before: int, planes: int, size: int, stride: int) -> nn.Conv2d:
    """Return a convolution without bias, because a norm follows."""
    return nn.Conv2d(before, planes, size, stride=stride, padding=size // 2, bias=False)


_INFO_18 = Info("ResNet-18 with a 3x3 stem", "He et al., CVPR 2016")


@MODELS.register
@dataclass(frozen=True)
class ResNet18(Architecture):
    """ResNet-18 for 32x32 images, or 64x64 with `max_pool`.

    Attributes:
        norm: `batch`; `group`; or `fedcos`: GroupNorm, but BatchNorm in the shortcuts, as in
            FedCos's code (1,795 numbers in buffers; its paper has GroupNorm everywhere).
        groups: of GroupNorm; FedCos's code has 16.
        max_pool: halves the image once more, for 64x64 images: 3x3 at stride 2 after the stem, as
            in FedAWA's code for Tiny-ImageNet (models_dict/resnet.py) and in He et al.
    """

    norm: str = "batch"
    groups: int = 16
    max_pool: bool = False

    name = "resnet18"
    info = _INFO_18

    def __post_init__(self) -> None:
        checks.one_of("norm", self.norm, "batch", "group", "fedcos")
        checks.integer("groups", self.groups, 1)
        checks.one_of("max_pool", self.max_pool, False, True)
        check_groups(self.groups, 64)

    def __call__(self, input_shape: Shape, classes: int) -> nn.Module:
        """Return the network: stem, four stages, mean, linear layer."""
        channels, _, _ = image_shape(self.name, input_shape, low=4)
        norm = Norm(None if self.norm == "batch" else self.groups)
        shortcut_norm = Norm(self.groups if self.norm == "group" else None)
        layers: list[nn.Module] = [convolution(channels, 64, 3, 1), norm(64), nn.ReLU()]
        if self.max_pool:
            layers.append(nn.MaxPool2d(3, stride=2, padding=1))
        before = 64
        for planes in (64, 128, 256, 512):
            for stride in (1 if planes == 64 else 2, 1):
                layers.append(Block(before, planes, stride, norm, shortcut_norm))
                before = planes
        return nn.Sequential(*layers, Mean(), nn.Linear(512, classes))
