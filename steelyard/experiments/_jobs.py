"""Runs many jobs at the same time, each in its own directory and process.

Finished runs are not repeated.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import steelyard
from steelyard import threads
from steelyard.core._errors import SteelyardError
from steelyard.runs._directory import CONFIG, read_config, read_log
from steelyard.runs._history import History
from steelyard.runs._monitor import Monitor
from steelyard.sim._experiment import Experiment

# Starts and stops the processes of jobs.

PATIENCE = 5.0  # seconds between asking a process to stop and killing it
SHORT = 60.0  # seconds: after a shorter run, its process does another one


class WorkerProcess:
    """A process of `steelyard.experiments._worker`, which does one run after another."""

    def __init__(self) -> None:
        # A file, because a pipe that is not read would fill up.
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            # -P: a file in the current directory must not be imported instead of a module
            [sys.executable, "-P", "-m", "steelyard.experiments._worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=_environment(),
            process_group=0,  # only the parent handles Ctrl-C
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.input = self.process.stdin
        self.output = self.process.stdout.fileno()

    def give_order(self, order: Mapping[str, Any]) -> None:
        """Tell the process what to run next."""
        self.errors.seek(0)
        self.errors.truncate()
        with contextlib.suppress(BrokenPipeError):  # the process has failed: its end says why
            self.input.write(json.dumps(order).encode() + b"\n")
            self.input.flush()

    def read_errors(self) -> list[str]:
        """Return the lines that the last run wrote to standard error."""
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace").strip().splitlines()

    def close(self) -> None:
        """Close the pipes, and wait for the process: it exits when its input is closed."""
        for pipe in (self.process.stdin, self.process.stdout, self.errors):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Child:
    """A job in a process of its own.

    Args:
        order: what to run, as `worker.perform` expects it.
        worker: an idle process to use; by default a new one.
    """

    def __init__(self, order: Mapping[str, Any], worker: WorkerProcess | None = None) -> None:
        self.name = str(order["name"])
        self.workers = int(order["workers"])
        self.error: str | None = None
        self.code: int | None = None  # the exit code of the run, once it has ended
        self.start = time.monotonic()
        self.worker = worker or WorkerProcess()
        self.process = self.worker.process
        self.output = self.worker.output
        self.unfinished_line = b""
        self.worker.give_order(order)

    def read_records(self) -> list[dict[str, Any]] | None:
        """Return the new records of rounds, without waiting for more; None at the end."""
        if self.code is not None:
            return None
        data = os.read(self.output, 1 << 16)
        if not data:
            return None
        *lines, self.unfinished_line = (self.unfinished_line + data).split(b"\n")
        records = []
        for line in lines:
            record = json.loads(line)
            if "end" in record:
                self.code = record["end"]
            elif "error" in record:
                self.error = record["error"]
            else:
                records.append(record)
        return None if self.code is not None and not records else records

    @property
    def has_ended(self) -> bool:
        """Whether the run has ended, so that no more records will come."""
        return self.code is not None

    def wait(self) -> str | None:
        """Wait for the end of the run. Return why it failed; None if it did not."""
        code = self.code
        if code is None:
            code = self.process.wait()
        error_lines = self.worker.read_errors()
        if code == 0:
            return None
        if self.error is not None:
            return self.error
        if code == -signal.SIGKILL:
            return "its process was killed (out of memory? use fewer at a time, --parallel)"
        cause = f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
        message = f"its process was ended {cause}"
        return f"{message}: {error_lines[-1]}" if error_lines else message

    def release(self) -> WorkerProcess | None:
        """Return the process for another job, after `wait`; None if it is closed instead.

        A process is used again after a short run that did not fail: loading torch would take longer
        than the next run.
        """
        is_short = time.monotonic() - self.start < SHORT
        if self.code == 0 and is_short:
            return self.worker
        self.worker.close()
        return None


def stop_children(children: Iterable[Child]) -> None:
    """Ask processes to stop, as Ctrl-C does; kill them after a while, or at a second Ctrl-C."""
    running = list(children)
    for child in running:
        child.process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + PATIENCE
    try:
        for child in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(max(0.0, deadline - time.monotonic()))
    finally:
        for child in running:
            child.process.kill()
            child.wait()
            child.release()


def _environment() -> dict[str, str]:
    """Return our environment, with the path of this package and one thread per process."""
    path = str(Path(steelyard.__file__).parent.parent)
    if os.environ.get("PYTHONPATH"):
        path += os.pathsep + os.environ["PYTHONPATH"]
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


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
    config: Experiment
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
    checkpoint. If a job fails, its outcome has the reason, and the other jobs continue. Ctrl-C
    stops all processes; calling this function again resumes the runs. A process does several short
    runs, one after another. Rules, models and data sets
    must be registered in a new process, too: a registration in this process only is not enough.

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
    idle: list[WorkerProcess] = []
    with selectors.DefaultSelector() as selector:
        running: dict[str, tuple[Job, Child]] = {}
        try:
            while waiting or running:
                # Start processes; free cores are shared by the jobs that can start now.
                while waiting and len(running) < slots:
                    free_cores = cores - sum(child.workers for _, child in running.values())
                    workers = max(1, free_cores // min(slots - len(running), len(waiting)))
                    job = waiting.popleft()
                    order = _make_order(job, out, workers, job.name in to_overwrite)
                    child = Child(order, idle.pop() if idle else None)
                    running[job.name] = (job, child)
                    selector.register(child.output, selectors.EVENT_READ, job.name)
                    watch.on_start(job)

                # Read what they report.
                for key, _ in selector.select():
                    job, child = running[key.data]
                    records = child.read_records()
                    for record in records or ():
                        watch.on_progress(job, record)
                    if records is None or child.has_ended:
                        selector.unregister(child.output)
                        outcomes[job.name] = _read_outcome(job, out, child.wait())
                        del running[job.name]
                        worker = child.release()
                        if worker is not None:
                            idle.append(worker)
                        watch.on_finish(outcomes[job.name])
        finally:
            stop_children(child for _, child in running.values())
            for worker in idle:
                worker.close()
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
    return len(records) >= job.config.rounds or Monitor.from_config(
        read_config(path)
    ).is_target_reached(records)


def read_finished(jobs: Iterable[Job], out: str | Path) -> list[Outcome]:
    """Return the outcomes of the jobs that are finished, without running the others.

    Args:
        jobs: the jobs.
        out: the directory that contains all run directories.
    """
    out = Path(out)
    return [_read_outcome(job, out, None, reused=True) for job in jobs if is_finished(job, out)]


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
        old = flatten_keys(Experiment.from_dict(values, str(path / CONFIG)).to_stored())
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


def compute_fingerprint(config: Mapping[str, Any], *more: Any) -> str:
    """Return a short hash of settings, by which results of other settings are recognised.

    Args:
        config: plain configuration, or several in nested sections. Where the data is does not
            change the hash.
        more: what else belongs to a result, such as its target.
    """
    options = {
        key: value
        for key, value in flatten_keys(config).items()
        if not f".{key}".endswith(".data.dir")
    }
    text = json.dumps([options, *more], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _make_order(job: Job, out: Path, workers: int, overwrite: bool) -> dict[str, Any]:
    return {
        "name": job.name,
        "path": str(out / job.name),
        "config": job.config.to_dict(),
        "workers": job.config.execution.workers or workers,
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
            raise SteelyardError(
                f"job name {name!r}: lies within another job's directory: use another name"
            )
