"""Steelyard on Flower. The only place that imports flwr.

from steelyard.flower import FedAWA     # a drop-in for flwr.serverapp.strategy.FedAvg

Every rule, client term, server optimizer and refiner is a strategy of that kind;
`Steelyard(algorithm)` is any composition of them. `client` builds the other half, `reporting`
checks one of your own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from steelyard.core.errors import SteelyardError

if TYPE_CHECKING:
    from steelyard.flower.clientapp import (
        TrainInstructions,
        client,
        partitioned,
        read_instructions,
        reporting,
    )
    from steelyard.flower.records import to_record, to_state_dict
    from steelyard.flower.strategy import Steelyard

_HOMES = {
    "TrainInstructions": "clientapp",
    "read_instructions": "clientapp",
    "client": "clientapp",
    "partitioned": "clientapp",
    "reporting": "clientapp",
    "to_record": "records",
    "to_state_dict": "records",
    "Steelyard": "strategy",
}
__all__ = [
    "Steelyard",
    "TrainInstructions",
    "client",
    "partitioned",
    "read_instructions",
    "reporting",
    "to_record",
    "to_state_dict",
]


def __getattr__(name: str) -> Any:
    """Imports flwr when something is used; makes a strategy's class when it is asked for."""
    if name.startswith("__"):
        raise AttributeError(name)
    import importlib

    try:
        home = importlib.import_module(f"steelyard.flower.{_HOMES.get(name, 'strategies')}")
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("flwr"):
            raise
        raise SteelyardError(
            "steelyard.flower needs Flower: pip install 'steelyard[flower]'"
        ) from error
    if name in _HOMES:
        value = getattr(home, name)
    elif name in home.strategies():
        value = home.strategy(name)
    else:
        raise AttributeError(
            f"steelyard.flower has no {name!r}; its strategies: {', '.join(home.strategies())}"
        )
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    from steelyard.flower.strategies import strategies

    return sorted([*__all__, *strategies()])
