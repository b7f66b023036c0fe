"""A sweep: `sweep.toml`, a base configuration crossed with axes, as a list of jobs.

[base]    keys of a run, as for `steelyard run`
[grid]    axes: lists of values by key; every combination is run
[[case]]  named sets of keys: an axis of their own, crossed with the grid
"""

from __future__ import annotations

import copy
import hashlib
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steelyard.core.errors import SteelyardError, nearest_name
from steelyard.experiments.jobs import Job, flatten_keys
from steelyard.experiments.run_groups import is_bare, is_of_algorithm, text
from steelyard.runs.monitor import check_target
from steelyard.sim.config import Config, check_values, read_toml, validate_config

_KEYS = ("name", "out", "target", "base", "grid", "case")
_LIMIT = 10_000  # runs; more are a mistake in the file


@dataclass(frozen=True)
class Sweep:
    """What is to be run.

    Attributes:
        name: of the sweep.
        out: the directory above the runs; None if the file does not say.
        target: accuracy of the column `rounds`.
        axes: what varies, seed last.
        seeds: how many runs each cell of a table has.
        jobs: one per combination.
        notes: what the user should know.
    """

    name: str
    out: Path | None
    target: float | None
    axes: tuple[str, ...]
    seeds: int
    jobs: tuple[Job, ...]
    notes: tuple[str, ...] = ()


def read_sweep(path: str | Path) -> Sweep:
    """A sweep from a TOML file."""
    path = Path(path)
    return plan({"name": path.stem, **read_toml(path)}, str(path))


def plan(raw: Mapping[str, Any], source: str = "sweep") -> Sweep:
    """A sweep from plain data, as in the file; the first mistake is named with its place and the cure."""
    check_values(raw, source)
    _check(raw, source)
    base = raw.get("base", {})
    grid = {key: values for key, values in _lists(raw.get("grid", {}), source).items() if key != "seed"}
    cases = _cases(raw.get("case", []), source)
    seeds = _lists(raw.get("grid", {}), source).get("seed", [])
    own = {key for keys in cases.values() for key in keys}
    for key in own & {*grid, *(["seed"] if seeds else [])}:
        raise SteelyardError(f"{source}: {key!r} is in [grid] and in a [[case]]: keep it in one of them")
    combinations = itertools.product(*grid.values(), cases.items() if cases else [(None, {})], seeds or [None])
    total = len(seeds or [0]) * max(1, len(cases))
    for values in grid.values():
        total *= len(values)
    if total > _LIMIT:
        raise SteelyardError(f"{source}: {total} runs: use fewer values in [grid] (at most {_LIMIT} runs)")
    # A case about data is a setting, and its runs are not to be paired with those of another.
    case_axis = "case" if all(map(is_of_algorithm, own)) else "setting"
    made = []
    for *values, (name, keys), seed in combinations:
        settings = dict(zip(grid, values, strict=True)) | keys | ({} if seed is None else {"seed": seed})
        config = _config(base, settings, source)
        labels = {} if name is None else {case_axis: name}
        labels |= {key: text(value) for key, value in zip(grid, values, strict=True)}
        made.append((config, labels | {"seed": str(config.seed)}))
    notes = []
    if len({config.seed for config, _ in made}) == 1:
        notes.append(
            f"one seed ({made[0][0].seed}) says nothing about noise: use several, such as seed = [1, 2, 3] in [grid]"
        )
    _check_target(raw.get("target"), [config for config, _ in made], source)
    names = _names([labels for _, labels in made])
    jobs = tuple(Job(name, config, labels) for name, (config, labels) in zip(names, made, strict=True))
    out = raw.get("out")
    return Sweep(
        name=raw.get("name", "sweep"),
        out=None if out is None else Path(out),
        target=raw.get("target", jobs[0].config.target),
        axes=tuple(jobs[0].labels),
        seeds=len(seeds) or 1,
        jobs=jobs,
        notes=tuple(notes),
    )


def _check(raw: Mapping[str, Any], source: str) -> None:
    for key in raw:
        if key not in _KEYS:
            if key in Config.model_fields:
                raise SteelyardError(f"{source}: unknown key {key!r}: keys of a run go below [base]")
            near = nearest_name(key, _KEYS)
            hint = f"did you mean {near!r}?" if near else f"known: {', '.join(_KEYS)}"
            raise SteelyardError(f"{source}: unknown key {key!r}: {hint}")
    kinds: dict[str, tuple[type, str]] = {
        "name": (str, "text"),
        "out": (str, "text"),
        "base": (Mapping, "a section [base]"),
        "grid": (Mapping, "a section [grid]"),
        "case": (Sequence, "sections [[case]]"),
    }
    for key, (kind, wanted) in kinds.items():
        if key in raw and not (isinstance(raw[key], kind) and (kind is str or not isinstance(raw[key], str))):
            raise SteelyardError(f"{source}: {key} = {raw[key]!r}: use {wanted}")


def _check_target(target: Any, configs: Sequence[Config], source: str) -> None:
    """Refuse a target that is not one of the metric that runs monitor."""
    metrics = {"loss" if config.loss != "cross_entropy" else config.monitor for config in configs}
    try:
        check_target(target, "accuracy" if "accuracy" in metrics else "loss")
    except SteelyardError as error:
        raise SteelyardError(f"{source}: {str(error).replace('=', ' = ', 1)}") from None


def _lists(grid: Mapping[str, Any], source: str) -> dict[str, list[Any]]:
    """Axes by key; `data.partition = [...]` may be written with or without quotes."""
    axes = flatten_keys(grid)
    for key, values in axes.items():
        if not isinstance(values, (list, tuple)) or not values:
            raise SteelyardError(f"{source}: grid.{key} = {values!r}: use a list of values")
        twice = [value for value, count in Counter(map(text, values)).items() if count > 1]
        if twice:
            raise SteelyardError(f"{source}: grid.{key}: {twice[0]!r} is given twice")
    return {key: list(values) for key, values in axes.items()}


def _cases(raw: Sequence[Any], source: str) -> dict[str, dict[str, Any]]:
    cases: dict[str, dict[str, Any]] = {}
    for number, case in enumerate(raw, 1):
        name = case.get("label") if isinstance(case, Mapping) else None
        if not isinstance(name, str) or not name.strip():
            raise SteelyardError(f'{source}: case {number} has no label: give it one, such as label = "FedCos"')
        if name in cases:
            raise SteelyardError(f"{source}: case {number}: the label {name!r} is taken: give it another")
        cases[name] = flatten_keys({key: value for key, value in case.items() if key != "label"})
    return cases


def _config(base: Mapping[str, Any], settings: Mapping[str, Any], source: str) -> Config:
    raw = copy.deepcopy(dict(base))
    for key, value in settings.items():
        *sections, last = key.split(".")
        place = raw
        for section in sections:
            place = place.setdefault(section, {})
            if not isinstance(place, dict):
                raise SteelyardError(f"{source}: {key!r}: {section!r} is a value, not a section")
        place[last] = value
    return validate_config(raw, source)


def _names(labels: Sequence[Mapping[str, str]]) -> list[str]:
    """Directories: values joined, the seed below; a short hash where two would be the same."""
    stems = ["-".join(_slug(axis, value) for axis, value in one.items() if axis != "seed") for one in labels]
    exact = ["\n".join(f"{axis}={value}" for axis, value in one.items() if axis != "seed") for one in labels]
    meant: dict[str, set[str]] = {}
    for stem, whole in zip(stems, exact, strict=True):
        meant.setdefault(stem.lower(), set()).add(whole)  # some file systems do not tell Case from case
    names = []
    for stem, whole, one in zip(stems, exact, labels, strict=True):
        if len(meant[stem.lower()]) > 1 or len(stem) > 100:
            stem = f"{stem[:100]}-{hashlib.sha256(whole.encode()).hexdigest()[:6]}"
        names.append(f"{stem}/seed-{one['seed']}" if stem else f"seed-{one['seed']}")
    return names


def _slug(axis: str, value: str) -> str:
    """A value as part of a file's name; numbers with what they are of."""
    named = f"{axis.rpartition('.')[2]}-{value}" if is_bare(value) else value
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "._+") else "-" for c in named)
    return "-".join(filter(None, plain.split("-"))).strip(".-") or axis
