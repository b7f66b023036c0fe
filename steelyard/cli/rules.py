"""The commands `rules` and `explain`: list and describe the parts of an algorithm."""

from __future__ import annotations

import inspect
import json
import re
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from steelyard.algorithm import COMPOSITIONS, Algorithm
from steelyard.cli._console import Json, console, describe_entry, fail, show
from steelyard.core._errors import SteelyardError
from steelyard.core._registry import BROADCASTS, OPTIMIZERS, REFINERS, RULES, TERMS, Entry
from steelyard.core._round_report import explain as explain_rule
from steelyard.core._spec import to_text
from steelyard.core._weighting import Weighting
from steelyard.metrics import MEANING
from steelyard.rules._combinators import parse_rule, with_default_source
from steelyard.rules._detectors import DETECTORS

# The registries of all parts except rules, by the option of an algorithm that takes them.
_OTHER_PARTS = {
    "client": TERMS,
    "server": OPTIMIZERS,
    "broadcast": BROADCASTS,
    "refine": REFINERS,
    "detector": DETECTORS,
}


def rules(as_json: Json = False) -> None:
    """List all rules, client terms, server optimizers, broadcasts, refiners and detectors.

    The table shows the paper, the needs and the options of each.

    Write a rule with options as [bold]name:option=value,...[/]. Chain rules with [bold]|[/]. Wrap a
    rule with brackets: [bold]guard(feddisco|fedawa:steps=10)[/].
    """
    # Describe every part.
    rows = []
    for registry in (RULES, *_OTHER_PARTS.values()):
        for entry in registry:
            rows.append({**_describe_part(entry), "kind": registry.kind})
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return

    # Print one table per kind.
    titles = {RULES.kind: "Rules"}
    for option, registry in _OTHER_PARTS.items():
        titles[registry.kind] = f"{registry.kind.capitalize()}s ({option}=)"
    for kind, title in titles.items():
        table = Table(title=title, title_justify="left", show_lines=False)
        for column in ("name", "what it does", "paper", "needs", "options"):
            table.add_column(column, overflow="fold")
        for row in rows:
            if row["kind"] == kind:
                needs = ", ".join(row["needs"])
                options = ", ".join(f"{name}={value}" for name, value in row["options"].items())
                cells = [row["name"], row["title"], row["paper"], needs, options]
                table.add_row(*map(escape, cells))
        show(table, console)
    for name in COMPOSITIONS:
        console.print(f"[bold]{name}[/] is {escape(str(Algorithm(name)))}", highlight=False)
    console.print("To read more about one: [bold]steelyard explain NAME[/]")


def _describe_part(entry: Entry) -> dict[str, Any]:
    """Return the description of an entry, and what it needs with its default options."""
    needs: list[str] = []
    try:
        if not entry.wraps:
            required = {name: 1.0 for name, p in entry.options.items() if p.default is p.empty}
            part = entry.make(**required)
            if isinstance(part, Weighting):
                part = with_default_source(part)
            needs = _list_needs(part)
    except Exception:  # a plugin's part that a number does not make
        if entry.is_builtin:
            raise
        needs = ["?"]
    return {**describe_entry(entry), "needs": needs}


def _list_needs(part: Any) -> list[str]:
    """Return what a part needs: metrics of the clients first, then what the server computes."""
    needs = getattr(part, "needs", None)
    if needs is None:
        return []
    server_needs = {
        "inner products": needs.gram,
        "per layer": needs.per_layer is not None,
        "coordinates": needs.coordinates,
        "proxy data": needs.probe,
        "last global step": needs.last_step or bool(needs.broadcast),
    }
    return [*sorted(needs.metrics), *(name for name, needed in server_needs.items() if needed)]


def explain(
    rule: Annotated[
        str, typer.Argument(help="A rule, e.g. 'feddisco|fedawa', or the name of another part.")
    ],
) -> None:
    """Explain a rule: what clients disclose, what the server sees, costs and privacy.

    For a client term, server optimizer, broadcast, refiner or detector: what it does, and its
    options.
    """
    # A part that is not a rule is found by its name.
    name = re.split(r"[:+]", rule)[0].strip()
    for option, registry in _OTHER_PARTS.items():
        if name in registry:
            _explain_other(option, registry[name])
            return
    if name in COMPOSITIONS:
        console.print(f"[bold]{name}[/] is {escape(str(Algorithm(name)))}. Its rule:\n")
        rule = COMPOSITIONS[name]["weighting"]
    try:
        weighting = parse_rule(rule)
    except SteelyardError as error:
        fail(error)

    # Print the rules of a chain.
    root = with_default_source(weighting)
    facts = explain_rule(root, MEANING)
    console.print(f"[bold]{escape(to_text(weighting))}[/]")
    for part in _flatten_rule(weighting):
        paper = f" ({part.info.paper})" if part.info.paper else ""
        console.print(escape(f"  {part.name}: {part.info.title}{paper}"), highlight=False)
    rule_count = len(getattr(weighting, "rules", (weighting,)))
    if root.rules[0] is not weighting and len(root.rules) > rule_count:
        console.print(
            "  starts from weights by num_examples (fedavg), because it changes the weights of the "
            "rule before it"
        )

    # Print the facts.
    sections = {
        "Clients disclose": facts.clients_disclose,
        "The server sees": facts.server_sees,
        "Passes": [facts.passes],
        "Memory": [facts.memory],
        "Remarks": facts.remarks,
        "Secure aggregation": facts.secure_aggregation,
        "Differential privacy": facts.differential_privacy,
        "Options in full": [repr(weighting)],
    }
    if not facts.remarks:
        del sections["Remarks"]
    for title, lines in sections.items():
        console.print(f"\n[bold]{title}[/]")
        for line in lines:
            console.print(f"  {escape(line)}", highlight=False)


def _explain_other(option: str, entry: Entry) -> None:
    """Print what a part other than a rule does, its options, and how to use it."""
    facts = describe_entry(entry)
    paper = f" ({facts['paper']})" if facts["paper"] else ""
    title = escape(facts["title"] + paper)
    console.print(f"[bold]{entry.name}[/]\n{title}\n", highlight=False)
    console.print(escape(inspect.getdoc(entry.make) or ""), highlight=False)
    console.print("\n[bold]Options[/]")
    for name, value in facts["options"].items():
        console.print(escape(f"  {name}={value}"), highlight=False)
    if not facts["options"]:
        console.print("  none", highlight=False)
    usage = f"Use it with [bold]--set {option}={entry.name}[/], or Algorithm(..., {option}={entry.name!r})"
    if option == "detector":
        usage = f"Use it inside a rule: [bold]gate({entry.name},fedadp)[/] or [bold]pa3fed:detector={entry.name}[/]"
    console.print(f"\n{usage}", highlight=False)


def _flatten_rule(rule: Weighting) -> list[Weighting]:
    """Return a rule and all rules within it; a chain itself is left out."""
    rules = [] if rule.name == "chain" else [rule]
    for part in rule.parts:
        rules += _flatten_rule(part)
    return rules
