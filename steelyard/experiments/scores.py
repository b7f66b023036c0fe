"""What one run is worth: the papers' measures, as pure functions of its history.

x_1, ..., x_T are the accuracies on the test set, in the order they were measured, or the values of another metric if
the run monitored that (`monitor=`); the best is then the least, where less is better. A measure that a run does not
have is None: nothing was evaluated, or the target was not reached.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from steelyard.core.errors import SteelyardError
from steelyard.runs.history import History
from steelyard.runs.monitor import is_lower_better, read_number

WINDOW = 5


def last(history: History, count: int = 10) -> float | None:
    """Mean accuracy of the last `count` evaluations, (x_{T-9} + ... + x_T) / 10: FedLAW's measure."""
    return _mean(history.monitored[-count:])


def best(history: History) -> float | None:
    """The highest accuracy of any round, max x_t: FedAWA's measure. It looks at the test set to choose the round."""
    return history.best


def best_mean(history: History, count: int = 10) -> float | None:
    """Mean of the `count` highest accuracies: less of a lucky round than the best alone."""
    return _mean(sorted(history.monitored, key=history.monitor.score)[-count:])


def final(history: History) -> float | None:
    """The accuracy of the last evaluation, x_T: what FedCos and PA3Fed report."""
    return next(reversed(history.monitored), None)


def rounds_to(history: History, target: float) -> int | None:
    """R(a): the first round with accuracy at least `target`: FedAdp's measure. None if no round has it."""
    return history.rounds_to(target)


def speedup(history: History, reference: History, accuracy: float | None = None) -> float | None:
    """R_ref(a) / R(a): how many times fewer rounds than the reference until accuracy a: FedCos's measure.

    By default a is the final accuracy of the reference, as in FedCos, Fig. 7. The paper counts all rounds of the
    reference, even if it was as good before its end; R_ref here is the first round that reached a, for both alike, so
    that a run is 1.0 times itself. None if either does not reach a.
    """
    wanted = final(reference) if accuracy is None else accuracy
    if wanted is None:
        return None
    ours, theirs = history.rounds_to(wanted), reference.rounds_to(wanted)
    return None if ours is None or theirs is None else theirs / ours


def saved(history: History, reference: History, accuracy: float | None = None) -> float | None:
    """1 - R(a) / R_ref(a): the share of communication saved; negative if more was needed."""
    times = speedup(history, reference, accuracy)
    return None if times is None else 1 - 1 / times


def seconds(history: History) -> float | None:
    """Wall time of all rounds together."""
    times = [record["timings"]["total"] for record in history if "total" in record.get("timings", {})]
    return sum(times) if times else None


def client_accuracy(history: History, quantile: float, window: int = 10) -> float | None:
    """Return a quantile over clients of the global model's accuracy on each client's own data; 0 is the worst client.

    It is the mean over the evaluations on clients within the last `window` rounds, or else the last one there is
    (`evaluate_clients` says how often clients are evaluated). None if clients were never evaluated.

    Args:
        history: of the run.
        quantile: from 0, the worst client, to 1, the best; between clients it is interpolated.
        window: rounds from the end that count.
    """
    evaluations = [record for record in history if record.get("client_accuracy")]
    recent = [record for record in evaluations if record["round"] > len(history) - window]
    values = []
    for record in recent or evaluations[-1:]:
        accuracies = [value for value in record["client_accuracy"].values() if value is not None]
        if accuracies:
            values.append(float(np.quantile(accuracies, quantile)))
    return _mean(values)


def server_seconds(history: History) -> float | None:
    """Return the time of aggregation, all rounds together."""
    times = [record["timings"]["aggregate"] for record in history if "aggregate" in record.get("timings", {})]
    return sum(times) if times else None


def void_rounds(history: History) -> int:
    """Return how many rounds changed nothing, since no client's update could be used."""
    return sum(bool(record.get("void")) for record in history)


@dataclass(frozen=True)
class Stability:
    """PA3Fed's Table 1: how much a curve swings. The smaller, the steadier.

    The paper names the measures and gives no formula. The readings here agree with the order of its numbers: its
    moving deviation (0.019) is far below its deviation (0.089), so it is taken within windows, and its change rate
    (0.270) is below its range (0.307), so it is a difference and no quotient.

    Attributes:
        deviation: sqrt(sum (x_t - mean)^2 / T). The paper does not say whether it divides by T or T - 1.
        moving: mean over t of the deviation of (x_{t-w+1}, ..., x_t). The paper does not say w; 5 here.
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
    """The five measures on the curve of `accuracy` or `loss` (the paper does not say which); None without two points.

    A curve shorter than the window is one window.
    """
    if window < 2:
        raise SteelyardError(f"window={window}: use at least 2")
    curve: list[float] = history.column(column)
    if len(curve) < 2:
        return None
    middle = sum(curve) / len(curve)
    width = min(window, len(curve))
    windows = [_deviation(curve[start : start + width]) for start in range(len(curve) - width + 1)]
    return Stability(
        deviation=_deviation(curve),
        moving=sum(windows) / len(windows),
        absolute=sum(abs(x - middle) for x in curve) / len(curve),
        range=max(curve) - min(curve),
        change=max(abs(b - a) for a, b in pairwise(curve)),
    )


@dataclass(frozen=True)
class Metric:
    """A measure, and how to speak of it.

    Attributes:
        name: as in `--metric`.
        title: for a caption.
        of: the measure of a run; it is given the target, too.
        higher: whether more is better.
        percent: shown times 100, in points.
        unit: of a difference.
        words: a run's verb, and the words for more and less than another.
        digits: decimals in a table; two in percent, else one, if not given.
        is_of_curve: whether it measures the curve of the monitored metric, and not clients or time.
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
        """In the unit it is shown in."""
        return 100 * value if self.percent else value


def _reach(history: History, target: float | None) -> float | None:
    if target is None:
        raise SteelyardError("metric 'rounds': no target is given: use --target 0.9, or target = 0.9 in the file")
    return rounds_to(history, target)


def _steady(name: str) -> Callable[[History, float | None], float | None]:
    def of(history: History, _: float | None) -> float | None:
        measures = stability(history, history.monitor.metric)
        value: float | None = None if measures is None else getattr(measures, name)
        return value

    return of


_TAKES = ("takes", "more than", "less than")


def _in_seconds(name: str, title: str, measure: Callable[[History], float | None]) -> Metric:
    """Return a measure of time, which is the better the smaller it is."""
    return Metric(
        name,
        title,
        lambda history, _: measure(history),
        higher=False,
        percent=False,
        unit="seconds",
        words=_TAKES,
        is_of_curve=False,
    )


METRICS = {
    metric.name: metric
    for metric in (
        Metric("last10", "accuracy, mean of the last 10 evaluations", lambda history, _: last(history)),
        Metric("best", "accuracy of the best round", lambda history, _: best(history)),
        Metric("best10", "accuracy, mean of the 10 best rounds", lambda history, _: best_mean(history)),
        Metric("final", "accuracy of the last evaluation", lambda history, _: final(history)),
        Metric("rounds", "rounds to the target accuracy", _reach, False, False, "rounds", _TAKES),
        Metric(
            "worst_client",
            "accuracy on the worst client's own data, mean of the last 10 rounds",
            lambda history, _: client_accuracy(history, 0.0),
            is_of_curve=False,
        ),
        Metric(
            "client_q10",
            "accuracy on clients' own data that 90 % of them exceed, mean of the last 10 rounds",
            lambda history, _: client_accuracy(history, 0.1),
            is_of_curve=False,
        ),
        _in_seconds("seconds", "wall time of all rounds", seconds),
        _in_seconds("server_seconds", "wall time of aggregation, all rounds", server_seconds),
        Metric(
            "void_rounds",
            "rounds that changed nothing",
            lambda history, _: void_rounds(history),
            higher=False,
            percent=False,
            unit="rounds",
            words=("has", "more than", "fewer than"),
            is_of_curve=False,
        ),
        Metric("deviation", "standard deviation of the accuracy curve", _steady("deviation"), False),
        Metric("moving", "moving standard deviation of the accuracy curve", _steady("moving"), False),
        Metric("absolute", "mean absolute deviation of the accuracy curve", _steady("absolute"), False),
        Metric("range", "range of the accuracy curve", _steady("range"), False),
        Metric("change", "largest change of accuracy between evaluations", _steady("change"), False),
    )
}


def metric(name: str, histories: Sequence[History] = ()) -> Metric:
    """Return a measure by name.

    Args:
        name: one of `METRICS`, of the metric that the runs monitor; or a number that their rounds have on record, such
            as `loss` or a metric of the user's own: its last value.
        histories: the runs to be measured.
    """
    if name in METRICS:
        return of_monitored(METRICS[name], histories)
    recorded = _numbers_on_record(histories)
    if name not in (*recorded, "loss"):
        also = f"; or a number on record: {', '.join(recorded)}" if recorded else ""
        raise SteelyardError(f"metric {name!r}: unknown: use one of {', '.join(METRICS)}{also}")
    modes = {history.monitor.mode for history in histories if history.monitor.metric == name}
    higher = "max" in modes if len(modes) == 1 else not is_lower_better(name)
    percent = name == "accuracy"

    def of(history: History, _: float | None) -> float | None:
        return next(reversed(history.column(name)), None)

    unit = "points" if percent else name
    return Metric(name, f"{name} of the last evaluation", of, higher, percent, unit, digits=2 if percent else 4)


def of_monitored(measure: Metric, histories: Sequence[History], strict: bool = True) -> Metric:
    """Return a measure of accuracy as one of the metric that the runs monitor, if that is another one.

    Runs that monitor different metrics are an error if `strict`; else the measure stays what it is.
    """
    monitors = list(dict.fromkeys((history.monitor.metric, history.monitor.mode) for history in histories))
    if not measure.is_of_curve or not monitors or monitors == [("accuracy", "max")]:
        return measure
    if len(monitors) > 1 and not strict:
        return measure
    if len(monitors) > 1:
        names = " and ".join(name for name, _ in monitors[:3])
        raise SteelyardError(
            f"metric {measure.name!r}: the runs monitor different metrics ({names}): name one that all have on record, "
            "such as loss"
        )
    name, mode = monitors[0]
    title = measure.title.replace("accuracy", name)
    if measure.name == "rounds":
        return replace(measure, title=title)
    higher = mode == "max" if measure.higher else False
    return replace(measure, title=title, higher=higher, percent=False, unit=name, digits=4)


def _numbers_on_record(histories: Sequence[History]) -> list[str]:
    """Return the names of numbers that rounds have on record."""
    names = {
        name: None
        for history in histories
        for record in history
        for name, value in record.items()
        if name != "round" and read_number(value) is not None
    }
    return sorted(names)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _deviation(values: Sequence[float]) -> float:
    middle = sum(values) / len(values)
    return math.sqrt(sum((x - middle) ** 2 for x in values) / len(values))
