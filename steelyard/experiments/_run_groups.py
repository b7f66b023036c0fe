"""Groups runs by algorithm, setting and seed, and checks that runs with the same seed started alike."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from steelyard.algorithm import Algorithm
from steelyard.core._errors import SteelyardError
from steelyard.experiments._jobs import Outcome, flatten_keys
from steelyard.runs._directory import (
    COHORTS,
    CONFIG,
    ROUNDS,
    read_cohorts,
    read_config,
    read_log,
    read_subset,
)
from steelyard.runs._history import History
from steelyard.runs._monitor import Monitor

Labels = tuple[tuple[str, str], ...]

ALGORITHM = ("case", *(part.name for part in fields(Algorithm)))
# Keys that do not change results, and the seed.
_IGNORED_KEYS = (
    "seed",
    "workers",
    "executor",
    "keep",
    "checkpoint_every",
    "data.dir",
    "monitor",
    "mode",
)


def is_of_algorithm(axis: str) -> bool:
    """Return whether an axis belongs to the algorithm; the others belong to the setting."""
    return axis in ALGORITHM or axis.startswith("local.")


def format_labels(labels: Labels) -> str:
    """Return labels as text: `fedavg + fedcos:mu=0.02 lr=0.1`; settings with commas.

    Parts of the algorithm that are "none" are omitted.
    """
    names = []
    values = []
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
    """Return whether a value is unclear without its key: a number, true, false, none."""
    try:
        float(value)
    except ValueError:
        return value in ("none", "true", "false")
    return True


def format_setting(value: Any) -> str:
    """Return a value of a configuration as text."""
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value)


@dataclass(frozen=True)
class Run:
    """A run with the labels that distinguish it from others.

    Attributes:
        path: the run directory.
        history: the rounds.
        algorithm: the labels of the algorithm, by axis.
        setting: the labels of data, model and participation, by axis.
        seed: the random seed.
        planned: the planned number of rounds if the run is unfinished; None if it is finished.
    """

    path: Path
    history: History
    algorithm: Labels
    setting: Labels
    seed: str
    planned: int | None = None

    @staticmethod
    def of(outcome: Outcome) -> Run:
        """Return the run of a job that did not fail."""
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
        """The name of the run in messages."""
        context = ", ".join(filter(None, [format_labels(self.setting), f"seed {self.seed}"]))
        return f"{format_labels(self.algorithm) or 'run'} ({context})"


def read_runs(
    directories: Sequence[str | Path], unfinished: bool = False
) -> tuple[list[Run], list[str]]:
    """Read the finished runs in directories and their subdirectories.

    Args:
        directories: run directories, or directories that contain them.
        unfinished: also return unfinished runs that have at least one round.

    Returns:
        The runs, labelled by the settings that differ between them; and notes on other runs.
    """
    # Read the runs; note those that are unfinished.
    configs = {}
    histories = {}
    planned_rounds = {}
    notes = []
    for path in _find_run_directories(map(Path, directories)):
        config = read_config(path)
        records = read_log(path)
        monitor = Monitor.from_config(config)
        planned = config.get("resolved", {}).get("rounds", 0)
        note = f"{path}: unfinished ({len(records)} of {planned} rounds)"
        if not records:
            notes.append(f"{note}, left out: {_resume_hint(path)}")
            continue
        history = History(path.name, records, {}, path, monitor)
        if len(history) < planned and not monitor.is_target_reached(history):
            if not unfinished:
                notes.append(f"{note}, left out: {_resume_hint(path)}")
                continue
            notes.append(note)
            planned_rounds[path] = planned
        configs[path] = config
        histories[path] = history

    # Label the runs by the settings that differ; if the algorithm is the same, also by its parts.
    settings = _read_settings(configs)
    axes = _find_axes(settings.values())
    runs = []
    for path, values in settings.items():
        labels = [(key, values.get(key, "none")) for key in axes]
        algorithm = tuple(pair for pair in labels if is_of_algorithm(pair[0]))
        setting = tuple(pair for pair in labels if not is_of_algorithm(pair[0]))
        planned = planned_rounds.get(path)
        runs.append(Run(path, histories[path], algorithm, setting, values["seed"], planned))

    # Remove copies, and note runs whose cohorts cannot be checked.
    runs, copy_notes = _remove_copies(runs)
    notes += copy_notes
    if len(runs) > 1:
        for run in runs:
            if read_cohorts(run.path) is None:
                notes.append(
                    f"{run.path / COHORTS}: cannot be read: whether its rounds had the same "
                    f"clients "
                    "as those of other runs is not checked"
                )
    return runs, [*notes, *describe_subsets(run.path for run in runs)]


def describe_subsets(paths: Iterable[Path]) -> list[str]:
    """Return a sentence for each data set of which runs had only a part."""
    sentences: dict[str, None] = {}
    for path in paths:
        subset = read_subset(path)
        if subset is not None:
            name = read_config(path)["resolved"]["data"].get("name")
            sentences[f"{name}, {subset}: not comparable with results on the whole set"] = None
    return list(sentences)


def _resume_hint(path: Path) -> str:
    return f"finish it with steelyard resume {shlex.quote(str(path))}"


def _find_axes(settings: Iterable[Mapping[str, str]]) -> list[str]:
    """Return the keys that differ between runs.

    If no key of the algorithm differs, the parts of the algorithm that are not "none" come first.
    """
    settings = list(settings)
    varying = []
    for key in dict.fromkeys(key for values in settings for key in values):
        if key not in _IGNORED_KEYS and len({values.get(key) for values in settings}) > 1:
            varying.append(key)
    if any(map(is_of_algorithm, varying)):
        return varying
    parts = []
    for part in ALGORITHM:
        if any(values.get(part, "none") != "none" for values in settings):
            parts.append(part)
    return [*parts, *varying]


def _remove_copies(runs: Iterable[Run]) -> tuple[list[Run], list[str]]:
    """Return each run once, and notes on copies.

    Of several copies, the finished one is returned, or the newest.
    """
    unique: dict[tuple[Labels, Labels, str], Run] = {}
    notes = []
    for run in runs:
        key = (run.setting, run.algorithm, run.seed)
        previous = unique.setdefault(key, run)
        if previous is run:
            continue
        reason = _compare_starts(previous, run) or _compare_records(previous, run)
        if reason:
            name = format_labels(run.algorithm) or "a run"
            raise SteelyardError(
                f"{run.path} and {previous.path} are both {name}, seed {run.seed}, "
                f"and are not the same run ({reason}): give one of them"
            )
        older, newer = sorted((previous, run), key=_copy_rank)
        unique[key] = newer
        notes.append(f"{older.path}: the same run as {newer.path}, left out")
    return list(unique.values()), notes


def _compare_records(first: Run, second: Run) -> str:
    """Return the round from which the records of two runs differ, as text; empty if they do not.

    Runs with the same recorded settings may differ: not all settings are recorded.
    """
    records = zip(first.history.comparable(), second.history.comparable(), strict=False)
    for first_record, second_record in records:
        if first_record != second_record:
            return f"their records differ from round {first_record['round']} on"
    return ""


def _copy_rank(run: Run) -> tuple[bool, int]:
    """Return a key that sorts finished runs after unfinished ones, then by time."""
    return run.planned is None, (run.path / ROUNDS).stat().st_mtime_ns


def group_runs(runs: Iterable[Run]) -> dict[Labels, dict[Labels, dict[str, Run]]]:
    """Return runs by setting, algorithm and seed, in the order of their appearance."""
    settings: dict[Labels, dict[Labels, dict[str, Run]]] = {}
    for run in runs:
        seeds = settings.setdefault(run.setting, {}).setdefault(run.algorithm, {})
        if run.seed in seeds:
            raise SteelyardError(
                f"{run.path}: the same run as {seeds[run.seed].path} "
                f"({format_labels(run.algorithm)}, seed {run.seed}): give one of them"
            )
        seeds[run.seed] = run
    return settings


def list_algorithms(settings: Mapping[Labels, Mapping[Labels, Any]]) -> list[Labels]:
    """Return all algorithms of grouped runs, in the order of their appearance."""
    algorithms: dict[Labels, None] = {}
    for column in settings.values():
        algorithms.update(dict.fromkeys(column))
    return list(algorithms)


def find_differences(runs: Iterable[Run]) -> list[str]:
    """Return a sentence for each run that did not start like others of its setting and seed."""
    sentences = []
    for algorithms in group_runs(runs).values():
        first_runs: dict[str, Run] = {}
        for seeds in algorithms.values():
            for run in seeds.values():
                first = first_runs.setdefault(run.seed, run)
                reason = _compare_starts(first, run)
                if reason:
                    sentences.append(
                        f"{first.name} and {run.name} did not start alike ({reason}): "
                        "their difference is not the algorithm's alone"
                    )
    return sentences


def _compare_starts(first: Run, second: Run) -> str:
    """Return how data, initial model and cohorts of two runs differ, as text; empty if not."""
    first_values = read_config(first.path).get("resolved", {})
    second_values = read_config(second.path).get("resolved", {})

    def differ(section: str, key: str) -> bool:
        first_value = first_values.get(section, {}).get(key)
        return bool(first_value != second_values.get(section, {}).get(key))

    # Data and initial model.
    reasons = []
    if differ("data", "fingerprint"):
        reasons.append("other data or another partition")
    if differ("proxy", "fingerprint"):
        reasons.append("other proxy data")
    if differ("model", "initial"):
        reasons.append("another initial model")

    # Cohorts of the rounds that both have: one run may have been extended.
    first_cohorts = read_cohorts(first.path) or ()
    second_cohorts = read_cohorts(second.path) or ()
    cohorts = zip(first_cohorts, second_cohorts, strict=False)
    for number, (first_cohort, second_cohort) in enumerate(cohorts, 1):
        if first_cohort != second_cohort:
            reasons.append(f"other cohorts from round {number} on")
            break

    # Layers, which older runs did not record.
    layers = {values.get("model", {}).get("layers") for values in (first_values, second_values)}
    if len(layers - {None}) > 1:
        reasons.append("other layers")
    return ", ".join(reasons)


def _find_run_directories(directories: Iterable[Path]) -> list[Path]:
    """Return the run directories in directories and their subdirectories, each once."""
    paths: dict[Path, None] = {}
    for directory in directories:
        if (directory / CONFIG).exists():
            runs = [directory]
        else:
            runs = sorted(path.parent for path in directory.rglob(CONFIG))
        if not runs:
            raise SteelyardError(
                f"{directory}: holds no run: give run directories, or a directory of them"
            )
        paths |= dict.fromkeys(runs)
    return list(paths)


def _read_settings(configs: Mapping[Path, Mapping[str, Any]]) -> dict[Path, dict[str, str]]:
    """Return the settings of each run as text, by key.

    If a run was started from Python, only the resolved settings can be compared.
    """
    has_configs = all("config" in config for config in configs.values())
    settings = {}
    for path, config in configs.items():
        if has_configs:
            values = flatten_keys(config["config"])
        else:
            values = _flatten_resolved(config["resolved"])
        settings[path] = {key: format_setting(value) for key, value in values.items()}
    return settings


def _flatten_resolved(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Return resolved settings by key.

    Hashes depend on the seed and are compared by `find_differences`; metrics depend on the
    algorithm. Both are omitted.
    """
    omitted = ("algorithm", "data", "model", "metrics", "proxy")
    values = {key: value for key, value in resolved.items() if key not in omitted}
    data = resolved["data"]
    values["data"] = {"name": data["name"], "clients": data["clients"]}
    if "proxy" in resolved:
        proxy = dict(resolved["proxy"])
        proxy.pop("fingerprint", None)
        proxy.pop("samples", None)
        values["proxy"] = proxy
    values |= dict(resolved["algorithm"])
    values["model"] = resolved["model"]["parameters"]
    return flatten_keys(values)
