"""The command `merge`: merges client checkpoints into one model."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from steelyard.cli._console import console, escape, fail, show
from steelyard.core._errors import SteelyardError
from steelyard.core._spec import to_text
from steelyard.core._state import ClientId
from steelyard.merge import Merge, Plan

RuleText = Annotated[
    str,
    typer.Option(
        "--rule",
        help="The aggregation rule, for example 'fedadp', 'fedawa:steps=10', 'feddisco|fedawa' or "
        "'guard(fedadp)'. `steelyard rules` lists all.",
    ),
]


def merge(
    base: Annotated[
        Path,
        typer.Option(
            help="The global model: a .safetensors file, or a directory of shards with an index."
        ),
    ],
    client: Annotated[
        list[Path],
        typer.Option(help="A client model. Repeat the option, or list several files after it."),
    ],
    out: Annotated[
        Path,
        typer.Option(help="Where to write the merged model: a .safetensors file or a directory."),
    ],
    more: Annotated[
        list[Path] | None, typer.Argument(help="Further client models.", show_default=False)
    ] = None,
    rule: RuleText = "fedavg",
    metrics: Annotated[
        Path | None,
        typer.Option(
            help="JSON file of the values that clients report, by client: "
            '{"num_examples": {"client-a": 600, ...}}, or as lists in the order of the clients.'
        ),
    ] = None,
    server: Annotated[
        str | None, typer.Option(help="The server optimizer, for example 'sgd:lr=0.5'.")
    ] = None,
    allow_partial: Annotated[
        bool,
        typer.Option(
            "--allow-partial", help="Leave out clients that cannot be merged, and list them."
        ),
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Replace the model at --out. Other files in a directory are kept."
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")] = False,
) -> None:
    """Merge client checkpoints into the global one by streaming: memory never holds a whole model.

    A client's name is the name of its file (without .safetensors) or directory. The number of
    examples is read from --metrics, or from [bold]num_examples[/] in the metadata of the file. A
    client that is missing, does not match the base model or contains NaN is an error; with
    --allow-partial it is left out. If --out is a directory, config.json, the tokenizer and other
    small files are copied from --base.

    Example: steelyard merge --base base.safetensors --client a.safetensors b.safetensors
    --rule 'uniform|fedadp' --out merged.safetensors
    """
    try:
        # Read the headers of all files and print the plan.
        reports = None if metrics is None else _read_reports(metrics)
        clients = _name_clients([*client, *(more or [])])
        job = Merge(base, clients, rule, metrics=reports, allow_partial=allow_partial)
        if not quiet:
            _print_plan(job.plan, to_text(job.rule))

        # Merge.
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeRemainingColumn(),
            console=console,
            disable=quiet,
            transient=True,
        ) as progress:
            task = progress.add_task("merging", total=job.plan.reads)
            on_read = _ReadCounter(progress, task, job.plan.reads // 200)
            outcome = job.run(out, server=server, force=force, on_read=on_read)
    except (SteelyardError, OSError, ValueError) as error:
        fail(error)

    # Print the weight of every client.
    if quiet:
        return
    console.print(escape(str(out)), highlight=False, soft_wrap=True)
    table = Table()
    table.add_column("client")
    table.add_column("weight", justify="right")
    for position, name in enumerate(outcome.store.ids):
        table.add_row(escape(str(name)), f"{outcome.weights[:, position].mean():.4f}")
    for name, reason in outcome.report["quarantined"].items():
        table.add_row(escape(str(name)), f"[red]left out[/]: {escape(reason)}")
    show(table, console)
    if len(outcome.report["layers"]) > 1:
        console.print(f"weights are means over {len(outcome.report['layers'])} layers")


def _read_reports(path: Path) -> Any:
    """Return the contents of the JSON file of --metrics."""
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise SteelyardError(f"--metrics {path}: not JSON: {error}") from None


class _ReadCounter:
    """Counts reads and reports them to a progress bar in steps.

    Advancing the bar takes as long as a small read, so it is not done for every read.
    """

    def __init__(self, progress: Progress, task: TaskID, step: int) -> None:
        self.progress = progress
        self.task = task
        self.step = step
        self.count = 0

    def __call__(self, count: int) -> None:
        # Not locked: concurrent threads may lose a count, which a rounded bar does not show.
        self.count += count
        if self.count >= self.step:
            self.progress.advance(self.task, self.count)
            self.count = 0


def _name_clients(paths: list[Path]) -> dict[ClientId, Path]:
    """Return the path of every client by name.

    The file name, or the path if two names are equal.
    """
    for path, count in Counter(paths).items():
        if count > 1:
            raise SteelyardError(f"--client {path} is given twice: one model per client")
    names = [path.name.removesuffix(".safetensors") for path in paths]
    clients: dict[ClientId, Path] = {}
    for path, name in zip(paths, names, strict=True):
        is_unique = names.count(name) == 1
        clients[name if is_unique else str(path)] = path
    return clients


def _print_plan(plan: Plan, rule: str) -> None:
    passes = "1 pass" if plan.passes == 1 else f"{plan.passes} passes"
    console.print(
        f"[bold]{escape(rule)}[/]: {plan.clients} clients x {plan.parameters:,} parameters "
        f"({plan.model_bytes / 1e6:,.0f} MB each), "
        f"{passes}, buffers of {plan.buffer_bytes / 1e6:,.0f} MB",
        highlight=False,
    )
    for name, reason in plan.quarantined.items():
        console.print(f"  [red]left out[/] {escape(str(name))}: {escape(reason)}", highlight=False)
