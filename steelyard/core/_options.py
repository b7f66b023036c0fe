"""Options: dataclass fields that carry their help text and their limits.

The Python constructor, TOML files, `--set`, the stored configuration and the reference page of an
experiment all read the same fields.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from steelyard.core import checks
from steelyard.core._errors import SteelyardError, shorten

_KEY = "steelyard.option"


@dataclass(frozen=True)
class Option:
    """What is known of one option besides its name, type and default.

    Attributes:
        help: its meaning, in one line.
        low: the smallest value of a number.
        high: the largest value of a number.
        open_low: whether `low` itself is not allowed.
        choices: the allowed values of a text.
        is_python_only: whether it holds objects, which files and `--set` cannot.
        is_stored: whether the configuration of a run directory holds it.
        is_late: whether run directories exist that were written before the option did. It is stored
            only where it is not at its default, so that such runs can be compared and resumed.
    """

    help: str
    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    choices: tuple[str, ...] = ()
    is_python_only: bool = False
    is_stored: bool = True
    is_late: bool = False


def option(default: Any, help: str, **limits: Any) -> Any:
    """Return a dataclass field with this default; `limits` are further attributes of `Option`."""
    return dataclasses.field(default=default, metadata={_KEY: Option(help, **limits)})


def section(kind: type[Any], help: str, is_inline: bool = False) -> Any:
    """Return a dataclass field that holds options of its own, all at their defaults.

    Args:
        kind: the dataclass of the section.
        help: its meaning, in one line.
        is_inline: whether files have its keys at the top level instead of in a section.
    """
    metadata = {_KEY: Option(help), "kind": kind, "is_inline": is_inline}
    return dataclasses.field(default=kind(), metadata=metadata)


@dataclass(frozen=True)
class Key:
    """One option of a dataclass and where a file has it.

    Attributes:
        path: the key in a file, such as `local.lr`.
        field: the dataclass field.
        option: its help text and limits.
    """

    path: str
    field: dataclasses.Field[Any]
    option: Option

    @property
    def default(self) -> str:
        """The default as text."""
        return "none" if self.field.default is None else str(self.field.default)


def list_keys(kind: Any, prefix: str = "") -> Iterator[Key]:
    """Yield every key that a file can have, section by section."""
    for field in dataclasses.fields(kind):
        if _KEY not in field.metadata:
            continue
        if "kind" in field.metadata:
            inner = prefix if field.metadata["is_inline"] else f"{prefix}{field.name}."
            yield from list_keys(field.metadata["kind"], inner)
        elif not field.metadata[_KEY].is_python_only:
            yield Key(f"{prefix}{field.name}", field, field.metadata[_KEY])


def list_sections(kind: Any) -> dict[str, dataclasses.Field[Any]]:
    """Return the sections of a dataclass by name."""
    return {field.name: field for field in dataclasses.fields(kind) if "kind" in field.metadata}


def check_options(options: Any) -> None:
    """Check every option of a frozen dataclass by its type and limits.

    Numbers of numpy become numbers of Python, because options are written to files.

    Raises:
        SteelyardError: with the name, the value and the allowed values.
    """
    kind: Any = type(options)
    for name, check in _checks_of(kind).items():
        value = getattr(options, name)
        if isinstance(value, np.generic):
            value = value.item()
            object.__setattr__(options, name, value)
        check(value)


@functools.cache
def _checks_of(kind: type[Any]) -> dict[str, Callable[[Any], None]]:
    """Return a function per option that raises an error for values that are not allowed."""
    hints = get_type_hints(kind)
    checks_by_name: dict[str, Callable[[Any], None]] = {}
    for field in dataclasses.fields(kind):
        if _KEY in field.metadata and "kind" not in field.metadata:
            hint = hints[field.name]
            check = functools.partial(_check_value, field.name, hint, field.metadata[_KEY])
            checks_by_name[field.name] = check
    return checks_by_name


def _check_value(name: str, hint: Any, option: Option, value: Any) -> None:
    """Raise an error unless a value has the type of the hint and is within the option's limits."""
    is_union = get_origin(hint) in (Union, types.UnionType)
    kinds = get_args(hint) if is_union else (hint,)
    if value is None and types.NoneType in kinds:
        return
    if option.choices:
        checks.one_of(name, value, *option.choices)
    elif bool in kinds:
        if not isinstance(value, bool):
            raise SteelyardError(f"{name}={shorten(value)}: use true or false")
    elif float in kinds:
        checks.number(name, value, option.low, option.high, option.open_low)
    elif int in kinds:
        high = checks.LARGEST if math.isinf(option.high) else int(option.high)
        checks.integer(name, value, 0 if math.isinf(option.low) else int(option.low), high)
    elif set(kinds) <= {str, types.NoneType} and not isinstance(value, str):
        raise SteelyardError(f"{name}={shorten(value)}: use a text")
    elif get_origin(hint) is tuple:
        is_texts = isinstance(value, (tuple, list)) and all(isinstance(v, str) for v in value)
        if get_args(hint)[0] is str and not is_texts:
            raise SteelyardError(f"{name}={shorten(value)}: use a list of texts")


def to_plain(options: Any) -> dict[str, Any]:
    """Return options as plain data for a file, without those that files do not hold."""
    plain: dict[str, Any] = {}
    for field in dataclasses.fields(options):
        if _KEY not in field.metadata:
            continue
        option: Option = field.metadata[_KEY]
        value = getattr(options, field.name)
        if "kind" in field.metadata:
            inner = to_plain(value)
            plain |= inner if field.metadata["is_inline"] else {field.name: inner}
        elif not option.is_python_only:
            plain[field.name] = list(value) if isinstance(value, tuple) else value
    return plain


def drop_unstored(kind: Any, plain: dict[str, Any]) -> dict[str, Any]:
    """Return plain options without those that are not stored, and late ones at their default."""
    stored = {
        key: dict(value) if isinstance(value, dict) else value for key, value in plain.items()
    }
    for key in list_keys(kind):
        *sections, name = key.path.split(".")
        values = stored[sections[0]] if sections else stored
        is_default = values.get(name) == key.field.default
        if not key.option.is_stored or (key.option.is_late and is_default):
            values.pop(name, None)
    return stored
