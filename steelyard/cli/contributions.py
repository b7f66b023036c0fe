"""The command `contributions`: what each client contributed to the direction of a run."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from steelyard.cli._console import Console, Json, escape, fail, show, to_rich_table, write_csv
from steelyard.core._errors import SteelyardError


def contributions(
    run: Annotated[Path, typer.Argument(help="A run directory with recorded inner products.")],
    as_json: Json = False,
    csv: Annotated[
        Path | None,
        typer.Option(help="A CSV file to write: one row per client.", show_default=False),
    ] = None,
) -> None:
    """Show what each client contributed to the direction of a run, and which deserve a look.

    The value of a client in a round is its share in the direction of the step (Shapley value): the
    values of a round sum to 1. Leave-one-out is the part of the direction that is lost without the
    client. Flags come with their evidence: free riders (no length), duplicates (the same update as
    another client), opponents (against the others) and drifting clients.

    This measures agreement with the direction of the run. It does not measure how much a client
    improves the model on test data: rare, useful data may look like disagreement.

    steelyard contributions runs/avg-1

    steelyard contributions runs/avg-1 --json | jq '.clients[] | select(.flags != [])'

    steelyard contributions runs/avg-1 --csv clients.csv
    """
    from steelyard.recorder._contributions import contributions as compute
    from steelyard.report._contribution_figures import MEANING, make_contribution_table

    try:
        result = compute(run)
        table = make_contribution_table(result)
        if csv is not None:
            write_csv(csv, [table.heads, *table.rows])
    except (SteelyardError, OSError) as error:
        fail(error)

    # JSON for programs.
    if as_json:
        data = {
            "run": result.name,
            "rounds": len(result.rounds),
            "is_exact": result.is_exact,
            "meaning": MEANING,
            "clients": [dataclasses.asdict(entry) for entry in result.clients],
        }
        typer.echo(json.dumps(data, indent=1))
        return

    # A table, then the evidence of every flag.
    console = Console()
    short_table = make_contribution_table(result, has_evidence=False)
    show(to_rich_table(short_table, f"Contributions to {result.name}"), console)
    for entry in result.clients:
        for flag in entry.flags:
            text = f"client {entry.client}: {flag.kind}: {flag.evidence}"
            console.print(f"[yellow]flag[/] {escape(text)}", highlight=False, soft_wrap=True)
    sampled = "" if result.is_exact else " Values of large rounds are estimates; ± includes this."
    console.print(escape(MEANING + sampled), highlight=False, soft_wrap=True)
    if csv is not None:
        console.print(escape(str(csv)), highlight=False, soft_wrap=True)
