"""Coordinate-wise rules: median and trimmed mean.

Yin, Chen, Kannan, Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML 2018.

They see `[K, n]` chunks in the combine pass, so their coefficients differ from coordinate to coordinate:
`out.weights` is each client's mean coefficient, and the model is not `base + weights @ updates`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from steelyard.core import checks
from steelyard.core.client_state import State
from steelyard.core.mixture import Mixture, Reducer
from steelyard.core.needs import Needs
from steelyard.core.registry import RULES
from steelyard.core.view import View
from steelyard.core.weighting import Info, Weighting
from steelyard.rules.krum import withstand


@RULES.register
@dataclass(frozen=True)
class Median(Weighting):
    """The median of each coordinate; the mean of the two middle values for an even number of clients."""

    name = "median"
    modifies = False
    info = Info("the median of each coordinate", "Yin et al., ICML 2018")

    @property
    def needs(self) -> Needs:
        """Chunks of updates."""
        return Needs(coordinates=True)

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Everything but the middle trimmed off."""
        return by_coordinate(len(view.ids), make_trimmed_mean((len(view.ids) - 1) // 2)), state


@RULES.register
@dataclass(frozen=True)
class TrimmedMean(Weighting):
    """The mean of each coordinate without the `f` smallest and the `f` largest values."""

    f: int = 1

    name = "trimmed_mean"
    modifies = False
    info = Info("the mean of each coordinate without its extremes", "Yin et al., ICML 2018")

    def __post_init__(self) -> None:
        checks.integer("f", self.f)

    @property
    def needs(self) -> Needs:
        """Chunks of updates."""
        return Needs(coordinates=True)

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """`f` on either side."""
        f = withstand(self.f, len(view.ids))
        return by_coordinate(len(view.ids), make_trimmed_mean(f)).add_report(withstands=f), state


def by_coordinate(count: int, reduce: Reducer) -> Mixture:
    """A mixture of all clients through this reducer."""
    return replace(Mixture.convex(np.ones((1, count))), reduce=reduce)


def make_trimmed_mean(f: int) -> Reducer:
    """Mean of each coordinate without `f` values at either end."""

    def reduce(updates: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        count = updates.shape[0]
        values, order = updates.sort(dim=0, stable=True)
        return values[f : count - f].mean(dim=0), torch.bincount(order[f : count - f].flatten(), minlength=count)

    return reduce


def around_median(keep: int) -> Reducer:
    """Mean of the `keep` values of each coordinate nearest to its median."""

    def reduce(updates: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        middle, _ = make_trimmed_mean((updates.shape[0] - 1) // 2)(updates)
        order = (updates - middle).abs().sort(dim=0, stable=True).indices[:keep]
        return updates.gather(0, order).mean(dim=0), torch.bincount(order.flatten(), minlength=updates.shape[0])

    return reduce
