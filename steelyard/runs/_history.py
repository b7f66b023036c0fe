"""The history of a run: its records, its final model, and ways to read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from steelyard.core._errors import SteelyardError
from steelyard.core._round_record import OLD_NAMES, ROUND_RECORD
from steelyard.runs._directory import CONFIG, read_config, read_log
from steelyard.runs._monitor import Monitor

if TYPE_CHECKING:
    import pandas as pd

_COUNTED_FORMS = ("list of clients", "reason by client")  # one column each: the number of clients


@dataclass(frozen=True, repr=False)
class History:
    """The records of a run, one dict per round, and the final model.

    Attributes:
        name: the algorithm as text.
        records: what `rounds.jsonl` holds: `round`, `accuracy`, `loss`, `weights` (by client id),
            `coherence`, ...
        params: the final global model, a state dict; empty if it was read from a directory.
        path: the run directory, if there is one.
        monitor: the metric that `best` and `rounds_to` refer to.

    Examples:
        >>> history = History("fedavg", [{"round": 1, "accuracy": 0.5}, {"round": 2, "accuracy": 0.75}])
        >>> history.accuracy
        [0.5, 0.75]
        >>> history.rounds_to(0.7)
        2
    """

    name: str
    records: list[dict[str, Any]]
    params: Mapping[str, torch.Tensor] = field(default_factory=dict, repr=False)
    path: Path | None = None
    monitor: Monitor = field(default_factory=Monitor)

    @staticmethod
    def read(path: str | Path) -> History:
        """Return the history of a run directory, finished or not."""
        path = Path(path)
        records = read_log(path)
        if not records:
            raise SteelyardError(f"{path}: holds no rounds")
        monitor = Monitor.from_config(read_config(path)) if (path / CONFIG).exists() else Monitor()
        return History(path.name, records, {}, path, monitor)

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        """Return a few lines: the last round, the path and the number of tensors."""
        last = self.records[-1] if self.records else {}
        measured = [
            f"{key}={last[key]:.4f}"
            for key in ("accuracy", "loss")
            if isinstance(last.get(key), float)
        ]
        lines = [
            f"History({self.name!r}, {len(self)} rounds{''.join(f', {text}' for text in measured)})"
        ]
        if self.path is not None:
            lines.append(f"  path: {self.path}")
        if self.params:
            lines.append(f"  params: {len(self.params)} tensors")
        return "\n".join(lines)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.records)

    def find_key(self, name: str) -> str:
        """Return the key of a recorded value; keys of older versions are translated."""
        if name in OLD_NAMES and not any(name in record for record in self.records):
            return OLD_NAMES[name]
        return name

    def column(self, name: str) -> list[Any]:
        """Return the values of a key, one for each round that has it."""
        key = self.find_key(name)
        return [record[key] for record in self.records if record.get(key) is not None]

    @property
    def accuracy(self) -> list[float]:
        """The accuracies on the test set, in the order of rounds; empty if none was measured."""
        return self.column("accuracy")

    @property
    def final_accuracy(self) -> float | None:
        """The last accuracy on the test set, or None if none was measured."""
        curve = self.accuracy
        return curve[-1] if curve else None

    @property
    def monitored(self) -> list[float]:
        """The values of the monitored metric in the order of rounds.

        Accuracies, unless `monitor=` named another.
        """
        return self.column(self.monitor.metric)

    @property
    def best(self) -> float | None:
        """The best value of the monitored metric.

        The highest accuracy, unless `monitor=` named another metric.
        """
        return self.monitor.find_best(self.monitored)

    def rounds_to(self, target: float) -> int | None:
        """Return the first round whose monitored metric is as good as the target.

        None if no round's is.
        """
        rounds = (
            record["round"] for record in self.records if self.monitor.has_reached(record, target)
        )
        return next(rounds, None)

    def comparable(self) -> list[dict[str, Any]]:
        """Return the records without timings, which differ from run to run."""
        return [
            {name: value for name, value in r.items() if name != "timings"} for r in self.records
        ]

    def to_pandas(self) -> pd.DataFrame:
        """Return a table with one row per round.

        Weights are columns `weight.<client>`, timings `seconds.<stage>`, and FedCos's cosines
        `direction_cosine.<client>`. Lists of clients are columns with their lengths.
        """
        try:
            import pandas as pd
        except ModuleNotFoundError:
            raise SteelyardError("to_pandas() needs pandas: pip install pandas") from None
        return pd.DataFrame([_flatten_record(record) for record in self.records]).set_index("round")

    def _repr_html_(self) -> str:
        """Return a table of the first and last rounds, for notebooks."""
        own = () if self.monitor.metric in ("accuracy", "loss") else (self.monitor.metric,)
        columns = ("round", *own, "accuracy", "loss", "coherence", "effective_clients")
        head = "".join(f"<th>{escape(name)}</th>" for name in columns)
        rows = self.records if len(self.records) <= 12 else [*self.records[:3], *self.records[-9:]]
        body = "".join(
            "<tr>" + "".join(f"<td>{_cell(r.get(name))}</td>" for name in columns) + "</tr>"
            for r in rows
        )
        return f"<b>{escape(self.name)}</b>, {len(self)} rounds<table><tr>{head}</tr>{body}</table>"


def _flatten_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record as one row: tables have a column per client or stage, lists their length."""
    row = {name: value for name, value in record.items() if not isinstance(value, (dict, list))}
    entries = [entry for entry in ROUND_RECORD.values() if entry.column]
    for entry in entries:
        if entry.form not in _COUNTED_FORMS:
            for name, value in record.get(entry.key, {}).items():
                row[f"{entry.column}.{name}"] = value
    for entry in entries:
        if entry.form in _COUNTED_FORMS:
            row[entry.column] = len(record.get(entry.key, ()))
    return row


def _cell(value: Any) -> str:
    """Return a value as the text of a cell."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4f}"
    return escape(str(value))
