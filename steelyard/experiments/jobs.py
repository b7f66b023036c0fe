"""Runs many jobs at the same time, each in its own directory and process.

Finished runs are not repeated.
"""

from __future__ import annotations

import dataclasses
import selectors
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from steelyard import threads
from steelyard.core.errors import SteelyardError
from steelyard.experiments.worker_process import Child, stop_children
from steelyard.runs.directory import CONFIG, read_config, read_log
from steelyard.runs.history import History
from steelyard.runs.monitor import Monitor
from steelyard.sim.config import Config, validate_config


@dataclass(frozen=True)
class Job:
    """A run to do.

    Attributes:
        name: a unique name, which is also the run directory, relative to the common one:
            `fedawa-dirichlet-0.1/seed-1`.
        config: the complete settings of the run, with its seed.
        labels: what distinguishes the job from others, by axis:
            `{"weighting": "fedawa", "seed": "1"}`.
    """

    name: str
    config: Config
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """The result of a job.

    Attributes:
        job: the job.
        path: the run directory.
        history: the rounds; None if the job failed.
        error: why the job failed, in one sentence; None if it did not.
        reused: whether the run was finished before.
    """

    job: Job
    path: Path
    history: History | None
    error: str | None = None
    reused: bool = False


class Watch(Protocol):
    """Callbacks of `run_jobs`, called in the thread that called it."""

    def on_start(self, job: Job) -> None:
        """Handle the start of a job's process."""

    def on_progress(self, job: Job, record: Mapping[str, Any]) -> None:
        """Handle the end of a round: `round`, `accuracy` and `loss` (None if not measured)."""

    def on_finish(self, outcome: Outcome) -> None:
        """Handle the end of a job: it is finished, has failed, or was finished before."""


class Silent:
    """Callbacks that do nothing: a base class to override."""

    def on_start(self, job: Job) -> None:
        """Do nothing."""

    def on_progress(self, job: Job, record: Mapping[str, Any]) -> None:
        """Do nothing."""

    def on_finish(self, outcome: Outcome) -> None:
        """Do nothing."""


def run_jobs(
    jobs: Sequence[Job],
    out: str | Path,
    *,
    parallel: int | None = None,
    watch: Watch | None = None,
    overwrite: bool = False,
) -> list[Outcome]:
    """Run all jobs that are not finished, several at the same time.

    A finished run of the same configuration is reused; an unfinished one is resumed from its last
    checkpoint. If a job fails, its outcome has the reason, and the other jobs continue. Ctrl-C stops
    all processes; calling this function again resumes the runs. Rules, models and data sets must be
    registered in a new process, too: a registration in this process only is not enough.

    Args:
        jobs: the jobs.
        out: the directory that contains all run directories.
        parallel: the number of simultaneous runs; by default one per core. If there are more cores
            than runs, a run gets several.
        watch: callbacks.
        overwrite: replace runs of another configuration instead of raising an error.

    Returns:
        The outcomes, in the order of the jobs.
    """
    # Check the arguments.
    out = Path(out)
    watch = watch or Silent()
    cores = threads.cores()
    slots = cores if parallel is None else parallel
    if slots < 1:
        raise SteelyardError(f"parallel={parallel}: use at least 1")
    _check_names([job.name for job in jobs])
    to_overwrite = {job.name for job in jobs if _holds_other_run(job, out / job.name, overwrite)}

    # Reuse finished runs.
    outcomes: dict[str, Outcome] = {}
    waiting: deque[Job] = deque()
    for job in jobs:
        if job.name not in to_overwrite and is_finished(job, out):
            outcomes[job.name] = _read_outcome(job, out, None, reused=True)
            watch.on_finish(outcomes[job.name])
        else:
            waiting.append(job)

    # Run the others.
    with selectors.DefaultSelector() as selector:
        running: dict[str, tuple[Job, Child]] = {}
        try:
            while waiting or running:
                # Start processes; free cores are shared by the jobs that can start now.
                while waiting and len(running) < slots:
                    free_cores = cores - sum(child.workers for _, child in running.values())
                    workers = max(1, free_cores // min(slots - len(running), len(waiting)))
                    job = waiting.popleft()
                    child = Child(_make_order(job, out, workers, job.name in to_overwrite))
                    running[job.name] = (job, child)
                    selector.register(child.output, selectors.EVENT_READ, job.name)
                    watch.on_start(job)

                # Read what they report.
                for key, _ in selector.select():
                    job, child = running[key.data]
                    records = child.read_records()
                    for record in records or ():
                        watch.on_progress(job, record)
                    if records is None:
                        selector.unregister(child.output)
                        outcomes[job.name] = _read_outcome(job, out, child.wait())
                        del running[job.name]
                        watch.on_finish(outcomes[job.name])
        finally:
            stop_children(child for _, child in running.values())
    return [outcomes[job.name] for job in jobs]


def is_finished(job: Job, out: str | Path) -> bool:
    """Return whether a job has all its rounds, or has reached its target.

    Args:
        job: the job.
        out: the directory that contains all run directories.

    Raises:
        SteelyardError: if the job's directory holds another run.
    """
    path = Path(out) / job.name
    if not (path / CONFIG).exists():
        return False
    _holds_other_run(job, path, overwrite=False)
    records = _read_records(path)
    return len(records) >= job.config.rounds or Monitor.read(read_config(path)).is_done(records)


def _holds_other_run(job: Job, path: Path, overwrite: bool) -> bool:
    """Return whether a directory holds a run with other settings than the job's.

    The number of rounds may differ, because a run can be extended; but the run must not have more
    rounds than the job.

    Args:
        job: the job.
        path: the directory.
        overwrite: return True for another run instead of raising an error.
    """
    if not (path / CONFIG).exists():
        return False

    # Compare the settings, key by key.
    stored_config = read_config(path)
    if "config" not in stored_config:
        differences = ["it was started from Python, without a configuration"]
    else:
        values = {**stored_config["config"], "rounds": job.config.rounds}
        old = flatten_keys(validate_config(values, str(path / CONFIG)).to_stored())
        new = flatten_keys(job.config.to_stored())
        differences = []
        for key in dict.fromkeys([*old, *new]):
            if old.get(key) != new.get(key):
                differences.append(f"{key} = {old.get(key)!r} there, {new.get(key)!r} here")
        round_count = len(_read_records(path))
        if round_count > job.config.rounds:
            differences.append(f"{round_count} rounds there, {job.config.rounds} here")

    # Refuse another run.
    if differences and not overwrite:
        raise SteelyardError(
            f"{path}: holds another run ({'; '.join(differences)}): "
            "choose another directory (--out), or overwrite it (--overwrite)"
        )
    return bool(differences)


def _read_records(path: Path) -> list[dict[str, Any]]:
    """Return the recorded rounds; none if the log is damaged, so that the run is resumed."""
    try:
        return read_log(path)
    except ValueError:
        return []


def flatten_keys(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested sections by their full keys, such as `data.name`."""
    values: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            values |= flatten_keys(value, f"{prefix}{key}.")
        else:
            values[f"{prefix}{key}"] = value
    return values


def _make_order(job: Job, out: Path, workers: int, overwrite: bool) -> dict[str, Any]:
    return {
        "name": job.name,
        "path": str(out / job.name),
        "config": job.config.model_dump(mode="json"),
        "workers": job.config.workers or workers,
        "overwrite": overwrite,
    }


def _read_outcome(job: Job, out: Path, error: str | None, reused: bool = False) -> Outcome:
    """Return the outcome of a job; a run whose last loss is not finite has failed.

    Args:
        job: the job.
        out: the directory that contains all run directories.
        error: why its process failed, or None.
        reused: whether the run was finished before.
    """
    path = out / job.name
    if error is not None:
        return Outcome(job, path, None, error, reused)
    history = dataclasses.replace(History.read(path), name=job.name)
    last = history.records[-1]
    if "loss" in last and last["loss"] is None:
        error = f"round {last['round']}: the loss of the global model is not finite: a lower local.lr helps"
        return Outcome(job, path, None, error, reused)
    return Outcome(job, path, history, None, reused)


def _check_names(names: Sequence[str]) -> None:
    """Check that names can be directories: relative paths, none inside another."""
    for name in names:
        path = PurePosixPath(name)
        is_simple = str(path) == name and name.isprintable() and "\\" not in name
        if not is_simple or path.is_absolute() or ".." in path.parts or name == ".":
            raise SteelyardError(f"job name {name!r}: use a relative path such as 'fedawa/seed-1'")
    counts = Counter(names)
    for name, count in counts.items():
        if count > 1:
            raise SteelyardError(f"job name {name!r}: given {count} times: use one name per job")
        if counts.keys() & {str(parent) for parent in PurePosixPath(name).parents}:
            raise SteelyardError(f"job name {name!r}: lies within another job's directory: use another name")
