"""Names of parts, so that command line, configuration files and Flower share one syntax.

Parts are found here and nowhere else: a text never imports code.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from steelyard.core.errors import SteelyardError, unknown
from steelyard.core.weighting import Info

Make = TypeVar("Make", bound=Callable[..., Any])


@dataclass(frozen=True)
class Entry:
    """A named constructor: a class, or a function that composes classes."""

    name: str
    make: Callable[..., Any]
    info: Info

    @cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """What the constructor takes."""
        return inspect.signature(self.make).parameters

    @cached_property
    def slots(self) -> list[str]:
        """The parameters that other parts go into."""
        return [name for name in self.parameters if name in ("detector", "rule")]

    @cached_property
    def options(self) -> dict[str, inspect.Parameter]:
        """The options by name, without the parts it cannot do without."""
        return {name: p for name, p in self.parameters.items() if name not in self.slots or p.default is not p.empty}

    @property
    def wraps(self) -> bool:
        """Whether it is made around other parts."""
        return len(self.options) < len(self.parameters)


class Registry:
    """Constructors by name; `kind` is the word for them in messages."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, Entry] = {}

    def register(self, make: Make) -> Make:
        """Class decorator: enters the class under its `name`."""
        self.alias(make.name, make.info, make)  # type: ignore[attr-defined]
        return make

    def alias(self, name: str, info: Info, make: Make) -> Make:
        """Enters a function that composes parts."""
        if name in self._entries:
            raise SteelyardError(f"{self.kind} {name!r} is registered twice")
        self._entries[name] = Entry(name, make, info)
        return make

    def __iter__(self) -> Iterator[Entry]:
        return iter(sorted(self._entries.values(), key=lambda entry: entry.name))

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __getitem__(self, name: str) -> Entry:
        if name not in self._entries:
            raise SteelyardError(unknown(self.kind, name, sorted(self._entries)))
        return self._entries[name]


RULES = Registry("rule")
OPTIMIZERS = Registry("server optimizer")
TERMS = Registry("client term")
BROADCASTS = Registry("broadcast")
REFINERS = Registry("refiner")
