"""Densely connected networks: Huang et al., "Densely Connected Convolutional Networks", CVPR 2017.

DenseNet-121 (blocks of 6, 12, 24, 16 layers, growth 32, bottlenecks of 128, half of the channels
kept between blocks) with a 3x3 stem of 64 channels for small images, as in the code of FedLAW and
FedAWA: 6,956,298 parameters and 83,640 numbers in buffers at 10 classes. The mean over the image
replaces the 4x4 pooling of that code.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from steelyard.core._weighting import Info
from steelyard.models._registry import MODELS, Architecture, Shape, image_shape
from steelyard.models._resnet import Mean, convolution

_GROWTH = 32
_BLOCKS = (6, 12, 24, 16)


@MODELS.register
@dataclass(frozen=True)
class DenseNet121(Architecture):
    """DenseNet-121 for small images."""

    name = "densenet121"
    info = Info("four densely connected blocks", "Huang et al., CVPR 2017")

    def __call__(self, input_shape: Shape, classes: int) -> nn.Module:
        """Return the network: stem, four blocks with transitions, mean, linear layer."""
        channels, _, _ = image_shape(self.name, input_shape, low=8)
        planes = 2 * _GROWTH
        layers: list[nn.Module] = [convolution(channels, planes, 3, 1)]
        for number, depth in enumerate(_BLOCKS):
            if number:
                half = planes // 2
                layers += [
                    nn.BatchNorm2d(planes),
                    nn.ReLU(),
                    convolution(planes, half, 1, 1),
                    nn.AvgPool2d(2),
                ]
                planes = half
            for _ in range(depth):
                layers.append(Growth(planes, _GROWTH))
                planes += _GROWTH
        return nn.Sequential(
            *layers, nn.BatchNorm2d(planes), nn.ReLU(), Mean(), nn.Linear(planes, classes)
        )


class Growth(nn.Module):
    """Adds `growth` channels to its input.

    The norm is before the convolution, and the bottleneck has 4 `growth` channels.
    """

    def __init__(self, planes: int, growth: int) -> None:
        super().__init__()
        self.new = nn.Sequential(
            nn.BatchNorm2d(planes),
            nn.ReLU(),
            convolution(planes, 4 * growth, 1, 1),
            nn.BatchNorm2d(4 * growth),
            nn.ReLU(),
            convolution(4 * growth, growth, 3, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the input and the new channels."""
        return torch.cat([x, self.new(x)], dim=1)
