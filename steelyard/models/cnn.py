"""Small convolutional networks."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from steelyard.core import checks
from steelyard.core.weighting import Info
from steelyard.models.lenet import unpadded
from steelyard.models.registry import MODELS, Architecture, Shape, image_shape


@MODELS.register
@dataclass(frozen=True)
class McMahanCNN(Architecture):
    """The CNN of the FedAvg paper and of FedAdp: 1,663,370 parameters on 28x28 images.

    FedAdp's text gives 1024 inputs to the first linear layer and this number of parameters. The
    number needs padding and 3136 inputs, which is the default here. `padding=false` is the other
    reading, 1024 inputs: 582,026 parameters.
    """

    padding: bool = True

    name = "mcmahan_cnn"
    info = Info("two 5x5 convolutions and 512 hidden units", "McMahan et al., AISTATS 2017")

    def __post_init__(self) -> None:
        checks.one_of("padding", self.padding, False, True)

    def __call__(self, input_shape: Shape, classes: int) -> nn.Module:
        """Return the network: two convolutions, each with pooling, and two linear layers."""
        channels, height, width = image_shape(self.name, input_shape, low=4 if self.padding else 16)
        if self.padding:
            padding = 2
            features = 64 * (height // 4) * (width // 4)
        else:
            padding = 0
            features = 64 * unpadded(height) * unpadded(width)
        return nn.Sequential(
            nn.Conv2d(channels, 32, 5, padding=padding),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=padding),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(features, 512),
            nn.ReLU(),
            nn.Linear(512, classes),
        )


@MODELS.register
@dataclass(frozen=True)
class SimpleCNN(Architecture):
    """The CNN of FedLAW and FedAWA: 122,570 parameters on CIFAR-10."""

    name = "simple_cnn"
    info = Info("three 3x3 convolutions and 64 hidden units", "Li et al. (FedLAW), ICML 2023")

    def __call__(self, input_shape: Shape, classes: int) -> nn.Module:
        """Return the network: three convolutions without padding, two linear layers."""
        channels, height, width = image_shape(self.name, input_shape, low=18)
        return nn.Sequential(
            nn.Conv2d(channels, 32, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 64, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * _remaining_side(height) * _remaining_side(width), 64),
            nn.ReLU(),
            nn.Linear(64, classes),
        )


@MODELS.register
@dataclass(frozen=True)
class PflCNN(Architecture):
    """The CNN of pfl's CIFAR-10 benchmark: 1,626,442 parameters, Glorot initialisation."""

    name = "pfl_cnn"
    info = Info(
        "two 3x3 convolutions, dropout and 128 hidden units",
        "Granqvist et al. (pfl-research), NeurIPS 2024",
    )

    def __call__(self, input_shape: Shape, classes: int) -> nn.Module:
        """Return the network: two convolutions without padding, one pooling, two linear layers."""
        channels, height, width = image_shape(self.name, input_shape, low=6)
        network = nn.Sequential(
            nn.Conv2d(channels, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), 128),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(128, classes),
        )
        for layer in network:
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                nn.init.xavier_uniform_(layer.weight)
        return network


def _remaining_side(side: int) -> int:
    """Return the size of a side after SimpleCNN's convolutions: 32 -> 30 -> 15 -> 13 -> 6 -> 4."""
    return ((side - 2) // 2 - 2) // 2 - 2
