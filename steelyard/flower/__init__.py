"""Steelyard on Flower.

    from steelyard.flower import FedAWA  # instead of flwr.serverapp.strategy.FedAvg

Every rule, client term, server optimizer and refiner is a strategy by its class name.
`Steelyard(algorithm)` runs any combination of them. `client` builds the ClientApp, and `reporting`
checks the replies of a ClientApp of your own. This is the only package that imports Flower, and it
does so when one of its names is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from steelyard.core._errors import SteelyardError

if TYPE_CHECKING:
    from steelyard.flower._array_records import to_record, to_state_dict
    from steelyard.flower._client_app import client, partitioned, reporting, state_to_send
    from steelyard.flower._messages import TrainInstructions, read_instructions
    from steelyard.flower._strategies import *  # noqa: F403 - one class for each part
    from steelyard.flower._strategy import Steelyard

_MODULES = {
    "Steelyard": "_strategy",
    "TrainInstructions": "_messages",
    "client": "_client_app",
    "partitioned": "_client_app",
    "read_instructions": "_messages",
    "reporting": "_client_app",
    "state_to_send": "_client_app",
    "to_record": "_array_records",
    "to_state_dict": "_array_records",
}
__all__ = [
    "Steelyard",
    "TrainInstructions",
    "client",
    "partitioned",
    "read_instructions",
    "reporting",
    "state_to_send",
    "to_record",
    "to_state_dict",
]


def __getattr__(name: str) -> Any:
    """Return a public function, or the strategy class of a part."""
    if name.startswith("__"):
        raise AttributeError(name)
    import importlib

    try:
        module = importlib.import_module(f"steelyard.flower.{_MODULES.get(name, '_strategies')}")
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("flwr"):
            raise
        raise SteelyardError(
            "steelyard.flower needs Flower: pip install 'steelyard[flower]'"
        ) from error
    if name in _MODULES or name in module.__all__:
        value = getattr(module, name)
    else:
        value = _make_plugin_strategy(name)
    globals()[name] = value
    return value


def _make_plugin_strategy(name: str) -> Any:
    """Return the strategy class of a part that another package adds."""
    from steelyard.flower._generate_strategies import find_parts, make_plugin_strategy

    parts = find_parts()
    if name not in parts:
        raise AttributeError(
            f"steelyard.flower has no {name!r}; its strategies are {', '.join(parts)}"
        )
    return make_plugin_strategy(name, *parts[name])


def __dir__() -> list[str]:
    from steelyard.flower import _strategies
    from steelyard.flower._generate_strategies import find_parts

    return sorted({*__all__, *_strategies.__all__, *find_parts()})
