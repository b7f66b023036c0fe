"""The text form of parts: `fedawa:steps=10,preset=official`, `feddisco|fedawa`, `guard(fedadp):clip=2`.

rule    part | part | ...                     a chain
part    name(rule, ...):option=value,...      brackets and options may be left out; a bare value is the first option
value   number, true, false, none, text, "text" that would read as something else, [value, value, ...]
        or, for an option that holds another part, that part: pa3fed:detector=eq6:delta=0.05,beta=0.5. An option
        after a part inside belongs to that part if it has one of that name, otherwise to the part around it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection
from typing import Any

from steelyard.core.checks import LARGEST
from steelyard.core.errors import SteelyardError, nearest_name, shorten
from steelyard.core.registry import Entry, Registry

_WORD = r'[^|():,=\[\]\s"]+'
_TOKEN = re.compile(rf'\s*("[^"]*"|[|():,=\[\]]|{_WORD})')
_WORDS: dict[str, Any] = {"true": True, "false": False, "none": None}
_DEPTH = 20


def parse(text: str, registry: Registry, chain: Callable[..., Any] | None = None) -> Any:
    """Builds what the text describes; `chain` joins parts, where parts can be joined."""
    return _Parser(text, registry, chain).parse()


class _Parser:
    def __init__(self, text: str, registry: Registry, chain: Callable[..., Any] | None) -> None:
        self.text, self.registry, self.chain = text, registry, chain
        self.tokens: list[str] = []
        at = 0
        while at < len(text.rstrip()):
            match = _TOKEN.match(text, at)
            if match is None:
                raise self.error(f"cannot read {shorten(text[at:])}")
            self.tokens.append(match.group(1))
            at = match.end()
        self.at = 0

    def error(self, message: str) -> SteelyardError:
        return SteelyardError(f"{self.registry.kind} {shorten(self.text, 200)}: {message}")

    def peek(self, ahead: int = 0) -> str:
        return self.tokens[self.at + ahead] if self.at + ahead < len(self.tokens) else ""

    def take(self, wanted: str = "") -> str:
        token = self.peek()
        if not token or (wanted and token != wanted) or (not wanted and token in "|():,=[]"):
            raise self.error(f"expected {wanted or 'a name or value'!r}, found {token or 'the end'!r}")
        self.at += 1
        return token

    def parse(self) -> Any:
        made = self.rule(0)
        if self.peek():
            raise self.error(f"unexpected {self.peek()!r}")
        return made

    def rule(self, depth: int, registry: Registry | None = None) -> Any:
        """Reads parts of a registry (by default of the whole text's) in a row."""
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
        """Reads one part; `outer` are the options of the part around it, which may follow its own."""
        entry = self.find(self.take(), registry)
        inner: list[Any] = []
        if self.peek() == "(":
            registries = list(entry.slots.values())
            self.take("(")
            inner.append(self.inner_part(registries, 0, depth + 1))
            while self.peek() == ",":
                self.take(",")
                inner.append(self.inner_part(registries, len(inner), depth + 1))
            self.take(")")
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
        """Return the entry of this name; where parts of another kind go inside, the error shows the whole text."""
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
        try:
            if len(inner) == 1 and not entry.slots and self.chain is not None:
                return self.chain(
                    inner[0], entry.make(**options)
                )  # shrink(fedavg):gamma=0.9 is fedavg|shrink:gamma=0.9
            if len(inner) > len(entry.slots):
                raise self.error(f"{entry.name} takes {len(entry.slots)} in brackets, found {len(inner)}")
            return entry.make(**dict(zip(entry.slots, inner, strict=False)), **options)
        except TypeError as error:
            raise self.error(f"{entry.name}: {error}") from error

    def option(self, entry: Entry, options: dict[str, Any], depth: int) -> None:
        # dirichlet:0.1 is dirichlet:alpha=0.1, but the name of an option wants a value
        bare = bool(entry.options) and not options and self.peek(1) != "=" and self.peek() not in entry.options
        name = next(iter(entry.options), "") if bare else self.take()
        if name not in entry.options:
            near = nearest_name(name, entry.options)
            hint = f"did you mean {near!r}?" if near else f"it has {', '.join(entry.options) or 'none'}"
            raise self.error(f"{entry.name} has no option {name!r}: {hint}")
        if name in options:
            raise self.error(f"option {name!r} of {entry.name} is given twice")
        if not bare:
            self.take("=")
        holds_part = name in entry.slots and self.peek(1) in (":", "(")
        options[name] = self.nested(entry, name, depth + 1) if holds_part else self.value(0)

    def nested(self, entry: Entry, option: str, depth: int) -> Any:
        """Reads the part that an option of `entry` holds."""
        self.check_depth(depth)
        return self.part(depth, entry.slots[option], entry.options)

    def check_depth(self, depth: int) -> None:
        """Refuses parts that are nested too deep."""
        if depth > _DEPTH:
            raise self.error(f"more than {_DEPTH} brackets inside one another")

    def value(self, depth: int) -> Any:
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
            raise self.error(f"{shorten(value)} is too large: use a number below 2^63, or write it as 1e30")
        return value


def _read(word: str) -> Any:
    """What a bare word stands for."""
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    for number in (int, float):
        try:
            return number(word)
        except ValueError:
            continue
    return word


def to_text(part: Any) -> str:
    """The shortest text that builds this part again."""
    fields = {field.name: getattr(part, field.name) for field in dataclasses.fields(part) if field.init}
    if part.name == "chain":
        return "|".join(to_text(rule) for rule in fields["rules"])
    inner = {name for name, value in fields.items() if hasattr(value, "name") and dataclasses.is_dataclass(value)}
    options = {name: value for name, value in _needed_options(part, fields).items() if name not in inner}
    text: str = part.name
    if inner:
        text += "(" + ",".join(to_text(fields[name]) for name in fields if name in inner) + ")"
    return text + (":" + ",".join(f"{name}={_value(value)}" for name, value in options.items()) if options else "")


def _needed_options(part: Any, fields: dict[str, Any]) -> dict[str, Any]:
    """The options without which the part would be another one: what a preset or another option implies is left out."""
    said = dict(fields)
    for field in dataclasses.fields(part):
        if field.init and field.default is not dataclasses.MISSING:
            rest = {name: value for name, value in said.items() if name != field.name}
            said = rest if _same(part, rest) else said
    return said


def _same(part: Any, options: dict[str, Any]) -> bool:
    try:
        return bool(type(part)(**options) == part)
    except Exception:  # without the option it cannot be made, whatever its maker's words for that
        return False


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ",".join(_value(item) for item in value) + "]"
    if isinstance(value, str):
        if '"' in value:
            raise SteelyardError(f"{value!r} has no text form: a quotation mark cannot be written in one")
        return value if re.fullmatch(_WORD, value) and _read(value) == value else f'"{value}"'
    words = {True: "true", False: "false", None: "none"}
    return words[value] if value is None or isinstance(value, bool) else str(value)
