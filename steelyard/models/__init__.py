"""The papers' networks, by name.

Importing this package registers every network under its text name.
"""

from steelyard.models import cnn, linear, resnet
from steelyard.models.registry import MODELS, Architecture, build

__all__ = ["MODELS", "Architecture", "build", "cnn", "linear", "resnet"]
