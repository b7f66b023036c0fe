"""Networks of linear layers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from torch import nn

from steelyard.core import checks
from steelyard.core._errors import SteelyardError
from steelyard.core._weighting import Info
from steelyard.models._registry import MODELS, Architecture, Shape


@MODELS.register
@dataclass(frozen=True)
class Logistic(Architecture):
    """Multinomial logistic regression: 7,850 parameters on 28x28 images (FedAdp's MLR)."""

    name = "logistic"
    info = Info("one linear layer", "Wu & Wang, IEEE TCCN 2021")

    def __call__(self, input_shape: Shape, classes: int) -> nn.Module:
        """Return the network: one linear layer."""
        return _layers((math.prod(input_shape), classes))


@MODELS.register
@dataclass(frozen=True)
class MLP(Architecture):
    """Linear layers with ReLU between them: the MLP of FedLAW and FedDyn.

    199,210 parameters on 28x28 images.

    `hidden=[200],dropout=0.5` is FedCos's MLP: 159,010 parameters. Its code applies dropout before
    the ReLU, as here.
    """

    hidden: tuple[int, ...] = (200, 200)
    dropout: float = 0.0

    name = "mlp"
    info = Info("linear layers with ReLU between", "Acar et al. (FedDyn), ICLR 2021")

    def __post_init__(self) -> None:
        if not isinstance(self.hidden, tuple) or not self.hidden:
            raise SteelyardError(f"hidden={self.hidden!r}: use a list of widths, e.g. [200,200]")
        for width in self.hidden:
            checks.integer("hidden", width, 1)
        checks.number("dropout", self.dropout, 0.0, 1.0)

    def __call__(self, input_shape: Shape, classes: int) -> nn.Module:
        """Return the network: linear layers with ReLU between them."""
        return _layers((math.prod(input_shape), *self.hidden, classes), self.dropout)


def _layers(widths: tuple[int, ...], dropout: float = 0.0) -> nn.Sequential:
    """Return linear layers of these widths, with ReLU (and dropout) between them."""
    # No layer for dropout=0: networks without dropout can be trained together for several clients.
    between = [nn.Dropout(dropout)] if dropout else []
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(widths[:-1]):
        layers += [nn.Linear(inputs, outputs), *between, nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-2], widths[-1]))
