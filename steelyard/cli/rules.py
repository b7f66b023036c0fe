"""`steelyard rules` and `steelyard explain`: what there is to weigh with, and what each part asks of whom."""

from __future__ import annotations

import inspect
import json
import re
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from steelyard.cli._console import console, fail, show
from steelyard.cli._tables import Json, about
from steelyard.core.errors import SteelyardError
from steelyard.core.explain import explain as explained
from steelyard.core.registry import BROADCASTS, OPTIMIZERS, REFINERS, RULES, TERMS, Entry
from steelyard.core.spec import to_text
from steelyard.core.weighting import Weighting
from steelyard.metrics import MEANING
from steelyard.rules.chain import parse_rule, with_default_source
from steelyard.rules.detectors import DETECTORS

_OTHERS = {"client": TERMS, "server": OPTIMIZERS, "broadcast": BROADCASTS, "refine": REFINERS, "detector": DETECTORS}


def rules(as_json: Json = False) -> None:
    """List every rule, client term, server optimizer, broadcast, refiner and detector: paper, needs, options.

    Rules are written as text: [bold]name:option=value,...[/], chained with [bold]|[/], and put around one another with
    brackets: [bold]guard(feddisco|fedawa:steps=10)[/].
    """
    rows = [{**_row(entry), "kind": registry.kind} for registry in (RULES, *_OTHERS.values()) for entry in registry]
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    titles = {registry.kind: f"{registry.kind.capitalize()}s ({key}=)" for key, registry in _OTHERS.items()}
    for kind, title in {RULES.kind: "Rules", **titles}.items():
        table = Table(title=title, title_justify="left", show_lines=False)
        for column in ("name", "what it does", "paper", "needs", "options"):
            table.add_column(column, overflow="fold")
        for row in (row for row in rows if row["kind"] == kind):
            options = ", ".join(f"{name}={value}" for name, value in row["options"].items())
            cells = [row["name"], row["title"], row["paper"], ", ".join(row["needs"]), options]
            table.add_row(*(escape(cell) for cell in cells))
        show(table, console)
    console.print("More on one of them: [bold]steelyard explain NAME[/]")


def _row(entry: Entry) -> dict[str, Any]:
    needs: list[str] = []
    try:
        if not entry.wraps:
            required = {name: 1.0 for name, p in entry.options.items() if p.default is p.empty}
            part = entry.make(**required)
            needs = _needs(with_default_source(part) if isinstance(part, Weighting) else part)
    except Exception:  # a plugin's part that a number does not make
        if entry.is_builtin:
            raise
        needs = ["?"]
    return {**about(entry), "needs": needs}


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


def explain(
    rule: Annotated[
        str, typer.Argument(help="Text form of a rule, e.g. 'feddisco|fedawa', or the name of another part.")
    ],
) -> None:
    """Say what clients disclose under a rule, what the server sees, what it costs, and how private it can be.

    Of a client term, server optimizer, broadcast, refiner or detector: what it does, and its options.
    """
    name = re.split(r"[:+]", rule)[0].strip()
    for key, registry in _OTHERS.items():
        if name in registry:
            _explain_other(key, registry[name])
            return
    try:
        made = parse_rule(rule)
    except SteelyardError as error:
        fail(error)
    root = with_default_source(made)
    facts = explained(root, MEANING)
    console.print(f"[bold]{escape(to_text(made))}[/]")
    for part in _describe_rule(made):
        title = f"  {part.name}: {part.info.title}" + (f" ({part.info.paper})" if part.info.paper else "")
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


def _explain_other(key: str, entry: Entry) -> None:
    told = about(entry)
    paper = f" ({told['paper']})" if told["paper"] else ""
    console.print(f"[bold]{entry.name}[/]\n{escape(told['title'] + paper)}\n", highlight=False)
    console.print(escape(inspect.getdoc(entry.make) or ""), highlight=False)
    console.print("\n[bold]Options[/]")
    for name, value in told["options"].items() or [("none", "")]:
        console.print(escape(f"  {name}={value}" if value else f"  {name}"), highlight=False)
    usage = f"Use it with [bold]--set {key}={entry.name}[/], or Algorithm(..., {key}={entry.name!r})"
    if key == "detector":
        usage = f"Use it inside a rule: [bold]gate({entry.name},fedadp)[/] or [bold]pa3fed:detector={entry.name}[/]"
    console.print(f"\n{usage}", highlight=False)


def _describe_rule(rule: Weighting) -> list[Weighting]:
    own = [] if rule.name == "chain" else [rule]
    return own + [inner for part in rule.parts for inner in _describe_rule(part)]
