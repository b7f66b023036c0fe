"""A sweep run whole, and what it leaves: `results.csv` as it goes on, then `results.md`, `results.tex`, `table.csv`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from steelyard._version import __version__
from steelyard.core.errors import SteelyardError
from steelyard.experiments.comparisons import Comparison, compare
from steelyard.experiments.jobs import Outcome, Silent, Watch, run_jobs
from steelyard.experiments.run_groups import Run, find_differences
from steelyard.experiments.scores import METRICS, Metric, of_monitored
from steelyard.experiments.scores import metric as find_metric
from steelyard.experiments.sweep import Sweep
from steelyard.experiments.tables import Table, csv_lines, long_head, long_row, markdown_text, overview, pivot
from steelyard.runs.directory import write_text
from steelyard.runs.lock import lock_directory

RESULTS = "results.csv"


@dataclass(frozen=True)
class Summary:
    """What a sweep came to.

    Attributes:
        table: algorithms by settings.
        overview: all measures.
        comparisons: every algorithm against the reference.
        failed: the outcomes of jobs that failed.
        unlike: sentences on runs that should have started alike, and did not.
        notes: what the user should know.
    """

    table: Table
    overview: Table
    comparisons: tuple[Comparison, ...]
    failed: tuple[Outcome, ...]
    unlike: tuple[str, ...]
    notes: tuple[str, ...]


def summarise(sweep: Sweep, outcomes: Sequence[Outcome], metric: Metric, confidence: float = 0.95) -> Summary:
    """Tables and comparisons of what is finished."""
    runs = [Run.of(outcome) for outcome in outcomes if outcome.history is not None]
    return Summary(
        pivot(runs, metric, sweep.target, sweep.seeds),
        overview(runs, sweep.target),
        tuple(compare(runs, metric, target=sweep.target, confidence=confidence)),
        tuple(outcome for outcome in outcomes if outcome.error is not None),
        tuple(find_differences(runs)),
        sweep.notes,
    )


def markdown(sweep: Sweep, summary: Summary, metric: Metric) -> str:
    """The page `results.md`."""
    parts = [f"# {markdown_text(sweep.name)}\n", f"{summary.table.title}.\n", summary.table.markdown()]
    said = [f"- {markdown_text(one.sentence(metric))}\n" for one in summary.comparisons]
    said += [f"- {markdown_text(text)}\n" for one in summary.comparisons if (text := one.communication())]
    if said:
        parts += ["## Differences\n", "".join(said)]
    parts += ["## All measures\n", f"{summary.overview.title}.\n", summary.overview.markdown()]
    wrong = [f"- {markdown_text(one.job.name)}: {markdown_text(one.error or '')}\n" for one in summary.failed]
    if wrong:
        parts += ["## Failed\n", "".join(wrong)]
    notes = [f"- {markdown_text(note)}\n" for note in (*summary.unlike, *summary.notes)]
    if notes:
        parts += ["## Notes\n", "".join(notes)]
    parts.append(f"{len(sweep.jobs)} runs, Steelyard {__version__}; `environment.json` of each run has the rest.\n")
    return "\n".join(parts)


def write(sweep: Sweep, outcomes: Sequence[Outcome], summary: Summary, metric: Metric, out: Path) -> list[Path]:
    """Writes the files of a finished sweep, each atomically; returns their paths."""
    rows = [
        long_row(outcome.job.name, sweep.axes, Run.of(outcome), sweep.target)
        for outcome in outcomes
        if outcome.history is not None
    ]
    texts = {
        "results.md": markdown(sweep, summary, metric),
        "results.tex": summary.table.latex() + "\n" + summary.overview.latex(),
        "table.csv": summary.table.csv(),
        RESULTS: csv_lines([long_head(sweep.axes, sweep.target), *rows]),
    }
    for name, text in texts.items():
        write_text(out / name, text)
    return [out / name for name in texts]


class _Ledger:
    """`results.csv` while the sweep goes on: a row for each run as it finishes. Passes on what it hears."""

    def __init__(self, sweep: Sweep, out: Path, watch: Watch) -> None:
        self.sweep, self.path, self.watch = sweep, out / RESULTS, watch
        self.on_start, self.on_progress = watch.on_start, watch.on_progress
        self.begun = False

    def on_finish(self, outcome: Outcome) -> None:
        """One more row, if it did not fail."""
        rows: list[list[str | float | None]] = [] if self.begun else [[*long_head(self.sweep.axes, self.sweep.target)]]
        if outcome.history is not None:
            rows.append(long_row(outcome.job.name, self.sweep.axes, Run.of(outcome), self.sweep.target))
        with open(self.path, "a" if self.begun else "w", encoding="utf-8") as file:
            file.write(csv_lines(rows))
        self.begun = True
        self.watch.on_finish(outcome)


def run_sweep(
    sweep: Sweep,
    out: str | Path,
    *,
    metric: str | Metric = "last10",
    parallel: int | None = None,
    watch: Watch | None = None,
    overwrite: bool = False,
) -> Summary:
    """Runs what is not finished of a sweep, and writes its results into `out`; `run_jobs` says how."""
    chosen = find_metric(metric) if isinstance(metric, str) else metric
    if chosen.name == "rounds" and sweep.target is None:
        raise SteelyardError("metric 'rounds': no target is given: use target = 0.9 in the file")
    out = Path(out)
    ledger = _Ledger(sweep, out, watch or Silent())
    with lock_directory(out, "sweep"):
        outcomes = run_jobs(sweep.jobs, out, parallel=parallel, watch=ledger, overwrite=overwrite)
        histories = [outcome.history for outcome in outcomes if outcome.history is not None]
        chosen = of_monitored(chosen, histories, strict=False) if chosen.name in METRICS else chosen
        summary = summarise(sweep, outcomes, chosen)
        write(sweep, outcomes, summary, chosen, out)
    return summary
