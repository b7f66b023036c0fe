"""Coordinate-wise rules: median and trimmed mean.

Yin, Chen, Kannan, Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical
Rates", ICML 2018.

They read `[K, n]` chunks in the combine pass, so their coefficients differ between coordinates:
`out.weights` is each client's mean coefficient, and the model is not `base + weights @ updates`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from steelyard.core import checks
from steelyard.core._mixture import Mixture, Reducer
from steelyard.core._needs import Needs
from steelyard.core._registry import RULES
from steelyard.core._state import State
from steelyard.core._view import View
from steelyard.core._weighting import Info, Weighting
from steelyard.rules._krum import withstand


@RULES.register
@dataclass(frozen=True)
class Median(Weighting):
    """The median of each coordinate.

    For an even number of clients, the mean of the two middle values.
    """

    name = "median"
    modifies = False
    info = Info("the median of each coordinate", "Yin et al., ICML 2018")

    @property
    def needs(self) -> Needs:
        """Chunks of updates."""
        return Needs(coordinates=True)

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Return a mixture whose reducer trims all values except the middle one or two."""
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
        """Return a mixture whose reducer trims `f` values on either side."""
        f = withstand(self.f, len(view.ids))
        return by_coordinate(len(view.ids), make_trimmed_mean(f)).add_report(withstands=f), state


def by_coordinate(count: int, reduce: Reducer) -> Mixture:
    """Return the mixture of all clients with this reducer."""
    return replace(Mixture.convex(np.ones((1, count))), reduce=reduce)


def make_trimmed_mean(f: int) -> Reducer:
    """Return a reducer: the mean of each coordinate without the `f` lowest and highest values."""

    def reduce(updates: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        count = updates.shape[0]
        values, order = updates.sort(dim=0, stable=True)
        usage = torch.bincount(order[f : count - f].flatten(), minlength=count)
        return values[f : count - f].mean(dim=0), usage

    return reduce


def around_median(keep: int) -> Reducer:
    """Return a reducer: the mean of the `keep` values nearest to the median of each coordinate."""

    def reduce(updates: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        count = updates.shape[0]
        median, _ = make_trimmed_mean((count - 1) // 2)(updates)
        order = (updates - median).abs().sort(dim=0, stable=True).indices[:keep]
        usage = torch.bincount(order.flatten(), minlength=count)
        return updates.gather(0, order).mean(dim=0), usage

    return reduce
