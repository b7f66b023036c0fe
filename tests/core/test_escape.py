"""Text of others on a terminal and in a log."""

import pytest

from steelyard.core._errors import SteelyardError, describe_error, escape_lines, escape_text


@pytest.mark.parametrize("text", ["", "plain", "Zürich 東京 ± 🎉", "a b", r"C:\x1b"])
def test_printable_text_stays(text):
    assert escape_text(text) == text
    assert escape_lines(text) == text


@pytest.mark.parametrize(
    "code", [*range(0x20), *range(0x7F, 0xA0), 0x200B, 0x2028, 0x202E, 0x2066, 0xD800, 0xFEFF]
)
def test_what_is_not_printable_becomes_a_sequence(code):
    shown = escape_text(f"a{chr(code)}b")
    assert shown.isprintable()
    assert shown.startswith("a\\")
    assert shown.encode("ascii").decode("unicode_escape") == f"a{chr(code)}b"


def test_lines_of_our_own_keep_their_breaks():
    assert escape_lines("one\n\ttwo\x1b[2J\r") == "one\n\ttwo\\x1b[2J\\r"


def test_long_text_is_cut():
    assert escape_text("x" * 10, 8) == "xxxxx..."
    assert escape_text(12345) == "12345"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (SteelyardError("use less"), "use less"),
        (MemoryError(), "MemoryError"),
        (ValueError("a\nb\x1b"), "ValueError: a\\nb\\x1b"),
    ],
)
def test_errors_become_one_line(error, said):
    assert describe_error(error) == said


def test_a_very_long_error_is_cut():
    assert len(describe_error(ValueError("x" * 10_000_000))) <= 500
