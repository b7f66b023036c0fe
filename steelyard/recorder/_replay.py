"""Replays a recorded run: what would other rules have done with the same updates?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.core._errors import SteelyardError
from steelyard.core._gram import Array
from steelyard.core._layout import Granularity
from steelyard.core._round_gram import RoundGram
from steelyard.core._spec import to_text
from steelyard.core._state import ClientId, State
from steelyard.core._weighting import Weighting
from steelyard.recorder._weigh import Weighed, check_replayable, weigh
from steelyard.rules._combinators import parse_rule, with_default_source
from steelyard.runs._directory import CONFIG, read_clients, read_config
from steelyard.runs._files import GRAMS
from steelyard.runs._gram_log import read_grams
from steelyard.runs._history import History

if TYPE_CHECKING:
    import pandas as pd

RUN = "run"  # the name of the rule that the run used
MUTED = 0.1  # of the equal share: a client with less is muted


@dataclass(frozen=True)
class ReplayedRound:
    """What one rule would have done in one round.

    Attributes:
        round: number of the round.
        weights: the weight of each client by id, averaged over layers.
        effective_clients: 1 / sum of squared shares.
        step_norm: length of the step of the global model.
        cosine: cosine between this step and the step of the run; None if one is zero.
        muted: the clients with less than a tenth of an equal share.
        refused: why the rule would have refused clients, by id.
        void: why the rule would have left the model as it is; None if it would not.
    """

    round: int
    weights: Mapping[ClientId, float]
    effective_clients: float
    step_norm: float
    cosine: float | None
    muted: tuple[ClientId, ...] = ()
    refused: Mapping[ClientId, str] = field(default_factory=dict)
    void: str | None = None

    @property
    def shares(self) -> Array:
        """The weights as shares of the sum of their absolute values, in the order of the clients."""
        return to_shares(np.array(list(self.weights.values())))


@dataclass(frozen=True)
class Replay:
    """The weights that rules give to the clients of a recorded run.

    This is a counterfactual of one step: the updates are those that the models of the run
    produced. A rule that had run from the start would have seen others.

    Attributes:
        name: the name of the run.
        rounds: by rule, what it would have done in every recorded round. The rule `run` is the one
            that was used.
        accuracy: the accuracy of the run by round, where it was evaluated.
        missing: the rounds of the run that are not recorded and were not void.
    """

    name: str
    rounds: Mapping[str, Sequence[ReplayedRound]]
    accuracy: Mapping[int, float] = field(default_factory=dict)
    missing: tuple[int, ...] = ()

    def to_pandas(self) -> pd.DataFrame:
        """Return a table with one row per rule, round and client."""
        try:
            import pandas as pd
        except ImportError as error:
            raise SteelyardError(
                "Replay.to_pandas needs pandas: pip install pandas, or use Replay.rounds"
            ) from error
        rows = []
        for rule, rounds in self.rounds.items():
            for entry in rounds:
                shares = entry.shares
                for position, (client, weight) in enumerate(entry.weights.items()):
                    rows.append(
                        {
                            "rule": rule,
                            "round": entry.round,
                            "client": client,
                            "weight": weight,
                            "share": float(shares[position]),
                            "cosine": entry.cosine,
                            "step_norm": entry.step_norm,
                            "effective_clients": entry.effective_clients,
                        }
                    )
        return pd.DataFrame(rows)

    def agreement(self, rule: str, other: str) -> float | None:
        """Return the mean rank correlation (Spearman) of two rules' weights over the rounds.

        Rounds in which a rule weighs all clients alike do not count; None if no round counts.
        """
        values = []
        for first, second in zip(self.rounds[rule], self.rounds[other], strict=True):
            correlation = rank_correlation(
                list(first.weights.values()), list(second.weights.values())
            )
            if correlation is not None:
                values.append(correlation)
        return sum(values) / len(values) if values else None


def replay(run: str | Path | History, rules: Sequence[str | Weighting]) -> Replay:
    """Apply rules to the recorded updates of a run.

    Each rule keeps its own state from round to round.

    Args:
        run: a run directory with recorded inner products, or the history of such a run.
        rules: rules, or their spec strings, that need only inner products and reports.

    Raises:
        SteelyardError: if the run is not recorded, or a rule needs more than was recorded.

    Examples:
        >>> import steelyard, tempfile
        >>> with tempfile.TemporaryDirectory() as out:
        ...     history = steelyard.simulate("fedavg", "digits", rounds=2, clients=4, out=out)
        ...     result = steelyard.replay(out, ["fedadp"])
        >>> [entry.round for entry in result.rounds["fedadp"]]
        [1, 2]
    """
    path = find_directory(run)
    recorded = read_rounds(path)
    history = History.read(path)

    # The rule of the run, then the others.
    rounds: dict[str, list[ReplayedRound]] = {}
    rounds[RUN] = [_describe(seen, _weighed_by_run(seen)) for seen in recorded]
    for spec in rules:
        rule = parse_rule(spec)
        check_replayable(rule)
        name = spec if isinstance(spec, str) else to_text(rule)
        rounds[name] = _replay_rule(with_default_source(rule), recorded)

    # Rounds that are not on record.
    present = {seen.round for seen in recorded}
    missing = [
        record["round"]
        for record in history
        if record["round"] not in present and not record.get("void")
    ]
    accuracy = {
        record["round"]: record["accuracy"]
        for record in history
        if record.get("accuracy") is not None
    }
    return Replay(path.name, rounds, accuracy, tuple(missing))


def read_rounds(path: Path) -> list[RoundGram]:
    """Return the recorded rounds of a run directory.

    Sizes and label counts that clients did not report are taken from `clients.json`.

    Raises:
        SteelyardError: if nothing is recorded.
    """
    if not (path / CONFIG).exists():
        raise SteelyardError(f"{path}: not a run directory")
    read_config(path)
    if not (path / GRAMS).exists():
        raise SteelyardError(
            f"{path}: the run has no recorded inner products: run it with record=gram "
            "(--set record=gram)"
        )
    recorded = list(read_grams(path / GRAMS))
    if not recorded:
        raise SteelyardError(f"{path / GRAMS}: no round is recorded yet")
    known_metrics = _read_known_metrics(path)
    return [_add_metrics(seen, known_metrics) for seen in recorded]


def find_directory(run: str | Path | History) -> Path:
    """Return the directory of a run."""
    if not isinstance(run, History):
        return Path(run)
    if run.path is None:
        raise SteelyardError(
            "this run was not written to a directory: simulate(..., out=DIR), or read its Grams "
            "from aggregate(...).gram"
        )
    return run.path


def _read_known_metrics(path: Path) -> dict[str, dict[str, Any]]:
    """Return sizes and label counts by client, as far as `clients.json` has them."""
    clients = read_clients(path) or {}
    names = [str(client) for client in clients.get("ids", [])]
    known_metrics = {}
    for metric, key in (("num_examples", "sizes"), ("label_hist", "counts")):
        if key in clients:
            known_metrics[metric] = dict(zip(names, clients[key], strict=True))
    return known_metrics


def _add_metrics(seen: RoundGram, known_metrics: Mapping[str, Mapping[str, Any]]) -> RoundGram:
    """Return the round with metrics that its clients did not report, if all of them are known."""
    metrics = dict(seen.metrics)
    names = [str(client) for client in seen.ids]
    for metric, values in known_metrics.items():
        if metric not in metrics and all(name in values for name in names):
            metrics[metric] = np.array([values[name] for name in names], dtype=np.float64)
    return replace(seen, metrics=metrics)


def _replay_rule(rule: Weighting, recorded: Sequence[RoundGram]) -> list[ReplayedRound]:
    """Apply a rule to all rounds, with its state carried along."""
    state: State = {}
    rounds = []
    for seen in recorded:
        weighed = weigh(rule, seen, state)
        state = weighed.state
        rounds.append(_describe(seen, weighed))
    return rounds


def _weighed_by_run(seen: RoundGram) -> Weighed:
    """Return what the rule of the run did."""
    return Weighed(seen.ids, seen.weights, seen.base, seen.layers, {}, {})


def _describe(seen: RoundGram, weighed: Weighed) -> ReplayedRound:
    """Return the numbers of one rule in one round."""
    weights = weighed.weights.mean(axis=0)
    shares = to_shares(weights)
    square = float((shares**2).sum())
    step = Step(weighed.weights, weighed.base, weighed.layers)
    run_step = Step(seen.weights, seen.base, seen.layers)
    length = np.sqrt(max(step.dot(step, seen), 0.0))
    run_length = np.sqrt(max(run_step.dot(run_step, seen), 0.0))
    cosine = None
    if length > 0 and run_length > 0:
        cosine = float(np.clip(step.dot(run_step, seen) / (length * run_length), -1.0, 1.0))
    limit = MUTED / len(seen.ids)
    return ReplayedRound(
        round=seen.round,
        weights=dict(zip(seen.ids, weights.tolist(), strict=True)),
        effective_clients=1 / square if square > 0 else 0.0,
        step_norm=float(length),
        cosine=cosine,
        muted=tuple(seen.ids[k] for k in np.flatnonzero(shares < limit)),
        refused=weighed.refused,
        void=weighed.void,
    )


@dataclass(frozen=True)
class Step:
    """A step of the global model: `(base - 1) theta + sum_k w_k d_k`.

    Attributes:
        weights: coefficients on the updates, `[g, K]`.
        base: coefficient on the global model, `[g]`.
        layers: the granularity of the leading axis; None for the whole model.
    """

    weights: Array
    base: Array
    layers: Granularity | None = None

    def dot(self, other: Step, seen: RoundGram) -> float:
        """Return the inner product of two steps of the same round."""
        layers = self.layers if self.layers is not None else other.layers
        gram = seen.find_gram(layers)
        # Coefficients of both steps for every layer.
        shape = gram.theta_dots.shape
        weights = np.broadcast_to(self.weights, shape)
        other_weights = np.broadcast_to(other.weights, shape)
        shrinking = np.broadcast_to(self.base - 1, shape[:1])
        other_shrinking = np.broadcast_to(other.base - 1, shape[:1])
        # Products of updates with updates, of updates with theta, and of theta with itself.
        products = (weights * gram.apply(other_weights)).sum()
        products += (shrinking * (gram.theta_dots * other_weights).sum(axis=1)).sum()
        products += (other_shrinking * (gram.theta_dots * weights).sum(axis=1)).sum()
        products += (shrinking * other_shrinking * gram.theta_sq).sum()
        return float(products)


def to_shares(weights: Array) -> Array:
    """Return weights as shares of the sum of their absolute values; zeros if all are zero."""
    absolute = np.abs(weights)
    total = absolute.sum()
    return absolute / total if total > 0 else absolute


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation; None if one of the lists has only equal values."""
    ranks = [_average_ranks(np.array(values)) for values in (first, second)]
    deviations = [rank - rank.mean() for rank in ranks]
    lengths = [float(np.sqrt((deviation**2).sum())) for deviation in deviations]
    if min(lengths) == 0:
        return None
    return float((deviations[0] * deviations[1]).sum() / (lengths[0] * lengths[1]))


def _average_ranks(values: Array) -> Array:
    """Return the rank of each value; equal values have the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last_rank = np.cumsum(counts)
    mean_rank = last_rank - (counts - 1) / 2
    ranks: Array = mean_rank[inverse]
    return ranks
