"""From run directories to a report: what was run, a summary, every figure there is."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from steelyard._version import __version__
from steelyard.core.errors import SteelyardError, unknown
from steelyard.experiments.run_groups import Run, find_differences
from steelyard.experiments.scores import best, last, rounds_to, seconds
from steelyard.experiments.statistics import mean
from steelyard.report import client_figures, round_figures
from steelyard.report.figures import Figure, Report, Row, Section, Table
from steelyard.report.series import Series, read_series
from steelyard.runs.directory import ENVIRONMENT, read_config
from steelyard.runs.files import parse_json, read_bytes
from steelyard.runs.monitor import Monitor, check_target

_BY_CLIENT: tuple[Section, ...] = ("Weights", "What the rule learned", "Geometry of the updates", "Clients and data")


def gather(directories: Sequence[str | Path], target: float | None = None, out: str | Path | None = None) -> Report:
    """Everything there is to show of the runs in and below directories, finished or not.

    Args:
        directories: run directories, or directories of them.
        target: an accuracy, for rounds to target; else the runs' own target, else round numbers they reach. Of runs
            that monitor another metric, a value of that.
        out: the page's file, for the command that makes it again.
    """
    series, notes = read_series(directories)
    check_target(target, round_figures.monitored_metric(series))
    runs = [run for one in series for run in one.runs]
    configs = {run.path: read_config(run.path) for run in runs}
    wanted = _targets(runs, configs.values(), target)
    own = dict.fromkeys(name for config in configs.values() for name in _own_metrics(config))
    figures = _figures(series, wanted, list(own))
    going = sum(one.going for one in series)
    facts = _facts(series, list(configs.values()))
    return Report(
        title=_title(series, facts),
        facts=tuple(facts.items()),
        notes=(*notes, *_voids(series), *([] if going else find_differences(runs))),
        summary=_summary(series, wanted),
        figures=tuple(figures),
        configuration=tuple((one.name, _configuration(configs[one.first.path])) for one in series),
        environment=tuple(_environment(one.path for one in runs).items()),
        command=_command(directories, target, out),
        going=going,
    )


def find(report: Report, name: str) -> Figure:
    """A figure by its name."""
    for figure in report.figures:
        if figure.name == name:
            return figure
    raise SteelyardError(unknown("figure", name, [figure.name for figure in report.figures]))


def _own_metrics(config: dict[str, Any]) -> list[str]:
    """Return the names of the user's metrics, as `config.json` has them."""
    names = config.get("test_metrics")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _figures(series: Sequence[Series], targets: Sequence[float], own: Sequence[str]) -> list[Figure]:
    heats = {section: client_figures.heats(series, [section]) for section in _BY_CLIENT}
    made: list[Figure | None] = [
        *round_figures.results(series, targets, own),
        *heats["Weights"],
        *round_figures.others(series, ["Weights"]),
        *round_figures.others(series, ["What the rule learned"]),
        client_figures.periods(series),
        *heats["What the rule learned"],
        round_figures.coherence(series),
        *round_figures.others(series, ["Geometry of the updates"]),
        *heats["Geometry of the updates"],
        client_figures.partition(series),
        *heats["Clients and data"],
        client_figures.quarantined(series),
        client_figures.timings(series),
        *round_figures.rates(series),
    ]
    named = {figure.name: figure for figure in reversed(made) if figure is not None}  # a rule may note a taken name
    return [*reversed(named.values())]


def _targets(runs: Sequence[Run], configs: Iterable[dict[str, Any]], target: float | None) -> list[float]:
    """What to reach: the target asked for, the runs' own, or up to three multiples of 10 % that some run reached."""
    if target is not None:
        return [target]
    asked = {own for config in configs if (own := Monitor.read(config).target) is not None}
    if asked:
        return sorted(asked)
    if runs[0].history.monitor.metric != "accuracy":
        return []
    top = max((value for run in runs if (value := best(run.history)) is not None), default=0.0)
    tens = math.floor(10 * top + 1e-9)
    return [number / 10 for number in range(max(1, tens - 2), tens + 1)]


def _summary(series: Sequence[Series], targets: Sequence[float]) -> Table:
    target = _common(series, targets)
    metric = round_figures.monitored_metric(series)
    is_percent = metric == "accuracy"
    names = ["last 10, %", "±", "best, %"] if is_percent else [f"{metric}, last 10", "±", f"best {metric}"]
    heads = ["series", "seeds", "rounds", *names]
    heads += [] if target is None else [f"rounds to {round_figures.target_text(target, metric)}"]
    rows: list[Row] = []
    for one in series:
        final, spread = one.over(lambda run: last(run.history))
        reached = [rounds_to(run.history, target) for run in one.runs] if target is not None else []
        got = [at for at in reached if at is not None]
        share = f"{len(got)} of {len(reached)} got there"
        rows.append(
            (
                one.name,
                len(one.runs),
                max(len(run.history) for run in one.runs),
                *(
                    100 * value if is_percent and value is not None else value
                    for value in (final, spread, one.over(lambda r: best(r.history))[0])
                ),
                *([] if target is None else [mean(got) if len(got) == len(reached) else share]),
                one.over(_effective)[0],
                one.over(lambda run: seconds(run.history))[0],
            )
        )
    decimals = [2, 2, 2] if is_percent else [4, 4, 4]
    digits = [None, 0, 0, *decimals, *([] if target is None else [1]), 1, 1]
    return Table((*heads, "effective clients", "seconds"), tuple(rows), tuple(digits))


def _common(series: Sequence[Series], targets: Sequence[float]) -> float | None:
    """The highest target that all reach; the lowest if there is none."""
    runs = [run for one in series for run in one.runs]
    score = runs[0].history.monitor.score
    reached = [target for target in targets if all(rounds_to(run.history, target) for run in runs)]
    return max(reached, key=score) if reached else min(targets, key=score, default=None)


def _effective(run: Run) -> float | None:
    values = run.history.column("effective_clients")
    return mean(values) if values else None


def _facts(series: Sequence[Series], configs: Sequence[dict[str, Any]]) -> dict[str, str]:
    """What was run, each fact once; several values of one are listed."""
    resolved = [config.get("resolved", {}) for config in configs]
    asked = [config.get("config", {}) for config in configs]
    seeds = sorted({run.seed for one in series for run in one.runs}, key=lambda seed: (len(seed), seed))
    found = {
        "data": [one.get("data", {}).get("name") or "data of one's own" for one in resolved],
        "partition": [one.get("data", {}).get("partition") for one in asked],
        "clients": [one.get("data", {}).get("clients") for one in resolved],
        "model": [one.get("model") for one in asked],
        "parameters": [f"{one['model']['parameters']:,}" for one in resolved if "model" in one],
        "rounds": [one.get("rounds") for one in resolved],
        "algorithms": [one.name for one in series],
    }
    plain = {name: list(dict.fromkeys(str(v) for v in values if v is not None)) for name, values in found.items()}
    return {name: _join_names(values) for name, values in {**plain, "seeds": seeds}.items() if values}


def _join_names(values: Sequence[str], most: int = 12) -> str:
    more = f" and {len(values) - most} more" if len(values) > most else ""
    return ", ".join(values[:most]) + more


def _title(series: Sequence[Series], facts: dict[str, str]) -> str:
    what = series[0].name if len(series) == 1 else f"{len(series)} algorithms"
    return f"{what} on {facts['data']}"


def _voids(series: Sequence[Series]) -> list[str]:
    """A sentence for each series with void rounds."""
    made = []
    for one in series:
        reasons = [record["void"] for run in one.runs for record in run.history if record.get("void")]
        if reasons:
            made.append(f"{one.name}: {len(reasons)} rounds were void, the last because: {reasons[-1]}")
    return made


def _configuration(config: dict[str, Any]) -> str:
    return json.dumps(config.get("config") or config.get("resolved", {}), indent=1, ensure_ascii=False)


def _environment(paths: Iterable[Path]) -> dict[str, str]:
    """What runs share of their environments, and what they do not, listed."""
    found: dict[str, list[str]] = {}
    for path in paths:
        try:
            stored = parse_json(read_bytes(path / ENVIRONMENT))
        except (OSError, ValueError):  # worth knowing, not worth failing for
            continue
        for name, value in stored.items() if isinstance(stored, dict) else ():
            if name != "promise":
                text = shlex.join(map(str, value)) if isinstance(value, list) else str(value)
                found.setdefault(name, []).append(text)
    made = {name: _join_names(list(dict.fromkeys(values)), 3) for name, values in found.items()}
    return {**made, "page made by": f"steelyard {__version__}"}


def _command(directories: Sequence[str | Path], target: float | None, out: str | Path | None) -> str:
    asked = [] if target is None else ["--target", f"{target:g}"]
    return shlex.join(["steelyard", "report", *map(str, directories), *asked, "-o", str(out or "report.html")])
