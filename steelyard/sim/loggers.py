"""Loggers: callbacks that show a run to TensorBoard, MLflow or Weights & Biases.

Each writes the configuration once and, for each round, what its record has of accuracy, loss,
metrics of the user's own, effective clients, gamma, coherence and timings. Steps are round numbers:
a resumed run goes on where it was. The run directory stays the record, a logger is a window on it.
One that fails says so once and goes quiet: it never ends a run.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard.core.errors import SteelyardError
from steelyard.core.round_record import ROUND_RECORD
from steelyard.core.spec import to_text
from steelyard.sim.callbacks import Callback

if TYPE_CHECKING:
    from steelyard.sim.simulator import Simulation

_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
LOGGED_KEYS = tuple(entry.key for entry in ROUND_RECORD.values() if entry.is_logged)


class Logger(Callback, ABC):
    """What all loggers share. `open`, `write` and `close` may raise what they like."""

    title: str
    quiet = True  # but between start and end

    @abstractmethod
    def open(self, run: Simulation, config: Mapping[str, Any]) -> None:
        """Begins, or goes on if the run has records."""

    @abstractmethod
    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """One round."""

    @abstractmethod
    def close(self, failed: bool) -> None:
        """The run has ended, by an error or as planned."""

    def start(self, simulation: Simulation) -> None:
        """Here and no earlier: workers are forked by now, and inherit no open connection."""
        self.quiet = False
        self._try(lambda: self.open(simulation, flatten_config(simulation)))

    def round(self, simulation: Simulation, record: Mapping[str, Any]) -> None:
        """Writes what the record has."""
        self._try(
            lambda: self.write(record["round"], numbers(record, tuple(simulation.test_metrics)))
        )

    def end(self, simulation: Simulation) -> None:
        """Closes."""
        self._close(failed=False)

    def failed(self, simulation: Simulation, error: BaseException) -> None:
        """Closes, and says that the run failed."""
        self._close(failed=True)

    def _close(self, failed: bool) -> None:
        self._try(lambda: self.close(failed))
        self.quiet = True

    def _try(self, action: Callable[[], None]) -> None:
        if self.quiet:
            return
        try:
            action()
        except Exception as error:
            self.quiet = True
            warnings.warn(
                f"{self.title} failed ({type(error).__name__}: {error}): the run goes on without "
                f"it",
                RuntimeWarning,
                stacklevel=2,
            )


class TensorBoard(Logger):
    """Writes event files into `directory`; look at them with `tensorboard --logdir`."""

    title = "TensorBoard"

    def __init__(self, directory: str | Path) -> None:
        _package("tensorboard", "tensorboard", self.title)
        self.directory = Path(directory)
        self.writer: Any = None

    def open(self, run: Simulation, config: Mapping[str, Any]) -> None:
        """Steps after the checkpoint a run is resumed from are written anew.

        The old ones are not shown.
        """
        from torch.utils.tensorboard import SummaryWriter

        num_rounds = len(run.records)
        self.writer = SummaryWriter(
            str(self.directory), purge_step=num_rounds + 1 if num_rounds else None
        )
        if not num_rounds:
            rows = "\n".join(f"| {name} | {value} |" for name, value in config.items())
            self.writer.add_text("config", f"| option | value |\n|---|---|\n{rows}", 0)

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """One point on each curve."""
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self, failed: bool) -> None:
        """Closes the file."""
        self.writer.close()


class MLflow(Logger):
    """Writes to the MLflow server or store at `uri`, into `experiment`.

    MLflow's own default if `uri` is None.

    A run directory is one MLflow run: a resumed run goes on in it. MLflow's default may be a
    database on this machine, which takes packages that the extra does not bring.
    """

    title = "MLflow"

    def __init__(self, uri: str | None = None, experiment: str = "steelyard") -> None:
        self.package = _package("mlflow", "mlflow", self.title)
        tracking_uri = uri or self.package.get_tracking_uri()
        if tracking_uri.startswith(_DATABASES) and not all(
            map(_installed, ("sqlalchemy", "alembic"))
        ):
            raise SteelyardError(
                f"MLflow keeps runs in a database here ({tracking_uri}): give the address of a "
                f"tracking server, such "
                "as MLflow('http://127.0.0.1:5000'), or pip install sqlalchemy alembic"
            )
        self.uri, self.experiment = uri, experiment
        self.client: Any = None
        self.run_id, self.done = "", 0

    def open(self, run: Simulation, config: Mapping[str, Any]) -> None:
        """Finds the experiment, and the run to go on with."""
        self.done = 0
        self.client = self.package.MlflowClient(tracking_uri=self.uri)
        experiment = self.client.get_experiment_by_name(self.experiment)
        experiment_id = (
            self.client.create_experiment(self.experiment)
            if experiment is None
            else experiment.experiment_id
        )
        tags = {"steelyard": key} if (key := _key(run)) else {}
        earlier_runs = (
            self.client.search_runs([experiment_id], f"tags.steelyard = '{key}'")
            if key and run.records
            else []
        )
        if earlier_runs:
            self.run_id = earlier_runs[0].info.run_id
            self.client.update_run(self.run_id, status="RUNNING")
            self.done = max((metric.step for metric in self._steps()), default=0)
            return
        self.run_id = self.client.create_run(
            experiment_id, tags=tags, run_name=_name(run)
        ).info.run_id
        entities = importlib.import_module("mlflow.entities")
        params = [entities.Param(name, str(value)) for name, value in config.items()]
        self.client.log_batch(self.run_id, params=params)

    def _steps(self) -> Any:
        return self.client.get_metric_history(self.run_id, "timings/total")

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """One batch; rounds that are trained again after a kill have the same bits, and are there already."""
        if step <= self.done:
            return
        entities, timestamp = importlib.import_module("mlflow.entities"), int(time.time() * 1000)
        metrics = [entities.Metric(name, value, timestamp, step) for name, value in numbers.items()]
        self.client.log_batch(self.run_id, metrics=metrics)

    def close(self, failed: bool) -> None:
        """Marks the run as finished or failed."""
        self.client.set_terminated(self.run_id, "FAILED" if failed else "FINISHED")


class WandB(Logger):
    """Writes to Weights & Biases; `options` go to `wandb.init`. A run directory is one W&B run."""

    title = "W&B"

    def __init__(self, project: str, **options: Any) -> None:
        self.package = _package("wandb", "wandb", self.title)
        self.project, self.options = project, options
        self.run: Any = None

    def open(self, run: Simulation, config: Mapping[str, Any]) -> None:
        """A resumed run has the id it had."""
        identity = {"id": key, "resume": "allow"} if (key := _key(run)) else {}
        options = {"name": _name(run), "config": dict(config), **identity, **self.options}
        self.run = self.package.init(project=self.project, **options)

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """One step; W&B passes over those it has."""
        self.run.log(dict(numbers), step=step)

    def close(self, failed: bool) -> None:
        """Uploads what is left."""
        self.run.finish(exit_code=int(failed))


def numbers(record: Mapping[str, Any], own: Sequence[str] = ()) -> dict[str, float]:
    """What loggers write of a record; `own` are the names of the user's metrics."""
    plain = {name: record[name] for name in (*LOGGED_KEYS, *own) if record.get(name) is not None}
    return plain | {
        f"timings/{stage}": seconds for stage, seconds in record.get("timings", {}).items()
    }


def flatten_config(run: Simulation) -> dict[str, Any]:
    """The configuration as one flat table."""
    work = run.work
    parts: dict[str, Any] = {"local": work.local, "participation": run.participation}
    options = {
        f"{part}.{field.name}": _to_plain(getattr(options, field.name))
        for part, options in parts.items()
        for field in dataclasses.fields(options)
    }
    return {
        **{name: text for name, text in work.algorithm.texts.items() if text},
        "data": work.federation.name,
        "clients": len(work.federation.ids),
        "parameters": work.model.layout.dim,
        "rounds": work.rounds,
        "seed": work.seed,
        **options,
    }


def _to_plain(value: Any) -> Any:
    return to_text(value) if dataclasses.is_dataclass(value) and hasattr(value, "name") else value


def _name(run: Simulation) -> str:
    return str(run.work.algorithm) if run.directory is None else run.directory.path.name


def _key(run: Simulation) -> str | None:
    """What tells a run directory from all others, before and after a resume.

    A run without one is never resumed.
    """
    if run.directory is None:
        return None
    return hashlib.sha256(f"{run.identity} {run.directory.path.resolve()}".encode()).hexdigest()[
        :16
    ]


def _installed(module: str) -> bool:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError:
        return False
    return True


def _package(module: str, extra: str, title: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        raise SteelyardError(
            f"{title} needs {module}, which is not installed: pip install 'steelyard[{extra}]'"
        ) from None
