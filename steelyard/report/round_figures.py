"""Figures over rounds: accuracy, loss, coherence and whatever else rounds put on record as a number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from steelyard.diagnostics.coherence import critical_point
from steelyard.experiments.scores import rounds_to
from steelyard.experiments.statistics import mean
from steelyard.report.figures import Bars, Figure, Mark, Section, Span, Table, Value, by_round, shorten_name
from steelyard.report.series import Read, Series, as_number, critical_rounds, mean_of, number, stretches

_BAND = "Lines are means over seeds, bands one standard deviation either way: where bands overlap, little is certain."
_ONE_SEED = "One seed: how much of it is chance, it does not say."
_ELSEWHERE = {"round", "accuracy", "loss", "critical", "lr", "simulated_duration"}  # have a figure of their own


@dataclass(frozen=True)
class Curve:
    """How to speak of a number that rounds put on record."""

    title: str
    y: str
    caption: str
    section: Section = "Geometry of the updates"


_LEARNED: Section = "What the rule learned"
_KNOWN = {
    "effective_clients": Curve(
        "Effective clients",
        "effective clients",
        "One over the sum of squared weights: how many clients with equal weights would mix as much; near one, a "
        "single client decides.",
        "Weights",
    ),
    "gamma": Curve(
        "Gamma, the global shrinking factor",
        "gamma",
        "What the averaged model is multiplied by: below one the rule pulls the weights towards zero, as weight decay "
        "would.",
        _LEARNED,
    ),
    "gamma_product": Curve(
        "Product of all gammas so far", "product", "What the first model has been multiplied by in all.", _LEARNED
    ),
    "update_norm": Curve(
        "Length of the global update", "norm", "How far the server's model moves; it should settle as training does."
    ),
    "param_norm": Curve("Length of the global model", "norm", "Growth without end speaks for more weight decay."),
    "mean_cosine": Curve(
        "Mean cosine between clients",
        "cosine",
        "How much clients agree: one if all point the same way, zero if at right angles.",
    ),
    "moved": Curve("Mean length of clients' updates", "norm", "How far clients move from the model they are sent."),
    "spread": Curve("Spread of local models", "distance", "Mean distance between local models: client drift."),
    "weighted_cosine": Curve(
        "Weighted cosine to the mean update",
        "cosine",
        "FedAdp's Theorem 1: the higher this sum of weight times cosine, the faster the loss falls.",
    ),
    "divergence": Curve(
        "Divergence of the updates", "divergence", "How far clients' updates are from their mean by size."
    ),
    "shrinking": Curve("Shrinking", "norm", "Length of the step that gamma makes towards zero.", _LEARNED),
    "shrinking_ratio": Curve(
        "Global step over shrinking", "r", "FedLAW's r: the step over the pull to zero.", _LEARNED
    ),
    "fgn": Curve("Federated gradient norm", "FGN", "Weighted by size (PA3Fed): critical while it rises.", _LEARNED),
    "fgn_mean": Curve("Federated gradient norm, plain mean", "FGN", "CriticalFL's: critical while it rises.", _LEARNED),
}


def results(series: Sequence[Series], targets: Sequence[float], own: Sequence[str] = ()) -> list[Figure]:
    """Accuracy, loss, the user's own metrics, and rounds to a target."""
    made = [
        over_rounds(
            series,
            "accuracy",
            lambda record: None if (value := as_number(record.get("accuracy"))) is None else 100 * value,
            Curve(
                "Accuracy on the test set",
                "accuracy, %",
                _ONE_SEED,
                "Results",
            ),
        ),
        over_rounds(
            series,
            "loss",
            number("loss"),
            Curve(
                "Loss on the test set",
                "loss",
                "A loss that rises while accuracy stands still is overfitting.",
                "Results",
            ),
        ),
        *(over_rounds(series, name, number(name), _own_curve(name)) for name in own),
    ]
    figures = [with_periods(_with_band(figure), series) for figure in made if figure is not None]
    return [*figures, *([reach(series, targets)] if targets else [])]


def _own_curve(name: str) -> Curve:
    return Curve(f"{name} on the test set", name, _ONE_SEED, "Results")


def _with_band(figure: Figure) -> Figure:
    """Return a figure whose caption explains its bands, if it has any and says nothing else."""
    has_band = any(line.high for line in figure.lines)
    return replace(figure, caption=_BAND) if has_band and figure.caption == _ONE_SEED else figure


def over_rounds(series: Sequence[Series], name: str, read: Read, curve: Curve) -> Figure | None:
    """One line per series; None if no run has the number."""
    lines = tuple(line for one in series if (line := one.line(read)) is not None and line.x)
    if not lines:
        return None
    return Figure(name, curve.title, curve.caption, curve.section, "round", curve.y, by_round(lines), lines=lines)


def with_periods(figure: Figure, series: Sequence[Series]) -> Figure:
    """With critical periods shaded, where a rule knows them."""
    shown = {line.name for line in figure.lines}
    spans = tuple(
        Span(one.name, one.style, *stretch)
        for one in series
        if one.name in shown
        for stretch in stretches(critical_rounds(one))
    )
    if not spans:
        return figure
    whose = list(dict.fromkeys(span.name for span in spans))
    of = shorten_name(whose[0]) if len(whose) == 1 else "the series of that colour"
    return replace(figure, spans=spans, caption=f"{figure.caption} Shaded: critical periods of {of}.")


def reach(series: Sequence[Series], targets: Sequence[float]) -> Figure:
    """Rounds until an accuracy, or another metric that the runs monitor, of those seeds that got there."""
    metric = monitored_metric(series)
    bars, rows = [], []
    for one in series:
        found = [[at for run in one.runs if (at := rounds_to(run.history, t)) is not None] for t in targets]
        bars.append(Bars(one.name, one.style, tuple(mean(values) if values else None for values in found)))
        cells: list[Value] = [one.name]
        for values in found:
            cells += [mean(values) if values else None, f"{len(values)} of {len(one.runs)}"]
        rows.append(tuple(cells))
    names = tuple(target_text(target, metric) for target in targets)
    heads = ("series", *(head for name in names for head in (f"rounds to {name}", f"got to {name}")))
    return Figure(
        "rounds",
        "Rounds to a target",
        f"Communication rounds until the test {metric} is first reached, a mean over the seeds that reach it; no bar "
        "where none does.",
        "Results",
        metric,
        "rounds",
        Table(heads, tuple(rows), (None, *(1, None) * len(names))),
        bars=tuple(bars),
        categories=names,
    )


def monitored_metric(series: Sequence[Series]) -> str:
    """Return the metric that the runs monitor; that of the first, if they differ."""
    return series[0].first.history.monitor.metric


def target_text(target: float, metric: str) -> str:
    """Return a target as text: accuracies in percent."""
    return f"{100 * target:g} %" if metric == "accuracy" else f"{target:g}"


def coherence(series: Sequence[Series]) -> Figure | None:
    """Coherence, with the point at which it is near zero."""
    figure = over_rounds(
        series,
        "coherence",
        number("coherence"),
        Curve(
            "Local gradient coherence",
            "coherence",
            "How much clients pull the same way (FedLAW, Def. 5.1); rings mark the critical point, where it first "
            "falls to 5 % of its peak.",
        ),
    )
    if figure is None:
        return None
    marks = []
    for line in figure.lines:
        place = critical_point(line.y)
        if place is not None:
            at = place - 1
            marks.append(Mark(line.name, line.style, line.x[at], line.y[at], "critical point"))
    said = ", ".join(f"round {mark.x} of {shorten_name(mark.name)}" for mark in marks) or "no series comes so low"
    figure = replace(figure, marks=tuple(marks), caption=f"{figure.caption} Here: {said}.")
    return with_periods(figure, series)


def others(series: Sequence[Series], sections: Iterable[Section]) -> list[Figure]:
    """Every other number on record, and means of what is on record by client."""
    wanted = set(sections)
    made: list[Figure | None] = []
    for name in _numbers(series):
        curve = _KNOWN.get(name) or Curve(
            name.replace("_", " "), name, "As the rule or a callback puts it on record.", _LEARNED
        )
        if curve.section in wanted:
            made.append(over_rounds(series, name, number(name), curve))
    if "Geometry of the updates" in wanted:
        cosines = Curve("Cosine to the global update, mean", "cosine", "Near one, clients agree with the mix of them.")
        made.append(over_rounds(series, "mean_cosines", mean_of("cosines"), cosines))
        along = Curve("Cosine to the direction sent, mean", "cosine", "FedCos's penalty raises it.")
        made.append(over_rounds(series, "mean_direction_cosines", mean_of("direction_cosines"), along))
    return [figure for figure in made if figure is not None]


def rates(series: Sequence[Series]) -> list[Figure]:
    """The learning rate, if it changes; how long rounds would take, if that is simulated."""
    made = [
        over_rounds(series, "lr", number("lr"), Curve("Learning rate", "rate", "By the schedule.", "Cost")),
        over_rounds(
            series,
            "simulated_duration",
            number("simulated_duration"),
            Curve("Simulated duration of a round", "steps", "Set by the slowest client waited for.", "Cost"),
        ),
    ]
    return [f for f in made if f is not None and any(len(set(line.y)) > 1 for line in f.lines)]


def _numbers(series: Sequence[Series]) -> list[str]:
    """Names of numbers on record that have no figure of their own, known ones first."""
    found = {
        name: None
        for one in series
        for run in one.runs
        for record in run.history
        for name, value in record.items()
        if as_number(value) is not None
    }
    free = [name for name in found if name not in _ELSEWHERE and name != "coherence"]
    return [name for name in _KNOWN if name in free] + sorted(name for name in free if name not in _KNOWN)
