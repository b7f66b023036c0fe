"""`steelyard merge`: many checkpoints into one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from steelyard.cli._console import console, escape, fail, show
from steelyard.core.client_state import ClientId
from steelyard.core.errors import SteelyardError
from steelyard.core.spec import to_text
from steelyard.merge import Merge, Plan

RuleText = Annotated[
    str,
    typer.Option(
        "--rule",
        help="A rule as text: 'fedadp', 'fedawa:steps=10', 'feddisco|fedawa', 'guard(fedadp)'. See `steelyard rules`.",
    ),
]


def merge(
    base: Annotated[
        Path,
        typer.Option(help="The global model: a .safetensors file, or a directory of shards with an index."),
    ],
    client: Annotated[list[Path], typer.Option(help="A client model; repeat it, or list several after it.")],
    out: Annotated[Path, typer.Option(help="Where to write the merged model: a .safetensors file or a directory.")],
    more: Annotated[list[Path] | None, typer.Argument(help="Further client models.", show_default=False)] = None,
    rule: RuleText = "fedavg",
    metrics: Annotated[
        Path | None,
        typer.Option(help='JSON of what clients report: {"num_examples": {"client-a": 600, ...}} or lists in order.'),
    ] = None,
    server: Annotated[str | None, typer.Option(help="A server optimizer, e.g. 'sgd:lr=0.5'.")] = None,
    allow_partial: Annotated[
        bool, typer.Option("--allow-partial", help="Leave out clients that cannot be merged, and name them.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the model at --out; other files in a directory are kept.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Merge client checkpoints into the global one, streaming: no model is ever in memory whole.

    Clients are named by their file (without .safetensors) or directory. Number of examples is read from --metrics, or
    from [bold]num_examples[/] in a file's own metadata. A client that is missing, does not fit or holds NaN is an
    error, unless --allow-partial leaves it out. A directory at --out also gets config.json, the tokenizer and other
    small files of --base.

    Example: steelyard merge --base base.safetensors --client a.safetensors b.safetensors --rule 'uniform|fedadp'
    --out merged.safetensors
    """
    try:
        reported = None if metrics is None else _read_reports(metrics)
        clients = _name_clients([*client, *(more or [])])
        job = Merge(base, clients, rule, metrics=reported, allow_partial=allow_partial)
        if not quiet:
            _print_plan(job.plan, to_text(job.rule))
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
            outcome = job.run(out, server=server, force=force, on_read=_Steps(progress, task, job.plan.reads // 200))
    except (SteelyardError, OSError, ValueError) as error:
        fail(error)
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
    """Reads the JSON file of --metrics."""
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise SteelyardError(f"--metrics {path}: not JSON: {error}") from None


class _Steps:
    """Passes reads on to a progress bar, many at a time: a bar's every step takes as long as a small read."""

    def __init__(self, progress: Progress, task: TaskID, step: int) -> None:
        self.progress, self.task, self.step = progress, task, step
        self.done = 0

    def __call__(self, count: int) -> None:
        self.done += count  # threads may lose a count to one another: the bar is rounded anyway
        if self.done >= self.step:
            self.progress.advance(self.task, self.done)
            self.done = 0


def _name_clients(paths: list[Path]) -> dict[ClientId, Path]:
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice is not None:
        raise SteelyardError(f"--client {twice} is given twice: one model per client")
    names = [path.name.removesuffix(".safetensors") for path in paths]
    return {str(path) if names.count(name) > 1 else name: path for path, name in zip(paths, names, strict=True)}


def _print_plan(plan: Plan, rule: str) -> None:
    console.print(
        f"[bold]{escape(rule)}[/]: {plan.clients} clients x {plan.parameters:,} parameters "
        f"({plan.model_bytes / 1e6:,.0f} MB each), "
        f"{plan.passes} pass{'es' if plan.passes > 1 else ''}, buffers of {plan.buffer_bytes / 1e6:,.0f} MB",
        highlight=False,
    )
    for name, reason in plan.quarantined.items():
        console.print(f"  [red]left out[/] {escape(str(name))}: {escape(reason)}", highlight=False)
