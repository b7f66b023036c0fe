"""Detectors of critical learning periods, in which early training decides the outcome.

FGN, the federated gradient norm, is computed from the clients' metric `grad_norm`: `eta |g|^2`
summed over their steps.

    PA3Fed, Eq. (5)       FGN(t) = sum_i m_i grad_norm_i
    PA3Fed, Eq. (6)       critical if (FGN(t) - FGN(t-1)) / FGN(t-1) > delta
    CriticalFL (Yan et al., KDD 2023), as in its code: the plain mean over clients; a window of the
                          last 10 values, padded with zeros, is compared with the same window one
                          step earlier; the first 5 checks are always critical; the check runs
                          every 2nd round, and its result is reused in between.
    PA3Fed, Fig. 7        `always`: adaptation in every round, the ablation without a period check.

Because of the zero padding, the window's mean rises during the first 10 checks for any positive
sequence: a flat or falling FGN counts as critical for 20 rounds, where Eq. (6) never does. This is
the most important difference between PA3Fed's text and CriticalFL's code.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from steelyard.core import checks
from steelyard.core._errors import SteelyardError
from steelyard.core._gram import Array
from steelyard.core._needs import Needs
from steelyard.core._registry import Registry
from steelyard.core._spec import parse
from steelyard.core._state import State
from steelyard.core._view import View
from steelyard.core._weighting import Info

_INFO_EQ6 = Info(
    "critical while FGN rises by more than delta",
    "PA3Fed, Eq. (6)",
    "yes: one secure sum of a number",
)
_INFO_ALWAYS = Info("every round counts as critical", "PA3Fed, Fig. 7", "yes: it looks at nothing")
_INFO_WINDOW = Info(
    "CriticalFL's zero-padded window", "Yan et al., KDD 2023", "yes: one secure sum of a number"
)


class Detector(ABC):
    """Decides for each round whether a gated rule is applied.

    Attributes:
        name: the key in spec strings and in the state.
        info: title and paper, shown by the command line.
    """

    name: str
    info: Info

    @property
    @abstractmethod
    def needs(self) -> Needs:
        """What the detector reads."""

    @abstractmethod
    def critical(self, view: View, state: State) -> tuple[bool, State]:
        """Return whether this round is critical, and the state for the next round."""


DETECTORS = Registry(
    "detector",
    Detector,
    "steelyard.detectors",
    "steelyard.rules",
    "detectors go inside gate or pa3fed",
)


class PeriodDetector(Detector):
    """Detects critical learning periods from FGN, the federated gradient norm.

    Attributes:
        average: how FGN is computed from the clients' values: `weighted`, `mean` or `median`.
    """

    average: str

    @property
    def needs(self) -> Needs:
        """Gradient norms, and sizes if the average is weighted."""
        if self.average == "weighted":
            return Needs.of("grad_norm", "num_examples")
        return Needs.of("grad_norm")

    @abstractmethod
    def check(self, fgn: float, state: State) -> tuple[bool, State]:
        """Return whether a round with this FGN is critical, and the state for the next round."""

    def critical(self, view: View, state: State) -> tuple[bool, State]:
        """Return whether this round is critical, and the state for the next round."""
        sizes = view.metric("num_examples") if self.average == "weighted" else None
        fgn = gradient_norm(view.metric("grad_norm"), self.average, sizes)
        return self.check(fgn, state)


def parse_detector(spec: Any) -> Detector:
    """Return the detector of a spec string (`"eq6:delta=0.05"`), a detector class or a detector."""
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
    """Return the FGN of a round from the clients' `grad_norm`.

    Args:
        norms: the clients' values.
        average: `weighted` by `sizes`, or their `mean` or `median`.
        sizes: the clients' numbers of examples.
    """
    if average == "weighted":
        assert sizes is not None
        return float((sizes / sizes.sum() * norms).sum())
    if average == "mean":
        return float(np.mean(norms))
    return float(np.median(norms))


@DETECTORS.register
@dataclass(frozen=True)
class FGNIncrease(PeriodDetector):
    """PA3Fed's period check, Eq. (6).

    Attributes:
        delta: the relative increase of FGN above which a round is critical.
        average: how FGN is computed: `weighted`, `mean` or `median`.
        first: whether round 1, which has no earlier FGN, is critical.
    """

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
        """Apply Equation (6); any increase from zero counts."""
        before = state.get("fgn")
        critical = self.first if before is None else fgn - before > self.delta * before
        return bool(critical), {"fgn": fgn}


@DETECTORS.register
@dataclass(frozen=True)
class Always(PeriodDetector):
    """Every round is critical: a rule without a period check (PA3Fed, Fig. 7).

    Clients need not report anything.
    """

    name = "always"
    info = _INFO_ALWAYS
    average = "weighted"

    @property
    def needs(self) -> Needs:
        """No needs: FGN is not computed."""
        return Needs()

    def check(self, fgn: float, state: State) -> tuple[bool, State]:
        """Return True and an empty state."""
        return True, {}

    def critical(self, view: View, state: State) -> tuple[bool, State]:
        """Return True and an empty state, without computing FGN."""
        return True, {}


@DETECTORS.register
@dataclass(frozen=True)
class CriticalFLWindow(PeriodDetector):
    """CriticalFL's check, with its constants as options.

    Attributes:
        delta: the relative increase of the window's mean above which a round is critical.
        average: how FGN is computed: `weighted`, `mean` or `median`.
        window: number of values in the window.
        forced: number of first checks that are always critical.
        every: number of rounds from one check to the next.
    """

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
        """Check the window every `every` rounds; otherwise return the last result."""
        rounds = state.get("rounds", 0)
        critical = state.get("critical", True)
        history: list[float] = [*state.get("history", [0.0] * (self.window + 1))]
        count = state.get("checks", 0)
        if rounds % self.every == 0:
            history = [*history, fgn][-self.window - 1 :]
            old = max(float(np.mean(history[:-1])), 1e-7)
            new = float(np.mean(history[1:]))
            count += 1
            critical = (new - old) / old > self.delta or count <= self.forced
        after: dict[str, Any] = {
            "rounds": rounds + 1,
            "critical": critical,
            "history": history,
            "checks": count,
        }
        return critical, after


# angle_gap: detects a group of clients that agree with each other but not with the rest.
#
# Let c_k be the cosine of client k's update to the sum of the other updates. If some clients have
# data of all classes and the others of few, the c_k form two groups with a wide gap between them:
# 0.7 and below 0 (three IID clients and seven with one class). Under Dirichlet label skew they
# are
# spread evenly. Rules that favour agreement, such as FedAdp, gain in the first case and lose in
# the
# second: `gate(angle_gap, fedadp)` applies them in the first case only.


@DETECTORS.register
@dataclass(frozen=True)
class AngleGap(Detector):
    """Critical if two neighbouring cosines differ by more than `gap`, with `group` or more clients above.

    Attributes:
        gap: the smallest difference between the two groups.
        group: the smallest number of clients in the upper group.
    """

    gap: float = 0.35
    group: int = 2

    name = "angle_gap"
    info = Info("open while a group of clients agrees, apart from the others")

    def __post_init__(self) -> None:
        checks.number("gap", self.gap, 0.0, 2.0)
        checks.integer("group", self.group, 1)

    @property
    def needs(self) -> Needs:
        """The Gram, for cosines between updates."""
        return Needs.of(gram=True)

    def critical(self, view: View, state: State) -> tuple[bool, State]:
        """Return whether a gap exceeds the threshold; the state is empty."""
        count = len(view.ids)
        equal = np.full((1, count), 1 / count)
        cosines = np.sort(view.gram.merge_layers().cosines_to_others(equal)[0])
        gaps = np.diff(cosines)
        # The gap below the n-th largest cosine has n clients above it.
        candidates = gaps[: max(0, count - self.group)]
        return bool((candidates > self.gap).any()), {}
