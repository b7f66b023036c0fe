"""Finished runs, sorted by algorithm, setting and seed, and whether those with the same seed started alike."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from steelyard.algorithm import Algorithm
from steelyard.core.errors import SteelyardError
from steelyard.experiments.jobs import Outcome, flatten_keys
from steelyard.runs.directory import COHORTS, CONFIG, ROUNDS, read_cohorts, read_config, read_log
from steelyard.runs.history import History
from steelyard.runs.monitor import Monitor

Labels = tuple[tuple[str, str], ...]

ALGORITHM = ("case", *(part.name for part in fields(Algorithm)))
_IDLE = (
    "seed",
    "workers",
    "executor",
    "keep",
    "checkpoint_every",
    "data.dir",
    "monitor",
    "mode",
)  # change no number, or are the seed


def is_of_algorithm(axis: str) -> bool:
    """Whether an axis is about the algorithm; the others are about its setting."""
    return axis in ALGORITHM or axis.startswith("local.")


def label(labels: Labels) -> str:
    """For people: `fedavg + fedcos:mu=0.02 lr=0.1`. Parts that are not there are left out, settings go by commas."""
    names, values = [], []
    for axis, value in labels:
        if value == "none" and axis in ALGORITHM:
            continue
        if is_bare(value):
            values.append(f"{axis.rpartition('.')[2]}={value}")
        else:
            names.append(value)
    if all(is_of_algorithm(axis) for axis, _ in labels):
        return " ".join([" + ".join(names), *values]).strip()
    return ", ".join([*names, *values])


def is_bare(value: str) -> bool:
    """Whether a value says nothing without what it is of: a number, true, false, none."""
    try:
        float(value)
    except ValueError:
        return value in ("none", "true", "false")
    return True


def text(value: Any) -> str:
    """A value of a configuration as text."""
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value)


@dataclass(frozen=True)
class Run:
    """A run, finished unless it says otherwise.

    Attributes:
        path: its directory.
        history: its rounds.
        algorithm: what tells its algorithm from others, by axis.
        setting: what tells its data, model and participation from others, by axis.
        seed: of everything.
        planned: rounds it was to have, if it has not had them all yet.
    """

    path: Path
    history: History
    algorithm: Labels
    setting: Labels
    seed: str
    planned: int | None = None

    @staticmethod
    def of(outcome: Outcome) -> Run:
        """The run of a job that did not fail."""
        assert outcome.history is not None
        axes = [(axis, value) for axis, value in outcome.job.labels.items() if axis != "seed"]
        return Run(
            outcome.path,
            outcome.history,
            tuple(pair for pair in axes if is_of_algorithm(pair[0])),
            tuple(pair for pair in axes if not is_of_algorithm(pair[0])),
            outcome.job.labels.get("seed", str(outcome.job.config.seed)),
        )

    @property
    def name(self) -> str:
        """For messages."""
        where = ", ".join(filter(None, [label(self.setting), f"seed {self.seed}"]))
        return f"{label(self.algorithm) or 'run'} ({where})"


def read_runs(directories: Sequence[str | Path], unfinished: bool = False) -> tuple[list[Run], list[str]]:
    """The finished runs in and below directories, told apart by what varies between them; and notes on the others.

    Args:
        directories: run directories, or directories of them.
        unfinished: take those in as well that have a round but not all of them.
    """
    stored, histories, open_runs, notes = {}, {}, {}, []
    for path in _find_run_directories(map(Path, directories)):
        config = read_config(path)
        records = read_log(path)
        monitor = Monitor.read(config)
        history = History(path.name, records, {}, path, monitor) if records else None
        planned = config.get("resolved", {}).get("rounds", 0)
        done = 0 if history is None else len(history)
        if history is None or (done < planned and not monitor.is_done(history)):
            if unfinished and history is not None:
                stored[path], histories[path], open_runs[path] = config, history, planned
                notes.append(f"{path}: unfinished ({done} of {planned} rounds)")
                continue
            notes.append(
                f"{path}: unfinished ({done} of {planned} rounds), left out: go on with "
                f"steelyard resume {shlex.quote(str(path))}"
            )
            continue
        stored[path], histories[path] = config, history
    plain = _settings(stored)
    keys = dict.fromkeys(key for one in plain.values() for key in one)
    varying = [key for key in keys if len({one.get(key) for one in plain.values()}) > 1 and key not in _IDLE]
    parts = [part for part in ALGORITHM if any(one.get(part, "none") != "none" for one in plain.values())]
    shown = varying if any(map(is_of_algorithm, varying)) else [*parts, *varying]  # one algorithm: all that it is
    runs = []
    for path, one in plain.items():
        pairs = [(key, one.get(key, "none")) for key in shown]
        algorithm = tuple(pair for pair in pairs if is_of_algorithm(pair[0]))
        setting = tuple(pair for pair in pairs if not is_of_algorithm(pair[0]))
        runs.append(Run(path, histories[path], algorithm, setting, one["seed"], open_runs.get(path)))
    runs, left_out = _once(runs)
    unknown = [
        f"{run.path / COHORTS}: cannot be read: whether its rounds asked the same clients as others' is not checked"
        for run in runs
        if len(runs) > 1 and read_cohorts(run.path) is None
    ]
    return runs, [*notes, *left_out, *unknown]


def _once(runs: Iterable[Run]) -> tuple[list[Run], list[str]]:
    """Each run once: of several the finished one, or else the newest; and notes on the others."""
    kept: dict[tuple[Labels, Labels, str], Run] = {}
    notes = []
    for run in runs:
        key = (run.setting, run.algorithm, run.seed)
        other = kept.setdefault(key, run)
        if other is run:
            continue
        what = _differences(other, run) or _parting(other, run)
        if what:
            raise SteelyardError(
                f"{run.path} and {other.path} are both {label(run.algorithm) or 'a run'}, seed {run.seed}, "
                f"and are not the same run ({what}): give one of them"
            )
        older, kept[key] = sorted((other, run), key=_standing)
        notes.append(f"{older.path}: the same run as {kept[key].path}, left out")
    return list(kept.values()), notes


def _parting(one: Run, other: Run) -> str:
    """From which round on two runs are not the same: what they were made of may not be all on record."""
    both = zip(one.history.comparable(), other.history.comparable(), strict=False)
    differs = next((a["round"] for a, b in both if a != b), None)
    return "" if differs is None else f"their records differ from round {differs} on"


def _standing(run: Run) -> tuple[bool, int]:
    return run.planned is None, (run.path / ROUNDS).stat().st_mtime_ns


def groups(runs: Iterable[Run]) -> dict[Labels, dict[Labels, dict[str, Run]]]:
    """Runs by setting, algorithm and seed, each in the order they come in."""
    made: dict[Labels, dict[Labels, dict[str, Run]]] = {}
    for run in runs:
        seeds = made.setdefault(run.setting, {}).setdefault(run.algorithm, {})
        if run.seed in seeds:
            raise SteelyardError(
                f"{run.path}: the same run as {seeds[run.seed].path} ({label(run.algorithm)}, seed {run.seed}): "
                "give one of them"
            )
        seeds[run.seed] = run
    return made


def find_differences(runs: Iterable[Run]) -> list[str]:
    """What is wrong with pairs of the same setting and seed: a sentence for each that did not start alike."""
    sentences = []
    for algorithms in groups(runs).values():
        first: dict[str, Run] = {}
        for run in (run for seeds in algorithms.values() for run in seeds.values()):
            other = first.setdefault(run.seed, run)
            what = _differences(other, run)
            if what:
                sentences.append(
                    f"{other.name} and {run.name} did not start alike ({what}): "
                    "their difference is not the algorithm's alone"
                )
    return sentences


def _differences(one: Run, other: Run) -> str:
    a, b = (read_config(run.path).get("resolved", {}) for run in (one, other))
    said = []
    if a.get("data", {}).get("fingerprint") != b.get("data", {}).get("fingerprint"):
        said.append("other data or another partition")
    if a.get("proxy", {}).get("fingerprint") != b.get("proxy", {}).get("fingerprint"):
        said.append("other proxy data")
    if a.get("model", {}).get("initial") != b.get("model", {}).get("initial"):
        said.append("another initial model")
    asked = zip(
        read_cohorts(one.path) or (), read_cohorts(other.path) or (), strict=False
    )  # one of them may have been prolonged
    differs = next((number for number, (x, y) in enumerate(asked, 1) if x != y), None)
    if differs is not None:
        said.append(f"other cohorts from round {differs} on")
    layers = {resolved.get("model", {}).get("layers") for resolved in (a, b)} - {None}  # not in older runs
    if len(layers) > 1:
        said.append("other layers")
    return ", ".join(said)


def _find_run_directories(directories: Iterable[Path]) -> list[Path]:
    """Run directories in or below these."""
    made: dict[Path, None] = {}
    for directory in directories:
        runs = [directory] if (directory / CONFIG).exists() else sorted(p.parent for p in directory.rglob(CONFIG))
        if not runs:
            raise SteelyardError(f"{directory}: holds no run: give run directories, or a directory of them")
        made |= dict.fromkeys(runs)
    return list(made)


def _settings(stored: Mapping[Path, Mapping[str, Any]]) -> dict[Path, dict[str, str]]:
    """What each run is, key by key. Where one was started from Python, only what is resolved is known of all."""
    if all("config" in one for one in stored.values()):
        whole = {path: flatten_keys(one["config"]) for path, one in stored.items()}
    else:
        whole = {path: _flatten_resolved(one["resolved"]) for path, one in stored.items()}
    return {path: {key: text(value) for key, value in one.items()} for path, one in whole.items()}


def _flatten_resolved(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Without hashes, which follow the seed, and metrics, which follow the algorithm: hashes are looked at by seed."""
    apart = ("algorithm", "data", "model", "metrics", "proxy")
    plain = {key: value for key, value in resolved.items() if key not in apart}
    plain["data"] = {"name": resolved["data"]["name"], "clients": resolved["data"]["clients"]}
    if "proxy" in resolved:
        options = resolved["proxy"].items()
        plain["proxy"] = {key: value for key, value in options if key not in ("fingerprint", "samples")}
    return flatten_keys(plain | dict(resolved["algorithm"]) | {"model": resolved["model"]["parameters"]})
