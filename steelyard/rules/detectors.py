"""Critical learning periods: when early training decides the outcome.

FGN, the federated gradient norm, is made of what clients report as `grad_norm`: `eta |g|^2` summed over their steps.

    PA3Fed, Eq. (5)       FGN(t) = sum_i m_i grad_norm_i
    PA3Fed, Eq. (6)       critical if (FGN(t) - FGN(t-1)) / FGN(t-1) > delta
    CriticalFL (Yan et al., KDD 2023), as its code does it: the plain mean over clients; a window of the last 10 values,
                          padded with zeros, against the same window one step earlier; the first 5 checks always
                          critical; checked every 2nd round, the answer holds in between.
    PA3Fed, Fig. 7        `always`: adaptation in every round, the ablation without a period check.

Because of the zero padding the window's mean rises through the first 10 checks for any positive sequence: flat or
falling FGN counts as critical for 20 rounds there, where Eq. (6) never fires. This is the most consequential gap
between PA3Fed's text and CriticalFL's practice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from steelyard.core import checks
from steelyard.core.client_state import State
from steelyard.core.errors import SteelyardError
from steelyard.core.gram import Array
from steelyard.core.needs import Needs
from steelyard.core.registry import Registry
from steelyard.core.spec import parse
from steelyard.core.view import View
from steelyard.core.weighting import Info

_INFO_EQ6 = Info("critical while FGN rises by more than delta", "PA3Fed, Eq. (6)", "yes: one secure sum of a number")
_INFO_ALWAYS = Info("every round counts as critical", "PA3Fed, Fig. 7", "yes: it looks at nothing")
_INFO_WINDOW = Info("CriticalFL's zero-padded window", "Yan et al., KDD 2023", "yes: one secure sum of a number")


class Detector(ABC):
    """Decides for each round whether a gated rule acts.

    Attributes:
        name: the key in text form and in the state.
        info: what the command line says of it.
    """

    name: str
    info: Info

    @property
    @abstractmethod
    def needs(self) -> Needs:
        """What the detector looks at."""

    @abstractmethod
    def critical(self, view: View, state: State) -> tuple[bool, State]:
        """Whether this round is critical, and the state for the next."""


DETECTORS = Registry(
    "detector", Detector, "steelyard.detectors", "steelyard.rules", "detectors go inside gate or pa3fed"
)


class PeriodDetector(Detector):
    """Finds critical learning periods in FGN, the federated gradient norm.

    Attributes:
        average: how FGN is made of the clients' numbers: `weighted`, `mean` or `median`.
    """

    average: str

    @property
    def needs(self) -> Needs:
        """Gradient norms, and sizes if they weigh."""
        return Needs.of("grad_norm", "num_examples") if self.average == "weighted" else Needs.of("grad_norm")

    @abstractmethod
    def check(self, fgn: float, state: State) -> tuple[bool, State]:
        """Whether the round with this FGN is critical."""

    def critical(self, view: View, state: State) -> tuple[bool, State]:
        """Whether this round is critical, and the state for the next."""
        sizes = view.metric("num_examples") if self.average == "weighted" else None
        return self.check(gradient_norm(view.metric("grad_norm"), self.average, sizes), state)


def parse_detector(spec: Any) -> Detector:
    """A detector from its text form (`"eq6:delta=0.05"`); a detector is returned as it is."""
    detector = spec
    if isinstance(spec, str):
        detector = parse(spec, DETECTORS)
    elif isinstance(spec, type):
        detector = spec()
    if not isinstance(detector, Detector):
        names = ", ".join(entry.name for entry in DETECTORS)
        raise SteelyardError(f"detector={spec!r}: not a detector: use {names}")
    return detector


def gradient_norm(norms: Array, average: str, sizes: Array | None = None) -> float:
    """FGN of a round, from the clients' `grad_norm`: `weighted` by `sizes`, their `mean` or their `median`."""
    if average == "weighted":
        assert sizes is not None
        return float((sizes / sizes.sum() * norms).sum())
    return float(np.mean(norms) if average == "mean" else np.median(norms))


@DETECTORS.register
@dataclass(frozen=True)
class Eq6(PeriodDetector):
    """PA3Fed's period check. Round 1 has nothing to compare with: `first` says what it is."""

    delta: float = 0.01
    average: str = "weighted"
    first: bool = True

    name = "eq6"
    info = _INFO_EQ6

    def __post_init__(self) -> None:
        checks.number("delta", self.delta)
        checks.one_of("average", self.average, "weighted", "mean", "median")
        checks.one_of("first", self.first, True, False)

    def check(self, fgn: float, state: State) -> tuple[bool, State]:
        """Equation (6); a rise from zero is a rise."""
        before = state.get("fgn")
        critical = self.first if before is None else fgn - before > self.delta * before
        return bool(critical), {"fgn": fgn}


@DETECTORS.register
@dataclass(frozen=True)
class Always(PeriodDetector):
    """Every round is critical: a rule without a period check (PA3Fed, Fig. 7). It asks nothing of clients."""

    name = "always"
    info = _INFO_ALWAYS
    average = "weighted"

    @property
    def needs(self) -> Needs:
        """Nothing."""
        return Needs()

    def check(self, fgn: float, state: State) -> tuple[bool, State]:
        """Always true; there is nothing to remember."""
        return True, {}

    def critical(self, view: View, state: State) -> tuple[bool, State]:
        """The same without FGN: clients need not report gradient norms."""
        return True, {}


@DETECTORS.register
@dataclass(frozen=True)
class CriticalFLWindow(PeriodDetector):
    """CriticalFL's check, with its constants as options."""

    delta: float = 0.01
    average: str = "mean"
    window: int = 10
    forced: int = 5
    every: int = 2

    name = "criticalfl_window"
    info = _INFO_WINDOW

    def __post_init__(self) -> None:
        checks.number("delta", self.delta)
        checks.one_of("average", self.average, "weighted", "mean", "median")
        checks.integer("window", self.window, 1)
        checks.integer("forced", self.forced)
        checks.integer("every", self.every, 1)

    def check(self, fgn: float, state: State) -> tuple[bool, State]:
        """The first round counts as critical; every `every` rounds the window is looked at again."""
        rounds, flag = state.get("rounds", 0), state.get("critical", True)
        history: list[float] = [*state.get("history", [0.0] * (self.window + 1))]
        done = state.get("checks", 0)
        if rounds % self.every == 0:
            history = [*history, fgn][-self.window - 1 :]
            old, new = max(float(np.mean(history[:-1])), 1e-7), float(np.mean(history[1:]))
            done += 1
            flag = (new - old) / old > self.delta or done <= self.forced
        after: dict[str, Any] = {"rounds": rounds + 1, "critical": flag, "history": history, "checks": done}
        return flag, after
