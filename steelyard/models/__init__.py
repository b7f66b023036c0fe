"""The networks of the papers, by name.

Importing this package registers every network under its name in spec strings.
"""

from steelyard.models._alexnet import AlexNet
from steelyard.models._cnn import FedLAWLeNet, LeNet, McMahanCNN, MnistCNN, PflCNN, SimpleCNN
from steelyard.models._densenet import DenseNet121
from steelyard.models._linear import MLP, Logistic
from steelyard.models._registry import MODELS, Architecture, build, count_parameters
from steelyard.models._resnet import ResNet, ResNet18
from steelyard.models._text import CharLSTM, TextMean
from steelyard.models._vit import ViT

__all__ = [
    "MLP",
    "MODELS",
    "AlexNet",
    "Architecture",
    "CharLSTM",
    "DenseNet121",
    "FedLAWLeNet",
    "LeNet",
    "Logistic",
    "McMahanCNN",
    "MnistCNN",
    "PflCNN",
    "ResNet",
    "ResNet18",
    "SimpleCNN",
    "TextMean",
    "ViT",
    "build",
    "count_parameters",
]
