"""Builds a report from run directories: the facts, a summary table and all figures."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from steelyard._version import __version__
from steelyard.core._errors import SteelyardError, describe_unknown_name
from steelyard.core._round_record import Section
from steelyard.experiments._run_groups import Run, find_differences
from steelyard.experiments._statistics import mean
from steelyard.experiments.scores import best, last, rounds_to, seconds
from steelyard.recorder._ledger import Ledgers
from steelyard.report import _client_figures as client_figures
from steelyard.report import _contribution_figures as contribution_figures
from steelyard.report import _round_figures as round_figures
from steelyard.report._figures import Figure, Report, Row, Table, Value
from steelyard.report._series import Series, read_series
from steelyard.runs._directory import read_config, read_environment
from steelyard.runs._monitor import Monitor, check_target

# Writes a report as one HTML page that needs no network.
#
# Recorded values are in the page as base64 of gzip, and the script shows them as text nodes: a
# name cannot become markup. A Content-Security-Policy forbids all connections, and all scripts
# except the script of the page and plotly.

_PARTS = files("steelyard.report")
_HINT = (
    "Last 10: mean accuracy of the last ten evaluations. ±: standard deviation over seeds. To test "
    "whether a difference is larger than noise, compare the runs seed by seed: steelyard compare. "
    "In all figures, lines are means over seeds, and bands are one standard deviation above and "
    "below."
)


def write_report(report: Report, path: str | Path) -> Path:
    """Write a report to an HTML file. An existing file is replaced."""
    path = Path(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise SteelyardError(f"{path}: a report is an HTML page: use a name that ends with .html")
    if not path.parent.is_dir():
        raise SteelyardError(f"{path}: there is no directory {path.parent}: make it first")
    text = render_html(report)
    try:
        # "replace", because a name may contain half of a surrogate pair.
        path.write_text(text, "utf-8", "replace")
    except OSError as error:
        raise SteelyardError(f"{path}: cannot be written: {error.strerror or error}") from None
    return path


def render_html(report: Report | None, live: bool = False, title: str = "") -> str:
    """Return the HTML text of a page.

    Args:
        report: what the page shows; None for a live page without a round yet.
        live: ask the server for news every two seconds.
        title: the title if there is no report.
    """
    script = "(() => {\n" + read_asset("plots.js") + read_asset("page.js") + "})();\n"
    data = ""
    hint = _HINT
    if report is not None:
        title = report.title
        hint = report.hint or _HINT
        data = _compress(json.dumps(report.to_dict(), separators=(",", ":"), allow_nan=False))
    parts = {
        "POLICY": escape(make_content_policy(script, live)),
        "VERSION": escape(__version__),
        "TITLE": escape(title),
        "HINT": escape(hint),
        "STYLE": read_asset("page.css"),
        "LIVE": "yes" if live else "no",
        "REPORT": data,
        "PLOTLY": _read_plotly(),
        "SCRIPT": script,
    }
    return fill_template("page.html", parts)


def fill_template(name: str, parts: Mapping[str, str]) -> str:
    """Return a template of this package with `{{NAME}}` replaced by the part of that name."""
    return re.sub(r"\{\{([A-Z]+)\}\}", lambda match: parts[match[1]], read_asset(name))


def make_content_policy(script: str, live: bool) -> str:
    """Return the Content-Security-Policy of a page.

    It allows the script of the page, plotly (from memory, as a blob) and the inline styles that
    plotly sets; connections only to the page's own server, if it is live.
    """
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    rules = {
        "default-src": "'none'",
        "script-src": f"'sha256-{digest}' blob:",
        "style-src": "'unsafe-inline'",
        "img-src": "data: blob:",
        "connect-src": "'self'" if live else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


@cache
def _read_plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ModuleNotFoundError:
        raise SteelyardError('a report needs plotly: pip install "steelyard[report]"') from None
    return _compress(get_plotlyjs())


def _compress(text: str) -> str:
    """Return base64 of gzip. The same text gives the same bytes: no date is written."""
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


@cache
def read_asset(name: str) -> str:
    """Return the text of a file of this package."""
    return (_PARTS / name).read_text(encoding="utf-8")


_CLIENT_SECTIONS: tuple[Section, ...] = (
    "Weights",
    "What the rule learned",
    "Geometry of the updates",
    "Clients and data",
)


def build_report(
    directories: Sequence[str | Path],
    target: float | None = None,
    out: str | Path | None = None,
    ledgers: Ledgers | None = None,
) -> Report:
    """Return the report of all runs in directories and their subdirectories, finished or not.

    Args:
        directories: run directories, or directories that contain them.
        target: the accuracy to reach, for rounds to target; for runs that monitor another metric, a
            value of that. By default the target of the runs, or round numbers that they reach.
        out: the file of the page, for the command that writes it again.
        ledgers: contributions that were read before, so that only new rounds are read.
    """
    # Read the runs.
    all_series, notes = read_series(directories)
    check_target(target, round_figures.monitored_metric(all_series))
    runs = [run for series in all_series for run in series.runs]
    configs = {run.path: read_config(run.path) for run in runs}
    targets = _choose_targets(runs, configs.values(), target)
    user_metrics: dict[str, None] = {}
    for config in configs.values():
        user_metrics.update(dict.fromkeys(_find_user_metrics(config)))

    # Notes: unfinished runs, void rounds, and whether finished runs are comparable.
    notes += _describe_void_rounds(all_series)
    unfinished = sum(series.is_unfinished for series in all_series)
    if unfinished == 0:
        notes += find_differences(runs)

    # Put everything together.
    facts = _collect_facts(all_series, list(configs.values()))
    configuration = [
        (
            f"Configuration of {series.name}",
            _format_configuration(configs[series.first.path]),
        )
        for series in all_series
    ]
    return Report(
        title=_make_title(all_series, facts),
        facts=tuple(facts.items()),
        notes=tuple(notes),
        summary=_make_summary(all_series, targets),
        figures=tuple(_make_figures(all_series, targets, list(user_metrics), ledgers or Ledgers())),
        configuration=tuple(configuration),
        environment=tuple(_read_environment(run.path for run in runs).items()),
        command=_make_command(directories, target, out),
        unfinished_runs=unfinished,
    )


def find_figure(report: Report, name: str) -> Figure:
    """Return the figure with this name."""
    for figure in report.figures:
        if figure.name == name:
            return figure
    raise SteelyardError(
        describe_unknown_name("figure", name, [figure.name for figure in report.figures])
    )


def _find_user_metrics(config: dict[str, Any]) -> list[str]:
    """Return the names of the user's own metrics in a `config.json`."""
    names = config.get("test_metrics")
    if not isinstance(names, list):
        return []
    return [name for name in names if isinstance(name, str)]


def _make_figures(
    all_series: Sequence[Series],
    targets: Sequence[float],
    user_metrics: Sequence[str],
    ledgers: Ledgers,
) -> list[Figure]:
    """Return all figures in the order of the page."""
    heat_maps = {
        section: client_figures.make_heat_maps(all_series, [section])
        for section in _CLIENT_SECTIONS
    }
    figures: list[Figure | None] = [
        *round_figures.make_result_figures(all_series, targets, user_metrics),
        *round_figures.make_other_figures(all_series, ["Results"]),
        *heat_maps["Weights"],
        *round_figures.make_other_figures(all_series, ["Weights"]),
        *round_figures.make_other_figures(all_series, ["What the rule learned"]),
        client_figures.make_periods_figure(all_series),
        *heat_maps["What the rule learned"],
        round_figures.make_coherence_figure(all_series),
        *round_figures.make_other_figures(all_series, ["Geometry of the updates"]),
        *heat_maps["Geometry of the updates"],
        *contribution_figures.make_contribution_figures(all_series, ledgers),
        client_figures.make_partition_figure(all_series),
        *heat_maps["Clients and data"],
        client_figures.make_quarantine_figure(all_series),
        client_figures.make_timings_figure(all_series),
        *round_figures.make_rate_figures(all_series),
    ]
    # A rule may record a value under the name of another figure: the first figure is shown.
    by_name: dict[str, Figure] = {}
    for figure in reversed(figures):
        if figure is not None:
            by_name[figure.name] = figure
    return [*reversed(by_name.values())]


def _choose_targets(
    runs: Sequence[Run], configs: Iterable[dict[str, Any]], target: float | None
) -> list[float]:
    """Return the targets of the figure "Rounds to a target".

    The first of: the argument, the targets of the runs, up to three multiples of 10 % accuracy that
    some run reached.
    """
    if target is not None:
        return [target]
    run_targets = {Monitor.from_config(config).target for config in configs} - {None}
    if run_targets:
        return sorted(value for value in run_targets if value is not None)
    if runs[0].history.monitor.metric != "accuracy":
        return []
    best_values = [best(run.history) for run in runs]
    highest = max((value for value in best_values if value is not None), default=0.0)
    tens = math.floor(10 * highest + 1e-9)
    return [number / 10 for number in range(max(1, tens - 2), tens + 1)]


def _make_summary(all_series: Sequence[Series], targets: Sequence[float]) -> Table:
    """Return the summary table: one row per series."""
    target = _choose_common_target(all_series, targets)
    metric = round_figures.monitored_metric(all_series)
    is_percent = metric == "accuracy"

    # The heads, and the number of decimals of each column.
    heads = ["series", "seeds", "rounds"]
    digits: list[int | None] = [None, 0, 0]
    if is_percent:
        heads += ["last 10, %", "±", "best, %"]
        digits += [2, 2, 2]
    else:
        heads += [f"{metric}, last 10", "±", f"best {metric}"]
        digits += [4, 4, 4]
    if target is not None:
        heads.append(f"rounds to {round_figures.format_target(target, metric)}")
        digits.append(1)
    heads += ["effective clients", "seconds"]
    digits += [1, 1]

    # One row per series.
    rows: list[Row] = []
    for series in all_series:
        row: list[Value] = [series.name, len(series.runs)]
        row.append(max(len(run.history) for run in series.runs))
        final, deviation = series.over(lambda run: last(run.history))
        best_value, _ = series.over(lambda run: best(run.history))
        for value in (final, deviation, best_value):
            row.append(100 * value if is_percent and value is not None else value)
        if target is not None:
            row.append(_mean_rounds(series, target))
        effective_clients, _ = series.over(_mean_effective_clients)
        total_seconds, _ = series.over(lambda run: seconds(run.history))
        rows.append((*row, effective_clients, total_seconds))
    return Table(tuple(heads), tuple(rows), tuple(digits))


def _mean_rounds(series: Series, target: float) -> float | str:
    """Return the mean rounds to a target, or how many runs reached it if not all did."""
    rounds = [rounds_to(run.history, target) for run in series.runs]
    reached = [number for number in rounds if number is not None]
    if len(reached) < len(rounds):
        return f"{len(reached)} of {len(rounds)} got there"
    return mean(reached)


def _choose_common_target(all_series: Sequence[Series], targets: Sequence[float]) -> float | None:
    """Return the highest target that all runs reach; the lowest target if there is none."""
    runs = [run for series in all_series for run in series.runs]
    score = runs[0].history.monitor.score
    reached = [target for target in targets if all(rounds_to(run.history, target) for run in runs)]
    if reached:
        return max(reached, key=score)
    return min(targets, key=score, default=None)


def _mean_effective_clients(run: Run) -> float | None:
    values = run.history.column("effective_clients")
    return mean(values) if values else None


def _collect_facts(
    all_series: Sequence[Series], configs: Sequence[dict[str, Any]]
) -> dict[str, str]:
    """Return what was run, by name. Different values of a fact are listed."""
    resolved = [config.get("resolved", {}) for config in configs]
    settings = [config.get("config", {}) for config in configs]
    values_by_fact = {
        "data": [item.get("data", {}).get("name") or "own data" for item in resolved],
        "partition": [item.get("data", {}).get("partition") for item in settings],
        "clients": [item.get("data", {}).get("clients") for item in resolved],
        "model": [item.get("model") for item in settings],
        "parameters": [f"{item['model']['parameters']:,}" for item in resolved if "model" in item],
        "rounds": [item.get("rounds") for item in resolved],
        "algorithms": [series.name for series in all_series],
    }
    facts = {}
    for name, values in values_by_fact.items():
        texts = list(dict.fromkeys(str(value) for value in values if value is not None))
        if texts:
            facts[name] = _join_names(texts)

    # Seeds are sorted as numbers, though they are texts.
    seeds = {run.seed for series in all_series for run in series.runs}
    if seeds:
        facts["seeds"] = _join_names(sorted(seeds, key=lambda seed: (len(seed), seed)))
    return facts


def _join_names(values: Sequence[str], limit: int = 12) -> str:
    """Return values with commas; those beyond the limit are only counted."""
    text = ", ".join(values[:limit])
    if len(values) > limit:
        text += f" and {len(values) - limit} more"
    return text


def _make_title(all_series: Sequence[Series], facts: dict[str, str]) -> str:
    algorithms = all_series[0].name if len(all_series) == 1 else f"{len(all_series)} algorithms"
    return f"{algorithms} on {facts['data']}"


def _describe_void_rounds(all_series: Sequence[Series]) -> list[str]:
    """Return a sentence for each series with void rounds."""
    sentences = []
    for series in all_series:
        reasons = []
        for run in series.runs:
            reasons += [record["void"] for record in run.history if record.get("void")]
        if reasons:
            sentences.append(
                f"{series.name}: {len(reasons)} rounds were void, the last because: {reasons[-1]}"
            )
    return sentences


def _format_configuration(config: dict[str, Any]) -> str:
    values = config.get("config") or config.get("resolved", {})
    return json.dumps(values, indent=1, ensure_ascii=False)


def _read_environment(paths: Iterable[Path]) -> dict[str, str]:
    """Return the environments of runs, by name. Different values are listed."""
    values_by_name: dict[str, list[str]] = {}
    for path in paths:
        for name, value in read_environment(path).items():
            if name != "promise":
                text = shlex.join(map(str, value)) if isinstance(value, list) else str(value)
                values_by_name.setdefault(name, []).append(text)
    texts = {
        name: _join_names(list(dict.fromkeys(values)), 3) for name, values in values_by_name.items()
    }
    return {**texts, "page made by": f"steelyard {__version__}"}


def _make_command(
    directories: Sequence[str | Path], target: float | None, out: str | Path | None
) -> str:
    """Return the command that writes the page again."""
    options = [] if target is None else ["--target", f"{target:g}"]
    output = ["-o", str(out or "report.html")]
    return shlex.join(["steelyard", "report", *map(str, directories), *options, *output])
