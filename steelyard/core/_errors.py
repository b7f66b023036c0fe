"""Errors. Each message names the parameter and its value, and says what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

NOT_FINITE = "NaN or infinity in its parameters"
BAD_BASE = "the base model itself holds NaN or infinity: pass a finite base model"
NO_PROBE = "{rule} needs proxy data: pass probe=steelyard.Probe(model, inputs, targets)"
NO_LAST_STEP = (
    "the rule follows the step of the previous round, which is recorded only in runs of such a "
    "rule: run it instead"
)


class SteelyardError(ValueError):
    """Base class of every error this library raises on purpose."""


class NoValidClients(SteelyardError):
    """Every client was quarantined: nothing can be aggregated and the base model is unchanged."""

    def __init__(self, quarantined: dict[str | int, str]) -> None:
        self.quarantined = quarantined
        reasons = [f"{client!r}: {reason}" for client, reason in list(quarantined.items())[:5]]
        if len(quarantined) > 5:
            reasons.append(f"and {len(quarantined) - 5} more")
        details = f" ({'; '.join(reasons)})" if reasons else ""
        super().__init__(f"no valid client is left, the base model is unchanged{details}")


class UndeclaredNeed(SteelyardError):
    """A rule read something that its `needs` do not declare."""


class RefusedReports(SteelyardError):
    """A rule cannot use what some clients reported; `refused` has their ids and the reasons."""

    def __init__(self, refused: dict[str | int, str]) -> None:
        self.refused = refused
        super().__init__("; ".join(f"{client!r}: {reason}" for client, reason in refused.items()))


class NonFiniteUpdate(SteelyardError):
    """Some clients' updates hold NaN or infinity; `rows` are their positions in the store."""

    def __init__(self, rows: tuple[int, ...]) -> None:
        self.rows = rows
        super().__init__(f"rows {rows} hold NaN or infinity")


class OversizedUpdate(SteelyardError):
    """Some clients' updates are finite but too large; `rows` are their positions in the store."""

    def __init__(self, rows: tuple[int, ...], reason: str) -> None:
        self.rows = rows
        self.reason = reason
        super().__init__(f"rows {rows}: {reason}")


class RoundOverflow(SteelyardError):
    """The new model, or the server optimizer's state, overflows its dtype; nothing was changed."""


class NonFiniteLoss(SteelyardError):
    """The proxy loss is NaN or infinite at a mixture that a rule evaluated."""


def describe_unknown_name(kind: str, name: object, known: Iterable[str]) -> str:
    """Return the message for an unknown name.

    It suggests the nearest known name, or all of them.
    """
    names = list(known)
    nearest = nearest_name(str(name), names)
    hint = f"did you mean {nearest!r}?" if nearest else f"known: {', '.join(names)}"
    return f"unknown {kind} {name!r}: {hint}"


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that the user may have meant; None if there is none.

    It is a name with the same letters if there is one, otherwise the most similar name.
    """
    names = list(known)
    for candidate in names:
        if sorted(candidate) == sorted(name):
            return candidate
    return next(iter(difflib.get_close_matches(name, names, n=1)), None)


def shorten(value: object, length: int = 80) -> str:
    """Return the `repr` of a value, shortened to a length; the type's name if `repr` fails."""
    try:
        text = repr(value)
    except Exception:  # very long integers, or any error in a user's `__repr__`
        return f"<{type(value).__name__}>"
    return text if len(text) <= length else text[: length - 3] + "..."


# Escapes text from outside, so that it is safe to print and to log.

MOST_CHARACTERS = 500


def escape_text(text: object, limit: int | None = None) -> str:
    r"""Return the text with every character that is not printable as an escape sequence (`\x1b`, `\n`, `\u202e`).

    Control characters, line breaks, direction marks and surrogates are not printable. A text
    without them is returned as it is.

    Args:
        text: what to show; anything else than text is converted with `str`.
        limit: the number of characters to keep; a longer text ends in `...`.
    """
    message = str(text)
    if limit is not None and len(message) > limit:
        message = message[: max(0, limit - 3)] + "..."
    if message.isprintable():
        return message
    characters = []
    for character in message:
        if not character.isprintable():
            character = character.encode("unicode_escape", "surrogatepass").decode("ascii")
        characters.append(character)
    return "".join(characters)


def escape_lines(text: object) -> str:
    """Return the text escaped as by `escape_text`, but with line breaks and tabs unchanged."""
    characters = []
    for character in str(text):
        characters.append(character if character in "\n\t" else escape_text(character))
    return "".join(characters)


def describe_error(error: BaseException) -> str:
    """Return the message of an error on one line of printable characters, shortened if very long."""
    message = str(error).strip()
    if not isinstance(error, SteelyardError):
        message = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return escape_text(message, MOST_CHARACTERS)


@contextmanager
def locate_errors(place: str) -> Iterator[None]:
    """Put the place of a mistake, such as `local.lr=2`, before the message of an error."""
    try:
        yield
    except SteelyardError as error:
        raise SteelyardError(f"{place}: {error}") from None
