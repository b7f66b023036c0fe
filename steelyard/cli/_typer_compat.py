"""Command classes that correct two defects of click and typer."""

from __future__ import annotations

from typing import Any, get_type_hints

from click import Context
from typer.core import TyperCommand, TyperGroup
from typer.models import ArgumentInfo

from steelyard.cli._console import fail
from steelyard.core.errors import shorten


class CommandGroup(TyperGroup):
    """The group of all commands. Refuses arguments with a NUL character."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Refuse a NUL character: click would end with a traceback.

        A shell cannot pass one, but a program that starts `steelyard` can.
        """
        for argument in args:
            if "\0" in argument:
                fail(f"{shorten(argument)}: an argument cannot hold a NUL character: leave it out")
        return super().parse_args(ctx, args)


class DocumentedCommand(TyperCommand):
    """A command whose `--help` shows the help of its positional arguments.

    Since click 8.5, the constructor of click's arguments sets `help` after typer has set it, without
    receiving it. Typer before 0.21, which Flower requires, loses the text there.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        hints = get_type_hints(self.callback, include_extras=True)
        for param in self.params:
            annotations = getattr(hints.get(param.name or ""), "__metadata__", ())
            for annotation in annotations:
                if isinstance(annotation, ArgumentInfo):
                    param.help = annotation.help
