"""A strategy class for every registered part, made from its options: none is written by hand."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

from steelyard.algorithm import Algorithm
from steelyard.core.registry import BROADCASTS, OPTIMIZERS, REFINERS, RULES, TERMS, Entry
from steelyard.flower.strategy import Steelyard

_PLACES = (
    ("weighting", RULES),
    ("client", TERMS),
    ("server", OPTIMIZERS),
    ("broadcast", BROADCASTS),
    ("refine", REFINERS),
)
# Parts whose class has another name than users look for, or that are functions.
_NAMES = {
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
_UNIFORM = ("feddyn", "fedmut")  # their authors average so; FedCos weighs by sizes, Eq. (3)
_OURS = list(inspect.signature(Steelyard.__init__).parameters.values())[
    2:
]  # without self and algorithm


def strategies() -> dict[str, tuple[str, Entry]]:
    """Return class names with the kind of the part and its entry; parts that wrap others have none.

    A part of another package whose class is called as one of ours has none either:
    `Steelyard("its_name")` is its strategy.
    """
    entries = [(kind, entry) for kind, registry in _PLACES for entry in registry if not entry.wraps]
    named: dict[str, tuple[str, Entry]] = {}
    for kind, entry in sorted(entries, key=lambda item: not item[1].is_builtin):
        name = _NAMES.get(entry.name, getattr(entry.make, "__name__", entry.name))
        if name not in named:
            named[name] = (kind, entry)
        elif not entry.is_builtin:
            warnings.warn(
                f"{entry.module}.{name} has no strategy of its own, the name is taken: use "
                f"Steelyard({entry.name!r})",
                stacklevel=2,
            )
    return named


def strategy(name: str) -> type[Steelyard]:
    """The strategy of this name.

    Flower's ten arguments, then the part's options and ours by keyword.
    """
    kind, entry = strategies()[name]
    plain = (
        []
        if kind == "weighting"
        else [_keyword("weighting", "uniform" if entry.name in _UNIFORM else "fedavg")]
    )
    options = [*plain, *(_keyword(key, p.default) for key, p in entry.options.items())]
    taken_names = {parameter.name for parameter in options}
    strategy_options = [parameter for parameter in _OURS if parameter.name not in taken_names]
    ten, keywords = strategy_options[:10], [*options, *strategy_options[10:]]

    def init(self: Steelyard, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = dict(bound.arguments)
        part = entry.make(**{key: arguments.pop(key) for key in entry.options})
        parts: dict[str, Any] = {kind: part}
        if plain:
            parts["weighting"] = arguments.pop("weighting")
        Steelyard.__init__(self, Algorithm(**parts), **arguments)

    signature = inspect.Signature([*ten, *keywords])
    described = f"{entry.info.title[:1].upper()}{entry.info.title[1:]} ({entry.info.paper or 'steelyard'}), on Flower."
    own = {
        "__init__": init,
        "__signature__": signature,
        "__module__": "steelyard.flower",
        "__qualname__": name,
    }
    return type(
        name,
        (Steelyard,),
        {**own, "__doc__": f"{described}\n\nOptions: `steelyard explain {entry.name}`."},
    )


def _keyword(name: str, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
