"""The files of a run directory, read and checked.

Reading a file returns plain data of the expected types, or raises a `SteelyardError` that names the
file: for wrong types, numbers that are too large, and deep nesting. Only the keys that other code
relies on are checked.
"""

from __future__ import annotations

import errno
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from steelyard.core._errors import SteelyardError, escape_text
from steelyard.core._round_record import ROUND_RECORD, Form, rename_old_keys

CONFIG, ENVIRONMENT, COHORTS, ROUNDS = (
    "config.json",
    "environment.json",
    "cohorts.json",
    "rounds.jsonl",
)
CLIENTS = "clients.json"
GRAMS = "grams.bin"
GRAM_MAGIC = b"SYG1"  # the first bytes of an entry
FILES = (
    CONFIG,
    ROUNDS,
    COHORTS,
    CLIENTS,
    GRAMS,
    ENVIRONMENT,
)  # removed in this order: the last one tells whose they are
_REQUIRED_KEYS = {
    "algorithm",
    "seed",
    "rounds",
    "data",
    "model",
}  # what a configuration says of any run
_MAX_DEPTH = 32  # levels of nesting
_MAX_INTEGER = 1 << 1000  # of whole numbers: beyond it, they do not become a float
_MAX_COUNT = 1 << 53  # of anything that is counted

Check = Callable[[Any], bool]


# What values may be


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MAX_COUNT


def _is_id(value: Any) -> bool:
    return isinstance(value, str) or type(value) is int


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _dict_of(check: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def _is_table(value: Any) -> bool:
    """Return whether a value is a list of rows of numbers, all of the same length."""
    return _list_of(_list_of(_is_number))(value) and len({len(row) for row in value}) <= 1


_CHECKS_BY_FORM: dict[Form, Check] = {
    "number": _or_none(_is_number),
    "text": _or_none(_is_text),
    "number by client": _dict_of(_or_none(_is_number)),
    "reason by client": _dict_of(_is_text),
    "list of clients": _list_of(_is_id),
    "numbers by layer": _dict_of(_list_of(_or_none(_is_number))),
    "numbers by name": _dict_of(_is_number),
    "numbers by metric and client": _dict_of(_dict_of(_or_none(_is_number))),
}
# The keys of a record that other code relies on.
_RECORD_CHECKS: dict[str, Check] = {
    entry.key: _CHECKS_BY_FORM[entry.form] for entry in ROUND_RECORD.values() if entry.is_validated
}
_RESOLVED_CHECKS: dict[str, Check] = {
    "algorithm": _dict_of(_or_none(_is_text)),
    "seed": lambda value: type(value) is int,
    "rounds": _is_count,
    "data": lambda value: (
        isinstance(value, dict)
        and _or_none(_is_text)(value.get("name"))
        and _is_count(value.get("clients"))
        and _or_none(_is_text)(value.get("fingerprint"))
    ),
    "model": lambda value: isinstance(value, dict) and _is_count(value.get("parameters")),
    "local": lambda value: isinstance(value, dict),
    "participation": lambda value: isinstance(value, dict),
    "proxy": lambda value: isinstance(value, dict),
}  # where the resolved configuration has these keys
_REQUESTED_CHECKS: dict[str, Check] = {
    "target": _or_none(_is_number),
    "data": lambda value: isinstance(value, dict),
    "seed": lambda value: type(value) is int,
}  # where the configuration of the command line has these keys
_CLIENTS_CHECKS: dict[str, Check] = {
    "ids": _list_of(_is_id),
    "sizes": _list_of(_is_number),
    "counts": _is_table,
    "groups": _is_table,
}


def _find_wrong_key(value: Mapping[str, Any], checks: Mapping[str, Check]) -> str | None:
    """Return the first key whose value does not pass its check; None if all pass."""
    return next(
        (name for name, check in checks.items() if name in value and not check(value[name])), None
    )


def parse_json(data: bytes) -> Any:
    """Return JSON as plain data.

    Raises:
        ValueError: the data is not JSON, is nested too deeply, or has an integer that is too large.
    """
    try:
        value = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    # Level by level: a recursion could go too deep.
    level = [value]
    for _ in range(_MAX_DEPTH):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner += item.values()
            elif isinstance(item, list):
                inner += item
            elif isinstance(item, int) and abs(item) >= _MAX_INTEGER:
                raise ValueError(f"a number of {item.bit_length()} bits")
        if not inner:
            return value
        level = inner
    raise ValueError("nested too deeply")


def read_bytes(path: Path) -> bytes:
    """Return the contents of a file.

    Raises:
        OSError: it is not a regular file, for example a pipe, or it cannot be read.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a file")
    return path.read_bytes()


def _read_json(path: Path, advice: str) -> Any:
    """Return the data of a JSON file; errors name the file and end with the advice."""
    try:
        return parse_json(read_bytes(path))
    except ValueError as error:
        raise SteelyardError(f"{path}: not JSON: {error}: {advice}") from None
    except OSError as error:
        raise SteelyardError(
            f"{path}: cannot be read: {error.strerror or error}: {advice}"
        ) from None


def is_file_of_run(directory: Path, name: str) -> bool:
    """Return whether a file of a run directory exists and has the content that a run writes."""
    path = directory / name
    if path.is_symlink() or not path.is_file():
        return False
    if name == ROUNDS:
        lines = path.read_bytes().splitlines()
        return not lines or any(_is_record(line) for line in lines)
    if name == GRAMS:
        with path.open("rb") as file:
            return file.read(len(GRAM_MAGIC)) in (b"", GRAM_MAGIC)
    try:
        value = parse_json(path.read_bytes())
    except (ValueError, OSError):
        return False
    if name == COHORTS:
        return _list_of(_list_of(_is_id))(value)
    keys = {CONFIG: {"resolved"}, ENVIRONMENT: {"steelyard", "promise"}, CLIENTS: {"ids", "sizes"}}[
        name
    ]
    if not isinstance(value, dict) or not value.keys() >= keys:
        return False
    return name != CONFIG or (
        isinstance(value["resolved"], dict) and value["resolved"].keys() >= _REQUIRED_KEYS
    )


def parse_record(line: bytes) -> dict[str, Any]:
    """Return the record in a line of the log, with the keys of today.

    Lines of older versions have other keys: they are renamed here, for all readers.

    Raises:
        ValueError: the line is not the record of a round.
    """
    try:
        record = parse_json(line)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(record, dict) or not _is_count(record.get("round")):
        raise ValueError("not the record of a round")
    return rename_old_keys(record)


def _is_record(line: bytes) -> bool:
    """Return whether a line of the log is the record of a round."""
    try:
        parse_record(line)
    except ValueError:
        return False
    return True


def read_config(path: Path) -> dict[str, Any]:
    """Return the configuration of a run directory."""
    if not (path / CONFIG).exists():
        raise SteelyardError(f"{path}: holds no run (no {CONFIG})")
    advice = "leave this directory out, or remove it"
    config = _read_json(path / CONFIG, advice)
    resolved = config.get("resolved") if isinstance(config, dict) else None
    if not isinstance(resolved, dict) or not resolved.keys() >= _REQUIRED_KEYS:
        raise SteelyardError(f"{path / CONFIG}: does not say what was run: {advice}")
    requested = config.get("config", {})
    if not isinstance(requested, dict):
        raise SteelyardError(f"{path / CONFIG}: config is not a table of options: {advice}")
    for section, value, checks in (
        ("resolved", resolved, _RESOLVED_CHECKS),
        ("config", requested, _REQUESTED_CHECKS),
    ):
        wrong = _find_wrong_key(value, checks)
        if wrong is not None:
            raise SteelyardError(
                f"{path / CONFIG}: {section}.{wrong} is {_shorten_json(value[wrong])}: {advice}"
            )
    try:
        json.dumps(config, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise SteelyardError(f"{path / CONFIG}: holds text that is not Unicode: {advice}") from None
    checked: dict[str, Any] = config
    return checked


def _shorten_json(value: Any) -> str:
    """Return a value as JSON of at most 60 characters."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def read_clients(path: Path) -> dict[str, Any] | None:
    """Return the clients of a run, with their sizes and labels; None if an old run has no such file."""
    if not (path / CLIENTS).exists():
        return None
    advice = "resume the run to write it again"
    clients = _read_json(path / CLIENTS, advice)
    if not isinstance(clients, dict) or not isinstance(clients.get("ids"), list):
        raise SteelyardError(f"{path / CLIENTS}: names no clients: {advice}")
    wrong = _find_wrong_key(clients, _CLIENTS_CHECKS)
    if wrong is None:
        count = len(clients["ids"])
        wrong = next(
            (name for name in _CLIENTS_CHECKS if name in clients and len(clients[name]) != count),
            None,
        )
    if wrong is not None:
        raise SteelyardError(
            f"{path / CLIENTS}: {wrong} is {_shorten_json(clients[wrong])}: {advice}"
        )
    return clients


def read_subset(path: Path) -> str | None:
    """Return what part of a published data set a run used; None for all, or if it is not known."""
    if not (path / CONFIG).exists():
        return None
    subset = read_config(path).get("subset")
    return escape_text(subset, 200) if isinstance(subset, str) and subset else None


def read_environment(path: Path) -> dict[str, Any]:
    """Return the environment of a run; empty if the file is missing or damaged."""
    try:
        environment = parse_json(read_bytes(path / ENVIRONMENT))
    except (OSError, ValueError):
        return {}
    return environment if isinstance(environment, dict) else {}


def read_cohorts(path: Path) -> list[Any] | None:
    """Return the cohort of each round; None if the file cannot be read."""
    try:
        cohorts = parse_json(read_bytes(path / COHORTS))
    except (OSError, ValueError):
        return None
    return cohorts if _list_of(_list_of(_is_id))(cohorts) else None


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the records of a run; an incomplete last line of a killed run is left out."""
    try:
        data = read_bytes(path / ROUNDS) if (path / ROUNDS).exists() else b""
    except OSError as error:
        raise SteelyardError(
            f"{path / ROUNDS}: cannot be read: {error.strerror or error}"
        ) from None
    records: list[dict[str, Any]] = []
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        problem = _append_record(line, records)
        if problem is not None:
            raise SteelyardError(
                f"{path / ROUNDS}, line {number}: {problem}: leave this directory out, or resume "
                f"the run if its last "
                "checkpoint is from before"
            )
    return records


def _append_record(line: bytes, records: list[dict[str, Any]]) -> str | None:
    """Append the record in a line to the records; return the problem instead if there is one."""
    try:
        record = parse_record(line)
    except ValueError as error:
        return str(error)
    if records and record["round"] <= records[-1]["round"]:
        return f"round {record['round']} after round {records[-1]['round']}"
    wrong = _find_wrong_key(record, _RECORD_CHECKS)
    if wrong is not None:
        return f"{wrong} is {_shorten_json(record[wrong])}"
    records.append(record)
    return None
