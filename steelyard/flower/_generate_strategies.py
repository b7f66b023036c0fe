"""The named strategies: which there are, and how their classes are generated.

Each part of Steelyard has a class in `_strategies.py`, so that editors and type checkers know its
options. After a part was added or changed, generate the file again:

    python -m steelyard.flower._generate_strategies

Parts of other packages get a class when it is first used (`make_plugin_strategy`).
"""

from __future__ import annotations

import builtins
import inspect
import re
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any

from steelyard.algorithm import COMPOSITIONS, Algorithm
from steelyard.core._registry import BROADCASTS, OPTIMIZERS, REFINERS, RULES, TERMS, UNSET, Entry
from steelyard.flower._strategy import Steelyard

PATH = Path(__file__).with_name("_strategies.py")

# By the argument of `Algorithm`: the registry, and its name in the generated file.
_REGISTRIES = {
    "weighting": (RULES, "RULES"),
    "client": (TERMS, "TERMS"),
    "server": (OPTIMIZERS, "OPTIMIZERS"),
    "broadcast": (BROADCASTS, "BROADCASTS"),
    "refine": (REFINERS, "REFINERS"),
}
# Parts that are functions, or whose class does not have the name that users look for.
_CLASS_NAMES = {
    "adagrad": "FedAdagrad",
    "adam": "FedAdam",
    "fedawa_l": "FedAWAL",
    "gws": "GWS",
    "krum": "Krum",
    "law": "LAW",
    "momentum": "FedAvgM",
    "scaffold": "SCAFFOLD",
    "sgd": "FedSGD",
    "yogi": "FedYogi",
}
# Parts whose authors use equal weights. FedCos weights by sizes, Eq. (3).
_UNIFORM_PARTS = ("feddyn", "fedmut")
# Modules of the types that options have, beside built-in types.
_TYPE_MODULES = {
    "Detector": "steelyard.rules._detectors",
    "Granularity": "steelyard.core._layout",
}
_FLOWER_ARGUMENTS = 10  # arguments of Flower's FedAvg, which come first

_HEADER = '''"""A strategy class for each part of Steelyard.

This file is generated. Do not edit it: run `python -m steelyard.flower._generate_strategies`.
"""

# fmt: off

from __future__ import annotations

import os

{imports}

__all__ = [  # noqa: RUF022 - in alphabetical order
{names}
]
'''
_CLASS = '''

class {name}(Steelyard):
    """{description}

    Options: `steelyard explain {part}`.
    """

    def __init__(
        self,
{parameters}
    ) -> None:
        part = {registry}["{part}"].make({options})
        super().__init__(
{arguments}
        )
'''


_COMPOSITION = '''

class {name}(Steelyard):
    """The composition {algorithm}, on Flower."""

    def __init__(
        self,
{parameters}
    ) -> None:
        super().__init__(
{arguments}
        )
'''


def find_parts() -> dict[str, tuple[str, Entry]]:
    """Return the parts that have a strategy, by the name of its class.

    Parts that wrap other parts have none. If a part of another package would have the class name
    of one of ours, it has none either; `Steelyard("its_name")` is its strategy.

    Returns:
        The argument of `Algorithm` that the part is for, and its entry.
    """
    entries = [
        (argument, entry)
        for argument, (registry, _) in _REGISTRIES.items()
        for entry in registry
        if not entry.wraps
    ]
    parts: dict[str, tuple[str, Entry]] = {}
    for argument, entry in sorted(entries, key=lambda item: not item[1].is_builtin):
        name = _CLASS_NAMES.get(entry.name, getattr(entry.make, "__name__", entry.name))
        if name not in parts:
            parts[name] = (argument, entry)
        elif not entry.is_builtin:
            warnings.warn(
                f"{entry.module}.{name} has no strategy, because its name is already used: use "
                f"Steelyard({entry.name!r})",
                stacklevel=2,
            )
    return parts


def make_plugin_strategy(name: str, argument: str, entry: Entry) -> type[Steelyard]:
    """Return the strategy class of a part of another package.

    Args:
        name: the name of the class.
        argument: the argument of `Algorithm` that the part is for.
        entry: the part.
    """

    def init(self: Steelyard, *args: Any, **options: Any) -> None:
        part_options = {key: options.pop(key) for key in entry.options if key in options}
        parts: dict[str, Any] = {argument: entry.make(**part_options)}
        if argument != "weighting":
            parts["weighting"] = options.pop("weighting", _default_weighting(entry))
        Steelyard.__init__(self, Algorithm(**parts), *args, **options)

    doc = f"{_describe(entry)}\n\nOptions: `steelyard explain {entry.name}`."
    attributes = {"__init__": init, "__module__": "steelyard.flower", "__doc__": doc}
    return type(name, (Steelyard,), attributes)


def generate() -> str:
    """Return the source of `_strategies.py`."""
    parts = {name: part for name, part in find_parts().items() if part[1].is_builtin}
    sources = {name: _render_class(name, *part) for name, part in parts.items()}
    sources |= {name.title(): _render_composition(name) for name in COMPOSITIONS}

    # Imports of the registries, and of types that are not built in.
    modules = {"UNSET": "steelyard.core._registry"}
    for _, registry_name in _REGISTRIES.values():
        modules[registry_name] = "steelyard.core._registry"
    for _, entry in parts.values():
        for parameter in entry.options.values():
            for type_name in _find_type_names(parameter):
                modules[type_name] = _TYPE_MODULES[type_name]
    modules["AggregateMetrics"] = "steelyard.flower._replies"
    modules["Algorithm"] = "steelyard.algorithm"
    modules["Probe"] = "steelyard.server._probe"
    modules["Steelyard"] = "steelyard.flower._strategy"
    imports = []
    for module in sorted(set(modules.values())):
        imported = sorted(name for name in modules if modules[name] == module)
        imports.append(f"from {module} import {', '.join(imported)}")
    names = "\n".join(f'    "{name}",' for name in sorted(sources))
    classes = "".join(sources[name] for name in sorted(sources))
    return _HEADER.format(imports="\n".join(imports), names=names) + classes


def _render_class(name: str, argument: str, entry: Entry) -> str:
    """Return the source of the class of a part."""
    # The options of the part, and the algorithm.
    own_parameters = [_render_parameter(p) for p in entry.options.values()]
    algorithm = "Algorithm(part)"
    if argument != "weighting":
        own_parameters.insert(0, f'weighting: str = "{_default_weighting(entry)}"')
        algorithm = f"Algorithm(weighting, {argument}=part)"
    parameters, arguments = _render_call(algorithm, own_parameters, entry.options)

    # How the part is built.
    _, registry = _REGISTRIES[argument]
    options = ""
    if entry.options:
        options = "\n" + _join([f"{key}={key}" for key in entry.options], 12) + "\n        "
    return _CLASS.format(
        name=name,
        description=_describe(entry),
        part=entry.name,
        parameters=parameters,
        registry=registry,
        options=options,
        arguments=arguments,
    )


def _render_composition(name: str) -> str:
    """Return the source of the class of a composition."""
    parameters, arguments = _render_call(f'Algorithm("{name}")', [], ())
    return _COMPOSITION.format(
        name=name.title(), algorithm=Algorithm(name), parameters=parameters, arguments=arguments
    )


def _render_call(
    algorithm: str, own_parameters: list[str], hidden: Collection[str]
) -> tuple[str, str]:
    """Return the parameters of a class, and the arguments of its call of `Steelyard`, as source.

    Args:
        algorithm: the source of the algorithm.
        own_parameters: the source of the parameters that the class adds.
        hidden: names of the parameters of `Steelyard` that these replace.
    """
    # Flower's ten come first.
    all_parameters = list(inspect.signature(Steelyard.__init__).parameters.values())[2:]
    inherited = [p for p in all_parameters if p.name not in hidden]
    positional = inherited[:_FLOWER_ARGUMENTS]
    keyword_only = inherited[_FLOWER_ARGUMENTS:]
    parameters = [_render_parameter(p) for p in positional]
    parameters += ["*", *own_parameters, *(_render_parameter(p) for p in keyword_only)]
    arguments = [algorithm, *(p.name for p in positional)]
    arguments += [f"{p.name}={p.name}" for p in keyword_only]
    return _join(parameters, 8), _join(arguments, 12)


def _render_parameter(parameter: inspect.Parameter) -> str:
    """Return the source of a parameter, with its type and its default."""
    text = f"{parameter.name}: {parameter.annotation}"
    if parameter.default is parameter.empty:
        return text
    default = "UNSET" if parameter.default is UNSET else _render_default(parameter.default)
    return f"{text} = {default}"


def _render_default(value: Any) -> str:
    """Return the source of a default, with double quotes as in the rest of the code."""
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _find_type_names(parameter: inspect.Parameter) -> list[str]:
    """Return the names in a type that are not built in; each must be in `_TYPE_MODULES`."""
    names = re.findall(r"[A-Za-z_]\w*", str(parameter.annotation))
    return [name for name in names if not hasattr(builtins, name)]


def _default_weighting(entry: Entry) -> str:
    """Return the rule that goes with a part that is not a rule itself."""
    return "uniform" if entry.name in _UNIFORM_PARTS else "fedavg"


def _describe(entry: Entry) -> str:
    """Return the first line of a docstring."""
    title = entry.info.title
    return f"{title[:1].upper()}{title[1:]} ({entry.info.paper or 'steelyard'}), on Flower."


def _join(items: list[str], indent: int) -> str:
    """Return items with commas between and after them, in lines of at most 100 columns."""
    lines = []
    line = " " * indent
    for item in items:
        if len(line) + len(item) + 1 > 100:
            lines.append(line.rstrip())
            line = " " * indent
        line += f"{item}, "
    lines.append(line.rstrip())
    return "\n".join(lines)


def main() -> None:
    """Write `_strategies.py`."""
    PATH.write_text(generate(), encoding="utf-8")


if __name__ == "__main__":
    main()
