"""The pages of the benchmark.

Markdown for the documentation, and one interactive HTML page that needs no network.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from steelyard._version import __version__
from steelyard.experiments._benchmark import (
    SCORE_NAMES,
    Benchmark,
    Result,
    Rule,
    Setting,
    format_results,
)
from steelyard.experiments._jobs import flatten_keys
from steelyard.experiments._ranking import Analysis, Ranks, RuleScore
from steelyard.experiments._tables import format_processors, markdown_text
from steelyard.experiments.scores import SCORES
from steelyard.report._build import fill_template, make_content_policy, read_asset
from steelyard.runs._directory import write_text

MAIN = SCORE_NAMES[0]
HEADS = {
    "last10": "last 10 rounds, %",
    "worst_client": "worst client, %",
    "client_q10": "10 % quantile of clients, %",
    "rounds": "rounds to target",
    "server_seconds": "server, s",
    "void_rounds": "void rounds",
}


def format_difference(score: RuleScore | None, is_reference: bool = False) -> str:
    """Return a cell of the table.

    The reference's own mean, or the difference from it with half of its interval, and how many runs
    failed.
    """
    if score is None or score.mean is None:
        return "failed"
    if is_reference or score.difference is None:
        return f"{100 * score.mean:.1f} %"
    difference = score.difference.mean
    if difference is None:
        return "failed"
    half = score.difference.half_width
    text = f"{100 * difference:+.1f}"
    if half is not None:
        text += f" ± {100 * half:.1f}"
    if score.is_told_apart:
        text += " *"
    if score.failed:
        text += f" ({score.failed} failed)"
    return text


def write_markdown(benchmark: Benchmark, analysis: Analysis, path: Path) -> None:
    """Write the tables of the benchmark as a Markdown page."""
    title = f"# {markdown_text(benchmark.title)}\n"
    write_text(path, f"{title}\n{format_tables(benchmark, analysis)}")


def format_tables(benchmark: Benchmark, analysis: Analysis) -> str:
    """Return the tables of the benchmark as Markdown: all settings, the ranks, each setting."""
    settings = _settings(benchmark, analysis)
    parts = [
        _main_table(benchmark, analysis, settings),
        "Mean accuracy of the last 10 rounds: of the reference in percent, of the others in points "
        "against it, paired over seeds, ± half of the 95 % interval. `*`: told apart from the "
        "reference after Holm's correction over the rules of the setting. Runs that failed are left "
        "out of the mean; a rule with one is never marked `*`, and is ranked last in that setting.\n",
        *(f"{markdown_text(text)}\n" for text in describe_processors(analysis)),
        f"## Ranks\n\n{describe_ranks(analysis.ranks)}\n",
        *(
            f"## {markdown_text(s.label)}\n\n{s.about}.\n\n{_setting_table(analysis, s)}"
            for s in settings
        ),
    ]
    return "\n".join(parts)


def describe_ranks(ranks: Ranks) -> str:
    """Return what may be said of the mean ranks, in one sentence."""
    if ranks.critical_difference is None:
        return "Ranks need at least two settings and two rules."
    text = (
        f"Mean ranks over {ranks.settings} settings; two that differ by less than "
        f"{ranks.critical_difference:.1f} "
        "cannot be told apart (Nemenyi's test at 5 %)."
    )
    if ranks.friedman_p is not None:
        text += f" Friedman's test that all rules are alike: p = {ranks.friedman_p:.2g}."
    return text


def describe_processors(analysis: Analysis) -> list[str]:
    """Return which rules were run on which processor, and what that means.

    Empty if all were run on one.
    """
    labels = {name: [rule.label for rule in rules] for name, rules in analysis.processors.items()}
    text = format_processors(labels)
    if text is None:
        return []
    return [f"{text} Compare server seconds only between rules of one processor."]


def _settings(benchmark: Benchmark, analysis: Analysis) -> list[Setting]:
    return [setting for setting in benchmark.settings if setting.name in analysis.scores]


def _main_table(benchmark: Benchmark, analysis: Analysis, settings: Sequence[Setting]) -> str:
    """Return the table of rules by settings, with mean ranks."""
    heads = ["rule", *(setting.label for setting in settings), "mean rank"]
    lines = [heads, ["---", *("---:" for _ in heads[1:])]]
    for rule in analysis.rules:
        is_reference = rule.name == benchmark.reference
        cells = [
            format_difference(analysis.scores[setting.name][MAIN].get(rule.name), is_reference)
            for setting in settings
        ]
        rank = analysis.ranks.by_rule.get(rule.name)
        cells.append("" if rank is None else f"{rank:.1f}")
        lines.append([_name(rule), *(cell.replace("*", "\\*") for cell in cells)])
    return _markdown_lines(lines)


def _setting_table(analysis: Analysis, setting: Setting) -> str:
    """Return all scores of one setting."""
    target = f"rounds to {100 * setting.target:g} %"
    heads = ["rule", *(target if name == "rounds" else HEADS[name] for name in SCORE_NAMES)]
    lines = [heads, ["---", *("---:" for _ in SCORE_NAMES)]]
    for rule in analysis.rules:
        if rule.name not in analysis.scores[setting.name][MAIN]:
            continue
        cells = []
        for name in SCORE_NAMES:
            score = analysis.scores[setting.name][name][rule.name]
            cells.append(_format_mean(score, name, len(analysis.seeds)))
        failed = analysis.scores[setting.name][MAIN][rule.name].failed
        lines.append([_name(rule) + (f" ({failed} failed)" if failed else ""), *cells])
    return _markdown_lines(lines)


def _digits(name: str) -> int:
    """Return how many decimals a score is shown with."""
    return 2 if name == "server_seconds" else 1


def _format_mean(score: RuleScore, name: str, seeds: int) -> str:
    """Return the mean over seeds; where not every seed has one, how many have."""
    if score.mean is None:
        return "not reached" if name == "rounds" else "n/a"
    metric = SCORES[name]
    digits = _digits(name)
    text = f"{metric.to_display(score.mean):.{digits}f}"
    if score.deviation is not None and metric.percent:
        text += f" ± {metric.to_display(score.deviation):.{digits}f}"
    return text if score.count == seeds else f"{text} ({score.count} of {seeds})"


def _name(rule: Rule) -> str:
    text = markdown_text(rule.label)
    if rule.is_control:
        return f"*{text}* (control)"
    return f"{text} ({markdown_text(rule.note)})" if rule.note else text


def _markdown_lines(lines: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def write_html(
    benchmark: Benchmark, analysis: Analysis, results: Sequence[Result], path: Path
) -> None:
    """Write the interactive page."""
    script = read_asset("benchmark.js")
    data = json.dumps(
        _page_data(benchmark, analysis, results), separators=(",", ":"), allow_nan=False
    )
    parts = {
        "POLICY": escape(make_content_policy(script, live=False)),
        "VERSION": escape(__version__),
        "TITLE": escape(benchmark.title),
        "STYLE": read_asset("benchmark.css"),
        "DATA": data.replace("<", "\\u003c"),  # no text can end the script element
        "SCRIPT": script,
    }
    write_text(path, fill_template("benchmark.html", parts))


def _page_data(
    benchmark: Benchmark, analysis: Analysis, results: Sequence[Result]
) -> dict[str, Any]:
    """Return all that the page shows, as plain data."""
    settings = _settings(benchmark, analysis)
    labels = {rule.name: rule.label for rule in analysis.rules}
    runs = len(results)
    failed = sum(bool(result.error) for result in results)
    seeds = ", ".join(map(str, analysis.seeds))
    sentences = [
        f"{runs} runs ({failed} failed): {len(analysis.rules)} rules, {len(settings)} settings, "
        f"seeds {seeds}.",
        f"Steelyard {__version__}.",
        *describe_processors(analysis),
    ]
    return {
        "reference": benchmark.reference,
        "seeds": analysis.seeds,
        "summary": " ".join(sentences),
        "settings": [
            {
                "name": setting.name,
                "label": setting.label,
                "about": setting.about,
                "target": setting.target,
            }
            for setting in settings
        ],
        "rules": [
            {
                "name": rule.name,
                "label": rule.label,
                "algorithm": rule.algorithm,
                "note": rule.note,
                "control": rule.is_control,
            }
            for rule in analysis.rules
        ],
        "scores": [_score_data(name) for name in SCORE_NAMES],
        "cells": {
            setting.name: {
                name: {rule: _cell_data(score, name) for rule, score in scores.items()}
                for name, scores in analysis.scores[setting.name].items()
            }
            for setting in settings
        },
        "ranks": {
            "by_rule": analysis.ranks.by_rule,
            "sentence": describe_ranks(analysis.ranks),
            "drawing": draw_ranks(analysis.ranks, labels),
        },
        "configurations": {
            f"{setting.name}/{rule.name}": _format_toml(benchmark.config(rule, setting))
            for setting in settings
            for rule in analysis.rules
        },
        "csv": format_results(results),
    }


def _score_data(name: str) -> dict[str, Any]:
    metric = SCORES[name]
    return {
        "name": name,
        "head": HEADS[name],
        "title": metric.title[0].upper() + metric.title[1:],
        "unit": metric.unit,
        "percent": metric.percent,
        "higher": metric.higher,
        "digits": _digits(name),
    }


def _cell_data(score: RuleScore, name: str) -> dict[str, Any]:
    """Return a score in the unit it is shown in."""
    metric = SCORES[name]

    def show(value: float | None) -> float | None:
        return None if value is None else round(metric.to_display(value), 4)

    interval = None if score.difference is None else score.difference.interval
    return {
        "mean": show(score.mean),
        "deviation": show(score.deviation),
        "count": score.count,
        "failed": score.failed,
        "difference": None if score.difference is None else show(score.difference.mean),
        "low": None if interval is None else show(interval[0]),
        "high": None if interval is None else show(interval[1]),
        "p": score.p_corrected,
        "told": score.is_told_apart,
    }


def _format_toml(config: Mapping[str, Any]) -> str:
    """Return a configuration as TOML; what JSON writes of text, numbers and lists is TOML, too."""
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in flatten_keys(config).items())


def draw_ranks(ranks: Ranks, labels: Mapping[str, str]) -> str:
    """Draw mean ranks as SVG.

    One line per rule from the best down, and a bar as long as the critical difference.

    Rules whose dots lie within the length of the bar of one another cannot be told apart.
    """
    if not ranks.by_rule:
        return ""
    # The axis goes from rank 1 to the last; the longest name fits left of it.
    count = len(ranks.by_rule)
    longest_name = max(len(labels[name]) for name in ranks.by_rule)
    left = max(190.0, 7.0 * longest_name + 24)
    right = left + 450
    top = 58.0
    step = 20.0

    def place(rank: float) -> float:
        return left + (rank - 1) / max(1, count - 1) * (right - left)

    height = top + step * count + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{right + 40:.0f}" height="{height}" role="img" font-size="12" '
        f'font-family="system-ui, sans-serif"><title>Mean ranks</title>'
    ]
    for tick in range(1, count + 1):
        x = place(tick)
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top - 6}" y2="{height - 10}" stroke="#e3e6ea"/>'
        )
        parts.append(f'<text x="{x:.1f}" y="{top - 10}" text-anchor="middle">{tick}</text>')
    # The bar begins at the best rule.
    best = next(iter(ranks.by_rule.values()))
    if ranks.critical_difference is not None:
        end = min(best + ranks.critical_difference, count)
        parts.append(
            f'<line x1="{place(best):.1f}" x2="{place(end):.1f}" y1="26" y2="26" stroke="#333" stroke-width="3"/>'
        )
        text = f"critical difference {ranks.critical_difference:.1f}, from the best rule"
        parts.append(f'<text x="{place(best):.1f}" y="18">{text}</text>')
    for number, (name, rank) in enumerate(ranks.by_rule.items()):
        y = top + step * number + 12
        limit = math.inf if ranks.critical_difference is None else best + ranks.critical_difference
        fill = "#0072b2" if rank <= limit else "#d55e00"
        parts.append(
            f'<text x="{left - 16}" y="{y + 4}" text-anchor="end">{escape(labels[name])}</text>'
        )
        parts.append(f'<circle cx="{place(rank):.1f}" cy="{y}" r="4.5" fill="{fill}"/>')
        parts.append(f'<text x="{place(rank) + 9:.1f}" y="{y + 4}">{rank:.1f}</text>')
    return "".join([*parts, "</svg>"])
