"""Commands whose `--help` tells what their arguments are."""

from __future__ import annotations

from typing import Any, get_type_hints

from click import Context
from typer.core import TyperCommand, TyperGroup
from typer.models import ArgumentInfo

from steelyard.cli._console import fail
from steelyard.core.errors import shorten


class Commands(TyperGroup):
    """All commands; refuses arguments that no file can be called."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Refuse a NUL, which only a program can pass: click would end with a traceback."""
        for argument in args:
            if "\0" in argument:
                fail(f"{shorten(argument)}: an argument cannot hold a NUL character: leave it out")
        return super().parse_args(ctx, args)


class Taught(TyperCommand):
    """A command whose arguments have the help they were declared with.

    From click 8.5 on, an argument of click's own sets `help`, after typer has set it and without being given it: typer
    before 0.21, which Flower asks for, loses it there.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        hints = get_type_hints(self.callback, include_extras=True)
        for param in self.params:
            for told in getattr(hints.get(param.name or ""), "__metadata__", ()):
                if isinstance(told, ArgumentInfo):
                    param.help = told.help
