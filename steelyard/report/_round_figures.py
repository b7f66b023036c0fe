"""Figures over rounds: accuracy, loss, coherence and all other numbers that rounds record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from steelyard.core._round_record import ROUND_RECORD, FigureText, Section
from steelyard.diagnostics._coherence import critical_point
from steelyard.experiments._statistics import mean
from steelyard.experiments.scores import rounds_to
from steelyard.report._figures import (
    Bars,
    Figure,
    Mark,
    Span,
    Table,
    Value,
    make_round_table,
    shorten_name,
)
from steelyard.report._series import (
    Read,
    Series,
    as_number,
    find_critical_rounds,
    group_consecutive,
    read_number,
)

_BAND = (
    "Lines are means over seeds, bands one standard deviation above and below: "
    "where bands overlap, little is certain."
)
_ONE_SEED = "One seed: it does not tell how much is due to chance."
_SECTION_OF_UNKNOWN: Section = "What the rule learned"


def make_result_figures(
    all_series: Sequence[Series], targets: Sequence[float], user_metrics: Sequence[str] = ()
) -> list[Figure]:
    """Return the figures of accuracy, loss, the user's own metrics, and rounds to a target.

    Args:
        all_series: the series.
        targets: the values to reach; empty for no figure of rounds to a target.
        user_metrics: the names of the user's own metrics.
    """
    # Accuracy and loss, then the metrics of the user.
    accuracy_text = replace(_figure_text("accuracy"), caption=_ONE_SEED)
    curves = [
        make_curves(all_series, "accuracy", _read_percent, accuracy_text),
        make_curves(all_series, "loss", read_number("loss"), _figure_text("loss")),
    ]
    for name in user_metrics:
        text = FigureText(f"{name} on the test set", name, _ONE_SEED, "Results")
        curves.append(make_curves(all_series, name, read_number(name), text))

    # Explain bands and shade critical periods.
    figures = []
    for figure in curves:
        if figure is not None:
            figures.append(_add_periods(_explain_band(figure), all_series))
    if targets:
        figures.append(make_target_figure(all_series, targets))
    return figures


def _figure_text(name: str) -> FigureText:
    """Return how a recorded number is shown, also if no table describes it."""
    entry = ROUND_RECORD.get(name)
    if entry is not None and entry.figure is not None:
        return entry.figure
    caption = "As the rule or a callback records it."
    return FigureText(name.replace("_", " "), name, caption, _SECTION_OF_UNKNOWN)


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
    all_series: Sequence[Series], name: str, read: Read, text: FigureText
) -> Figure | None:
    """Return a figure with one line per series; None if no run has the number.

    Args:
        all_series: the series.
        name: the name of the figure.
        read: returns the number of a record, or None.
        text: title, caption, section and label of the y axis.
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
        text.title,
        text.caption,
        text.section,
        "round",
        text.axis,
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
    read = read_number("coherence")
    figure = make_curves(all_series, "coherence", read, _figure_text("coherence"))
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
    """Return figures of all other recorded numbers in these sections."""
    included = set(sections)
    figures = []
    for name in _find_names(all_series):
        text = _figure_text(name)
        if text.section in included:
            figures.append(make_curves(all_series, name, read_number(name), text))
    return [figure for figure in figures if figure is not None]


def make_rate_figures(all_series: Sequence[Series]) -> list[Figure]:
    """Return figures of the learning rate and the simulated duration, if they change."""
    figures = []
    for name in ("lr", "simulated_duration"):
        figure = make_curves(all_series, name, read_number(name), _figure_text(name))
        if figure is not None and any(len(set(line.y)) > 1 for line in figure.lines):
            figures.append(figure)
    return figures


def _find_names(all_series: Sequence[Series]) -> list[str]:
    """Return the names of recorded numbers to draw, first those of the table, in its order."""
    # All numbers on record, and those that are computed from the record.
    names: set[str] = set()
    for series in all_series:
        for run in series.runs:
            for record in run.history:
                names.update(key for key, value in record.items() if as_number(value) is not None)
    names.update(key for key, entry in ROUND_RECORD.items() if entry.compute is not None)

    # Leave out numbers without a figure, and those with a figure of their own.
    listed = []
    for key, entry in ROUND_RECORD.items():
        if key in names and entry.figure is not None and not entry.figure.is_special:
            listed.append(key)
    return listed + sorted(names.difference(ROUND_RECORD))
