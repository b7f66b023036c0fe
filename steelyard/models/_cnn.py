"""Small convolutional networks.

Where a paper applies ReLU and then max-pooling, max-pooling comes first here: results and gradients
have the same bits, and ReLU then works on a quarter of the values.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from steelyard.core import checks
from steelyard.core._weighting import Info
from steelyard.models._registry import MODELS, Architecture, Shape, image_shape


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
            features = 64 * compute_side(height) * compute_side(width)
        return nn.Sequential(
            nn.Conv2d(channels, 32, 5, padding=padding),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(32, 64, 5, padding=padding),
            nn.MaxPool2d(2),
            nn.ReLU(),
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
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.MaxPool2d(2),
            nn.ReLU(),
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
            nn.MaxPool2d(2),
            nn.ReLU(),
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


# The small convolutional networks that papers call LeNet, and PyTorch's for MNIST.


@MODELS.register
@dataclass(frozen=True)
class LeNet(Architecture):
    """FedCos's "CNNCifar" and FedDisco's "simple-cnn".

    62,006 parameters on CIFAR-10, 44,426 on 28x28 grey images (FedDisco's).

    LeCun et al.'s LeNet-5 with ReLU and max-pooling. FedCos's paper has two linear layers; its code
    has three.
    """

    name = "lenet"
    info = Info(
        "two 5x5 convolutions and three linear layers",
        "Zhang et al. (FedCos), IEEE IoT Journal 2023",
    )

    def __call__(self, input_shape: Shape, classes: int) -> nn.Module:
        """Return the network: two convolutions without padding, three linear layers."""
        channels, height, width = image_shape(self.name, input_shape, low=16)
        return nn.Sequential(
            nn.Conv2d(channels, 6, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(6, 16, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16 * compute_side(height) * compute_side(width), 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, classes),
        )


@MODELS.register
@dataclass(frozen=True)
class FedLAWLeNet(Architecture):
    """FedLAW's "LeNet5": 28,938 parameters on 28x28 grey images.

    It is not LeNet-5: it has one linear layer.
    """

    name = "fedlaw_lenet"
    info = Info("two 5x5 convolutions and one linear layer", "Li et al. (FedLAW), ICML 2023")

    def __call__(self, input_shape: Shape, classes: int) -> nn.Module:
        """Return the network: two convolutions with padding, one linear layer."""
        channels, height, width = image_shape(self.name, input_shape, low=4)
        return nn.Sequential(
            nn.Conv2d(channels, 16, 5, padding=2),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 5, padding=2),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * (height // 4) * (width // 4), classes),
        )


@MODELS.register
@dataclass(frozen=True)
class MnistCNN(Architecture):
    """FedCos's "CNNMnist", PyTorch's old example for MNIST: 21,840 parameters on 28x28 grey images.

    Dropout removes half of the second convolution's channels and half of the hidden units in
    training.
    """

    name = "mnist_cnn"
    info = Info(
        "two 5x5 convolutions and 50 hidden units, with dropout",
        "Zhang et al. (FedCos), IEEE IoT Journal 2023",
    )

    def __call__(self, input_shape: Shape, classes: int) -> nn.Module:
        """Return the network: two convolutions without padding, two linear layers."""
        channels, height, width = image_shape(self.name, input_shape, low=16)
        return nn.Sequential(
            nn.Conv2d(channels, 10, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(10, 20, 5),
            nn.Dropout2d(0.5),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(20 * compute_side(height) * compute_side(width), 50),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(50, classes),
        )


def compute_side(side: int) -> int:
    """Return the size of a side after two 5x5 convolutions without padding, each with pooling.

    For example 28 -> 24 -> 12 -> 8 -> 4.
    """
    return ((side - 4) // 2 - 4) // 2
