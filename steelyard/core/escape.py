"""Escapes text from outside, so that it is safe to print and to log."""

from __future__ import annotations

from steelyard.core.errors import SteelyardError

MOST_CHARACTERS = 500


def escape_text(text: object, limit: int | None = None) -> str:
    r"""Return the text with every character that is not printable as an escape sequence (`\x1b`, `\n`, `\u202e`).

    Control characters, line breaks, direction marks and surrogates are not printable. A text without them is returned
    as it is.

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
