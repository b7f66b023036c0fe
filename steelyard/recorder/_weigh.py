"""Applies a rule to a recorded round."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from steelyard.core._errors import RefusedReports, SteelyardError
from steelyard.core._gram import Array
from steelyard.core._layout import Granularity
from steelyard.core._mixture import Mixture
from steelyard.core._round_gram import RoundGram
from steelyard.core._spec import to_text
from steelyard.core._state import ClientId, State
from steelyard.core._weighting import Weighting
from steelyard.metrics import are_valid_values, find_invalid_clients


@dataclass(frozen=True)
class Weighed:
    """What a rule does with a recorded round.

    Attributes:
        ids: the clients of the round.
        weights: coefficients on the updates, `[g, K]`; 0 for a client that the rule refuses.
        base: coefficient on the global model, `[g]`.
        layers: the granularity of the leading axis; None for the whole model.
        state: the state for the next round.
        refused: why clients are refused, by id.
        void: why the rule would leave the model as it is; None if it would not.
        step_weight: coefficient on the previous round's step, `[g]`; None for 0.
    """

    ids: tuple[ClientId, ...]
    weights: Array
    base: Array
    layers: Granularity | None
    state: State
    refused: Mapping[ClientId, str]
    void: str | None = None
    step_weight: Array | None = None


def check_replayable(rule: Weighting) -> None:
    """Raise an error if a rule needs more than inner products and reports."""
    text = to_text(rule)
    if rule.needs.probe:
        raise SteelyardError(
            f"{text}: learns on proxy data, which is not recorded: run it instead "
            f"(steelyard run --set 'weighting={text}')"
        )
    if rule.needs.coordinates:
        raise SteelyardError(
            f"{text}: looks at single coordinates of the updates, and only their inner products "
            f"are recorded: run it instead (steelyard run --set 'weighting={text}')"
        )


def get_run_weights(round_gram: RoundGram) -> Weighed:
    """Return what the rule of the run did with a round."""
    return Weighed(
        round_gram.ids,
        round_gram.weights,
        round_gram.base,
        round_gram.layers,
        {},
        {},
        step_weight=round_gram.step_weight,
    )


def weigh(rule: Weighting, round_gram: RoundGram, state: State) -> Weighed:
    """Apply a rule to a recorded round.

    Args:
        rule: a rule that needs only inner products and reports.
        round_gram: the round.
        state: the rule's state after the previous round.

    Raises:
        SteelyardError: if the round lacks something that the rule needs, or the rule fails.
    """
    # Clients whose reports the rule cannot use are refused, as in a round.
    needed = rule.needs.metrics
    for name in sorted(needed - round_gram.metrics.keys()):
        raise SteelyardError(
            f"{to_text(rule)}: needs {name!r}, which clients did not report in round "
            f"{round_gram.round}: let them report it (metrics=[{name!r}], --set 'metrics=[\"{name}\"]')"
        )
    refused: dict[ClientId, str] = {}
    if not all(are_valid_values(name, round_gram.metrics[name]) for name in needed):
        refused |= find_invalid_clients(rule, _to_table(round_gram, needed), round_gram.ids)
    while True:
        accepted = [client for client in round_gram.ids if client not in refused]
        if not accepted:
            return _leave_model(round_gram, state, refused, "no client is valid")
        part = round_gram if len(accepted) == len(round_gram.ids) else round_gram.only(accepted)
        prior = Mixture.convex(np.ones((1, len(accepted))))
        try:
            mixture, after = rule.apply(prior, part.view(rule.needs), state)
        except RefusedReports as error:
            refused |= error.refused
            continue
        break

    # The result of the rule.
    if not mixture.finite:
        raise SteelyardError(f"{to_text(rule)}: returned a weight that is NaN or infinite")
    if mixture.void is not None:
        return _leave_model(round_gram, state, refused, mixture.void)
    weights = np.zeros((mixture.client_weights.shape[0], len(round_gram.ids)))
    if part is round_gram:
        weights[:] = mixture.client_weights
    else:
        positions = [round_gram.ids.index(client) for client in accepted]
        weights[:, positions] = mixture.client_weights
    refused |= mixture.notes.get("set_aside", {})
    return Weighed(
        round_gram.ids,
        weights,
        np.array(mixture.base),
        mixture.layers,
        after,
        refused,
        step_weight=mixture.step_weight,
    )


def _leave_model(
    round_gram: RoundGram, state: State, refused: Mapping[ClientId, str], reason: str
) -> Weighed:
    """Return the result of a rule that leaves the model and its state as they are."""
    weights = np.zeros((1, len(round_gram.ids)))
    return Weighed(round_gram.ids, weights, np.ones(1), None, state, refused, reason)


def _to_table(round_gram: RoundGram, names: Collection[str]) -> dict[str, dict[ClientId, Any]]:
    """Return what clients reported: by metric, then by client id, without missing values.

    Args:
        round_gram: the round.
        names: the metrics to return.
    """
    table: dict[str, dict[ClientId, Any]] = {}
    for name in names:
        rows = zip(round_gram.ids, round_gram.metrics[name].tolist(), strict=True)
        table[name] = {client: value for client, value in rows if not _is_missing(value)}
    return table


def _is_missing(value: Any) -> bool:
    """Return whether a recorded value stands for no report."""
    first = value[0] if isinstance(value, list) else value
    return math.isnan(first)
