"""Figures over rounds: accuracy, loss, coherence and all other numbers that rounds record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from steelyard.diagnostics.coherence import critical_point
from steelyard.experiments.scores import rounds_to
from steelyard.experiments.statistics import mean
from steelyard.report.figures import (
    Bars,
    Figure,
    Mark,
    Section,
    Span,
    Table,
    Value,
    make_round_table,
    shorten_name,
)
from steelyard.report.series import (
    Read,
    Series,
    as_number,
    find_critical_rounds,
    group_consecutive,
    read_mean,
    read_number,
)

_BAND = (
    "Lines are means over seeds, bands one standard deviation above and below: "
    "where bands overlap, little is certain."
)
_ONE_SEED = "One seed: it does not tell how much is due to chance."
# Numbers with a figure of their own.
_EXCLUDED = {
    "round",
    "accuracy",
    "loss",
    "critical",
    "coherence",
    "lr",
    "simulated_duration",
}


@dataclass(frozen=True)
class Description:
    """How a number that rounds record is shown.

    Attributes:
        title: the title of the figure.
        y: the label of the y axis.
        caption: what to look for.
        section: the section of the page.
    """

    title: str
    y: str
    caption: str
    section: Section = "Geometry of the updates"


_LEARNED: Section = "What the rule learned"
_DESCRIPTIONS = {
    "effective_clients": Description(
        "Effective clients",
        "effective clients",
        "One divided by the sum of squared weights: the number of equally weighted clients that "
        "would "
        "average as much. Near one, a single client decides.",
        "Weights",
    ),
    "gamma": Description(
        "Gamma, the global shrinking factor",
        "gamma",
        "The averaged model is multiplied by gamma: below one, the rule pulls the parameters "
        "towards "
        "zero, as weight decay does.",
        _LEARNED,
    ),
    "gamma_product": Description(
        "Product of all gammas so far",
        "product",
        "The factor by which the first model has been multiplied so far.",
        _LEARNED,
    ),
    "update_norm": Description(
        "Length of the global update",
        "norm",
        "How far the global model moves in a round; it should become small as training converges.",
    ),
    "param_norm": Description(
        "Length of the global model", "norm", "If it keeps growing, more weight decay may help."
    ),
    "mean_cosine": Description(
        "Mean cosine between clients",
        "cosine",
        "How much clients agree: one if all updates have the same direction, zero if they are "
        "orthogonal.",
    ),
    "moved": Description(
        "Mean length of clients' updates",
        "norm",
        "How far clients move from the model that they receive.",
    ),
    "spread": Description(
        "Spread of local models", "distance", "Mean distance between local models: client drift."
    ),
    "weighted_cosine": Description(
        "Weighted cosine to the mean update",
        "cosine",
        "FedAdp's Theorem 1: the higher this sum of weight times cosine, the faster the loss "
        "falls.",
    ),
    "divergence": Description(
        "Divergence of the updates",
        "divergence",
        "How far the updates of clients are from their mean weighted by the number of examples.",
    ),
    "shrinking": Description(
        "Shrinking", "norm", "Length of the step that gamma makes towards zero.", _LEARNED
    ),
    "shrinking_ratio": Description(
        "Global step over shrinking",
        "r",
        "FedLAW's r: length of the global step divided by the shrinking.",
        _LEARNED,
    ),
    "fgn": Description(
        "Federated gradient norm",
        "FGN",
        "Weighted by the number of examples (PA3Fed): critical while it rises.",
        _LEARNED,
    ),
    "fgn_mean": Description(
        "Federated gradient norm, plain mean",
        "FGN",
        "CriticalFL's: critical while it rises.",
        _LEARNED,
    ),
}


def make_result_figures(
    all_series: Sequence[Series], targets: Sequence[float], user_metrics: Sequence[str] = ()
) -> list[Figure]:
    """Return the figures of accuracy, loss, the user's own metrics, and rounds to a target.

    Args:
        all_series: the series.
        targets: the values to reach; empty for no figure of rounds to a target.
        user_metrics: the names of the user's own metrics.
    """
    loss_caption = "A loss that rises while accuracy does not change is overfitting."
    descriptions = {
        "accuracy": Description("Accuracy on the test set", "accuracy, %", _ONE_SEED, "Results"),
        "loss": Description("Loss on the test set", "loss", loss_caption, "Results"),
    }
    curves = [
        make_curves(all_series, "accuracy", _read_percent, descriptions["accuracy"]),
        make_curves(all_series, "loss", read_number("loss"), descriptions["loss"]),
    ]
    for name in user_metrics:
        description = Description(f"{name} on the test set", name, _ONE_SEED, "Results")
        curves.append(make_curves(all_series, name, read_number(name), description))
    figures = []
    for figure in curves:
        if figure is not None:
            figures.append(_add_periods(_explain_band(figure), all_series))
    if targets:
        figures.append(make_target_figure(all_series, targets))
    return figures


def _read_percent(record: Mapping[str, Any]) -> float | None:
    """Return the accuracy of a record in percent."""
    accuracy = as_number(record.get("accuracy"))
    return None if accuracy is None else 100 * accuracy


def _explain_band(figure: Figure) -> Figure:
    """Return a figure whose caption explains its bands, if it has any and no other caption."""
    has_band = any(line.high for line in figure.lines)
    if has_band and figure.caption == _ONE_SEED:
        return replace(figure, caption=_BAND)
    return figure


def make_curves(
    all_series: Sequence[Series], name: str, read: Read, description: Description
) -> Figure | None:
    """Return a figure with one line per series; None if no run has the number.

    Args:
        all_series: the series.
        name: the name of the figure.
        read: returns the number of a record, or None.
        description: how to show it.
    """
    lines = []
    for series in all_series:
        line = series.line(read)
        if line is not None and line.x:
            lines.append(line)
    if not lines:
        return None
    return Figure(
        name,
        description.title,
        description.caption,
        description.section,
        "round",
        description.y,
        make_round_table(lines),
        lines=tuple(lines),
    )


def _add_periods(figure: Figure, all_series: Sequence[Series]) -> Figure:
    """Return a figure with critical periods shaded, where a rule records them."""
    names = {line.name for line in figure.lines}
    spans = []
    for series in all_series:
        if series.name in names:
            for start, end in group_consecutive(find_critical_rounds(series)):
                spans.append(Span(series.name, series.style, start, end))
    if not spans:
        return figure
    owners = {span.name for span in spans}
    owner = "the series of that colour"
    if len(owners) == 1:
        owner = shorten_name(spans[0].name)
    caption = f"{figure.caption} Shaded: critical periods of {owner}."
    return replace(figure, spans=tuple(spans), caption=caption)


def make_target_figure(all_series: Sequence[Series], targets: Sequence[float]) -> Figure:
    """Return a figure of the mean rounds to each target, over the seeds that reach it.

    A target is an accuracy, or a value of another metric that the runs monitor.
    """
    # One group of bars and one row per series.
    metric = monitored_metric(all_series)
    bars = []
    rows = []
    for series in all_series:
        values: list[float | None] = []
        cells: list[Value] = [series.name]
        for target in targets:
            rounds = [rounds_to(run.history, target) for run in series.runs]
            reached = [value for value in rounds if value is not None]
            mean_rounds = mean(reached) if reached else None
            values.append(mean_rounds)
            cells += [mean_rounds, f"{len(reached)} of {len(series.runs)}"]
        bars.append(Bars(series.name, series.style, tuple(values)))
        rows.append(tuple(cells))

    # The heads of the table.
    names = tuple(format_target(target, metric) for target in targets)
    heads = ["series"]
    for name in names:
        heads += [f"rounds to {name}", f"got to {name}"]
    digits = (None, *(1, None) * len(names))
    return Figure(
        "rounds",
        "Rounds to a target",
        f"Communication rounds until the test {metric} first reaches the target: a mean over the "
        "seeds that reach it, no bar if none does.",
        "Results",
        metric,
        "rounds",
        Table(tuple(heads), tuple(rows), digits),
        bars=tuple(bars),
        categories=names,
    )


def monitored_metric(all_series: Sequence[Series]) -> str:
    """Return the metric that the first run monitors."""
    return all_series[0].first.history.monitor.metric


def format_target(target: float, metric: str) -> str:
    """Return a target as text: accuracies in percent."""
    return f"{100 * target:g} %" if metric == "accuracy" else f"{target:g}"


def make_coherence_figure(all_series: Sequence[Series]) -> Figure | None:
    """Return a figure of the coherence with critical points marked; None if it is not recorded."""
    description = Description(
        "Local gradient coherence",
        "coherence",
        "How much the updates of clients have the same direction (FedLAW, Def. 5.1); rings mark "
        "the "
        "critical point, where it first falls to 5 % of its peak.",
    )
    figure = make_curves(all_series, "coherence", read_number("coherence"), description)
    if figure is None:
        return None
    marks = []
    for line in figure.lines:
        position = critical_point(line.y)
        if position is not None:
            x = line.x[position - 1]
            y = line.y[position - 1]
            marks.append(Mark(line.name, line.style, x, y, "critical point"))
    points = [f"round {mark.x} of {shorten_name(mark.name)}" for mark in marks]
    summary = ", ".join(points) or "no series falls so low"
    caption = f"{figure.caption} Here: {summary}."
    return _add_periods(replace(figure, marks=tuple(marks), caption=caption), all_series)


def make_other_figures(all_series: Sequence[Series], sections: Iterable[Section]) -> list[Figure]:
    """Return figures of all other recorded numbers in these sections.

    The section on geometry also has the means of cosines that are recorded by client.
    """
    included = set(sections)
    figures: list[Figure | None] = []

    # Recorded numbers.
    for name in _find_names(all_series):
        description = _DESCRIPTIONS.get(name)
        if description is None:
            title = name.replace("_", " ")
            caption = "As the rule or a callback records it."
            description = Description(title, name, caption, _LEARNED)
        if description.section in included:
            figures.append(make_curves(all_series, name, read_number(name), description))

    # Means over clients.
    if "Geometry of the updates" in included:
        cosines = Description(
            "Cosine to the global update, mean",
            "cosine",
            "Near one, clients agree with their mean.",
        )
        figures.append(make_curves(all_series, "mean_cosines", read_mean("cosines"), cosines))
        directions = Description(
            "Cosine to the direction sent, mean", "cosine", "FedCos's penalty raises it."
        )
        read = read_mean("direction_cosines")
        figures.append(make_curves(all_series, "mean_direction_cosines", read, directions))
    return [figure for figure in figures if figure is not None]


def make_rate_figures(all_series: Sequence[Series]) -> list[Figure]:
    """Return figures of the learning rate and the simulated duration, if they change."""
    descriptions = {
        "lr": Description("Learning rate", "rate", "As the schedule sets it.", "Cost"),
        "simulated_duration": Description(
            "Simulated duration of a round",
            "steps",
            "The time of the slowest client that the server waits for.",
            "Cost",
        ),
    }
    figures = []
    for name, description in descriptions.items():
        figure = make_curves(all_series, name, read_number(name), description)
        if figure is not None and any(len(set(line.y)) > 1 for line in figure.lines):
            figures.append(figure)
    return figures


def _find_names(all_series: Sequence[Series]) -> list[str]:
    """Return the names of recorded numbers without a figure of their own, described ones first."""
    names: set[str] = set()
    for series in all_series:
        for run in series.runs:
            for record in run.history:
                names.update(key for key, value in record.items() if as_number(value) is not None)
    names -= _EXCLUDED
    described = [name for name in _DESCRIPTIONS if name in names]
    return described + sorted(names.difference(_DESCRIPTIONS))
