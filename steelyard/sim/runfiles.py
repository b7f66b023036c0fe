"""The files of a run directory, read and checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from steelyard.core.errors import SteelyardError

CONFIG, ENVIRONMENT, COHORTS, ROUNDS = "config.json", "environment.json", "cohorts.json", "rounds.jsonl"
CLIENTS = "clients.json"
FILES = (CONFIG, ROUNDS, COHORTS, CLIENTS, ENVIRONMENT)  # removed in this order: the last one tells whose they are
_RESOLVED = {"algorithm", "seed", "rounds", "data", "model"}  # what a configuration says of any run


def is_file_of_run(directory: Path, name: str) -> bool:
    """Whether a file of a run directory is there, and is what a run writes under this name."""
    path = directory / name
    if path.is_symlink() or not path.is_file():
        return False
    if name == ROUNDS:
        lines = path.read_bytes().splitlines()
        return not lines or any(_is_record(line) for line in lines)
    try:
        value = parse_json(path.read_bytes())
    except ValueError:
        return False
    if name == COHORTS:
        return isinstance(value, list) and all(isinstance(cohort, list) for cohort in value)
    keys = {CONFIG: {"resolved"}, ENVIRONMENT: {"steelyard", "promise"}, CLIENTS: {"ids", "sizes"}}[name]
    if not isinstance(value, dict) or not value.keys() >= keys:
        return False
    return name != CONFIG or (isinstance(value["resolved"], dict) and value["resolved"].keys() >= _RESOLVED)


def _is_record(line: bytes) -> bool:
    try:
        record = parse_json(line)
    except ValueError:
        return False
    return isinstance(record, dict) and isinstance(record.get("round"), int)


def parse_json(data: bytes) -> Any:
    """JSON as plain data; raises ValueError for all that is not, nested too deeply included."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_config(path: Path) -> dict[str, Any]:
    """What `begin` wrote into a run directory."""
    if not (path / CONFIG).exists():
        raise SteelyardError(f"{path}: holds no run (no {CONFIG})")
    try:
        config: dict[str, Any] = parse_json((path / CONFIG).read_bytes())
    except ValueError as error:
        raise SteelyardError(f"{path / CONFIG}: not JSON: {error}: leave this directory out, or remove it") from None
    known = isinstance(config, dict) and isinstance(config.get("resolved"), dict) and config["resolved"].keys()
    if not known or not known >= _RESOLVED:
        raise SteelyardError(f"{path / CONFIG}: does not say what was run: leave this directory out, or remove it")
    return config


def read_clients(path: Path) -> dict[str, Any] | None:
    """Who holds what in a run; None for a run from before this was written down."""
    try:
        clients = parse_json((path / CLIENTS).read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise SteelyardError(f"{path / CLIENTS}: not JSON: {error}: resume the run to write it anew") from None
    if not isinstance(clients, dict) or not isinstance(clients.get("ids"), list):
        raise SteelyardError(f"{path / CLIENTS}: names no clients: resume the run to write it anew")
    return clients


def read_cohorts(path: Path) -> list[Any] | None:
    """Whom each round asked; None if that cannot be read."""
    try:
        cohorts = parse_json((path / COHORTS).read_bytes())
    except (OSError, ValueError):
        return None
    return cohorts if isinstance(cohorts, list) else None


def read_log(path: Path) -> list[dict[str, Any]]:
    """The rounds on record; a half line at the end, of a run that was killed, is left out."""
    data = (path / ROUNDS).read_bytes() if (path / ROUNDS).exists() else b""
    records = []
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        try:
            record, why = parse_json(line), "not the record of a round"
        except ValueError as error:
            record, why = None, f"not JSON: {error}"
        if not isinstance(record, dict) or not isinstance(record.get("round"), int):
            raise SteelyardError(
                f"{path / ROUNDS}, line {number}: {why}: leave this directory out, or resume the run if its last "
                "checkpoint is from before"
            )
        records.append(record)
    return records
