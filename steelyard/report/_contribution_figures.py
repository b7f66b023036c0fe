"""Figures and tables of what each client contributed to the direction of a run."""

from __future__ import annotations

from collections.abc import Sequence

from steelyard.core._errors import SteelyardError
from steelyard.core._state import ClientId
from steelyard.recorder._contributions import (
    ClientContribution,
    Contributions,
    cumulate_values,
)
from steelyard.recorder._ledger import Ledgers
from steelyard.report._figures import Figure, Line, Row, Table
from steelyard.report._series import Series

MAX_LINES = 12
MAX_FIGURES = 4
MAX_FLAGS = 6  # flagged clients that a caption names
HEADS = (
    "client",
    "rounds",
    "total value",
    "±",
    "share of weights",
    "leave-one-out",
    "cosine",
    "norm",
    "flags",
)
DIGITS = (None, 0, 3, 3, 3, 4, 3, 2, None)
MEANING = (
    "The value of a client is its share in the direction of the rounds (Shapley value); the values "
    "of a round sum to 1. It does not measure how much a client improves the model on test data."
)


def make_contribution_table(result: Contributions, has_evidence: bool = True) -> Table:
    """Return the table of the clients, the largest total first.

    Args:
        result: the contributions of a run.
        has_evidence: whether flags are followed by their evidence.
    """
    rows: list[Row] = []
    for entry in sorted(result.clients, key=lambda entry: -entry.total):
        rows.append(
            (
                str(entry.client),
                entry.rounds,
                entry.total,
                entry.margin,
                entry.share,
                entry.leave_one_out,
                entry.cosine,
                entry.norm,
                format_flags(entry, has_evidence),
            )
        )
    return Table(HEADS, tuple(rows), DIGITS)


def format_flags(entry: ClientContribution, has_evidence: bool = True) -> str:
    """Return the flags of a client as one text."""
    if not has_evidence:
        return ", ".join(flag.kind for flag in entry.flags)
    return "; ".join(f"{flag.kind}: {flag.evidence}" for flag in entry.flags)


def make_contribution_figures(all_series: Sequence[Series], ledgers: Ledgers) -> list[Figure]:
    """Return a figure for the first run of each series with recorded inner products.

    Args:
        all_series: the series.
        ledgers: what was read before, so that only new rounds are read.
    """
    figures: list[Figure] = []
    for series in all_series:
        try:
            result = ledgers.read(series.first.path)
        except SteelyardError:  # a damaged file is not an error of the report
            continue
        if result is not None:
            number = len(figures) + 1
            name = "contributions" if number == 1 else f"contributions-{number}"
            figures.append(_make_figure(name, series, result))
        if len(figures) == MAX_FIGURES:
            break
    return figures


def _make_figure(name: str, series: Series, result: Contributions) -> Figure:
    """Return the cumulative values of the clients of a run, with their bands."""
    # The clients to draw: all, or the flagged ones and those at both ends.
    clients = _choose_clients(result)
    curves = cumulate_values(result)
    lines = []
    for style, client in enumerate(clients):
        rounds, totals, margins = curves[client]
        lines.append(
            Line(
                f"client {client}",
                style,
                tuple(rounds),
                tuple(totals.tolist()),
                tuple((totals - margins).tolist()),
                tuple((totals + margins).tolist()),
            )
        )

    # What is shown, and what deserves a look.
    sentences = [MEANING, "Bands are 95 % intervals of the sum."]
    flagged = [entry for entry in result.clients if entry.flags]
    if flagged:
        texts = []
        for entry in flagged[:MAX_FLAGS]:
            kinds = ", ".join(flag.kind for flag in entry.flags)
            texts.append(f"{entry.client} ({kinds})")
        more = f" and {len(flagged) - MAX_FLAGS} more" if len(flagged) > MAX_FLAGS else ""
        sentences.append(f"Worth a look: {', '.join(texts)}{more}; the table has the evidence.")
    if len(clients) < len(result.clients):
        sentences.append(
            f"{len(clients)} of {len(result.clients):,} clients are drawn: flagged ones, and those "
            "with the highest and lowest totals; the table has all."
        )
    if len(series.runs) > 1:
        sentences.append("The first seed is shown.")
    return Figure(
        name,
        f"Contributions of clients: {series.name}",
        " ".join(sentences),
        "Contributions of clients",
        "round",
        "sum of Shapley values",
        make_contribution_table(result),
        lines=tuple(lines),
    )


def _choose_clients(result: Contributions) -> list[ClientId]:
    """Return the clients to draw, in the order of their ids."""
    if len(result.clients) <= MAX_LINES:
        return [entry.client for entry in result.clients]
    # Flagged clients, then from both ends of the totals in turn.
    chosen = [entry.client for entry in result.clients if entry.flags][: MAX_LINES // 2]
    by_total = [entry.client for entry in sorted(result.clients, key=lambda entry: -entry.total)]
    for pair in zip(by_total, reversed(by_total), strict=True):
        chosen += [client for client in pair if client not in chosen and len(chosen) < MAX_LINES]
    return [entry.client for entry in result.clients if entry.client in chosen]
