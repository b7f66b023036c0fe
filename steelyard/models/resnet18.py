"""ResNet-18 for small images.

He et al., CVPR 2016, with a first convolution of 3x3 at stride 1 and no pooling.

Four stages of two blocks with 64, 128, 256, 512 channels: 11,173,962 parameters at 10 classes, as
in the code of CriticalFL and FedAWA. The mean over the image replaces the 4x4 pooling of that code,
so that other sizes work too.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from steelyard.core import checks
from steelyard.core.weighting import Info
from steelyard.models.registry import MODELS, Architecture, Shape, image_shape
from steelyard.models.resnet import Block, Mean, Norm, check_groups, convolution

_INFO = Info("ResNet-18 with a 3x3 stem", "He et al., CVPR 2016")


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
    info = _INFO

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
