"""What depends on how Flower's own `Strategy.start` is written.

Its options, and the rounds it logs.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from logging import WARNING
from typing import Any

import flwr
from flwr.common.logger import FLOWER_LOGGER, log
from flwr.serverapp.strategy import Result

_ROUND = "[ROUND %s/%s]"  # how Flower logs that a round begins


def accepted_options(start: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that the installed Flower's `start` takes.

    Warn of those that it does not.
    """
    parameters = inspect.signature(start).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(options)
    unknown = sorted(options.keys() - parameters.keys())
    if unknown:
        names = ", ".join(f"{name}=" for name in unknown)
        log(
            WARNING,
            "start(%s) is ignored: flwr %s does not take it; install one that does",
            names,
            flwr.__version__,
        )
    return {name: value for name, value in options.items() if name not in unknown}


@contextmanager
def count_rounds_from(finished_rounds: int) -> Iterator[None]:
    """Let Flower's log count rounds as a resumed run does, after the rounds that are finished."""

    def shift(record: logging.LogRecord) -> bool:
        if record.msg == _ROUND and isinstance(record.args, tuple):
            record.args = tuple(
                number + finished_rounds for number in record.args if isinstance(number, int)
            )
        return True

    FLOWER_LOGGER.addFilter(shift)
    try:
        yield
    finally:
        FLOWER_LOGGER.removeFilter(shift)


def renumber_rounds(result: Result, finished_rounds: int) -> Result:
    """Let the results of a resumed run count rounds as the run does."""
    for name in (
        "train_metrics_clientapp",
        "evaluate_metrics_clientapp",
        "evaluate_metrics_serverapp",
    ):
        setattr(
            result,
            name,
            {number + finished_rounds: value for number, value in getattr(result, name).items()},
        )
    return result
