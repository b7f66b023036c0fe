"""Names of parts, so that command line, configuration files and Flower share one syntax.

Parts are found here and nowhere else: a text never imports code that is not installed as a part. An
installed package adds parts by entry points; they are loaded when a name is not known, or when
parts are listed.
"""

from __future__ import annotations

import inspect
import re
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from steelyard.core._errors import SteelyardError, describe_unknown_name
from steelyard.core._optimizer import ServerOptimizer
from steelyard.core._refiner import Refiner
from steelyard.core._term import Broadcast, ClientTerm
from steelyard.core._weighting import Info, Weighting

# Options whose default depends on other options, such as a preset or an optimizer.


class _Unset(str):
    """The placeholder for an option that was not set; compare it with `is`.

    It is text, so that lists of options can print it.
    """


UNSET: Any = _Unset("preset")


def fill(part: Any, defaults: Mapping[str, Any]) -> None:
    """Set the options of a frozen part that are `UNSET` to these defaults."""
    for option, value in defaults.items():
        if getattr(part, option) is UNSET:
            object.__setattr__(part, option, value)


if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")

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
    def slots(self) -> dict[str, Registry]:
        """The parameters that hold other parts, by their type, each with the registry of such parts."""
        registries = {
            name: self._find_registry(parameter) for name, parameter in self.parameters.items()
        }
        return {name: registry for name, registry in registries.items() if registry is not None}

    @cached_property
    def options(self) -> dict[str, inspect.Parameter]:
        """The options by name, without the parts it cannot do without."""
        return {
            name: p
            for name, p in self.parameters.items()
            if name not in self.slots or p.default is not p.empty
        }

    @property
    def wraps(self) -> bool:
        """Whether it is made around other parts."""
        return len(self.options) < len(self.parameters)

    @property
    def module(self) -> str:
        """The module that the constructor comes from."""
        return str(getattr(self.make, "__module__", ""))

    @property
    def is_builtin(self) -> bool:
        """Whether the part belongs to Steelyard itself."""
        return self.module.partition(".")[0] == __name__.partition(".")[0]

    def _find_registry(self, parameter: inspect.Parameter) -> Registry | None:
        """Return the registry of the parts that this parameter holds, None for a plain option."""
        annotation = parameter.annotation
        if isinstance(annotation, str):
            annotation = self._resolve_annotation(annotation)
        choices = (annotation,)
        if get_origin(annotation) in (Union, types.UnionType):
            choices = get_args(annotation)
        for choice in choices:
            for registry in _REGISTRIES:
                if (
                    isinstance(choice, type)
                    and registry.base is not None
                    and issubclass(choice, registry.base)
                ):
                    return registry
        return None

    def _resolve_annotation(self, annotation: str) -> Any:
        """Return the type that an annotation names in the constructor's module, None if it names none."""
        holder = types.SimpleNamespace(__annotations__={"parameter": annotation})
        module = sys.modules.get(self.module)
        try:
            return get_type_hints(holder, globalns=vars(module))["parameter"]
        except Exception:  # a name that only type checkers import, or no type at all
            return None


_REGISTRIES: list[Registry] = []


class Registry:
    """Constructors by name.

    Args:
        kind: the word for the parts in messages.
        base: the class of the parts; other parts' parameters of this type take them.
        group: the group of entry points by which installed packages add parts.
        home: the module whose import registers Steelyard's own parts.
        usage: a sentence on where such parts go, for a user who put one elsewhere.
    """

    def __init__(
        self,
        kind: str,
        base: type[Any] | None = None,
        group: str = "",
        home: str = "",
        usage: str = "",
    ) -> None:
        self.kind = kind
        self.base = base
        self.group = group
        self.home = home
        self.usage = usage
        self._entries: dict[str, Entry] = {}
        self._lock = threading.RLock()
        self._complete = not group
        _REGISTRIES.append(self)

    def register(self, make: Make) -> Make:
        """Class decorator: enters the class under its `name`."""
        self.alias(make.name, make.info, make)  # type: ignore[attr-defined]
        return make

    def alias(self, name: str, info: Info, make: Make) -> Make:
        """Enters a function that composes parts."""
        entry = Entry(name, make, info)
        known = self._entries.get(name)
        if known is not None and (known.is_builtin or not entry.is_builtin):
            raise SteelyardError(
                f"{self.kind} {name!r} is registered twice, by {known.module} and by "
                f"{entry.module}: rename the latter"
            )
        if known is not None:  # another package was imported before our own parts
            warnings.warn(
                f"{self.kind} {name!r} of {known.module} is ignored: the name belongs to Steelyard",
                stacklevel=2,
            )
        self._entries[name] = entry
        return make

    def load_plugins(self) -> None:
        """Adds the parts of installed packages, once.

        One that cannot be added is named in a warning.
        """
        with self._lock:
            # A plugin that looks up a name while it is imported must not start this again.
            if self._complete:
                return
            self._complete = True
            # Our own names come first: no plugin can take one.
            if self.home:
                import_module(self.home)
            from importlib.metadata import entry_points

            for point in entry_points(group=self.group):
                self._add_plugin(point)

    def _add_plugin(self, point: EntryPoint) -> None:
        """Enters the part of one entry point.

        If it cannot be used, warns and leaves the registry as it was.
        """
        before = dict(self._entries)
        try:
            self._enter_plugin(point.name, point.load())
        except (Exception, SystemExit) as error:
            self._entries = before
            package = (
                "an unknown package"
                if point.dist is None
                else f"{point.dist.name} {point.dist.version}"
            )
            reason = (
                str(error)
                if isinstance(error, SteelyardError)
                else f"{type(error).__name__}: {error}"
            )
            warnings.warn(
                f"{self.kind} {point.name!r} of {package} ({point.value}) is not available: "
                f"{reason}",
                stacklevel=4,
            )

    def _enter_plugin(self, name: str, make: Any) -> None:
        """Checks what an entry point leads to, and enters it under the entry point's name."""
        known = self._entries.get(name)
        if known is not None and known.make is make:  # its module has registered it
            return
        # The name must be free.
        if known is not None:
            raise SteelyardError(f"the name is taken by {known.module}: rename the entry point")
        if not _NAME.fullmatch(name) or name.lower() in ("none", "true", "false"):
            raise SteelyardError("the name has no text form: use letters, digits, '_', '-' and '.'")
        # The object must be a class of such parts, or a function that makes one.
        if not callable(make):
            raise SteelyardError(
                f"it is a {type(make).__name__}: use a class, or a function that returns a part"
            )
        info = getattr(make, "info", None)
        if isinstance(make, type):
            self._check_class(name, make)
        elif not isinstance(info, Info):
            info = Info((inspect.getdoc(make) or name).partition("\n")[0])
        entry = Entry(name, make, info)  # type: ignore[arg-type]
        _ = entry.options  # raises if its parameters cannot be known
        self._entries[name] = entry

    def _check_class(self, name: str, part: type[Any]) -> None:
        """Raises if a plugin's class is not one of such parts, complete, and of this name."""
        if self.base is not None and not issubclass(part, self.base):
            raise SteelyardError(
                f"{part.__name__} is not a {self.base.__name__}: derive it from that class"
            )
        if inspect.isabstract(part):
            missing = ", ".join(sorted(part.__abstractmethods__))
            raise SteelyardError(f"{part.__name__} is abstract: define {missing}")
        if getattr(part, "name", None) != name:
            shown = getattr(part, "name", None)
            raise SteelyardError(
                f"{part.__name__}.name is {shown!r}: use the name of the entry point, {name!r}"
            )
        if not isinstance(getattr(part, "info", None), Info):
            raise SteelyardError(f"{part.__name__} has no info: set info = Info(title, paper)")

    def __iter__(self) -> Iterator[Entry]:
        self.load_plugins()
        return iter(sorted(self._entries.values(), key=lambda entry: entry.name))

    def __contains__(self, name: object) -> bool:
        if name not in self._entries:
            self.load_plugins()
        return name in self._entries

    def __getitem__(self, name: str) -> Entry:
        if name in self:
            return self._entries[name]
        for other in _REGISTRIES:
            if name in other._entries:
                cure = other.usage or f"use {', '.join(sorted(self._entries))}"
                raise SteelyardError(f"{name!r} is a {other.kind}, not a {self.kind}: {cure}")
        raise SteelyardError(describe_unknown_name(self.kind, name, sorted(self._entries)))


RULES = Registry("rule", Weighting, "steelyard.rules", "steelyard.rules")
OPTIMIZERS = Registry(
    "server optimizer",
    ServerOptimizer,
    "steelyard.server_optimizers",
    "steelyard.server._optimizers",
)
TERMS = Registry("client term", ClientTerm, "steelyard.client_terms", "steelyard.client")
BROADCASTS = Registry("broadcast", Broadcast)
REFINERS = Registry("refiner", Refiner, "steelyard.refiners", "steelyard.server._refiners")
