"""Replays a recorded run: what would other rules have done with the same updates?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.core._errors import SteelyardError
from steelyard.core._gram import Array
from steelyard.core._layout import Granularity
from steelyard.core._registry import RULES
from steelyard.core._round_gram import RoundGram
from steelyard.core._spec import to_text
from steelyard.core._state import ClientId, State, sort_key
from steelyard.core._weighting import Weighting
from steelyard.recorder._weigh import Weighed, check_replayable, get_run_weights, weigh
from steelyard.rules._combinators import parse_rule, with_default_source
from steelyard.runs._directory import CONFIG, read_clients, read_config
from steelyard.runs._files import GRAMS
from steelyard.runs._gram_log import read_grams
from steelyard.runs._history import History

if TYPE_CHECKING:
    import pandas as pd

RUN = "run"  # the name of the rule that the run used
MUTED = 0.1  # of the equal share: a client with less is muted
MUTED_ROUNDS = 0.5  # of its rounds: a client that is muted in more is named in the summary


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
class RuleSummary:
    """What one rule would have done, over all recorded rounds.

    Attributes:
        rule: the rule, as the user wrote it; `run` for the one that was used.
        effective_clients: the mean number of effective clients.
        top_client: the client with the largest mean share of the weights; None if all are equal.
        top_share: the largest mean share, over the rounds in which the client took part.
        relative_step: the mean length of the step, as a multiple of the step of the run; None if
            the step of the run is always zero.
        cosine: the mean cosine to the step of the run; None if there is none in any round.
        agreement: the mean rank correlation with the weights of the run; None if one of the two
            rules weighs all clients alike.
        muted: the clients that are muted in more than half of their rounds, with the share of
            rounds.
        refused: the clients that the rule refuses in some round, with the last reason.
        void_rounds: the number of rounds in which the rule would have left the model as it is.
    """

    rule: str
    effective_clients: float
    top_client: ClientId | None
    top_share: float
    relative_step: float | None
    cosine: float | None
    agreement: float | None
    muted: Mapping[ClientId, float] = field(default_factory=dict)
    refused: Mapping[ClientId, str] = field(default_factory=dict)
    void_rounds: int = 0


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
        return self.agreements([rule, other])[0][1]

    def agreements(self, rules: Sequence[str]) -> list[list[float | None]]:
        """Return the agreement of every pair of rules, as rows of a matrix."""
        # Ranks are computed once per rule and round: a correlation is then an inner product.
        ranks = {}
        for rule in rules:
            ranks[rule] = [
                to_unit_ranks(list(entry.weights.values())) for entry in self.rounds[rule]
            ]
        rows = []
        for rule in rules:
            row = []
            for other in rules:
                pairs = zip(ranks[rule], ranks[other], strict=True)
                values = [float(a @ b) for a, b in pairs if a is not None and b is not None]
                row.append(_mean(values))
            rows.append(row)
        return rows

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """All clients of the recorded rounds, in the order of their ids."""
        ids = {client for entry in self.rounds[RUN] for client in entry.weights}
        return tuple(sorted(ids, key=sort_key))

    def summarize(self) -> tuple[RuleSummary, ...]:
        """Return one summary per rule, the rule of the run first."""
        return tuple(self._summarize_rule(rule) for rule in self.rounds)

    def _summarize_rule(self, rule: str) -> RuleSummary:
        """Return the means of a rule over all rounds."""
        # Shares of the weights, and how often each client is muted.
        rounds = self.rounds[rule]
        shares = mean_shares(rounds)
        top_client = None
        if max(shares.values()) - min(shares.values()) > 1e-9:
            top_client = max(shares, key=lambda client: shares[client])
        muted = {
            client: share for client, share in muted_shares(rounds).items() if share > MUTED_ROUNDS
        }
        refused: dict[ClientId, str] = {}
        for entry in rounds:
            refused |= entry.refused

        # The steps, compared with those of the run.
        lengths = []
        for entry, run_entry in zip(rounds, self.rounds[RUN], strict=True):
            if run_entry.step_norm > 0:
                lengths.append(entry.step_norm / run_entry.step_norm)
        return RuleSummary(
            rule=rule,
            effective_clients=sum(entry.effective_clients for entry in rounds) / len(rounds),
            top_client=top_client,
            top_share=max(shares.values()),
            relative_step=_mean(lengths),
            cosine=_mean([entry.cosine for entry in rounds if entry.cosine is not None]),
            agreement=self.agreement(RUN, rule),
            muted=muted,
            refused=refused,
            void_rounds=sum(entry.void is not None for entry in rounds),
        )


def mean_shares(rounds: Sequence[ReplayedRound]) -> dict[ClientId, float]:
    """Return the mean share of each client, over the rounds in which it took part."""
    sums: Counter[ClientId] = Counter()
    counts: Counter[ClientId] = Counter()
    for entry in rounds:
        for client, share in zip(entry.weights, entry.shares.tolist(), strict=True):
            sums[client] += share
            counts[client] += 1
    return {client: sums[client] / counts[client] for client in sorted(counts, key=sort_key)}


def muted_shares(rounds: Sequence[ReplayedRound]) -> dict[ClientId, float]:
    """Return for each client the share of its rounds in which it is muted.

    Rounds in which the rule leaves the model as it is do not count.
    """
    rounds = [entry for entry in rounds if entry.void is None]
    muted = Counter(client for entry in rounds for client in entry.muted)
    counts = Counter(client for entry in rounds for client in entry.weights)
    return {client: muted[client] / counts[client] for client in sorted(counts, key=sort_key)}


def _mean(values: Sequence[float]) -> float | None:
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
    return replay_rules(find_directory(run), rules)


def replay_rules(
    path: Path,
    rules: Sequence[str | Weighting],
    report: Callable[[str], None] | None = None,
    failures: dict[str, str] | None = None,
) -> Replay:
    """Apply rules to the recorded updates of a run directory.

    Args:
        path: the run directory.
        rules: rules, or their spec strings.
        report: is called with the name of each rule after it was replayed.
        failures: where to put the errors of rules, by rule. By default, an error is raised.
    """
    recorded = read_rounds(path)
    history = History.read(path)

    # The rule of the run, then the others.
    rounds: dict[str, list[ReplayedRound]] = {}
    rounds[RUN] = [_describe(round_gram, get_run_weights(round_gram)) for round_gram in recorded]
    for spec in rules:
        rule = parse_rule(spec)
        name = spec if isinstance(spec, str) else to_text(rule)
        try:
            check_replayable(rule)
            rounds[name] = _replay_rule(with_default_source(rule), recorded)
        except SteelyardError as error:
            if failures is None:
                raise
            failures[name] = str(error)
        if report is not None:
            report(name)

    # Rounds that are not on record.
    present = {round_gram.round for round_gram in recorded}
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


def check_rules(path: Path, rules: Sequence[str]) -> None:
    """Raise an error if a rule cannot be replayed on the first recorded round of a run.

    Args:
        path: the run directory.
        rules: spec strings.
    """
    first = read_rounds(path)[0]
    for spec in rules:
        _check_rule(spec, first)


def _check_rule(spec: str, first: RoundGram) -> None:
    """Raise an error if a rule cannot be replayed on a round."""
    rule = parse_rule(spec)
    check_replayable(rule)
    weigh(with_default_source(rule), first, {})


def find_replayable_rules(path: Path) -> tuple[list[str], dict[str, str]]:
    """Return the registered rules that can be replayed on a run, with their default options.

    Rules without a default, such as `shrink`, and combinators are left out.

    Args:
        path: the run directory.

    Returns:
        The names of the rules, and for the others the reason why they cannot be replayed.
    """
    first = read_rounds(path)[0]
    names = []
    reasons = {}
    for entry in RULES:
        has_defaults = all(option.default is not option.empty for option in entry.options.values())
        if entry.wraps or not has_defaults:
            continue
        try:
            _check_rule(entry.name, first)
        except SteelyardError as error:
            reason = str(error)
            is_named = reason.startswith(f"{entry.name}:")
            reasons[entry.name] = reason if is_named else f"{entry.name}: {reason}"
        else:
            names.append(entry.name)
    return names, reasons


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
    return [_add_metrics(round_gram, known_metrics) for round_gram in recorded]


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


def _add_metrics(
    round_gram: RoundGram, known_metrics: Mapping[str, Mapping[str, Any]]
) -> RoundGram:
    """Return the round with metrics that its clients did not report, if all of them are known."""
    metrics = dict(round_gram.metrics)
    names = [str(client) for client in round_gram.ids]
    for metric, values in known_metrics.items():
        if metric not in metrics and all(name in values for name in names):
            metrics[metric] = np.array([values[name] for name in names], dtype=np.float64)
    return replace(round_gram, metrics=metrics)


def _replay_rule(rule: Weighting, recorded: Sequence[RoundGram]) -> list[ReplayedRound]:
    """Apply a rule to all rounds, with its state carried along."""
    state: State = {}
    rounds = []
    for round_gram in recorded:
        weighed = weigh(rule, round_gram, state)
        state = weighed.state
        rounds.append(_describe(round_gram, weighed))
    return rounds


def _describe(round_gram: RoundGram, weighed: Weighed) -> ReplayedRound:
    """Return the numbers of one rule in one round."""
    weights = weighed.weights.mean(axis=0)
    shares = to_shares(weights)
    square = float((shares**2).sum())
    step = Step(weighed.weights, weighed.base, weighed.layers, weighed.step_weight)
    run_step = Step(round_gram.weights, round_gram.base, round_gram.layers, round_gram.step_weight)
    length = np.sqrt(max(step.dot(step, round_gram), 0.0))
    run_length = np.sqrt(max(run_step.dot(run_step, round_gram), 0.0))
    cosine = None
    if length > 0 and run_length > 0:
        cosine = float(np.clip(step.dot(run_step, round_gram) / (length * run_length), -1.0, 1.0))
    limit = MUTED / len(round_gram.ids)
    return ReplayedRound(
        round=round_gram.round,
        weights=dict(zip(round_gram.ids, weights.tolist(), strict=True)),
        effective_clients=1 / square if square > 0 else 0.0,
        step_norm=float(length),
        cosine=cosine,
        muted=tuple(round_gram.ids[k] for k in np.flatnonzero(shares < limit)),
        refused=weighed.refused,
        void=weighed.void,
    )


@dataclass(frozen=True)
class Step:
    """A step of the global model: `(base - 1) theta + sum_k w_k d_k + step_weight s`.

    Attributes:
        weights: coefficients on the updates, `[g, K]`.
        base: coefficient on the global model, `[g]`.
        layers: the granularity of the leading axis; None for the whole model.
        step_weight: coefficient on s, the step of the previous round, `[g]`; None for 0.
    """

    weights: Array
    base: Array
    layers: Granularity | None = None
    step_weight: Array | None = None

    def dot(self, other: Step, round_gram: RoundGram) -> float:
        """Return the inner product of two steps of the same round."""
        layers = self.layers if self.layers is not None else other.layers
        gram = round_gram.find_gram(layers)
        # The products of updates, theta and s with the other step, layer by layer.
        groups, count = gram.theta_dots.shape
        weights, shrinking, step_weight = self._spread(groups, count)
        other_weights, other_shrinking, other_step_weight = other._spread(groups, count)
        dots = gram.apply(other_weights, other_step_weight)
        dots += other_shrinking[:, None] * gram.theta_dots
        theta_dot = (gram.theta_dots * other_weights).sum(axis=1) + other_shrinking * gram.theta_sq
        step_dot = np.zeros(groups)
        last_step = gram.last_step
        if last_step is not None:
            theta_dot += other_step_weight * last_step.theta_dot
            step_dot = (last_step.dots * other_weights).sum(axis=1)
            step_dot += other_shrinking * last_step.theta_dot
            step_dot += other_step_weight * last_step.square
        products = (weights * dots).sum(axis=1) + shrinking * theta_dot + step_weight * step_dot
        return float(products.sum())

    def _spread(self, groups: int, count: int) -> tuple[Array, Array, Array]:
        """Return the coefficients on updates, theta and s for every layer."""
        step_weight = np.zeros(1) if self.step_weight is None else self.step_weight
        return (
            np.broadcast_to(self.weights, (groups, count)),
            np.broadcast_to(self.base - 1, (groups,)),
            np.broadcast_to(step_weight, (groups,)),
        )


def to_shares(weights: Array) -> Array:
    """Return weights as shares of the sum of their absolute values; zeros if all are zero."""
    absolute = np.abs(weights)
    total = absolute.sum()
    return absolute / total if total > 0 else absolute


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation; None if one of the lists has only equal values."""
    first_ranks = to_unit_ranks(first)
    second_ranks = to_unit_ranks(second)
    if first_ranks is None or second_ranks is None:
        return None
    return float(first_ranks @ second_ranks)


def to_unit_ranks(values: Sequence[float]) -> Array | None:
    """Return ranks with mean 0 and length 1; None if all values are equal.

    The inner product of two such lists is their rank correlation.
    """
    ranks = _average_ranks(np.array(values))
    deviations = ranks - ranks.mean()
    length = float(np.sqrt((deviations**2).sum()))
    return deviations / length if length > 0 else None


def _average_ranks(values: Array) -> Array:
    """Return the rank of each value; equal values have the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last_rank = np.cumsum(counts)
    mean_rank = last_rank - (counts - 1) / 2
    ranks: Array = mean_rank[inverse]
    return ranks
