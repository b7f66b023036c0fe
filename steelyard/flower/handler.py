"""The one handler for what clients send.

Whatever goes wrong with a reply is a reason to quarantine its client.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from steelyard.core.errors import SteelyardError, describe_error

P = ParamSpec("P")
T = TypeVar("T")


class ServerFault(SteelyardError):
    """The server itself cannot go on, for instance since its disk is full.

    No client is to blame.
    """


def call_or_refuse(
    function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> tuple[T | None, str]:
    """Call a function on what one client sent.

    Returns:
        What the function returns, and no reason; or None, and the reason to quarantine the client.

    Raises:
        ServerFault: if the function does. Every other exception is a reason.
    """
    try:
        return function(*args, **kwargs), ""
    except ServerFault:
        raise
    except Exception as error:  # a client must not end the run, whatever it sends
        return None, describe_error(error)
