"""Errors. Each message names the parameter, the value found, and the cure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

NOT_FINITE = "NaN or infinity in its parameters"
BAD_BASE = "the base model itself holds NaN or infinity: nothing can be aggregated onto it"
NO_PROBE = "{rule} looks at proxy data and there is none: pass probe=steelyard.Probe(model, inputs, targets)"


class SteelyardError(ValueError):
    """Base class of every error this library raises on purpose."""


class NoValidClients(SteelyardError):
    """Every client was quarantined: there is nothing to aggregate and the base model stays as it was."""

    def __init__(self, quarantined: dict[str | int, str]) -> None:
        self.quarantined = quarantined
        shown = "; ".join(f"{client!r}: {reason}" for client, reason in list(quarantined.items())[:5])
        more = f"; and {len(quarantined) - 5} more" if len(quarantined) > 5 else ""
        named = f" ({shown}{more})" if shown else ""
        super().__init__(f"no valid client is left, the base model stays as it was{named}")


class UndeclaredNeed(SteelyardError):
    """A rule looked at something its `needs` do not declare."""


class RefusedReports(SteelyardError):
    """Some clients' reports make no sense to the rule that asked for them; `refused` are they, with the reason."""

    def __init__(self, refused: dict[str | int, str]) -> None:
        self.refused = refused
        super().__init__("; ".join(f"{client!r}: {reason}" for client, reason in refused.items()))


class NonFiniteUpdate(SteelyardError):
    """Some clients' updates hold NaN or infinity; `rows` are their positions in the store."""

    def __init__(self, rows: tuple[int, ...]) -> None:
        self.rows = rows
        super().__init__(f"rows {rows} hold NaN or infinity")


class OversizedUpdate(SteelyardError):
    """Some clients' updates are finite but too large to compute with; `rows` are their positions in the store."""

    def __init__(self, rows: tuple[int, ...], reason: str) -> None:
        self.rows = rows
        self.reason = reason
        super().__init__(f"rows {rows}: {reason}")


class RoundOverflow(SteelyardError):
    """The new model, or what the server optimizer keeps, leaves the range of its dtype; everything stays as it was."""


class NonFiniteLoss(SteelyardError):
    """The proxy loss is not finite where a rule tried it."""


def unknown(kind: str, name: object, known: Iterable[str]) -> str:
    """A sentence on a name nobody has heard of: the nearest one, else all."""
    names = list(known)
    near = nearest_name(str(name), names)
    return f"unknown {kind} {name!r}: " + (f"did you mean {near!r}?" if near else f"known: {', '.join(names)}")


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that somebody may have meant: one with the same letters, else the most similar one."""
    names = list(known)
    for candidate in names:
        if sorted(candidate) == sorted(name):
            return candidate
    return next(iter(difflib.get_close_matches(name, names, n=1)), None)


def shorten(value: object, length: int = 80) -> str:
    """What `repr` says of a value, cut to a length; its type where `repr` cannot say it, as of numbers too long."""
    try:
        text = repr(value)
    except Exception:  # whatever goes wrong in the `repr` of an object from elsewhere
        return f"<{type(value).__name__}>"
    return text if len(text) <= length else text[: length - 3] + "..."
