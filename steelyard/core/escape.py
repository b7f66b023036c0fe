"""Text that somebody else wrote, made safe for a terminal and a log."""

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
    shown = str(text)
    if limit is not None and len(shown) > limit:
        shown = shown[: max(0, limit - 3)] + "..."
    if shown.isprintable():
        return shown
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape", "surrogatepass").decode("ascii") for one in shown
    )


def escape_lines(text: object) -> str:
    """Return the text escaped as `escape_text` does, with its line breaks and tabs: for output of our own."""
    shown = str(text)
    return "".join(one if one in "\n\t" else escape_text(one) for one in shown)


def describe_error(error: BaseException) -> str:
    """Return what an error says, on one line of printable characters, without the end of a very long message."""
    message = str(error).strip()
    if not isinstance(error, SteelyardError):
        message = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return escape_text(message, MOST_CHARACTERS)
