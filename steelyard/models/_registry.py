"""Networks by name, and the function that builds and initialises them."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from steelyard import threads
from steelyard.core import checks
from steelyard.core._errors import SteelyardError, shorten
from steelyard.core._registry import Registry
from steelyard.core._rng import data_number
from steelyard.core._spec import parse
from steelyard.core._weighting import Info

Shape = tuple[int, ...]

_FLOAT_BYTES = 4
_TOO_LARGE = re.compile("overflow|too large|failed to unpack", re.IGNORECASE)  # in torch's messages


class Architecture(ABC):
    """A network, except for the shape of its data: a frozen dataclass of options.

    Attributes:
        name: in spec strings.
        info: title and paper, for the command line.
    """

    name: str
    info: Info

    @abstractmethod
    def __call__(self, input_shape: Shape, classes: int) -> nn.Module:
        """Return the network for samples of this shape, e.g. `(1, 28, 28)`."""


MODELS = Registry("model", Architecture, "steelyard.models")


def build(spec: str | Architecture, input_shape: Shape, classes: int, seed: int) -> nn.Module:
    """Build a network.

    The same seed gives the same parameters, and torch's global random state does not change.

    Args:
        spec: an architecture or its spec string, e.g. `mlp:hidden=[200,200]`.
        input_shape: of one sample.
        classes: the number of outputs.
        seed: of the initial parameters.

    Examples:
        >>> build("mlp:hidden=[16]", (1, 8, 8), classes=10, seed=0)(torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 10])
    """
    architecture: Architecture = parse(spec, MODELS) if isinstance(spec, str) else spec
    checks.integer("classes", classes, 1)
    checks.integer("seed", seed)
    if not input_shape or min(input_shape) < 1:
        raise SteelyardError(
            f"input_shape={tuple(input_shape)}: use the shape of one sample, e.g. (1, 28, 28)"
        )
    count_parameters(
        architecture, tuple(input_shape), classes
    )  # raises an error if memory is too small
    with threads.seeded(data_number(seed, "model")), torch.device("cpu"), _float32():
        return architecture(tuple(input_shape), classes)


def count_parameters(architecture: Architecture, input_shape: Shape, classes: int) -> int | None:
    """Return the number of parameters without building the network; None if it cannot be known.

    Raise an error if the network does not fit into the memory of this machine.
    """
    # Build the network from tensors without memory. A user's own network may not support that.
    try:
        with torch.device("meta"):
            network = architecture(input_shape, classes)
        count = sum(parameter.numel() for parameter in network.parameters())
    except SteelyardError:
        raise
    except Exception as error:
        if not _TOO_LARGE.search(str(error)):
            return None
        count = checks.LARGEST
    # Compare the parameters alone with the memory: training takes more.
    if count * _FLOAT_BYTES > _memory():
        size = "too many" if count == checks.LARGEST else f"{count:,}"
        sample = "x".join(map(str, input_shape))
        raise SteelyardError(
            f"model {shorten(str(architecture), 200)}: it would have {size} parameters on samples "
            f"of "
            f"{shorten(sample)} and {classes} classes, more than memory can hold: use smaller "
            f"layers"
        )
    return count


def _memory() -> int:
    """Return the bytes of memory of this machine; 1 TB if it does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 1 << 40


@contextmanager
def _float32() -> Iterator[None]:
    """Make parameters float32, whatever torch's default is: float64 would draw other numbers."""
    default = torch.get_default_dtype()
    if default == torch.float32:
        yield
        return
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(default)


def image_shape(name: str, input_shape: Shape, low: int) -> tuple[int, int, int]:
    """Return channels, height and width.

    Raise an error if it is not an image or one smaller than `low`.
    """
    if len(input_shape) != 3:
        raise SteelyardError(
            f"input_shape={input_shape}: {name} takes images (channels, height, width)"
        )
    channels, height, width = input_shape
    if min(height, width) < low:
        raise SteelyardError(
            f"input_shape={input_shape}: {name} needs images of at least {low}x{low}"
        )
    return channels, height, width
