"""Spec strings, the text form of parts.

`fedawa:steps=10`, `feddisco|fedawa`, `guard(fedadp):clip=2`.

rule    part | part | ...                     a chain
part    name(rule, ...):option=value,...      brackets and options are optional; a value without a
                                              name is the first option
value   number, true, false, none, text, "text" (quoted if it would otherwise be read as another
        value), [value, value, ...] or, for an option whose value is a part, a part:
        pa3fed:detector=eq6:delta=0.05,beta=0.5. An option after an inner part belongs to the inner
        part if that has an option of this name, otherwise to the outer part.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection
from typing import Any

from steelyard.core._errors import SteelyardError, nearest_name, shorten
from steelyard.core._registry import Entry, Registry
from steelyard.core.checks import LARGEST

_WORD = r'[^|():,=\[\]\s"]+'
_TOKEN = re.compile(rf'\s*("[^"]*"|[|():,=\[\]]|{_WORD})')
_WORDS: dict[str, Any] = {"true": True, "false": False, "none": None}
_DEPTH = 20


def parse(text: str, registry: Registry, chain: Callable[..., Any] | None = None) -> Any:
    """Build the part that a spec string describes.

    Args:
        text: the spec string.
        registry: the parts that it may name.
        chain: joins several parts into one, if parts of this kind can be chained.
    """
    return _Parser(text, registry, chain).parse()


class _Parser:
    """A recursive-descent parser of one spec string."""

    def __init__(self, text: str, registry: Registry, chain: Callable[..., Any] | None) -> None:
        self.text = text
        self.registry = registry
        self.chain = chain
        self.tokens: list[str] = []
        offset = 0
        while offset < len(text.rstrip()):
            match = _TOKEN.match(text, offset)
            if match is None:
                raise self.error(f"cannot read {shorten(text[offset:])}")
            self.tokens.append(match.group(1))
            offset = match.end()
        self.position = 0

    def error(self, message: str) -> SteelyardError:
        """Return an error that names the spec string."""
        return SteelyardError(f"{self.registry.kind} {shorten(self.text, 200)}: {message}")

    def peek(self, ahead: int = 0) -> str:
        """Return the next token, or a later one, without taking it; empty at the end."""
        position = self.position + ahead
        return self.tokens[position] if position < len(self.tokens) else ""

    def take(self, expected: str = "") -> str:
        """Take the next token: `expected`, or any name or value if that is empty."""
        token = self.peek()
        if expected:
            is_valid = token == expected
        else:
            is_valid = token != "" and token not in "|():,=[]"
        if not is_valid:
            what = repr(expected) if expected else "a name or value"
            raise self.error(f"expected {what}, found {token or 'the end'!r}")
        self.position += 1
        return token

    def parse(self) -> Any:
        """Parse the whole text."""
        part = self.rule(0)
        if self.peek():
            raise self.error(f"unexpected {self.peek()!r}")
        return part

    def rule(self, depth: int, registry: Registry | None = None) -> Any:
        """Parse a chain of parts of a registry, by default of the whole text's."""
        registry = registry or self.registry
        self.check_depth(depth)
        parts = [self.part(depth, registry)]
        while self.peek() == "|":
            self.take("|")
            parts.append(self.part(depth, registry))
        if len(parts) == 1:
            return parts[0]
        if self.chain is None or registry is not self.registry:
            raise self.error("these parts cannot be chained")
        return self.chain(*parts)

    def part(self, depth: int, registry: Registry, outer: Collection[str] = ()) -> Any:
        """Parse one part; `outer` are the options of the outer part, which may follow its own."""
        # The name.
        entry = self.find(self.take(), registry)

        # Parts in brackets.
        inner: list[Any] = []
        if self.peek() == "(":
            registries = list(entry.slots.values())
            self.take("(")
            inner.append(self.inner_part(registries, 0, depth + 1))
            while self.peek() == ",":
                self.take(",")
                inner.append(self.inner_part(registries, len(inner), depth + 1))
            self.take(")")

        # Options, up to one that belongs to the outer part.
        options: dict[str, Any] = {}
        if self.peek() == ":":
            self.take(":")
            self.option(entry, options, depth)
            while self.peek() == "," and self.peek(2) == "=":
                if self.peek(1) in outer and self.peek(1) not in entry.options:
                    break
                self.take(",")
                self.option(entry, options, depth)
        return self.make(entry, inner, options)

    def find(self, name: str, registry: Registry) -> Entry:
        """Return the entry of this name.

        Where parts of another kind go inside, the error shows the whole text.
        """
        try:
            return registry[name]
        except SteelyardError as error:
            if registry is self.registry:
                raise
            raise self.error(str(error)) from None

    def inner_part(self, registries: list[Registry], position: int, depth: int) -> Any:
        """Reads what stands in brackets at a position, where the part around it takes parts of these registries."""
        registry = registries[position] if position < len(registries) else None
        return self.rule(depth, registry)

    def make(self, entry: Entry, inner: list[Any], options: dict[str, Any]) -> Any:
        """Build a part from the parts in its brackets and its options."""
        try:
            # shrink(fedavg):gamma=0.9 means fedavg|shrink:gamma=0.9
            if len(inner) == 1 and not entry.slots and self.chain is not None:
                return self.chain(inner[0], entry.make(**options))
            if len(inner) > len(entry.slots):
                raise self.error(
                    f"{entry.name} takes {len(entry.slots)} in brackets, found {len(inner)}"
                )
            slots = dict(zip(entry.slots, inner, strict=False))
            return entry.make(**slots, **options)
        except TypeError as error:
            raise self.error(f"{entry.name}: {error}") from error

    def option(self, entry: Entry, options: dict[str, Any], depth: int) -> None:
        """Parse one option of `entry` into `options`."""
        # A first value without a name is the first option: dirichlet:0.1 means
        # dirichlet:alpha=0.1. The name of an option needs a value.
        is_first = bool(entry.options) and not options
        has_no_name = is_first and self.peek(1) != "=" and self.peek() not in entry.options
        name = next(iter(entry.options), "") if has_no_name else self.take()

        # Check the name.
        if name not in entry.options:
            nearest = nearest_name(name, entry.options)
            hint = f"its options: {', '.join(entry.options) or 'none'}"
            if nearest:
                hint = f"did you mean {nearest!r}?"
            raise self.error(f"{entry.name} has no option {name!r}: {hint}")
        if name in options:
            raise self.error(f"option {name!r} of {entry.name} is given twice")

        # Parse the value.
        if not has_no_name:
            self.take("=")
        is_part = name in entry.slots and self.peek(1) in (":", "(")
        options[name] = self.parse_nested(entry, name, depth + 1) if is_part else self.value(0)

    def parse_nested(self, entry: Entry, option: str, depth: int) -> Any:
        """Parse the part that is the value of an option of `entry`."""
        self.check_depth(depth)
        return self.part(depth, entry.slots[option], entry.options)

    def check_depth(self, depth: int) -> None:
        """Raise an error if parts are nested too deeply."""
        if depth > _DEPTH:
            raise self.error(f"parts are nested more than {_DEPTH} levels deep")

    def value(self, depth: int) -> Any:
        """Parse a number, a word, a quoted text or a list."""
        if self.peek() == "[" and depth < _DEPTH:
            self.take("[")
            items = [self.value(depth + 1)]
            while self.peek() == ",":
                self.take(",")
                items.append(self.value(depth + 1))
            self.take("]")
            return tuple(items)
        word = self.take()
        value = word[1:-1] if word.startswith('"') else _read(word)
        if isinstance(value, int) and abs(value) > LARGEST:
            raise self.error(
                f"{shorten(value)} is too large: use a number below 2^63, or write it as 1e30"
            )
        return value


def _read(word: str) -> Any:
    """Return the value of an unquoted word: true, false, none, a number or the text itself."""
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    for number in (int, float):
        try:
            return number(word)
        except ValueError:
            continue
    return word


def to_text(part: Any) -> str:
    """Return the shortest spec string that builds an equal part."""
    # A chain: its rules with bars between them.
    fields = {}
    for field in dataclasses.fields(part):
        if field.init:
            fields[field.name] = getattr(part, field.name)
    if part.name == "chain":
        return "|".join(to_text(rule) for rule in fields["rules"])

    # Inner parts go into brackets.
    text: str = part.name
    inner = {}
    for name, value in fields.items():
        if hasattr(value, "name") and dataclasses.is_dataclass(value):
            inner[name] = to_text(value)
    if inner:
        text += "(" + ",".join(inner.values()) + ")"

    # Options follow after a colon.
    options = []
    for name, value in _needed_options(part, fields).items():
        if name not in inner:
            options.append(f"{name}={_value(value)}")
    if options:
        text += ":" + ",".join(options)
    return text


def _needed_options(part: Any, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the options that an equal part needs.

    Options that are equal to their default, or that a preset or another option implies, are left
    out.
    """
    options = dict(fields)
    for field in dataclasses.fields(part):
        if field.init and field.default is not dataclasses.MISSING:
            rest = {name: value for name, value in options.items() if name != field.name}
            if _builds_same(part, rest):
                options = rest
    return options


def _builds_same(part: Any, options: dict[str, Any]) -> bool:
    """Return whether these options build an equal part."""
    try:
        return bool(type(part)(**options) == part)
    except Exception:  # the part cannot be built without the option; any error may say so
        return False


def _value(value: Any) -> str:
    """Return the text of an option's value."""
    if isinstance(value, tuple):
        return "[" + ",".join(_value(item) for item in value) + "]"
    if isinstance(value, str):
        if '"' in value:
            raise SteelyardError(f"{value!r} has no text form: remove the quotation mark")
        is_plain = re.fullmatch(_WORD, value) and _read(value) == value
        return value if is_plain else f'"{value}"'
    words = {True: "true", False: "false", None: "none"}
    return words[value] if value is None or isinstance(value, bool) else str(value)
