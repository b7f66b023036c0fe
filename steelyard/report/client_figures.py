"""Figures by client: weights and what else rounds say of each, the partition, who was quarantined; and timings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.diagnostics.recorded import NOT_BY_CLIENT
from steelyard.experiments.statistics import mean
from steelyard.report.figures import Bars, Figure, Heat, Row, Section, Table, Value
from steelyard.report.series import Series, as_number
from steelyard.runs.directory import read_clients

MOST_ROWS = 300  # of a heat map: about one per two pixels
MOST_CELLS = 80_000  # of a panel; beyond it a column is the mean of several rounds
MOST_PANELS = 8
MOST_BARS = 40  # clients side by side
STAGES = ("train", "aggregate", "evaluate")


@dataclass(frozen=True)
class ByClient:
    """How to speak of what rounds say of each client."""

    title: str
    z: str
    caption: str
    section: Section = "What the rule learned"
    palette: Literal["sequential", "diverging"] = "sequential"
    zero: bool = False


_KNOWN = {
    "weights": ByClient(
        "Weights",
        "weight",
        "Who counts for how much in each round: a dark row is a client that decides, a white "
        "cell one that took no part.",
        "Weights",
        zero=True,
    ),
    "cosines": ByClient(
        "Cosine to the global update",
        "cosine",
        "A client that stays orange pulls against the others: an outlier, or the only one with its data.",
        "Geometry of the updates",
        "diverging",
    ),
    "direction_cosines": ByClient(
        "Cosine to the direction sent",
        "cosine",
        "How far a client followed the last global displacement, which FedCos asks of it.",
        "Geometry of the updates",
        "diverging",
    ),
    "lambda": ByClient("Lambda, learned shares", "share", "What the rule learned on its proxy data.", zero=True),
    "angles": ByClient("Smoothed angles", "radians", "FedAdp gives clients with small angles more weight."),
    "alpha": ByClient("Alpha, change of scores", "factor", "Above one, PA3Fed raises the client's weight."),
    "client_accuracy": ByClient(
        "Accuracy by client", "accuracy", "The global model on each client's own data.", "Clients and data"
    ),
    "client_loss": ByClient(
        "Loss by client", "loss", "The global model on each client's own data.", "Clients and data"
    ),
}
_DROPPED = {*NOT_BY_CLIENT, "quarantined", "norms", "layer_weights"}  # norms are shown as a mean


def heats(series: Sequence[Series], sections: Sequence[Section]) -> list[Figure]:
    """A figure for everything that rounds say by client."""
    made = []
    for name in _names(series):
        about = _KNOWN.get(name) or ByClient(name.replace("_", " "), name, "As the rule puts it on record.")
        if about.section in sections:
            made.append(over_clients(series, name, about))
    return made


def over_clients(series: Sequence[Series], name: str, about: ByClient) -> Figure:
    """Clients x rounds, a panel per series, of its first seed: a client of another seed holds other data."""
    having = [one for one in series if any(isinstance(record.get(name), Mapping) for record in one.first.history)]
    shown, said, rows = [], [about.caption], []
    for one in having[:MOST_PANELS]:
        heat, table, notes = _panel(one, name)
        shown.append(heat)
        rows += table
        said += [note for note in notes if note not in said]
    if any(len(one.runs) > 1 for one in having):
        said.append("The first seed is shown.")
    if len(having) > MOST_PANELS:
        said.append(f"The first {MOST_PANELS} of {len(having)} series are shown.")
    heads = ("series", "client", "mean", "least", "most", "rounds")
    return Figure(
        name, about.title, " ".join(said), about.section, "round", "client", Table(heads, tuple(rows)),
        z=about.z, heats=tuple(shown), palette=about.palette, zero=about.zero,
    )  # fmt: skip


def _panel(one: Series, name: str) -> tuple[Heat, list[Row], list[str]]:
    records = one.first.history.records
    tables = [record[name] if isinstance(record.get(name), Mapping) else {} for record in records]
    ids = list(dict.fromkeys(str(client) for table in tables for client in table))
    held = read_clients(one.first.path)
    if held is not None and len(held["ids"]) <= MOST_ROWS:  # clients never asked have a row, too
        ids = list(dict.fromkeys([*map(str, held["ids"]), *ids]))
    place = {client: row for row, client in enumerate(ids)}
    cells = np.full((len(ids), len(records)), np.nan)
    for column, table in enumerate(tables):
        for client, value in table.items():
            found = as_number(value)
            if found is not None:
                cells[place[str(client)], column] = found
    kept, notes = _choose_clients((~np.isnan(cells)).sum(axis=1))
    rows: list[Row] = []
    for row in kept:
        values = cells[row][~np.isnan(cells[row])]
        measured = (float(values.mean()), float(values.min()), float(values.max())) if len(values) else (None,) * 3
        rows.append((one.name, ids[row], *measured, len(values)))
    few = max(1, -(-len(kept) * len(records) // MOST_CELLS))
    columns = [str(record["round"]) for record in records][::few]
    if few > 1:
        notes.append(f"A column is the mean of {few} rounds.")
    return Heat(one.name, tuple(ids[row] for row in kept), tuple(columns), _blocks(cells[kept], few)), rows, notes


def _choose_clients(rounds: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[str]]:
    """Which clients are shown, given how often each took part, and a note if that is not all."""
    if len(rounds) <= MOST_ROWS:
        return np.arange(len(rounds)), []
    kept = np.sort(np.argsort(-rounds, kind="stable")[:MOST_ROWS])
    return kept, [f"{MOST_ROWS} of {len(rounds):,} clients are shown, those that took part most often."]


def _blocks(cells: NDArray[np.float64], few: int) -> tuple[tuple[float | None, ...], ...]:
    """Means of so many columns each, None where there is nothing."""
    held, starts = ~np.isnan(cells), np.arange(0, cells.shape[1], few)
    counts = np.add.reduceat(held, starts, axis=1, dtype=np.int64)
    sums = np.add.reduceat(np.where(held, cells, 0.0), starts, axis=1)
    means = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
    return tuple(tuple(None if math.isnan(value) else value for value in row) for row in means.tolist())


def _names(series: Sequence[Series]) -> list[str]:
    """What is on record by client: the known ones first."""
    found: dict[str, None] = {}
    for one in series:
        for record in one.first.history:
            for name, value in record.items():
                if (
                    name not in found
                    and isinstance(value, Mapping)
                    and any(as_number(item) is not None for item in value.values())
                ):
                    found[name] = None
    free = [name for name in found if name not in _DROPPED]
    return [name for name in _KNOWN if name in free] + sorted(name for name in free if name not in _KNOWN)


def periods(series: Sequence[Series]) -> Figure | None:
    """Which rounds each run took for critical; None if no rule looks for periods."""
    names, cells, rows = [], [], []
    for one in series:
        for run in one.runs:
            said = {r["round"]: float(r["critical"]) for r in run.history if isinstance(r.get("critical"), bool)}
            if said:
                names.append(f"seed {run.seed}: {one.name}")
                cells.append(said)
                rows.append((names[-1], int(sum(said.values())), len(said)))
    if not names:
        return None
    rounds = sorted({number for said in cells for number in said})
    heat = Heat(
        "", tuple(names), tuple(map(str, rounds)), tuple(tuple(said.get(at) for at in rounds) for said in cells)
    )
    return Figure(
        "critical",
        "Critical periods",
        "Dark rounds are those that the rule takes for critical, and in which it adapts its weights.",
        "What the rule learned",
        "round",
        "run",
        Table(("run", "critical rounds", "rounds"), tuple(rows)),
        heats=(heat,),
    )


def partition(series: Sequence[Series]) -> Figure | None:
    """Clients x classes, a panel for every partition there is among first seeds; None if none is on record."""
    panels: dict[str, Heat] = {}
    rows: list[Row] = []
    said = [
        "Samples of each class that clients hold: empty cells are classes that a client never sees.",
        "The seed draws it.",
    ]
    for one in series:
        held = read_clients(one.first.path)
        if held is None or not held.get("counts") or repr(held) in panels:
            continue
        asked = Counter(str(client) for record in one.first.history for client in record.get("weights") or ())
        kept, notes = _choose_clients(np.array([asked[str(client)] for client in held["ids"]]))
        said += [note for note in notes if note not in said]
        counts, ids = [held["counts"][row] for row in kept], tuple(str(held["ids"][row]) for row in kept)
        name = f"as {one.name} has it, seed {one.first.seed}" if panels else f"seed {one.first.seed}"
        classes = tuple(map(str, range(len(counts[0]))))
        values = tuple(tuple(count or None for count in row) for row in counts)
        panels[repr(held)] = Heat(name, ids, classes, values)
        rows += [(name, client, sum(row), *row) for client, row in zip(ids, counts, strict=True)]
        if len(panels) == MOST_PANELS:
            break
    if not panels:
        return None
    classes = max((heat.columns for heat in panels.values()), key=len)
    filled = tuple(row + (None,) * (3 + len(classes) - len(row)) for row in rows)
    return Figure(
        "partition",
        "The partition",
        " ".join(said),
        "Clients and data",
        "class",
        "client",
        Table(("partition", "client", "samples", *(f"class {name}" for name in classes)), filled),
        z="samples",
        heats=tuple(panels.values()),
    )


def quarantined(series: Sequence[Series]) -> Figure | None:
    """How often each client was left out, and why; None if nobody was."""
    counts = [Counter[str](), *[Counter[str]() for _ in series[1:]]]
    reasons: dict[tuple[int, str], Counter[str]] = {}
    for place, one in enumerate(series):
        for run in one.runs:
            for record in run.history:
                for client, reason in (record.get("quarantined") or {}).items():
                    counts[place][str(client)] += 1
                    reasons.setdefault((place, str(client)), Counter())[str(reason)] += 1
    everyone = sum(counts, Counter()).most_common()
    clients = tuple(client for client, _ in everyone[:MOST_BARS])
    if not clients:
        return None
    cut = f" {MOST_BARS} of {len(everyone):,} clients are shown, those left out most often; the table has all."
    rows = tuple(
        (series[place].name, client, said.total(), "; ".join(f"{reason} ({n}x)" for reason, n in said.most_common(3)))
        for (place, client), said in reasons.items()
    )
    bars = tuple(
        Bars(one.name, one.style, tuple(float(counts[place][client]) or None for client in clients))
        for place, one in enumerate(series)
        if counts[place]
    )
    return Figure(
        "quarantined", "Quarantined clients",
        "Rounds, over all seeds, in which a client's update was left out: of NaN, of a wrong shape, or as an outlier; "
        "the reasons are in the table." + cut * (len(everyone) > MOST_BARS),
        "Clients and data", "client", "rounds", Table(("series", "client", "rounds", "reasons"), rows),
        bars=bars, categories=clients,
    )  # fmt: skip


def timings(series: Sequence[Series]) -> Figure | None:
    """Mean seconds of a round by stage, a bar per series."""
    found: list[dict[str, float]] = []
    for one in series:
        times = [record.get("timings", {}) for run in one.runs for record in run.history]
        known = {stage: [t[stage] for t in times if stage in t] for stage in (*STAGES, "total")}
        found.append({stage: mean(values) for stage, values in known.items() if values})
    if not any(found):
        return None
    bars = tuple(Bars(stage, number, tuple(times.get(stage) for times in found)) for number, stage in enumerate(STAGES))
    rows = tuple(
        _timed(one, times, sum(len(run.history) for run in one.runs)) for one, times in zip(series, found, strict=True)
    )
    return Figure(
        "timings", "Timings",
        "Mean wall time of a round: aggregation should be a sliver beside training; compare runs of one machine only.",
        "Cost", "", "seconds per round",
        Table(("series", *STAGES, "total", "rounds", "hours in all"), rows),
        bars=bars, categories=tuple(one.name for one in series), stacked=True,
    )  # fmt: skip


def _timed(one: Series, times: Mapping[str, float], rounds: int) -> Row:
    total = times.get("total")
    cells: list[Value] = [one.name, *(times.get(stage) for stage in STAGES), total, rounds]
    return (*cells, None if total is None else total * rounds / 3600)
