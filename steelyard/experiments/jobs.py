"""Many runs side by side, each in a directory and a process of its own; what is finished is not run again."""

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
from steelyard.experiments.worker_process import Child, end
from steelyard.runs.directory import CONFIG, read_config, read_log
from steelyard.runs.history import History
from steelyard.runs.monitor import Monitor
from steelyard.sim.config import Config, validate_config


@dataclass(frozen=True)
class Job:
    """A run to be done.

    Attributes:
        name: unique, and the run's directory below the common one: `fedawa-dirichlet-0.1/seed-1`.
        config: the run, whole, with its seed.
        labels: what sets it apart, as text by axis: `{"weighting": "fedawa", "seed": "1"}`.
    """

    name: str
    config: Config
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What became of a job.

    Attributes:
        job: the job.
        path: its run directory.
        history: its rounds; None if it failed.
        error: why it failed, in one sentence.
        reused: whether it was finished before.
    """

    job: Job
    path: Path
    history: History | None
    error: str | None = None
    reused: bool = False


class Watch(Protocol):
    """Hears what happens, in the thread that called `run_jobs`."""

    def on_start(self, job: Job) -> None:
        """Its process has been started."""

    def on_progress(self, job: Job, record: Mapping[str, Any]) -> None:
        """A round is done: `round`, `accuracy` and `loss` (None where not measured)."""

    def on_finish(self, outcome: Outcome) -> None:
        """It is done, has failed, or was done before."""


class Silent:
    """Does nothing; override what you need."""

    def on_start(self, job: Job) -> None:
        """Nothing."""

    def on_progress(self, job: Job, record: Mapping[str, Any]) -> None:
        """Nothing."""

    def on_finish(self, outcome: Outcome) -> None:
        """Nothing."""


def run_jobs(
    jobs: Sequence[Job],
    out: str | Path,
    *,
    parallel: int | None = None,
    watch: Watch | None = None,
    overwrite: bool = False,
) -> list[Outcome]:
    """Runs every job that is not finished, several at a time.

    A finished run of the same configuration is taken as it is, an unfinished one goes on from its last checkpoint. A
    job that fails is recorded with its reason, and the others go on. Ctrl-C ends all processes; calling this again goes
    on. Rules, models and data sets must be known to a fresh process: those registered in this one only are not.

    Args:
        jobs: what to run; outcomes come in this order.
        out: the directory above all run directories.
        parallel: how many runs at a time; one per core by default. Cores that are left over go to the runs there are.
        watch: hears what happens.
        overwrite: start afresh where there is a run of another configuration, instead of refusing.
    """
    out, watch = Path(out), watch or Silent()
    cores = threads.cores()
    slots = cores if parallel is None else parallel
    if slots < 1:
        raise SteelyardError(f"parallel={parallel}: use at least 1")
    _check_names([job.name for job in jobs])
    replaced = {job.name for job in jobs if _other(job, out / job.name, overwrite)}
    outcomes: dict[str, Outcome] = {}
    todo: deque[Job] = deque()
    for job in jobs:
        if job.name not in replaced and is_finished(job, out):
            outcomes[job.name] = _outcome(job, out, None, reused=True)
            watch.on_finish(outcomes[job.name])
        else:
            todo.append(job)
    with selectors.DefaultSelector() as selector:
        running: dict[str, tuple[Job, Child]] = {}
        try:
            while todo or running:
                while todo and len(running) < slots:
                    free = cores - sum(child.workers for _, child in running.values())
                    workers = max(1, free // min(slots - len(running), len(todo)))
                    job = todo.popleft()
                    child = Child(_order(job, out, workers, job.name in replaced))
                    running[job.name] = (job, child)
                    selector.register(child.output, selectors.EVENT_READ, job.name)
                    watch.on_start(job)
                for key, _ in selector.select():
                    job, child = running[key.data]
                    lines = child.lines()
                    for record in lines or ():
                        watch.on_progress(job, record)
                    if lines is None:
                        selector.unregister(child.output)
                        outcomes[job.name] = _outcome(job, out, child.ended())
                        del running[job.name]
                        watch.on_finish(outcomes[job.name])
        finally:
            end(child for _, child in running.values())
    return [outcomes[job.name] for job in jobs]


def is_finished(job: Job, out: str | Path) -> bool:
    """Whether all rounds of a job are on record, or its target is reached; another run in its place is an error."""
    path = Path(out) / job.name
    if not (path / CONFIG).exists():
        return False
    _other(job, path, overwrite=False)
    records = _records(path)
    return len(records) >= job.config.rounds or Monitor.read(read_config(path)).is_done(records)


def _other(job: Job, path: Path, overwrite: bool) -> bool:
    """Whether the directory holds another run than the job's: refused unless it may be overwritten.

    A run may be prolonged: its number of rounds is no part of what it is, as long as there are not too many.
    """
    if not (path / CONFIG).exists():
        return False
    stored = read_config(path)
    if "config" not in stored:
        differences = ["it was started from Python, without a configuration"]
    else:
        before = flatten_keys(
            validate_config({**stored["config"], "rounds": job.config.rounds}, str(path / CONFIG)).to_stored()
        )
        now = flatten_keys(job.config.to_stored())
        differences = [
            f"{key} = {before.get(key)!r} there, {now.get(key)!r} here"
            for key in dict.fromkeys([*before, *now])
            if before.get(key) != now.get(key)
        ]
        done = len(_records(path))
        if done > job.config.rounds:
            differences.append(f"{done} rounds there, {job.config.rounds} here")
    if differences and not overwrite:
        raise SteelyardError(
            f"{path}: holds another run ({'; '.join(differences)}): choose another directory (--out), "
            "or overwrite it (--overwrite)"
        )
    return bool(differences)


def _records(path: Path) -> list[dict[str, Any]]:
    """The rounds on record; none if the log is damaged, so that the run goes on from its last checkpoint."""
    try:
        return read_log(path)
    except ValueError:
        return []


def flatten_keys(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys as `data.name`."""
    plain: dict[str, Any] = {}
    for key, value in config.items():
        plain |= flatten_keys(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return plain


def _order(job: Job, out: Path, workers: int, overwrite: bool) -> dict[str, Any]:
    return {
        "name": job.name,
        "path": str(out / job.name),
        "config": job.config.model_dump(mode="json"),
        "workers": job.config.workers or workers,
        "overwrite": overwrite,
    }


def _outcome(job: Job, out: Path, error: str | None, reused: bool = False) -> Outcome:
    """What is on record; a model that ended with a loss that is no number has failed, too."""
    path = out / job.name
    if error is not None:
        return Outcome(job, path, None, error, reused)
    history = dataclasses.replace(History.read(path), name=job.name)
    last = history.records[-1]
    if "loss" in last and last["loss"] is None:
        error = f"round {last['round']}: the loss of the global model is not finite: a lower local.lr helps"
    return Outcome(job, path, None if error else history, error, reused)


def _check_names(names: Sequence[str]) -> None:
    """Names become directories: relative, within the common one, and none within another."""
    for name in names:
        path = PurePosixPath(name)
        plain = str(path) == name and name.isprintable() and "\\" not in name
        if not plain or path.is_absolute() or ".." in path.parts or name == ".":
            raise SteelyardError(f"job name {name!r}: use a relative path such as 'fedawa/seed-1'")
    counts = Counter(names)
    for name, count in counts.items():
        if count > 1:
            raise SteelyardError(f"job name {name!r}: given {count} times: use one name per job")
        if counts.keys() & {str(parent) for parent in PurePosixPath(name).parents}:
            raise SteelyardError(f"job name {name!r}: lies within another job's directory: use names side by side")
