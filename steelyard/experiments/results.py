"""Runs a sweep and writes its results.

`results.csv` is written while the sweep runs; `results.md`, `results.tex` and `table.csv` at its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
from steelyard.experiments.tables import (
    Table,
    csv_lines,
    long_head,
    long_row,
    markdown_text,
    overview,
    pivot,
)
from steelyard.runs.directory import write_text
from steelyard.runs.lock import lock_directory

RESULTS = "results.csv"


@dataclass(frozen=True)
class Summary:
    """The results of a sweep.

    Attributes:
        table: one score of all algorithms and settings.
        overview: all scores.
        comparisons: the comparison of every algorithm with the reference.
        failed: the outcomes of failed jobs.
        unlike: sentences about runs with the same seed that did not start alike.
        notes: what the user should know.
    """

    table: Table
    overview: Table
    comparisons: tuple[Comparison, ...]
    failed: tuple[Outcome, ...]
    unlike: tuple[str, ...]
    notes: tuple[str, ...]


def summarise(sweep: Sweep, outcomes: Sequence[Outcome], metric: Metric, confidence: float = 0.95) -> Summary:
    """Return the tables and comparisons of the finished runs.

    Args:
        sweep: the sweep.
        outcomes: the outcomes of its jobs.
        metric: the score of the table and of comparisons.
        confidence: the confidence level of intervals.
    """
    runs = [Run.of(outcome) for outcome in outcomes if outcome.history is not None]
    return Summary(
        pivot(runs, metric, sweep.target, sweep.seeds),
        overview(runs, sweep.target),
        tuple(compare(runs, metric, target=sweep.target, confidence=confidence)),
        tuple(outcome for outcome in outcomes if outcome.error is not None),
        tuple(find_differences(runs)),
        sweep.notes,
    )


def to_markdown(sweep: Sweep, summary: Summary, metric: Metric) -> str:
    """Return the page `results.md`."""
    table = summary.table
    parts = [f"# {markdown_text(sweep.name)}\n", f"{table.title}.\n", table.markdown()]

    # Differences.
    sentences = [comparison.sentence(metric) for comparison in summary.comparisons]
    sentences += [comparison.communication() for comparison in summary.comparisons]
    if sentences:
        parts += ["## Differences\n", _format_list(filter(None, sentences))]

    # All scores, failures and notes.
    parts += ["## All measures\n", f"{summary.overview.title}.\n", summary.overview.markdown()]
    if summary.failed:
        errors = [f"{outcome.job.name}: {outcome.error or ''}" for outcome in summary.failed]
        parts += ["## Failed\n", _format_list(errors)]
    notes = (*summary.unlike, *summary.notes)
    if notes:
        parts += ["## Notes\n", _format_list(notes)]
    parts.append(f"{len(sweep.jobs)} runs, Steelyard {__version__}; `environment.json` of each run has the rest.\n")
    return "\n".join(parts)


def _format_list(texts: Iterable[str]) -> str:
    """Return texts as a list in Markdown."""
    return "".join(f"- {markdown_text(text)}\n" for text in texts)


def write(sweep: Sweep, outcomes: Sequence[Outcome], summary: Summary, metric: Metric, out: Path) -> list[Path]:
    """Write the files of a finished sweep, each atomically, and return their paths.

    Args:
        sweep: the sweep.
        outcomes: the outcomes of its jobs.
        summary: their summary.
        metric: the score of comparisons.
        out: the directory.
    """
    rows = []
    for outcome in outcomes:
        if outcome.history is not None:
            rows.append(long_row(outcome.job.name, sweep.axes, Run.of(outcome), sweep.target))
    texts = {
        "results.md": to_markdown(sweep, summary, metric),
        "results.tex": summary.table.latex() + "\n" + summary.overview.latex(),
        "table.csv": summary.table.csv(),
        RESULTS: csv_lines([long_head(sweep.axes, sweep.target), *rows]),
    }
    for name, text in texts.items():
        write_text(out / name, text)
    return [out / name for name in texts]


class _ResultWriter:
    """Writes a row to `results.csv` when a run finishes, and forwards all calls to `watch`."""

    def __init__(self, sweep: Sweep, out: Path, watch: Watch) -> None:
        self.sweep = sweep
        self.path = out / RESULTS
        self.watch = watch
        self.on_start = watch.on_start
        self.on_progress = watch.on_progress
        self.has_head = False

    def on_finish(self, outcome: Outcome) -> None:
        """Write a row, unless the job failed."""
        axes = self.sweep.axes
        target = self.sweep.target
        rows: list[list[str | float | None]] = []
        if not self.has_head:
            rows.append([*long_head(axes, target)])
        if outcome.history is not None:
            rows.append(long_row(outcome.job.name, axes, Run.of(outcome), target))
        with open(self.path, "a" if self.has_head else "w", encoding="utf-8") as file:
            file.write(csv_lines(rows))
        self.has_head = True
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
    """Run the unfinished jobs of a sweep, and write the results.

    Args:
        sweep: the sweep.
        out: the directory of the runs and the results. It is locked meanwhile.
        metric: the score of the table and of comparisons, or its name.
        parallel: the number of simultaneous runs; by default one per core.
        watch: callbacks.
        overwrite: replace runs of another configuration instead of raising an error.
    """
    score = find_metric(metric) if isinstance(metric, str) else metric
    if score.name == "rounds" and sweep.target is None:
        raise SteelyardError("metric 'rounds': no target is given: use target = 0.9 in the file")
    out = Path(out)
    writer = _ResultWriter(sweep, out, watch or Silent())
    with lock_directory(out, "sweep"):
        outcomes = run_jobs(sweep.jobs, out, parallel=parallel, watch=writer, overwrite=overwrite)
        histories = [outcome.history for outcome in outcomes if outcome.history is not None]
        if score.name in METRICS:
            score = of_monitored(score, histories, strict=False)
        summary = summarise(sweep, outcomes, score)
        write(sweep, outcomes, summary, score, out)
    return summary
