"""Critical learning periods of a finished run: Fig. 3, Fig. 5 and Table 1 of PA3Fed.

The detectors are those of the rules (`rules/_detectors.py`), applied to the recorded FGN (federated
gradient norm). A run records it if its clients report `grad_norm`: rules with a detector need it,
other rules record it with `simulate(..., metrics=("grad_norm", "loss"))`.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.core import checks
from steelyard.core._errors import SteelyardError
from steelyard.core._gram import Array
from steelyard.diagnostics._recorded import Rounds, Run, by_client, client_names, history_of, series
from steelyard.experiments import scores
from steelyard.rules._detectors import Detector, PeriodDetector, gradient_norm, parse_detector

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Periods:
    """The FGN and the critical rounds of a detector.

    Attributes:
        rounds: `[T]`.
        fgn: `[T]`, averaged over clients in the detector's way.
        critical: `[T]`.
    """

    rounds: Rounds
    fgn: Array
    critical: Flags

    @property
    def spans(self) -> list[tuple[int, int]]:
        """First and last round of each critical period."""
        spans: list[tuple[int, int]] = []
        was_critical = False
        for number, is_critical in zip(self.rounds.tolist(), self.critical.tolist(), strict=True):
            if is_critical:
                start = spans.pop()[0] if was_critical else number
                spans.append((start, number))
            was_critical = is_critical
        return spans


def detect(fgn: Sequence[float] | Array, detector: str | Detector = "eq6") -> Flags:
    """Return which rounds of a series of FGN, from round 1 on, a detector calls critical."""
    rule = _parse_period_detector(detector)
    if not np.isfinite(np.asarray(fgn, dtype=np.float64)).all():
        raise SteelyardError("fgn contains NaN or infinity: leave such rounds out")
    state: Any = {}
    flags = []
    for value in fgn:
        critical, state = rule.check(float(value), state)
        flags.append(critical)
    return np.array(flags, dtype=np.bool_)


def _parse_period_detector(detector: str | Detector) -> PeriodDetector:
    """Return a detector of the FGN; raise an error if it looks at something else."""
    rule = parse_detector(detector)
    if not isinstance(rule, PeriodDetector):
        raise SteelyardError(
            f"detector={rule.name}: it does not look at FGN: use eq6, criticalfl_window or always"
        )
    return rule


def critical_periods(run: Run, detector: str | Detector = "eq6") -> Periods:
    """Return the FGN curve of a run with its critical periods (PA3Fed, Fig. 3).

    `detector` is `eq6` (PA3Fed, Eq. 6; `eq6:delta=0.05`), `criticalfl_window` or a detector object.
    A void round has no FGN; the detector skips it, as in the run.
    """
    rule = _parse_period_detector(detector)
    history = history_of(run)
    if rule.average == "median":
        table = by_client(history, "reported.grad_norm")
        rounds = table.rounds
        fgn = np.array([gradient_norm(row[~np.isnan(row)], "median") for row in table.values])
    else:
        rounds, fgn = series(history, "fgn" if rule.average == "weighted" else "fgn_mean")
    return Periods(rounds, fgn, detect(fgn, rule))


def stability(
    run: Run, column: str = "accuracy", window: int = scores.WINDOW
) -> scores.Stability | None:
    """Return the five measures of PA3Fed's Table 1.

    See `steelyard.experiments.scores.stability`.
    """
    return scores.stability(history_of(run), column, window)


@dataclass(frozen=True)
class Deviation:
    """Standard deviation of clients' losses inside and outside critical periods.

    None without such rounds.
    """

    critical: float | None
    rest: float | None


def loss_deviation(
    run: Run, periods: Periods | Detector | str = "eq6", over: str = "rounds"
) -> Deviation:
    """Return the mean deviation of losses inside and outside critical periods (PA3Fed, Fig. 5).

    The paper records "the loss trajectories of all clients" and averages their deviation. It does
    not say over what the deviation is computed: here over the rounds of each client, or with
    `over="clients"` over the clients of each round. A client that took part once in a period has no
    deviation there and does not count.

    Args:
        run: a run whose clients report `loss`; or `loss_before`, the loss of the global model,
            which is used if there is no `loss`.
        periods: those of the run, or a detector to find them.
        over: `rounds` or `clients`.
    """
    checks.one_of("over", over, "rounds", "clients")
    history = history_of(run)
    if not isinstance(periods, Periods):
        periods = critical_periods(history, periods)
    names = client_names(history)
    only_before = "reported.loss_before" in names and "reported.loss" not in names
    table = by_client(history, "reported.loss_before" if only_before else "reported.loss")
    is_critical = np.isin(table.rounds, periods.rounds[periods.critical])
    axis = 0 if over == "rounds" else 1
    return Deviation(
        _deviation(table.values[is_critical], axis), _deviation(table.values[~is_critical], axis)
    )


def _deviation(losses: Array, axis: int) -> float | None:
    """Return the mean over the other axis of the deviation along this axis.

    Return None if there is none.
    """
    has_several = np.sum(~np.isnan(losses), axis=axis) > 1
    if not has_several.any():
        return None
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", RuntimeWarning
        )  # columns that are all NaN: they are left out
        return float(np.nanstd(losses, axis=axis)[has_several].mean())
