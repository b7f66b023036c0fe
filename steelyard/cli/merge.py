"""The command `merge`: merges client checkpoints, or LoRA adapters, into one."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from steelyard.cli._console import Console, console, escape, fail, show, to_rich_table
from steelyard.core._errors import SteelyardError
from steelyard.core._spec import to_text
from steelyard.core._state import ClientId
from steelyard.merge import Merge, Plan

RuleText = Annotated[
    str | None,
    typer.Option(
        "--rule",
        show_default="fedavg; for adapters without sizes uniform",
        help="The aggregation rule, for example 'fedadp', 'fedawa:steps=10', 'feddisco|fedawa' or "
        "'guard(fedadp)'. `steelyard rules` lists all.",
    ),
]


def merge(
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            help="Where to write the merged model: a .safetensors file or a directory.",
        ),
    ],
    base: Annotated[
        Path | None,
        typer.Option(
            help="The global model: a .safetensors file, or a directory of shards with an index.",
            show_default=False,
        ),
    ] = None,
    client: Annotated[
        list[Path] | None,
        typer.Option(
            help="A client model. Repeat the option, or list several files after it.",
            show_default=False,
        ),
    ] = None,
    adapters: Annotated[
        list[Path] | None,
        typer.Option(
            help="A LoRA adapter, as PEFT's directory, instead of --base and --client. Repeat the "
            "option, or list several directories after it.",
            show_default=False,
        ),
    ] = None,
    more: Annotated[
        list[Path] | None,
        typer.Argument(help="Further client models or adapters.", show_default=False),
    ] = None,
    rule: RuleText = None,
    lora: Annotated[
        str | None,
        typer.Option(
            help="With --adapters, what is written: stack (exact; ranks add up), svd:16 (the best "
            "of rank 16) or factors (means of A and of B).",
            show_default="stack",
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            help="With --adapters, an HTML page to write: cosines, and the error of each module.",
            show_default=False,
        ),
    ] = None,
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

    With --adapters, LoRA adapters are merged. Rules see the changes of the weights, B times A, and
    these are averaged. The mean of A times the mean of B, which --lora factors writes, is something
    else.

    steelyard merge --base base.safetensors --client a.safetensors b.safetensors
    --rule 'uniform|fedadp' --out merged.safetensors

    steelyard merge --adapters a/ b/ c/ --rule fedawa --lora svd:16 -o merged/ --report merge.html
    """
    if adapters:
        if base is not None or client:
            fail("--adapters merges adapters alone: leave out --base and --client")
        if server is not None:
            fail("--server does not work with --adapters: leave it out")
        _merge_adapters(
            [*adapters, *(more or [])],
            rule,
            lora or "stack",
            metrics,
            out,
            report,
            allow_partial,
            force,
            quiet,
        )
        return
    if base is None or not client:
        fail("give --base and --client, or --adapters for LoRA adapters")
    if lora is not None or report is not None:
        fail("--lora and --report are for --adapters: add it, or leave them out")
    try:
        # Read the headers of all files and print the plan.
        reports = None if metrics is None else _read_reports(metrics)
        clients = _name_clients([*client, *(more or [])])
        job = Merge(base, clients, rule or "fedavg", metrics=reports, allow_partial=allow_partial)
        if not quiet:
            _print_plan(job.plan, to_text(job.rule))
        if job.store.layout.pairs:
            _warn_of_factors()

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


def _merge_adapters(
    paths: list[Path],
    rule: str | None,
    lora: str,
    metrics: Path | None,
    out: Path,
    report: Path | None,
    allow_partial: bool,
    force: bool,
    quiet: bool,
) -> None:
    """Merge LoRA adapters, and say whether they fit together.

    Args:
        paths: PEFT directories.
        rule: the rule as text; None for the default.
        lora: what is written.
        metrics: a JSON file of values that are known of the adapters, if any.
        out: the directory to write.
        report: the page to write, if any.
        allow_partial: whether to leave out adapters that cannot be merged.
        force: whether to replace `out`.
        quiet: whether to print only errors.
    """
    from steelyard.adapter_merge import AdapterMerge, summarize_merge
    from steelyard.report._adapter_merge import (
        build_adapter_report,
        describe_merge,
        make_adapter_table,
    )
    from steelyard.report._build import write_report

    try:
        reports = None if metrics is None else _read_reports(metrics)
        job = AdapterMerge(
            _name_clients(paths, "--adapters"),
            rule,
            lora=lora,
            metrics=reports,
            allow_partial=allow_partial,
        )
        with console.status("merging adapters"):
            outcome = job.run(out, force=force)
        summary = summarize_merge(outcome)
        if report is not None:
            page = build_adapter_report(summary, to_text(job.rule), lora, paths, out, report)
            write_report(page, report)
    except (SteelyardError, OSError, ValueError) as error:
        fail(error)
    if quiet:
        return
    show(to_rich_table(make_adapter_table(summary), to_text(job.rule)), console)
    for name, reason in outcome.report["quarantined"].items():
        text = f"[red]left out[/] {escape(str(name))}: {escape(reason)}"
        console.print(text, highlight=False, soft_wrap=True)
    for sentence in describe_merge(summary, lora):
        console.print(escape(sentence), highlight=False, soft_wrap=True)
    for path in (out, report):
        if path is not None:
            console.print(escape(str(path)), highlight=False, soft_wrap=True)


def _warn_of_factors() -> None:
    """Warn that a plain merge averages the factors of LoRA adapters."""
    errors = Console(stderr=True)
    errors.print(
        "[yellow]warning:[/] these files hold LoRA adapters. A and B are averaged by themselves "
        "here, and the product of their means is not the mean of their products. Merge the PEFT "
        "directories instead: steelyard merge --adapters DIR DIR -o OUT",
        highlight=False,
        soft_wrap=True,
    )


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


def _name_clients(paths: list[Path], option: str = "--client") -> dict[ClientId, Path]:
    """Return the path of every client by name.

    The file name, or the path if two names are equal.

    Args:
        paths: the files or directories.
        option: the option that names them, for messages.
    """
    for path, count in Counter(paths).items():
        if count > 1:
            raise SteelyardError(f"{option} {path} is given twice: one model per client")
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
