"""The commands of `steelyard`; those with more than a screen of code have a file of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from steelyard import __version__
from steelyard.cli import data, models, partitions
from steelyard.cli import run as running
from steelyard.cli.compare import compare
from steelyard.cli.listing import about
from steelyard.cli.plot import plot
from steelyard.cli.report import report
from steelyard.cli.reproduce import reproduce
from steelyard.cli.run import fail
from steelyard.cli.sweep import sweep
from steelyard.cli.watch import watch
from steelyard.core.errors import SteelyardError
from steelyard.core.explain import explain as explained
from steelyard.core.registry import BROADCASTS, OPTIMIZERS, REFINERS, RULES, TERMS, Entry
from steelyard.core.table import ClientId
from steelyard.core.text import to_text
from steelyard.core.weighting import Weighting
from steelyard.merge import Merge, Plan
from steelyard.metrics import MEANING
from steelyard.weightings.chain import parse_rule, rooted

app = typer.Typer(
    name="steelyard",
    help="Adaptive aggregation for federated learning: weigh client models by more than their size.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
console = Console()

RuleText = Annotated[
    str,
    typer.Option(
        "--rule",
        help="A rule as text: 'fedadp', 'fedawa:steps=10', 'feddisco|fedawa', 'guard(fedadp)'. See `steelyard rules`.",
    ),
]


app.command()(running.run)
app.command()(running.resume)
app.command()(sweep)
app.command()(compare)
app.command()(report)
app.command()(plot)
app.command()(watch)
app.command()(reproduce)
app.add_typer(partitions.app, name="partitions")
app.add_typer(models.app, name="models")
app.add_typer(data.app, name="data")


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        console.print(__version__, highlight=False)
        raise typer.Exit


@app.command()
def rules(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List every rule, client term, server optimizer and broadcast: paper, needs, options.

    Rules are written as text: [bold]name:option=value,...[/], chained with [bold]|[/], and put around one another with
    brackets: [bold]guard(feddisco|fedawa:steps=10)[/].
    """
    others = {"client term": TERMS, "server optimizer": OPTIMIZERS, "broadcast": BROADCASTS, "refiner": REFINERS}
    rows = [_row(entry) for entry in RULES]
    rows += [_row(entry, kind) for kind, registry in others.items() for entry in registry]
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    titles = {"rule": "Rules", **{kind: f"{kind.capitalize()}s ({kind.split()[0]}=)" for kind in others}}
    for kind, title in titles.items():
        table = Table(title=title, title_justify="left", show_lines=False)
        for column in ("name", "what it does", "paper", "needs", "options"):
            table.add_column(column, overflow="fold")
        for row in (row for row in rows if row["kind"] == kind):
            options = ", ".join(f"{name}={value}" for name, value in row["options"].items())
            cells = [row["name"], row["title"], row["paper"], ", ".join(row["needs"]), options]
            table.add_row(*(escape(cell) for cell in cells))
        console.print(table)
    console.print("More on one rule: [bold]steelyard explain RULE[/]")


def _row(entry: Entry, kind: str = "rule") -> dict[str, Any]:
    needs: list[str] = []
    if not entry.wraps:
        required = {name: 1.0 for name, p in entry.options.items() if p.default is p.empty}
        part = entry.make(**required)
        needs = _needs(rooted(part) if isinstance(part, Weighting) else part)
    return {**about(entry), "kind": kind, "needs": needs}


def _needs(part: Any) -> list[str]:
    needs = getattr(part, "needs", None)
    if needs is None:
        return []
    marks = {
        "inner products": needs.gram,
        "per layer": needs.per_layer is not None,
        "coordinates": needs.coordinates,
        "proxy data": needs.probe,
        "last global step": bool(needs.broadcast),
    }
    return [*sorted(needs.metrics), *(name for name, wanted in marks.items() if wanted)]


@app.command()
def explain(
    rule: Annotated[str, typer.Argument(help="Text form of a rule, e.g. 'feddisco|fedawa'.")],
) -> None:
    """Say what clients disclose under a rule, what the server sees, what it costs, and how private it can be."""
    try:
        made = parse_rule(rule)
    except SteelyardError as error:
        fail(error)
    root = rooted(made)
    facts = explained(root, MEANING)
    console.print(f"[bold]{escape(to_text(made))}[/]")
    for part in _described(made):
        title = f"  {part.name}: {part.card.title}" + (f" ({part.card.paper})" if part.card.paper else "")
        console.print(escape(title), highlight=False)
    if root.rules[0] is not made and len(root.rules) > len(getattr(made, "rules", (made,))):
        console.print("  starts from weights by num_examples (fedavg), since it modifies what comes before it")
    sections = {
        "Clients disclose": facts.clients_disclose,
        "The server sees": facts.server_sees,
        "Passes": [facts.passes],
        "Memory": [facts.memory],
        **({"Remarks": facts.remarks} if facts.remarks else {}),
        "Secure aggregation": facts.secure_aggregation,
        "Differential privacy": facts.differential_privacy,
        "Options in full": [repr(made)],
    }
    for title, lines in sections.items():
        console.print(f"\n[bold]{title}[/]")
        for line in lines:
            console.print(f"  {escape(line)}", highlight=False)


def _described(rule: Weighting) -> list[Weighting]:
    own = [] if rule.name == "chain" else [rule]
    return own + [inner for part in rule.parts for inner in _described(part)]


@app.command()
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
    force: Annotated[bool, typer.Option("--force", help="Overwrite what is at --out.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Merge client checkpoints into the global one, streaming: no model is ever in memory whole.

    Clients are named by their file (without .safetensors) or directory. Number of examples is read from --metrics, or
    from [bold]num_examples[/] in a file's own metadata. A client that does not fit, or holds NaN, is left out.

    Example: steelyard merge --base base.safetensors --client a.safetensors b.safetensors --rule 'uniform|fedadp'
    --out merged.safetensors
    """
    try:
        reported = None if metrics is None else json.loads(metrics.read_bytes())
        job = Merge(base, _named([*client, *(more or [])]), rule, metrics=reported)
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
    table = Table(title=f"{out}", title_justify="left")
    table.add_column("client")
    table.add_column("weight", justify="right")
    for position, name in enumerate(outcome.store.ids):
        table.add_row(escape(str(name)), f"{outcome.weights[:, position].mean():.4f}")
    for name, reason in outcome.report["quarantined"].items():
        table.add_row(escape(str(name)), f"[red]left out[/]: {escape(reason)}")
    console.print(table)
    if len(outcome.report["layers"]) > 1:
        console.print(f"weights are means over {len(outcome.report['layers'])} layers")


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


def _named(paths: list[Path]) -> dict[ClientId, Path]:
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
