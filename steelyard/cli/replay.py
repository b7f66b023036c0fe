"""The command `replay`: what would other rules have done with the updates of a run?"""

from __future__ import annotations

import time
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from steelyard.cli._console import Console, escape, fail, show, to_rich_table, write_csv
from steelyard.core._errors import SteelyardError

if TYPE_CHECKING:
    from steelyard.recorder._replay import Replay

_PATIENCE = 1.0  # seconds before the progress bar appears


def replay(
    run: Annotated[Path, typer.Argument(help="A run directory with recorded inner products.")],
    rule: Annotated[
        list[str] | None,
        typer.Option("--rule", "-r", help="A rule to replay, as text. Repeat for several."),
    ] = None,
    all_rules: Annotated[
        bool,
        typer.Option(
            "--all", help="Replay every rule that can be replayed, with its default options."
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="An HTML page to write.", show_default=False),
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(
            help="A CSV file to write: one row per rule, round and client.", show_default=False
        ),
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Apply other rules to the recorded updates of a run, without running anything again.

    Every rule keeps its own state from round to round. The table and the page show whom it would
    have listened to, how long its steps would have been, and how far from the steps that were taken.
    This is a counterfactual of one step: the updates are those that the models of the run produced.
    To know how well a rule does, run it.

    Runs record what is needed by default, up to 100 clients per round (--set record=gram for more).
    Rules that learn on proxy data, or look at single coordinates, cannot be replayed.

    steelyard replay runs/avg-1 --rule fedadp --rule 'feddisco|fedawa'

    steelyard replay runs/avg-1 --all -o replay.html --open

    steelyard replay runs/avg-1 --rule 'guard(fedadp)' --csv weights.csv
    """
    from steelyard.report._replay import (
        build_replay_report,
        label_rules,
        list_weights,
        make_summary_table,
    )

    if not rule and not all_rules:
        fail("name a rule to replay (--rule fedadp), or replay every rule (--all)")
    if open_it and out is None:
        fail("--open shows the page: name the page (-o replay.html)")
    failures: dict[str, str] = {}
    try:
        result = _replay(run, rule or [], all_rules, failures)
        table = make_summary_table(result, label_rules(result, run))
        if out is not None:
            from steelyard.report._build import write_report

            write_report(build_replay_report(result, run, out, failures), out)
        if csv is not None:
            write_csv(csv, list_weights(result))
    except (SteelyardError, OSError) as error:
        fail(error)

    # Print the table, then what was left out, then the files.
    console = Console()
    errors = Console(stderr=True)
    show(to_rich_table(table, f"Replay of {result.name}"), console)
    for reason in failures.values():
        errors.print(f"[yellow]left out:[/] {escape(reason)}", highlight=False, soft_wrap=True)
    if result.missing:
        text = f"{len(result.missing)} rounds of the run are not recorded"
        errors.print(f"[yellow]note:[/] {text}", highlight=False, soft_wrap=True)
    for path in (out, csv):
        if path is not None:
            size = f"{path.stat().st_size / 1e6:.1f} MB"
            console.print(f"{escape(str(path))}: {size}", highlight=False, soft_wrap=True)
    if open_it and out is not None:
        webbrowser.open(out.resolve().as_uri())


def _replay(run: Path, rules: list[str], all_rules: bool, failures: dict[str, str]) -> Replay:
    """Replay rules, with a progress bar if it takes more than a second.

    Args:
        run: the run directory.
        rules: the rules that the user named. If one of them cannot be replayed, that is an error.
        all_rules: also replay every other rule that can be replayed.
        failures: where to put why others cannot be replayed.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from steelyard.recorder._replay import check_rules, find_replayable_rules, replay_rules

    # The rules. Those that the user named are checked first.
    check_rules(run, rules)
    names = list(dict.fromkeys(rules))
    if all_rules:
        replayable, reasons = find_replayable_rules(run)
        names += [name for name in replayable if name not in names]
        failures |= reasons

    # The bar appears after the first second.
    bar = Progress(
        TextColumn("replaying"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rule]}"),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task("", total=len(names), rule="")
    start = time.monotonic()

    def report(name: str) -> None:
        if time.monotonic() - start > _PATIENCE:
            bar.start()
        bar.update(task, advance=1, rule=escape(name))

    late_failures: dict[str, str] | None = failures if all_rules else None
    try:
        return replay_rules(run, names, report, late_failures)
    finally:
        bar.stop()
