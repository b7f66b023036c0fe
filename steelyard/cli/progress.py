"""Callbacks that show the progress of a run: a bar, lines of text, or lines of JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from steelyard.cli._console import Console, escape
from steelyard.core._errors import escape_text
from steelyard.sim._callbacks import Callback

if TYPE_CHECKING:
    from steelyard.sim._simulator import Simulation


class Bar(Callback):
    """A progress bar: rounds, rounds per second, the monitored metric and the remaining time."""

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
        self.start_time = 0.0
        self.first_round = 0
        self.score = ""

    def start(self, simulation: Simulation) -> None:
        """Show the bar. A resumed run starts at its last round."""
        self.start_time = time.monotonic()
        self.first_round = len(simulation.records)
        self.score = f"{simulation.monitor.metric} -"
        self.task = self.bar.add_task(
            "round",
            total=simulation.work.rounds,
            completed=self.first_round,
            speed="",
            score=escape(self.score),
        )
        self.bar.start()

    def progress(self, simulation: Simulation, round: int, done: int, total: int) -> None:
        """Advance the bar within a round."""
        self.bar.update(self.task, completed=round - 1 + done / total)

    def round(self, simulation: Simulation, record: Mapping[str, Any]) -> None:
        """Advance the bar to the end of a round."""
        seconds = max(time.monotonic() - self.start_time, 1e-9)
        speed = (record["round"] - self.first_round) / seconds
        metric = simulation.monitor.metric
        if record.get(metric) is not None:
            self.score = f"{metric} {record[metric]:.4f}"
        self.bar.update(
            self.task,
            completed=record["round"],
            speed=f"{speed:.1f} rounds/s",
            score=escape(self.score),
        )
        if record.get("void"):
            message = f"round {record['round']} is void: {escape(record['void'])}"
            self.bar.console.print(message, highlight=False)

    def warn(self, message: str) -> None:
        """Print a warning above the bar."""
        self.console.print(f"[yellow]{escape(message)}[/]", highlight=False)

    def end(self, simulation: Simulation) -> None:
        """Remove the bar."""
        self.bar.stop()

    def failed(self, simulation: Simulation, error: BaseException) -> None:
        """Remove the bar, so that only the error is shown."""
        self.bar.stop()


class Lines(Callback):
    """Lines of text for logs: at most one per second, and one for every void round."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.last_print = 0.0

    def start(self, simulation: Simulation) -> None:
        """Store the start time."""
        self.start_time = time.monotonic()
        self.first_round = len(simulation.records)

    def round(self, simulation: Simulation, record: Mapping[str, Any]) -> None:
        """Print a line unless the last one is less than a second old."""
        current_time = time.monotonic()
        rounds = simulation.work.rounds
        is_last = record["round"] >= rounds
        if current_time - self.last_print < 1.0 and not is_last and not record.get("void"):
            return
        self.last_print = current_time

        # Speed and remaining time.
        speed = (record["round"] - self.first_round) / max(current_time - self.start_time, 1e-9)
        seconds_left = (rounds - record["round"]) / speed

        # The monitored metric first, then accuracy and loss.
        names = dict.fromkeys((simulation.monitor.metric, "accuracy", "loss"))
        scores = [f"{name} {record[name]:.4f}" for name in names if record.get(name) is not None]
        parts = [
            f"round {record['round']}/{rounds}",
            *scores,
            f"{speed:.1f} rounds/s",
            f"{seconds_left:.0f} s left",
        ]
        if record.get("void"):
            parts.append(f"void: {record['void']}")
        line = escape_text("  ".join(parts))
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def warn(self, message: str) -> None:
        """Print a warning as a line."""
        self.console.print(escape_text(message), highlight=False, markup=False, soft_wrap=True)


class JsonLines(Callback):
    """Lines of JSON on standard output: the record of every round."""

    def round(self, simulation: Simulation, record: Mapping[str, Any]) -> None:
        """Print the record, as in `rounds.jsonl`."""
        print(json.dumps(record), flush=True)  # noqa: T201 - it is the output
