"""The side channel: small tensors that clients and the server exchange beside the model.

Prototypes of classes and gradients of a classifier are such tensors. A term declares name, shape
and dtype of each; what a client sends is checked against the declaration before it is used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from steelyard.core._errors import NOT_FINITE, SteelyardError

MOST_COUNT = 1 << 53  # the largest count; float64 represents all integers up to it

_DTYPES = (torch.float32, torch.int64)


@dataclass(frozen=True)
class TensorSpec:
    """Shape and dtype of a tensor of the side channel.

    Attributes:
        shape: its shape.
        dtype: float32, or int64 for counts, which are not negative.
        is_sent: whether the server sends it to clients. Only tensors of the server may be kept
            without being sent.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    is_sent: bool = True

    def __post_init__(self) -> None:
        if self.dtype not in _DTYPES:
            raise SteelyardError(f"a tensor of {self.dtype}: use float32, or int64 for counts")

    @property
    def is_count(self) -> bool:
        """Whether the tensor holds counts."""
        return self.dtype == torch.int64

    @property
    def num_bytes(self) -> int:
        """Its number of bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def find_problem(self, tensor: torch.Tensor) -> str | None:
        """Return why a tensor does not follow this declaration; None if it does."""
        if tuple(tensor.shape) != self.shape or tensor.dtype != self.dtype:
            return (
                f"is {tensor.dtype} {list(tensor.shape)}, expected {self.dtype} {list(self.shape)}"
            )
        if not self.is_count:
            return None if bool(torch.isfinite(tensor).all()) else NOT_FINITE
        if tensor.numel() and (int(tensor.min()) < 0 or int(tensor.max()) > MOST_COUNT):
            return f"has counts outside 0..{MOST_COUNT}"
        return None


Specs = Mapping[str, TensorSpec]


@dataclass(frozen=True)
class Classifier:
    """The last linear layer of a network: its inputs are the features of a sample.

    Attributes:
        name: the name of the layer in the network; empty if it is the whole network.
        classes: number of outputs.
        dim: number of features.
        has_bias: whether it has a bias.
    """

    name: str
    classes: int
    dim: int
    has_bias: bool

    @property
    def weight_name(self) -> str:
        """The name of its weight in the state dict."""
        return f"{self.name}.weight" if self.name else "weight"

    @property
    def bias_name(self) -> str:
        """The name of its bias in the state dict."""
        return f"{self.name}.bias" if self.name else "bias"


def find_classifier_by_shape(shapes: Mapping[str, tuple[int, ...]], name: str = "") -> Classifier:
    """Return the classifier of a network that is known by its state dict only.

    It is the layer of this name, or else the layer `classifier`, or else the last weight that is a
    matrix.

    Args:
        shapes: shapes of the tensors, in the order of the network's definition.
        name: the name of the layer; empty to find it.

    Raises:
        SteelyardError: if there is no such layer.
    """
    weights = {}
    for key, shape in shapes.items():
        prefix, _, last = key.rpartition(".")
        if last == "weight" and len(shape) == 2:
            weights[prefix] = shape
    if not name:
        name = "classifier" if "classifier" in weights else next(reversed(weights), "")
    if name not in weights:
        raise SteelyardError(describe_missing_classifier(name))
    classes, dim = weights[name]
    has_bias = (f"{name}.bias" if name else "bias") in shapes
    return Classifier(name, classes, dim, has_bias)


def describe_missing_classifier(name: str) -> str:
    """Return the error message for a network without a classifier of this name."""
    if name:
        return (
            f"classifier={name!r}: the network has no linear layer of this name: "
            "use one of model.named_modules()"
        )
    return (
        "the network has no linear layer, whose inputs would be the features: "
        "end the network with an nn.Linear, or name the layer with classifier=..."
    )
