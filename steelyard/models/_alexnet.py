"""The AlexNets of CriticalFL's code, which PA3Fed uses too.

They are small versions of Krizhevsky et al., NeurIPS 2012.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from steelyard.core import checks
from steelyard.core._weighting import Info
from steelyard.models._registry import MODELS, Architecture, Shape, image_shape

_SOURCE = "Yan et al. (CriticalFL), KDD 2023"


@MODELS.register
@dataclass(frozen=True)
class AlexNet(Architecture):
    """Five convolutions (64, 192, 384, 256, 256 channels) and linear layers of 128, with two stems.

    `stem=small` is CriticalFL's network for CIFAR-10 (3x3 at stride 2; 2,400,586 parameters).
    `stem=large` is its network for Fashion-MNIST (11x11 at stride 4, then 5x5; 2,504,906
    parameters). CriticalFL scales the images for the large stem to 32x32; here the network itself
    scales up smaller images (bilinear), which would otherwise shrink to nothing.

    Attributes:
        stem: `small` or `large`.
        dropout: before the first two linear layers.
    """

    stem: str = "small"
    dropout: float = 0.05

    name = "alexnet"
    info = Info("five convolutions and three linear layers", _SOURCE)

    def __post_init__(self) -> None:
        checks.one_of("stem", self.stem, "small", "large")
        checks.number("dropout", self.dropout, 0.0, 1.0)

    def __call__(self, input_shape: Shape, classes: int) -> nn.Module:
        """Return the network: convolutions, three poolings, linear layers."""
        is_large = self.stem == "large"
        channels, height, width = image_shape(self.name, input_shape, low=1 if is_large else 15)
        layers: list[nn.Module] = []
        # The stem.
        if is_large:
            if min(height, width) < 32:
                height = max(height, 32)
                width = max(width, 32)
                layers.append(nn.Upsample(size=(height, width), mode="bilinear"))
            stride = 4
            first = nn.Conv2d(channels, 64, 11, stride, padding=5)
            second = nn.Conv2d(64, 192, 5, padding=2)
        else:
            stride = 2
            first = nn.Conv2d(channels, 64, 3, stride, padding=1)
            second = nn.Conv2d(64, 192, 3, padding=1)
        layers += [first, nn.ReLU(), nn.MaxPool2d(2), second, nn.ReLU(), nn.MaxPool2d(2)]
        # The other convolutions.
        for before, planes in ((192, 384), (384, 256), (256, 256)):
            layers += [nn.Conv2d(before, planes, 3, padding=1), nn.ReLU()]
        layers += [nn.MaxPool2d(2), nn.Flatten()]
        # The linear layers. Both stems round sizes up.
        features = 256 * (-(-height // stride) // 8) * (-(-width // stride) // 8)
        for before in (features, 128):
            layers += [nn.Dropout(self.dropout), nn.Linear(before, 128), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(128, classes))


def alexnet_cifar() -> AlexNet:
    """Return CriticalFL's "alex_cifar10": 2,400,586 parameters."""
    return AlexNet("small")


def alexnet_fmnist() -> AlexNet:
    """Return CriticalFL's "alex_fmnist": 2,504,906 parameters."""
    return AlexNet("large")


MODELS.alias("alexnet_cifar", Info("alexnet:stem=small", _SOURCE), alexnet_cifar)
MODELS.alias("alexnet_fmnist", Info("alexnet:stem=large", _SOURCE), alexnet_fmnist)
