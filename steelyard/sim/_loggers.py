"""Loggers: callbacks that show a run to TensorBoard, MLflow or Weights & Biases.

Each writes the configuration once. For each round it writes the keys of the record that
`ROUND_RECORD` marks as logged, the user's metrics and the timings. Steps are round numbers, so a
resumed run continues its curves. If a logger fails, it warns once and then writes nothing more. It
never ends a run.
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

from steelyard.core._errors import SteelyardError
from steelyard.core._round_record import ROUND_RECORD
from steelyard.core._spec import to_text
from steelyard.sim._callbacks import Callback

if TYPE_CHECKING:
    from steelyard.sim._simulator import Simulation

_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
LOGGED_KEYS = tuple(entry.key for entry in ROUND_RECORD.values() if entry.is_logged)


class Logger(Callback, ABC):
    """Base class of loggers. Errors of `open`, `write` and `close` do not end the run."""

    title: str
    is_silent = True  # except between start and end

    @abstractmethod
    def open(self, run: Simulation, config: Mapping[str, Any]) -> None:
        """Start logging, or continue if the run has records."""

    @abstractmethod
    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write the numbers of a round."""

    @abstractmethod
    def close(self, failed: bool) -> None:
        """End logging; `failed` says whether the run ended with an error."""

    def start(self, simulation: Simulation) -> None:
        """Open the logger after workers are forked, so that they do not inherit connections."""
        self.is_silent = False
        self._try(lambda: self.open(simulation, flatten_config(simulation)))

    def round(self, simulation: Simulation, record: Mapping[str, Any]) -> None:
        """Write the numbers of a record."""
        self._try(
            lambda: self.write(
                record["round"], select_numbers(record, tuple(simulation.test_metrics))
            )
        )

    def end(self, simulation: Simulation) -> None:
        """Close the logger."""
        self._close(failed=False)

    def failed(self, simulation: Simulation, error: BaseException) -> None:
        """Close the logger and mark the run as failed."""
        self._close(failed=True)

    def _close(self, failed: bool) -> None:
        self._try(lambda: self.close(failed))
        self.is_silent = True

    def _try(self, action: Callable[[], None]) -> None:
        if self.is_silent:
            return
        try:
            action()
        except Exception as error:
            self.is_silent = True
            warnings.warn(
                f"{self.title} failed ({type(error).__name__}: {error}): the run continues "
                "without it",
                RuntimeWarning,
                stacklevel=2,
            )


class TensorBoard(Logger):
    """Writes event files into `directory`; show them with `tensorboard --logdir`."""

    title = "TensorBoard"

    def __init__(self, directory: str | Path) -> None:
        _package("tensorboard", "tensorboard", self.title)
        self.directory = Path(directory)
        self.writer: Any = None

    def open(self, run: Simulation, config: Mapping[str, Any]) -> None:
        """Open the event file.

        Steps after the checkpoint of a resumed run are written again, and the old ones are hidden.
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
        """Write one point of each curve."""
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self, failed: bool) -> None:
        """Close the file."""
        self.writer.close()


class MLflow(Logger):
    """Writes to the MLflow server or store at `uri`, into `experiment`.

    MLflow's own default if `uri` is None.

    A run directory is one MLflow run, which a resumed run continues. MLflow's default may be a
    database on this machine, which needs packages that the extra does not install.
    """

    title = "MLflow"

    def __init__(self, uri: str | None = None, experiment: str = "steelyard") -> None:
        self.package = _package("mlflow", "mlflow", self.title)
        tracking_uri = uri or self.package.get_tracking_uri()
        if tracking_uri.startswith(_DATABASES) and not all(
            map(_installed, ("sqlalchemy", "alembic"))
        ):
            raise SteelyardError(
                f"MLflow keeps runs in a database here ({tracking_uri}): pass the address of a "
                "tracking server, such as MLflow('http://127.0.0.1:5000'), or pip install sqlalchemy alembic"
            )
        self.uri = uri
        self.experiment = experiment
        self.client: Any = None
        self.run_id = ""
        self.last_step = 0

    def open(self, run: Simulation, config: Mapping[str, Any]) -> None:
        """Find the experiment, and the run to continue or a new one."""
        self.last_step = 0
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
            self.last_step = max((metric.step for metric in self._steps()), default=0)
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
        """Write one batch; rounds that are trained again have the same bits and are skipped."""
        if step <= self.last_step:
            return
        entities = importlib.import_module("mlflow.entities")
        timestamp = int(time.time() * 1000)
        metrics = [entities.Metric(name, value, timestamp, step) for name, value in numbers.items()]
        self.client.log_batch(self.run_id, metrics=metrics)

    def close(self, failed: bool) -> None:
        """Mark the run as finished or failed."""
        self.client.set_terminated(self.run_id, "FAILED" if failed else "FINISHED")


class WandB(Logger):
    """Writes to Weights & Biases. A run directory is one W&B run.

    `options` are passed to `wandb.init`.
    """

    title = "W&B"

    def __init__(self, project: str, **options: Any) -> None:
        self.package = _package("wandb", "wandb", self.title)
        self.project = project
        self.options = options
        self.run: Any = None

    def open(self, run: Simulation, config: Mapping[str, Any]) -> None:
        """Start the W&B run; a resumed run has the same id as before."""
        identity = {"id": key, "resume": "allow"} if (key := _key(run)) else {}
        options = {"name": _name(run), "config": dict(config), **identity, **self.options}
        self.run = self.package.init(project=self.project, **options)

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write one step; W&B ignores steps that it has."""
        self.run.log(dict(numbers), step=step)

    def close(self, failed: bool) -> None:
        """Upload the rest and end the W&B run."""
        self.run.finish(exit_code=int(failed))


def select_numbers(record: Mapping[str, Any], user_metrics: Sequence[str] = ()) -> dict[str, float]:
    """Return the numbers of a record that loggers write.

    Args:
        record: the record of a round.
        user_metrics: the names of the user's metrics.
    """
    plain = {
        name: record[name] for name in (*LOGGED_KEYS, *user_metrics) if record.get(name) is not None
    }
    return plain | {
        f"timings/{stage}": seconds for stage, seconds in record.get("timings", {}).items()
    }


def flatten_config(run: Simulation) -> dict[str, Any]:
    """Return the configuration as one flat table."""
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
    """Return a key that identifies a run directory, also after a resume.

    None for a run without a directory, which cannot be resumed.
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
