"""The metric that decides which model is best and when a run has reached its target."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from steelyard.core._errors import SteelyardError, shorten
from steelyard.core._round_record import ROUND_RECORD
from steelyard.core.checks import LARGEST

MODES = ("auto", "max", "min")

_LOWER_IS_BETTER = {
    *("loss", "error", "err", "mae", "mse", "rmse", "msle", "rmsle", "mape", "smape", "nll", "bce"),
    *(
        "perplexity",
        "ppl",
        "brier",
        "ece",
        "wer",
        "cer",
        "eer",
        "distance",
        "divergence",
        "deviation",
    ),
}


@dataclass(frozen=True)
class Monitor:
    """The metric that decides which model is best, and when the run may end.

    Attributes:
        metric: its name in the record of a round: `accuracy`, `loss`, or one of `test_metrics`.
        mode: `max` if more is better, else `min`.
        target: the value that ends the run; None to run all rounds.
    """

    metric: str = "accuracy"
    mode: str = "max"
    target: float | None = None

    @classmethod
    def from_options(
        cls, metric: str = "accuracy", mode: str = "auto", target: float | None = None
    ) -> Monitor:
        """Return the monitor for the options of a run, after checking them.

        Args:
            metric: the name of the metric.
            mode: `max`, `min`, or `auto`, which is `min` for losses and errors and else `max`.
            target: the value that ends the run.
        """
        if not isinstance(metric, str) or not metric:
            raise SteelyardError(
                f"monitor={metric!r}: pass the name of a metric, such as 'accuracy' or 'loss'"
            )
        if mode not in MODES:
            raise SteelyardError(f"mode={mode!r}: use auto, max or min")
        check_target(target, metric)
        if mode == "auto":
            mode = "min" if is_lower_better(metric) else "max"
        return cls(metric, mode, target)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Monitor:
        """Return the monitor that `config.json` of a run specifies.

        Old runs do not specify one: they monitor the accuracy.
        """
        monitor = config.get("monitor")
        if (
            isinstance(monitor, Mapping)
            and isinstance(monitor.get("metric"), str)
            and monitor.get("mode") in MODES[1:]
        ):
            return cls(monitor["metric"], monitor["mode"], as_finite_number(monitor.get("target")))
        requested = config.get("config")
        return cls(
            target=as_finite_number(requested.get("target"))
            if isinstance(requested, Mapping)
            else None
        )

    def to_progress(self) -> dict[str, Any]:
        """Return the entry of a checkpoint.

        It is empty for the highest accuracy, as in checkpoints of older versions.
        """
        return (
            {}
            if (self.metric, self.mode) == ("accuracy", "max")
            else {"monitor": [self.metric, self.mode]}
        )

    def check_same_metric(
        self, path: Path, progress: Mapping[str, Any], records: Iterable[Mapping[str, Any]]
    ) -> None:
        """Raise an error if a resumed run chose its best model by another metric.

        Args:
            path: the run directory.
            progress: the progress in the checkpoint.
            records: the records up to the checkpoint.
        """
        if progress["best"] is None:
            return
        usual = (
            ["accuracy", "max"]
            if any(r.get("accuracy") is not None for r in records)
            else ["loss", "min"]
        )
        metric, mode = progress.get("monitor", usual)
        if (metric, mode) != (self.metric, self.mode):
            raise SteelyardError(
                f"{path}: the best model of its run was chosen by monitor={metric!r}, mode={mode!r}: "
                f"pass the same, or "
                "choose another directory (out, --out)"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data for `config.json`."""
        return asdict(self)

    def score(self, value: float) -> float:
        """Return a value with the sign with which higher is better."""
        return value if self.mode == "max" else -value

    def score_record(self, record: Mapping[str, Any]) -> float | None:
        """Return the score of a round; None if its record does not have the metric."""
        value = as_finite_number(record.get(self.metric))
        return None if value is None else self.score(value)

    def find_best(self, values: Iterable[float]) -> float | None:
        """Return the best of some values; None if there is none."""
        return max(values, key=self.score, default=None)

    def has_reached(self, record: Mapping[str, Any], target: float | None) -> bool:
        """Return whether the model of a round is as good as the target.

        Never, if there is no target.
        """
        score = self.score_record(record)
        return target is not None and score is not None and score >= self.score(target)

    def is_target_reached(self, records: Iterable[Mapping[str, Any]]) -> bool:
        """Return whether a recorded round has reached the target of the run."""
        return any(self.has_reached(record, self.target) for record in records)


def check_target(target: float | None, metric: str = "accuracy") -> None:
    """Raise an error if a target is not a number, or is an accuracy outside of (0, 1]."""
    if target is None:
        return
    number = as_finite_number(target)
    if metric == "accuracy" and (number is None or not 0 < number <= 1):
        text = f"{target:g}" if isinstance(target, float) else shorten(target)
        raise SteelyardError(f"target={text}: use an accuracy in (0, 1], such as 0.9")
    if number is None:
        raise SteelyardError(f"target={shorten(target)}: use a number")


def is_lower_better(metric: str) -> bool:
    """Return whether less is better: the table of recorded keys, or else the name, says so.

    Names that say so are `loss`, `mae`, `val_error`, ...
    """
    entry = ROUND_RECORD.get(metric)
    if entry is not None and entry.better:
        return entry.better == "lower"
    words = re.split(r"[^a-z0-9]+", metric.lower())
    return any(word in _LOWER_IS_BETTER or word.endswith(("loss", "error")) for word in words)


def as_finite_number(value: Any) -> float | None:
    """Return a finite number as it is; None for anything else, and for truth values."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int) and abs(value) > LARGEST:
        return None
    return value if math.isfinite(value) else None
