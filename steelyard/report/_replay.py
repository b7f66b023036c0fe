"""The page of a replay: what other rules would have done with the updates of a run."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard._version import __version__
from steelyard.core._state import ClientId
from steelyard.recorder._replay import (
    MUTED,
    RUN,
    Replay,
    ReplayedRound,
    RuleSummary,
    mean_shares,
    muted_shares,
)
from steelyard.report._build import write_report
from steelyard.report._client_figures import MAX_ROWS, average_blocks
from steelyard.report._figures import Figure, Heat, Line, Report, Row, Table, make_round_table
from steelyard.runs._directory import read_config

MAX_CELLS = 400_000  # of all heat maps of weights together
COUNTERFACTUAL = (
    "This is a counterfactual of one step: every rule was applied to the updates that the models "
    "of this run produced. A rule that had run from the start would have produced other models, "
    "and other updates. To know how well a rule does, run it."
)
_HINT = (
    "Effective clients: 1 / sum of squared shares. Step: mean length of the step of the global "
    "model, as a multiple of the step that was taken. Cosine: mean cosine to that step. Rank "
    "agreement: mean rank correlation (Spearman) with the weights of the run. Muted: clients with "
    f"less than {MUTED:.0%} of an equal share in more than half of their rounds."
)
HEADS = (
    "rule",
    "effective clients",
    "largest mean share",
    "client",
    "step",
    "cosine",
    "rank agreement",
    "muted clients",
)
DIGITS = (None, 1, 3, None, 3, 3, 2, None)


def write_replay(replay: Replay, run: str | Path, path: str | Path) -> Path:
    """Write the page of a replay to an HTML file. An existing file is replaced.

    Args:
        replay: the replayed rules.
        run: the run directory.
        path: the file to write.
    """
    return write_report(build_replay_report(replay, Path(run), path), path)


def build_replay_report(
    replay: Replay, path: Path, out: str | Path, failures: Mapping[str, str] | None = None
) -> Report:
    """Return the page of a replay.

    Args:
        replay: the replayed rules.
        path: the run directory.
        out: the file of the page, for the command that writes it again.
        failures: why other rules could not be replayed, by rule.
    """
    config = read_config(path)
    failures = failures or {}
    labels = label_rules(replay, path)
    rounds = replay.rounds[RUN]
    clients = _choose_clients(replay)

    # What a reader should know first.
    notes = [COUNTERFACTUAL]
    if replay.missing:
        numbers = ", ".join(map(str, replay.missing[:20]))
        more = f" and {len(replay.missing) - 20} more" if len(replay.missing) > 20 else ""
        notes.append(f"Rounds that are not recorded: {numbers}{more}.")
    texts = {}
    if failures:
        texts["Rules that were not replayed"] = "\n".join(failures.values())
        notes.append(f"Not replayed, with reasons below: {', '.join(failures)}.")

    # What was replayed.
    facts = {
        "run": str(path),
        "rounds": f"{len(rounds)} recorded, {rounds[0].round} to {rounds[-1].round}",
        "clients": str(len(replay.clients)),
        "data": str(config.get("resolved", {}).get("data", {}).get("name") or "own data"),
    }
    if replay.accuracy:
        number, accuracy = max(replay.accuracy.items())
        facts["accuracy of the run"] = f"{100 * accuracy:.2f} % after round {number}"
    rules = [rule for rule in replay.rounds if rule != RUN]
    options = [part for rule in rules for part in ("--rule", rule)]
    count = "1 rule" if len(rules) == 1 else f"{len(rules)} rules"
    return Report(
        title=f"Replay of {replay.name}: {count} on the updates of a run",
        facts=tuple(facts.items()),
        notes=tuple(notes),
        summary=make_summary_table(replay, labels),
        figures=(
            _make_weights_figure(replay, labels, clients),
            _make_shares_figure(replay, labels, clients),
            *_make_curves(replay, labels),
            _make_agreement_figure(replay, labels),
            _make_muted_figure(replay, labels, clients),
        ),
        configuration=tuple(texts.items()),
        environment=(("page made by", f"steelyard {__version__}"),),
        command=shlex.join(["steelyard", "replay", str(path), *options, "-o", str(out)]),
        hint=_HINT,
    )


def label_rules(replay: Replay, path: Path) -> dict[str, str]:
    """Return the name of each rule on the page: `run` also names the rule that was used."""
    resolved = read_config(path).get("resolved", {})
    algorithm = resolved.get("algorithm", {}) if isinstance(resolved, Mapping) else {}
    rule = algorithm.get("weighting") if isinstance(algorithm, Mapping) else None
    labels = {name: name for name in replay.rounds}
    if isinstance(rule, str):
        labels[RUN] = f"{RUN} ({rule})"
    return labels


def make_summary_table(replay: Replay, labels: Mapping[str, str]) -> Table:
    """Return the table with one row per rule."""
    rows: list[Row] = []
    for summary in replay.summarize():
        top = "all alike" if summary.top_client is None else str(summary.top_client)
        rows.append(
            (
                labels[summary.rule],
                summary.effective_clients,
                summary.top_share,
                top,
                summary.relative_step,
                summary.cosine,
                summary.agreement,
                _describe_muted(summary),
            )
        )
    return Table(HEADS, tuple(rows), DIGITS)


def list_weights(replay: Replay) -> list[list[str | float | None]]:
    """Return rows for a CSV file: the heads, then one row per rule, round and client."""
    rows: list[list[str | float | None]] = [
        ["rule", "round", "client", "weight", "share", "effective_clients", "step_norm", "cosine"]
    ]
    for rule, rounds in replay.rounds.items():
        for entry in rounds:
            numbers = [entry.effective_clients, entry.step_norm, entry.cosine]
            shares = entry.shares.tolist()
            for (client, weight), share in zip(entry.weights.items(), shares, strict=True):
                rows.append([rule, entry.round, str(client), weight, share, *numbers])
    return rows


def _describe_muted(summary: RuleSummary, limit: int = 6) -> str:
    """Return the muted clients as text; those beyond the limit are counted."""
    names = [str(client) for client in summary.muted]
    text = ", ".join(names[:limit])
    if len(names) > limit:
        text += f" and {len(names) - limit} more"
    if summary.void_rounds:
        text += f"{'; ' if text else ''}{summary.void_rounds} void rounds"
    return text or "none"


def _choose_clients(replay: Replay) -> list[ClientId]:
    """Return the clients to show: all, or those that took part most often."""
    clients = list(replay.clients)
    if len(clients) <= MAX_ROWS:
        return clients
    counts = Counter(client for entry in replay.rounds[RUN] for client in entry.weights)
    frequent = {client for client, _ in counts.most_common(MAX_ROWS)}
    return [client for client in clients if client in frequent]


def _describe_choice(replay: Replay, clients: Sequence[ClientId]) -> str:
    """Return a sentence for the caption if not all clients are shown."""
    count = len(replay.clients)
    if len(clients) == count:
        return ""
    return f" {len(clients)} of {count:,} clients are shown, those that took part most often."


def _make_weights_figure(
    replay: Replay, labels: Mapping[str, str], clients: Sequence[ClientId]
) -> Figure:
    """Return heat maps of clients x rounds, one per rule, of which the reader chooses one."""
    # With many cells, a column is the mean of several rounds.
    columns = [str(entry.round) for entry in replay.rounds[RUN]]
    cells = len(clients) * len(columns) * len(replay.rounds)
    block_size = max(1, -(-cells // MAX_CELLS))

    # A panel, and the rows of the table, for each rule.
    heats = []
    rows: list[Row] = []
    for rule, rounds in replay.rounds.items():
        values = _to_cells(rounds, clients)
        names = tuple(str(client) for client in clients)
        panel = average_blocks(values, block_size)
        heats.append(Heat(labels[rule], names, tuple(columns[::block_size]), panel))
        for name, row in zip(names, values, strict=True):
            numbers = row[~np.isnan(row)]
            summary = (float(numbers.mean()), float(numbers.min()), float(numbers.max()))
            rows.append((labels[rule], name, *summary, len(numbers)))

    caption = (
        "The weight that the rule gives to each client in each round; choose the rule above the "
        "figure. Every rule has its own colour scale. A white cell is a client that did not take "
        "part."
    )
    if block_size > 1:
        caption += f" A column is the mean of {block_size} rounds."
    return Figure(
        "weights",
        "Weights by client over the rounds",
        caption + _describe_choice(replay, clients),
        "Weights",
        "round",
        "client",
        Table(("rule", "client", "mean", "least", "most", "rounds"), tuple(rows)),
        z="weight",
        heats=tuple(heats),
        selectable=True,
    )


def _to_cells(rounds: Sequence[ReplayedRound], clients: Sequence[ClientId]) -> NDArray[np.float64]:
    """Return the weights, clients x rounds; NaN where a client did not take part."""
    row_of = {client: row for row, client in enumerate(clients)}
    cells = np.full((len(clients), len(rounds)), np.nan)
    for column, entry in enumerate(rounds):
        for client, weight in entry.weights.items():
            if client in row_of:
                cells[row_of[client], column] = weight
    return cells


def _make_client_figure(
    replay: Replay,
    labels: Mapping[str, str],
    clients: Sequence[ClientId],
    values: Mapping[str, Mapping[ClientId, float]],
    texts: Mapping[str, Any],
) -> Figure:
    """Return a heat map of rules x clients.

    Args:
        replay: the replayed rules.
        labels: the names of the rules.
        clients: the clients to show.
        values: the number of each client, by rule.
        texts: name, title, caption, section and `z` of the figure.
    """
    rows: list[Row] = []
    cells = []
    for rule in replay.rounds:
        numbers = tuple(values[rule].get(client) for client in clients)
        cells.append(numbers)
        rows.append((labels[rule], *numbers))
    names = tuple(str(client) for client in clients)
    heat = Heat("", tuple(labels.values()), names, tuple(cells))
    caption = texts["caption"] + _describe_choice(replay, clients)
    return Figure(
        **{**texts, "caption": caption},
        x="client",
        y="rule",
        table=Table(("rule", *names), tuple(rows)),
        heats=(heat,),
    )


def _make_shares_figure(
    replay: Replay, labels: Mapping[str, str], clients: Sequence[ClientId]
) -> Figure:
    """Return the mean share of each client under each rule."""
    texts = {
        "name": "shares",
        "title": "Mean share of each client",
        "caption": "A client's share of the weights, as a mean over its rounds. Compare a column "
        "from row to row: which rules would have listened to this client?",
        "section": "Weights",
        "z": "share",
    }
    values = {rule: mean_shares(rounds) for rule, rounds in replay.rounds.items()}
    return _make_client_figure(replay, labels, clients, values, texts)


def _make_muted_figure(
    replay: Replay, labels: Mapping[str, str], clients: Sequence[ClientId]
) -> Figure:
    """Return the share of rounds in which each rule would have muted each client."""
    texts = {
        "name": "muted",
        "title": "Who would have been muted",
        "caption": "The share of a client's rounds in which its share of the weights is below "
        f"{MUTED:.0%} of an equal share.",
        "section": "Agreement between rules",
        "z": "share of rounds",
    }
    values = {rule: muted_shares(rounds) for rule, rounds in replay.rounds.items()}
    return _make_client_figure(replay, labels, clients, values, texts)


def _make_curves(replay: Replay, labels: Mapping[str, str]) -> list[Figure]:
    """Return the curves over rounds: effective clients, cosine and length of the steps."""
    run_norms = {entry.round: entry.step_norm for entry in replay.rounds[RUN]}

    def relative_norm(entry: ReplayedRound) -> float | None:
        norm = run_norms[entry.round]
        return entry.step_norm / norm if norm > 0 else None

    kinds: list[tuple[dict[str, Any], Any]] = [
        (
            {
                "name": "effective_clients",
                "title": "Effective clients",
                "caption": "One divided by the sum of squared shares. Near one, a single client "
                "decides.",
                "section": "Weights",
                "y": "effective clients",
            },
            lambda entry: entry.effective_clients,
        ),
        (
            {
                "name": "cosine",
                "title": "Cosine to the step of the run",
                "caption": "At 1, the rule would have gone the same way. A rule with a low cosine "
                "would soon have seen other updates than these.",
                "section": "Steps of the rules",
                "y": "cosine",
            },
            lambda entry: entry.cosine,
        ),
        (
            {
                "name": "step_norm",
                "title": "Length of the step",
                "caption": "As a multiple of the step of the run. Above 1, the rule would have "
                "gone further with the same updates.",
                "section": "Steps of the rules",
                "y": "length / length of the run",
            },
            relative_norm,
        ),
    ]
    figures = []
    for texts, read in kinds:
        lines = []
        for style, (rule, rounds) in enumerate(replay.rounds.items()):
            points = [(entry.round, read(entry)) for entry in rounds]
            points = [(number, value) for number, value in points if value is not None]
            if points:
                x, y = zip(*points, strict=True)
                lines.append(Line(labels[rule], style, x, y))
        if lines:
            figures.append(
                Figure(**texts, x="round", table=make_round_table(lines), lines=tuple(lines))
            )
    return figures


def _make_agreement_figure(replay: Replay, labels: Mapping[str, str]) -> Figure:
    """Return the matrix of the rank correlations between rules."""
    names = tuple(labels.values())
    matrix = replay.agreements(list(replay.rounds))
    rows: list[Row] = [(name, *row) for name, row in zip(names, matrix, strict=True)]
    heat = Heat("", names, names, tuple(tuple(row) for row in matrix))
    return Figure(
        "agreement",
        "Rank agreement between rules",
        "Rank correlation (Spearman) of the weights of two rules, as a mean over rounds. At 1, they "
        "put clients in the same order, at -1 in the opposite order. A row of a rule that weighs "
        "all clients alike is empty.",
        "Agreement between rules",
        "rule",
        "rule",
        Table(("rule", *names), tuple(rows)),
        z="correlation",
        heats=(heat,),
        palette="diverging",
    )
