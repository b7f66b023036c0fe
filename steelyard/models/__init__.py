"""The networks of the papers, by name.

Importing this package registers every network under its name in spec strings.
"""

from steelyard.models import alexnet, cnn, densenet, linear, resnet, text, vit
from steelyard.models.registry import MODELS, Architecture, build, count_parameters

__all__ = [
    "MODELS",
    "Architecture",
    "alexnet",
    "build",
    "cnn",
    "count_parameters",
    "densenet",
    "linear",
    "resnet",
    "text",
    "vit",
]
