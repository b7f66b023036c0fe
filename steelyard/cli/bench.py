"""The command `bench`: the benchmark of aggregation rules, its results and its page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table as Shown

from steelyard.cli._console import Console, escape, fail, show
from steelyard.cli.run import Quiet
from steelyard.cli.sweep import print_failures, read_seeds, run_with_board
from steelyard.core._errors import SteelyardError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.experiments._benchmark import Benchmark, Result
    from steelyard.experiments._jobs import Outcome
    from steelyard.experiments._ranking import Analysis

RESULTS = "results.csv"


def bench(
    rules: Annotated[
        str | None, typer.Option(help="Only these, by name: fedavg,fedadp.", show_default=False)
    ] = None,
    settings: Annotated[
        str | None,
        typer.Option(help="Only these, by name: dirichlet-0.1,quantity.", show_default=False),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="E.g. 1,2 instead of the file's.", show_default=False)
    ] = None,
    add: Annotated[
        list[str] | None,
        typer.Option(
            help="A row of your own: 'NAME: RULE key=value ...'. Only such rows are run; the others' results are those "
            "that come with Steelyard. Repeat it.",
            show_default=False,
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            "-s",
            help="key=value for every run, e.g. rounds=5; nothing published fits then.",
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="A benchmark of your own, as benchmark.toml.", show_default=False),
    ] = None,
    tune: Annotated[
        bool,
        typer.Option(
            "--tune", help="Run the options that were tried, on the tuning seeds, and compare them."
        ),
    ] = False,
    page_only: Annotated[
        bool,
        typer.Option(
            "--page-only", help="Run nothing: the page of the results that come with Steelyard."
        ),
    ] = False,
    listing: Annotated[
        bool, typer.Option("--list", help="List rules and settings, and exit.")
    ] = False,
    known: Annotated[
        Path | None,
        typer.Option(
            "--results",
            help="results.csv of earlier runs, e.g. on another machine: these are not repeated.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where runs, results and page go.")] = Path(
        "runs/benchmark"
    ),
    parallel: Annotated[
        int | None, typer.Option(help="Runs at a time; one per core by default.")
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite", help="Start afresh where --out holds a run of another configuration."
        ),
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Compare aggregation rules in six settings, over five seeds, and say which differences are more than noise.

    steelyard bench --list

    steelyard bench                                                # everything: hours

    steelyard bench --add 'mine: fedadp:alpha=3 client=fedcos'     # your rule beside the published results

    steelyard bench --rules fedavg,fedadp --settings quantity --seeds 1,2 --set rounds=5

    steelyard bench --results other/results.csv                    # what another machine has not run

    Data is looked for in $STEELYARD_DATA, or --set data.dir=DIR. After Ctrl-C, start the same
    command again: finished runs are kept and others are resumed. In --out: results.csv (one line per
    run), benchmark.md and benchmark.html; after Ctrl-C they have the runs that are finished.
    """
    console = Console()
    try:
        from steelyard.experiments._benchmark import (
            PUBLISHED,
            check_fingerprints,
            combine_results,
            make_results,
            parse_rule_text,
            read_benchmark,
            read_results,
            select_missing_jobs,
        )
        from steelyard.experiments._jobs import read_finished

        # Choose what is to be run.
        benchmark = read_benchmark(file).change(changes or [])
        other_changes = [change for change in changes or [] if not change.startswith("data.dir=")]
        uses_published = bool(add) or page_only
        if uses_published and (file is not None or other_changes):
            raise SteelyardError(
                "--add and --page-only use the published results, which --set and --file do not fit"
            )
        selection = benchmark.select(_names(rules), _names(settings))
        if add:
            selection = selection.with_rules([parse_rule_text(text) for text in add], alone=True)
        if tune:
            selection = selection.candidates()
        if listing:
            _print_benchmark(selection, console)
            return

        jobs = []
        if not page_only:
            jobs = selection.jobs(selection.seeds if seeds is None else read_seeds(seeds))

        # Read the results that stand beside the new ones.
        if uses_published and not PUBLISHED.exists():
            raise SteelyardError(
                "no results are published yet: run the benchmark without --add and --page-only"
            )
        known_results = read_results(PUBLISHED) if uses_published else []
        if known is not None:
            known_results = combine_results(known_results, read_results(known))
        check_fingerprints(benchmark, known_results)

        # Run what they do not have.
        jobs = select_missing_jobs(selection, jobs, known_results)
        outcomes: list[Outcome] = []
        is_interrupted = False
        try:
            if jobs:
                outcomes = run_with_board(
                    jobs, out, "benchmark", parallel, overwrite, quiet, console
                )
        except KeyboardInterrupt:
            is_interrupted = True
            outcomes = read_finished(jobs, out)

        # Write results and pages, also of an interrupted benchmark.
        if tune:
            benchmark = selection
        elif add:
            benchmark = benchmark.with_rules(selection.rules)
        results = combine_results(known_results, make_results(selection, outcomes))
        if results:
            analysis = _write_pages(benchmark, results, out)
        if is_interrupted:
            raise KeyboardInterrupt
        if not quiet:
            _print_analysis(benchmark, analysis, out, console)
    except KeyboardInterrupt:
        fail("interrupted; finished runs are kept: start the same command again to resume", 130)
    except (SteelyardError, OSError) as error:
        fail(error)
    print_failures([outcome for outcome in outcomes if outcome.error is not None], len(outcomes))


def _names(text: str | None) -> list[str]:
    """Return the names of `--rules a,b`."""
    return [] if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _print_benchmark(benchmark: Benchmark, console: Console) -> None:
    rules = Shown(title=escape(benchmark.title), title_justify="left")
    for column in ("rule", "label", "algorithm", "note"):
        rules.add_column(column, overflow="fold")
    for rule in benchmark.rules:
        rules.add_row(rule.name, escape(rule.label), escape(rule.algorithm), escape(rule.note))
    show(rules, console)
    settings = Shown(title="Settings", title_justify="left")
    for column in ("setting", "what it is", "target"):
        settings.add_column(column, overflow="fold")
    for setting in benchmark.settings:
        settings.add_row(setting.name, escape(setting.about), f"{setting.target:g}")
    show(settings, console)
    runs = len(benchmark.rules) * len(benchmark.settings) * len(benchmark.seeds)
    seeds = ", ".join(map(str, benchmark.seeds))
    console.print(f"{runs} runs with seeds {seeds}", highlight=False)


def _write_pages(benchmark: Benchmark, results: Sequence[Result], out: Path) -> Analysis:
    """Write results.csv and the two pages; return what they say."""
    from steelyard.experiments._benchmark import SCORE_NAMES, format_results
    from steelyard.experiments._ranking import analyse
    from steelyard.report._benchmark import write_html, write_markdown
    from steelyard.runs._directory import write_text

    out.mkdir(parents=True, exist_ok=True)
    write_text(out / RESULTS, format_results(results))
    analysis = analyse(benchmark, results, SCORE_NAMES)
    write_markdown(benchmark, analysis, out / "benchmark.md")
    write_html(benchmark, analysis, results, out / "benchmark.html")
    return analysis


def _print_analysis(benchmark: Benchmark, analysis: Analysis, out: Path, console: Console) -> None:
    """Print the table of differences, and where the page is."""
    from steelyard.report._benchmark import format_difference

    table = Shown(
        title="Points against the reference (mean of the last 10 rounds)", title_justify="left"
    )
    table.add_column("rule")
    settings = [setting for setting in benchmark.settings if setting.name in analysis.scores]
    for setting in settings:
        table.add_column(escape(setting.label), justify="right")
    for rule in analysis.rules:
        cells = [
            format_difference(
                analysis.scores[setting.name]["last10"].get(rule.name),
                rule.name == benchmark.reference,
            )
            for setting in settings
        ]
        table.add_row(escape(rule.label), *cells)
    show(table, console)
    console.print(
        "* told apart from the reference after Holm's correction; ± half of the 95 % interval",
        highlight=False,
    )
    console.print(f"page: {escape(str(out / 'benchmark.html'))}", highlight=False, soft_wrap=True)
