"""How a run is shown while it goes on: a bar on a terminal, plain lines elsewhere, JSON for programs."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from steelyard.cli._console import Console, escape
from steelyard.core.escape import escape_text
from steelyard.sim.callbacks import Callback

if TYPE_CHECKING:
    from steelyard.sim.simulator import Simulation


class Bar(Callback):
    """Rounds, rounds per second, the monitored metric and time left, on one line."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TextColumn("{task.fields[score]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self.began, self.first, self.shown = 0.0, 0, ""

    def start(self, simulation: Simulation) -> None:
        """Shows the bar; a resumed run starts where it was."""
        self.began, self.first = time.monotonic(), len(simulation.records)
        self.shown = f"{simulation.monitor.metric} -"
        self.task = self.bar.add_task(
            "round", total=simulation.work.rounds, completed=self.first, speed="", score=escape(self.shown)
        )
        self.bar.start()

    def progress(self, simulation: Simulation, round: int, done: int, total: int) -> None:
        """Moves within a round, so that long ones can be seen to go on."""
        self.bar.update(self.task, completed=round - 1 + done / total)

    def round(self, simulation: Simulation, record: Mapping[str, Any]) -> None:
        """Moves to the next round."""
        speed = (record["round"] - self.first) / max(time.monotonic() - self.began, 1e-9)
        metric = simulation.monitor.metric
        if record.get(metric) is not None:
            self.shown = f"{metric} {record[metric]:.4f}"
        self.bar.update(self.task, completed=record["round"], speed=f"{speed:.1f} rounds/s", score=escape(self.shown))
        if record.get("void"):
            self.bar.console.print(f"round {record['round']} is void: {escape(record['void'])}", highlight=False)

    def warn(self, message: str) -> None:
        """Above the bar."""
        self.console.print(f"[yellow]{escape(message)}[/]", highlight=False)

    def end(self, simulation: Simulation) -> None:
        """Takes the bar away."""
        self.bar.stop()

    def failed(self, simulation: Simulation, error: BaseException) -> None:
        """The same, so that the error stands by itself."""
        self.bar.stop()


class Lines(Callback):
    """A line for every round that was evaluated, for logs: at most about one per second."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.last = 0.0

    def start(self, simulation: Simulation) -> None:
        """Notes the time."""
        self.began, self.first = time.monotonic(), len(simulation.records)

    def round(self, simulation: Simulation, record: Mapping[str, Any]) -> None:
        """Prints unless a line was printed just now."""
        now, rounds = time.monotonic(), simulation.work.rounds
        if now - self.last < 1.0 and record["round"] < rounds and not record.get("void"):
            return
        self.last = now
        speed = (record["round"] - self.first) / max(now - self.began, 1e-9)
        left = (rounds - record["round"]) / speed
        parts = [f"round {record['round']}/{rounds}"]
        names = dict.fromkeys((simulation.monitor.metric, "accuracy", "loss"))
        parts += [f"{name} {record[name]:.4f}" for name in names if record.get(name) is not None]
        parts += [f"{speed:.1f} rounds/s", f"{left:.0f} s left"]
        parts += [f"void: {record['void']}"] if record.get("void") else []
        self.console.print(escape_text("  ".join(parts)), highlight=False, markup=False, soft_wrap=True)

    def warn(self, message: str) -> None:
        """A line of its own."""
        self.console.print(escape_text(message), highlight=False, markup=False, soft_wrap=True)


class JsonLines(Callback):
    """Every record as a line of JSON on standard output."""

    def round(self, simulation: Simulation, record: Mapping[str, Any]) -> None:
        """Prints what goes to `rounds.jsonl`."""
        print(json.dumps(record), flush=True)  # noqa: T201 - it is the output
