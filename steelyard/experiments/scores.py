"""Scores of one run: the papers' measures, as pure functions of its history.

x_1, ..., x_T are the accuracies on the test set in the order of the evaluations, or the values of
another metric that the run monitors (`monitor=`). If lower values of that metric are better, the
best value is the lowest. A score is None if the run has no value: nothing was evaluated, or the
target was not reached.

Scores of any other recorded number are written as a function of its key: `mean(gamma,90-110)` is
the mean of gamma over rounds 90 to 110, `deviation(client_loss)` how much the loss varies on a
client's data.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from steelyard.core._errors import SteelyardError
from steelyard.core._round_record import OLD_NAMES, ROUND_RECORD, read_path
from steelyard.runs._history import History
from steelyard.runs._monitor import as_finite_number, is_lower_better

WINDOW = 5


def last(history: History, count: int = 10) -> float | None:
    """Return the mean accuracy of the last `count` evaluations: FedLAW's measure.

    With `count` 10 it is (x_{T-9} + ... + x_T) / 10.
    """
    return _mean_or_none(history.monitored[-count:])


def best(history: History) -> float | None:
    """Return the highest accuracy of any round, max x_t: FedAWA's measure.

    The test set is used to choose the round.
    """
    return history.best


def best_mean(history: History, count: int = 10) -> float | None:
    """Return the mean of the `count` highest accuracies.

    A lucky round has less effect than on the best accuracy alone.
    """
    return _mean_or_none(sorted(history.monitored, key=history.monitor.score)[-count:])


def final(history: History) -> float | None:
    """Return the accuracy of the last evaluation, x_T: the measure of FedCos and PA3Fed."""
    return next(reversed(history.monitored), None)


def rounds_to(history: History, target: float) -> int | None:
    """Return R(a), the first round with accuracy at least `target`: FedAdp's measure.

    None if no round reaches it.
    """
    return history.rounds_to(target)


def speedup(history: History, reference: History, accuracy: float | None = None) -> float | None:
    """Return R_ref(a) / R(a), how many times fewer rounds a run needs: FedCos's measure.

    The paper counts all rounds of the reference, even if it reached a earlier. Here R_ref is the
    first round that reaches a, as for the run, so that the speed-up of a run over itself is 1.0.

    Args:
        history: the run.
        reference: the run to compare with.
        accuracy: a; by default the final accuracy of the reference, as in FedCos, Fig. 7.

    Returns:
        The speed-up; None if one of the runs does not reach a.
    """
    goal = final(reference) if accuracy is None else accuracy
    if goal is None:
        return None
    rounds = history.rounds_to(goal)
    reference_rounds = reference.rounds_to(goal)
    if rounds is None or reference_rounds is None:
        return None
    return reference_rounds / rounds


def saved(history: History, reference: History, accuracy: float | None = None) -> float | None:
    """Return 1 - R(a) / R_ref(a), the share of communication saved; see `speedup`.

    It is negative if the run needs more rounds than the reference.
    """
    times = speedup(history, reference, accuracy)
    return None if times is None else 1 - 1 / times


def seconds(history: History) -> float | None:
    """Return the wall time of all rounds."""
    return _sum_timings(history, "total")


def client_accuracy(history: History, quantile: float, window: int = 10) -> float | None:
    """Return a quantile over clients of the global model's accuracy on their own data.

    It is the mean over the evaluations on clients within the last `window` rounds; if there are
    none, it is taken from the last such evaluation (`evaluate_clients` sets how often clients are
    evaluated). None if clients were never evaluated.

    Args:
        history: the run.
        quantile: from 0, the worst client, to 1, the best; interpolated between clients.
        window: the number of rounds at the end that count.
    """
    evaluations = [record for record in history if record.get("client_accuracy")]
    recent = [record for record in evaluations if record["round"] > len(history) - window]
    values = []
    for record in recent or evaluations[-1:]:
        accuracies = [value for value in record["client_accuracy"].values() if value is not None]
        if accuracies:
            values.append(float(np.quantile(accuracies, quantile)))
    return _mean_or_none(values)


def server_seconds(history: History) -> float | None:
    """Return the wall time of aggregation in all rounds."""
    return _sum_timings(history, "aggregate")


def _sum_timings(history: History, stage: str) -> float | None:
    """Return the time of a stage in all rounds; None if it is not recorded."""
    timings = [record.get("timings", {}) for record in history]
    times = [timing[stage] for timing in timings if stage in timing]
    return sum(times) if times else None


def void_rounds(history: History) -> int:
    """Return how many rounds changed nothing because no update could be used."""
    return sum(bool(record.get("void")) for record in history)


@dataclass(frozen=True)
class Stability:
    """PA3Fed's Table 1: how much a curve varies. Lower values are steadier.

    The paper names the measures but gives no formulas. The formulas here agree with the order of
    its numbers: its moving deviation (0.019) is far below its deviation (0.089), so it is taken
    within windows; its change rate (0.270) is below its range (0.307), so it is a difference, not a
    quotient.

    Attributes:
        deviation: sqrt(sum (x_t - mean)^2 / T). The paper does not say whether it divides by T or
            T - 1.
        moving: mean over t of the deviation of (x_{t-w+1}, ..., x_t). The paper does not give w; it
            is 5 here.
        absolute: sum |x_t - mean| / T.
        range: max x_t - min x_t.
        change: max |x_t - x_{t-1}|.
    """

    deviation: float
    moving: float
    absolute: float
    range: float
    change: float


def stability(history: History, column: str = "accuracy", window: int = WINDOW) -> Stability | None:
    """Return the five measures of a curve; None for fewer than two points.

    Args:
        history: the run.
        column: the curve: `accuracy`, `loss`, `client_loss.3` (the loss on the data of client 3),
            ... (the paper does not say which). For a number by client, such as `client_loss`, the
            measures are means over clients.
        window: the length of a window; a shorter curve is one window.
    """
    if window < 2:
        raise SteelyardError(f"window={window}: use at least 2")
    curves = [curve for curve in read_curves(history, column) if len(curve) > 1]
    if not curves:
        return None
    measures = {
        name: _mean([of(curve, window) for curve in curves]) for name, of in _VARIATIONS.items()
    }
    return Stability(**measures)


def _deviation(curve: Sequence[float], _: int = WINDOW) -> float:
    mean = sum(curve) / len(curve)
    return math.sqrt(sum((x - mean) ** 2 for x in curve) / len(curve))


def _moving_deviation(curve: Sequence[float], window: int) -> float:
    width = min(window, len(curve))
    starts = range(len(curve) - width + 1)
    return _mean([_deviation(curve[start : start + width]) for start in starts])


def _absolute_deviation(curve: Sequence[float], _: int) -> float:
    mean = _mean(curve)
    return _mean([abs(x - mean) for x in curve])


def _range(curve: Sequence[float], _: int) -> float:
    return max(curve) - min(curve)


def _largest_change(curve: Sequence[float], _: int) -> float:
    return max(abs(b - a) for a, b in pairwise(curve))


_VARIATIONS: dict[str, Callable[[Sequence[float], int], float]] = {
    "deviation": _deviation,
    "moving": _moving_deviation,
    "absolute": _absolute_deviation,
    "range": _range,
    "change": _largest_change,
}
"""The measures of `Stability`, as functions of a curve of two points or more and a window."""


def read_curves(
    history: History, key: str, first: int = 1, last: int | None = None
) -> list[list[float]]:
    """Return the values of a recorded number, in the order of rounds.

    Args:
        history: the run.
        key: a number (`gamma`), a dotted path (`timings.aggregate`, `client_loss.3`), or a number
            by client (`client_loss`).
        first: the first round that counts.
        last: the last round that counts; all rounds from the first on by default.

    Returns:
        One curve; for a number by client, one curve per client; none if nothing is on record.
    """
    path = history.find_key(key)
    curves: dict[str, list[float]] = {}
    for record in history:
        if record["round"] < first or (last is not None and record["round"] > last):
            continue
        value = read_path(record, path)
        by_client = value if isinstance(value, Mapping) else {"": value}
        for client, number in by_client.items():
            if isinstance(number, (int, float)):
                curves.setdefault(client, []).append(float(number))
    return list(curves.values())


@dataclass(frozen=True)
class Score:
    """A score of a run, and how it is shown.

    Attributes:
        name: the name for `--metric`.
        title: the title for captions.
        of: a function of a run and a target that returns the score.
        higher: whether higher values are better.
        percent: whether it is shown in percent.
        unit: the unit of a difference.
        words: the verb, and the words for more and less, in a sentence about a difference.
        digits: the number of decimals in a table; by default two in percent, otherwise one.
        is_of_curve: whether it is a score of the monitored metric, and not of clients or time.
    """

    name: str
    title: str
    of: Callable[[History, float | None], float | None]
    higher: bool = True
    percent: bool = True
    unit: str = "points"
    words: tuple[str, str, str] = ("is", "above", "below")
    digits: int | None = None
    is_of_curve: bool = True

    def to_display(self, value: float) -> float:
        """Return a value in the unit in which it is shown."""
        return 100 * value if self.percent else value


def _rounds_to_target(history: History, target: float | None) -> float | None:
    if target is None:
        raise SteelyardError(
            "metric 'rounds': no target is given: use --target 0.9, or target = 0.9 in the file"
        )
    return rounds_to(history, target)


def _stability_of(name: str) -> Callable[[History, float | None], float | None]:
    """Return a function that computes one measure of `Stability` of the monitored metric."""

    def of(history: History, _: float | None) -> float | None:
        measures = stability(history, history.monitor.metric)
        if measures is None:
            return None
        value: float = getattr(measures, name)
        return value

    return of


_TAKES = ("takes", "more than", "less than")
_STABILITY_TITLES = {
    "deviation": "standard deviation of the accuracy curve",
    "moving": "moving standard deviation of the accuracy curve",
    "absolute": "mean absolute deviation of the accuracy curve",
    "range": "range of the accuracy curve",
    "change": "largest change of accuracy between evaluations",
}


def _time_score(name: str, title: str, measure: Callable[[History], float | None]) -> Score:
    """Return a score in seconds, of which lower values are better."""
    return Score(
        name,
        title,
        lambda history, _: measure(history),
        higher=False,
        percent=False,
        unit="seconds",
        words=_TAKES,
        is_of_curve=False,
    )


SCORES = {
    score.name: score
    for score in (
        Score(
            "last10", "accuracy, mean of the last 10 evaluations", lambda history, _: last(history)
        ),
        Score("best", "accuracy of the best round", lambda history, _: best(history)),
        Score(
            "best10", "accuracy, mean of the 10 best rounds", lambda history, _: best_mean(history)
        ),
        Score("final", "accuracy of the last evaluation", lambda history, _: final(history)),
        Score(
            "rounds",
            "rounds to the target accuracy",
            _rounds_to_target,
            higher=False,
            percent=False,
            unit="rounds",
            words=_TAKES,
        ),
        Score(
            "worst_client",
            "accuracy on the worst client's own data, mean of the last 10 rounds",
            lambda history, _: client_accuracy(history, 0.0),
            is_of_curve=False,
        ),
        Score(
            "client_q10",
            "accuracy on clients' own data that 90 % of them exceed, mean of the last 10 rounds",
            lambda history, _: client_accuracy(history, 0.1),
            is_of_curve=False,
        ),
        _time_score("seconds", "wall time of all rounds", seconds),
        _time_score("server_seconds", "wall time of aggregation, all rounds", server_seconds),
        Score(
            "void_rounds",
            "rounds that changed nothing",
            lambda history, _: void_rounds(history),
            higher=False,
            percent=False,
            unit="rounds",
            words=("has", "more than", "fewer than"),
            is_of_curve=False,
        ),
        *(
            Score(name, title, _stability_of(name), higher=False)
            for name, title in _STABILITY_TITLES.items()
        ),
    )
}


def find_score(name: str, histories: Sequence[History] = ()) -> Score:
    """Return a score by name.

    Args:
        name: one of `SCORES`, which is applied to the metric that the runs monitor; a recorded
            number, such as `loss` or a metric of the user, of which the last value is the score; or
            a function of a recorded number: `mean(gamma)`, `mean(gamma,90-110)` over these rounds
            only, `deviation(client_loss)` and the other measures of `Stability`. Of a number by
            client, it is the mean over clients.
        histories: the runs to score.

    Examples:
        >>> history = History("h", [{"round": 1, "gamma": 0.5}, {"round": 2, "gamma": 1.0}])
        >>> find_score("mean(gamma,1-2)").of(history, None)
        0.75
    """
    # A score with a name of its own.
    if name in SCORES:
        return of_monitored(SCORES[name], histories)

    # A function of a recorded number.
    if name.endswith(")"):
        return _parse_curve_score(name, histories)

    # The last value of a recorded number.
    recorded = _find_recorded_numbers(histories)
    if name not in recorded:
        name = OLD_NAMES.get(name, name)
    if name not in (*recorded, "loss"):
        names = ", ".join(SCORES)
        if recorded:
            names += f"; or a number on record: {', '.join(recorded)}"
        raise SteelyardError(f"metric {name!r}: unknown: use one of {names}")
    modes = {history.monitor.mode for history in histories if history.monitor.metric == name}
    higher = "max" in modes if len(modes) == 1 else not is_lower_better(name)
    percent = name == "accuracy"

    def of(history: History, _: float | None) -> float | None:
        return next(reversed(history.column(name)), None)

    return Score(
        name,
        f"{name} of the last evaluation",
        of,
        higher,
        percent,
        unit="points" if percent else name,
        digits=2 if percent else 4,
    )


_CURVE_SCORE = re.compile(r"(?P<function>\w+)\((?P<key>.+?)(,\s*(?P<first>\d+)-(?P<last>\d+))?\)")
_CURVE_TITLES = {
    "mean": "mean",
    "deviation": "standard deviation",
    "moving": "moving standard deviation",
    "absolute": "mean absolute deviation",
    "range": "range",
    "change": "largest change",
}


def _parse_curve_score(text: str, histories: Sequence[History]) -> Score:
    """Return the score of a text such as `mean(gamma,90-110)`.

    Args:
        text: a function, a key and possibly the first and last round that count.
        histories: the runs to score; if there are some, one of them must have the key.
    """
    # Read the text.
    match = _CURVE_SCORE.fullmatch(text)
    if match is None or match["function"] not in _CURVE_TITLES:
        functions = ", ".join(_CURVE_TITLES)
        raise SteelyardError(
            f"metric {text!r}: write FUNCTION(KEY) or FUNCTION(KEY,FIRST-LAST), such as "
            f"mean(gamma,90-110): the functions are {functions}"
        )
    function = match["function"]
    key = match["key"].strip()
    first = int(match["first"] or 1)
    last = None if match["last"] is None else int(match["last"])
    if last is not None and last < first:
        raise SteelyardError(f"metric {text!r}: the last round, {last}, is before the first")
    if histories and not any(read_curves(history, key) for history in histories):
        recorded = ", ".join(_find_recorded_numbers(histories))
        raise SteelyardError(f"metric {text!r}: {key!r} is not on record; the runs have {recorded}")

    # Define the score.
    def of(history: History, _: float | None) -> float | None:
        curves = read_curves(history, key, first, last)
        if function == "mean":
            return _mean_or_none([_mean(curve) for curve in curves])
        measure = _VARIATIONS[function]
        return _mean_or_none([measure(curve, WINDOW) for curve in curves if len(curve) > 1])

    # Say how it is shown.
    title = f"{_CURVE_TITLES[function]} of {key}"
    if last is not None:
        title += f", rounds {first} to {last}"
    higher = function == "mean" and not is_lower_better(key)
    percent = _is_shown_in_percent(key)
    unit = "points" if percent else key
    digits = 2 if percent else 4
    return Score(text, title, of, higher, percent, unit, digits=digits, is_of_curve=False)


def _is_shown_in_percent(key: str) -> bool:
    """Return whether a recorded number is an accuracy."""
    entry = ROUND_RECORD.get(key.partition(".")[0])
    return entry is not None and (entry.unit, entry.better) == ("share", "higher")


def of_monitored(measure: Score, histories: Sequence[History], strict: bool = True) -> Score:
    """Return a score of accuracy as a score of the metric that the runs monitor.

    Args:
        measure: the score.
        histories: the runs.
        strict: raise an error if the runs monitor different metrics; otherwise return the score
            unchanged.
    """
    # Find the monitored metric.
    pairs = [(history.monitor.metric, history.monitor.mode) for history in histories]
    monitors = list(dict.fromkeys(pairs))
    if not measure.is_of_curve or not monitors or monitors == [("accuracy", "max")]:
        return measure
    if len(monitors) > 1 and not strict:
        return measure
    if len(monitors) > 1:
        names = " and ".join(name for name, _ in monitors[:3])
        raise SteelyardError(
            f"metric {measure.name!r}: the runs monitor different metrics ({names}): "
            "name one that all have on record, such as loss"
        )

    # Change the title, the direction and the unit.
    name, mode = monitors[0]
    title = measure.title.replace("accuracy", name)
    if measure.name == "rounds":
        return replace(measure, title=title)
    higher = measure.higher and mode == "max"
    return replace(measure, title=title, higher=higher, percent=False, unit=name, digits=4)


def _find_recorded_numbers(histories: Sequence[History]) -> list[str]:
    """Return the names of numbers that rounds record."""
    names: set[str] = set()
    for history in histories:
        for record in history:
            names.update(
                name for name, value in record.items() if as_finite_number(value) is not None
            )
    return sorted(names - {"round"})


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _mean_or_none(values: Sequence[float]) -> float | None:
    return _mean(values) if values else None
