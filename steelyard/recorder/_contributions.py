"""What each client contributed to the direction of the rounds, from recorded inner products.

The value of a group of clients S in a round is the cosine between its part of the step and the
whole step:

    v(S) = cos(sum of w_k d_k over S, sum of w_k d_k over all clients),    v of nobody = 0

The Shapley value of a client is its mean gain in v over all orders in which clients can join. The
values of a round sum to 1. A client that sends nothing has 0, and two clients that send the same
have the same value. A client that pulls the other way has a negative value.

This measures agreement with the direction of the run. It does not measure how much a client
improves the model on test data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from steelyard.core._errors import SteelyardError
from steelyard.core._gram import Array
from steelyard.core._round_gram import RoundGram
from steelyard.core._state import ClientId, sort_key
from steelyard.recorder._replay import find_directory, read_rounds, to_shares
from steelyard.runs._history import History

if TYPE_CHECKING:
    import pandas as pd

EXACT_CLIENTS = 16  # up to this number, all groups of clients are evaluated
ORDERS = 256  # orders of clients that are drawn beyond that
_Z = 1.96  # of a 95 % interval


@dataclass(frozen=True)
class RoundValues:
    """The contributions of the clients of one round.

    Attributes:
        round: number of the round.
        ids: the clients.
        shapley: the Shapley value of each client, `[K]`.
        errors: standard errors of these values, `[K]`; zero if all groups were evaluated.
        leave_one_out: how much of the direction is lost without the client: 1 minus the cosine
            between the step without it and the step, `[K]`.
        norms: norms of the updates, `[K]`.
        cosines: cosine of each update to the step of the other clients, `[K]`.
        shares: shares of the weights, `[K]`.
        twins: the client whose update is most similar, by position, `[K]`.
        twin_cosines: the cosine to that client, `[K]`.
    """

    round: int
    ids: tuple[ClientId, ...]
    shapley: Array
    errors: Array
    leave_one_out: Array
    norms: Array
    cosines: Array
    shares: Array
    twins: NDArray[np.intp]
    twin_cosines: Array

    @cached_property
    def median_norm(self) -> float:
        """The median of the norms."""
        return float(np.median(self.norms))

    @cached_property
    def median_cosine(self) -> float:
        """The median of the cosines to the others."""
        return float(np.median(self.cosines))


@dataclass(frozen=True)
class Flag:
    """Something about a client that deserves a look.

    Attributes:
        kind: `free rider`, `duplicate`, `opponent` or `drifting`.
        evidence: the numbers behind it, in a sentence.
    """

    kind: str
    evidence: str


@dataclass(frozen=True)
class ClientContribution:
    """What one client contributed to a run.

    Attributes:
        client: its id.
        rounds: number of recorded rounds in which it took part.
        total: the sum of its Shapley values.
        margin: half the width of a 95 % interval of the sum. It comes from how much the values
            vary from round to round, and from the drawn orders where not all groups were evaluated.
        leave_one_out: the mean share of the direction that is lost without it.
        share: its mean share of the weights.
        cosine: the mean cosine of its update to the step of the others.
        norm: its mean norm, as a multiple of the median of the round.
        flags: what deserves a look.
    """

    client: ClientId
    rounds: int
    total: float
    margin: float
    leave_one_out: float
    share: float
    cosine: float
    norm: float
    flags: tuple[Flag, ...] = ()


@dataclass(frozen=True)
class Contributions:
    """What every client contributed to a run.

    Attributes:
        name: the name of the run.
        clients: the clients, in the order of their ids.
        rounds: the values of every round.
        is_exact: whether all groups of clients were evaluated in every round.
    """

    name: str
    clients: tuple[ClientContribution, ...]
    rounds: tuple[RoundValues, ...] = field(repr=False)
    is_exact: bool = True

    def __getitem__(self, client: ClientId) -> ClientContribution:
        """Return the contribution of a client by its id."""
        for entry in self.clients:
            if entry.client == client:
                return entry
        raise KeyError(client)

    def to_pandas(self) -> pd.DataFrame:
        """Return a table with one row per round and client."""
        try:
            import pandas as pd
        except ImportError as error:
            raise SteelyardError(
                "Contributions.to_pandas needs pandas: pip install pandas, or use "
                "Contributions.clients"
            ) from error
        rows = []
        for values in self.rounds:
            for position, client in enumerate(values.ids):
                rows.append(
                    {
                        "round": values.round,
                        "client": client,
                        "shapley": float(values.shapley[position]),
                        "error": float(values.errors[position]),
                        "leave_one_out": float(values.leave_one_out[position]),
                        "share": float(values.shares[position]),
                        "cosine": float(values.cosines[position]),
                        "norm": float(values.norms[position]),
                    }
                )
        return pd.DataFrame(rows)


def contributions(run: str | Path | History) -> Contributions:
    """Return what each client of a recorded run contributed to the direction of its rounds.

    Args:
        run: a run directory with recorded inner products, or the history of such a run.

    Examples:
        >>> import steelyard, tempfile
        >>> with tempfile.TemporaryDirectory() as out:
        ...     history = steelyard.simulate("fedavg", "digits", rounds=2, clients=4, out=out)
        ...     result = steelyard.contributions(out)
        >>> round(sum(entry.total for entry in result.clients), 6)
        2.0
    """
    path = find_directory(run)
    return summarize(path.name, [value_round(round_gram) for round_gram in read_rounds(path)])


def value_round(round_gram: RoundGram) -> RoundValues:
    """Return the contributions of the clients of one round."""
    gram = round_gram.whole
    weights = round_gram.weights.mean(axis=0)
    products = weights[:, None] * gram.dots[0] * weights  # <w_i d_i, w_j d_j>

    # Shapley values: all groups, or drawn orders.
    count = len(round_gram.ids)
    if count <= EXACT_CLIENTS:
        shapley = shapley_values(products)
        errors = np.zeros(count)
    else:
        shapley, errors = sample_shapley_values(products, round_gram.round)

    # The step without each client.
    rows = products.sum(axis=1)
    total = rows.sum()
    remaining = total - 2 * rows + np.diagonal(products)
    without = _cosine(total - rows, np.sqrt(np.maximum(remaining, 0.0)) * _root(total))

    # The most similar other client.
    pairs = gram.cosines()[0].copy()
    np.fill_diagonal(pairs, -np.inf)
    return RoundValues(
        round=round_gram.round,
        ids=round_gram.ids,
        shapley=shapley,
        errors=errors,
        leave_one_out=1 - without if count > 1 else np.ones(1),
        norms=gram.norms[0],
        cosines=gram.cosines_to_others(weights[None])[0],
        shares=to_shares(weights),
        twins=pairs.argmax(axis=1),
        twin_cosines=pairs.max(axis=1),
    )


def shapley_values(products: Array) -> Array:
    """Return the Shapley value of each client, from all groups of clients.

    Args:
        products: inner products of the clients' parts of the step, `[K, K]`, K up to 20 or so.

    Returns:
        The values, `[K]`. Their sum is 1, or 0 if the step is zero.
    """
    # The value of every group. Group number g contains client k if bit k of g is set.
    count = len(products)
    values = _value_groups(products)
    sizes = _count_members(count)

    # A client joins a group of n others in n! (K - n - 1)! of all K! orders.
    orders = [math.factorial(n) * math.factorial(count - n - 1) for n in range(count)]
    chances = np.array(orders, dtype=np.float64) / math.factorial(count)
    groups = np.arange(1 << count)
    shapley = np.zeros(count)
    for client in range(count):
        others = groups[(groups >> client) & 1 == 0]
        gains = values[others | (1 << client)] - values[others]
        shapley[client] = (chances[sizes[others]] * gains).sum()
    return shapley


def _value_groups(products: Array) -> Array:
    """Return the value of every group of clients, `[2^K]`."""
    # Add one client after the other: the groups with it follow those without it.
    count = len(products)
    rows = products.sum(axis=1)
    dots = np.zeros(1)  # <step of the group, whole step>
    squares = np.zeros(1)  # |step of the group|^2
    for client in range(count):
        with_earlier = np.zeros(1)  # <part of the client, step of the group>
        for earlier in range(client):
            row = products[client, earlier]
            with_earlier = np.concatenate([with_earlier, with_earlier + row])
        joined = squares + 2 * with_earlier + products[client, client]
        dots = np.concatenate([dots, dots + rows[client]])
        squares = np.concatenate([squares, joined])
    return _value(dots, squares, products)


def _count_members(count: int) -> NDArray[np.intp]:
    """Return the number of clients in every group, `[2^K]`."""
    sizes = np.zeros(1, dtype=np.intp)
    for _ in range(count):
        sizes = np.concatenate([sizes, sizes + 1])
    return sizes


def sample_shapley_values(
    products: Array, number: int, orders: int = ORDERS
) -> tuple[Array, Array]:
    """Return estimates of the Shapley values from random orders, and their standard errors.

    Every order is used forwards and backwards, which reduces the error.

    Args:
        products: inner products of the clients' parts of the step, `[K, K]`.
        number: number of the round, which decides the orders.
        orders: number of orders to draw.

    Returns:
        The values and their standard errors, `[K]` each.
    """
    # Draw the orders. The rank of a client is its place in an order.
    count = len(products)
    rng = np.random.default_rng(number)
    drawn = np.array([rng.permutation(count) for _ in range(orders // 2)])
    ranks = np.argsort(drawn, axis=1)

    # The products of each client with those before it, and with those after it, `[orders, K]`.
    is_before = ranks[:, None, :] < ranks[:, :, None]
    before = (products * is_before).sum(axis=2)
    after = products.sum(axis=1) - before - np.diagonal(products)

    # The gain of each client, as a mean of an order and its reverse.
    gains = _gains_in_orders(products, before, drawn)
    reverse_gains = _gains_in_orders(products, after, drawn[:, ::-1])
    means = (
        np.take_along_axis(gains, ranks, axis=1)
        + np.take_along_axis(reverse_gains, count - 1 - ranks, axis=1)
    ) / 2
    deviation = means.std(axis=0, ddof=1)
    return means.mean(axis=0), deviation / math.sqrt(len(means))


def _gains_in_orders(products: Array, before: Array, orders: NDArray[np.int64]) -> Array:
    """Return how much the value rises when clients join, in the order in which they join.

    Args:
        products: inner products of the clients' parts of the step, `[K, K]`.
        before: for each order, the products of each client with all that join before it,
            `[orders, K]`.
        orders: the orders, `[orders, K]`.
    """
    # The client that joins adds its products with those before it, twice, and with itself.
    increments = 2 * before + np.diagonal(products)
    squares = np.cumsum(np.take_along_axis(increments, orders, axis=1), axis=1)
    dots = np.cumsum(products.sum(axis=1)[orders], axis=1)
    return np.diff(_value(dots, squares, products), prepend=0.0, axis=1)


def _value(dots: Array, squares: Array, products: Array) -> Array:
    """Return the cosine of groups to the whole step.

    Args:
        dots: inner product of the step of each group and the whole step.
        squares: squared norm of the step of each group.
        products: the inner products of all clients' parts, whose sum is the whole step squared.
    """
    # Squares this small are rounding errors: the parts of the group cancel.
    scale = np.abs(products).sum()
    lengths = np.sqrt(np.where(squares > 1e-14 * scale, squares, 0.0)) * _root(products.sum())
    return _cosine(dots, lengths)


def _cosine(dots: Array, lengths: Array) -> Array:
    """Return `dots / lengths`, limited to [-1, 1]; 0 where a length is zero."""
    cosines = np.divide(dots, lengths, out=np.zeros_like(dots), where=lengths > 0)
    clipped: Array = np.clip(cosines, -1.0, 1.0)
    return clipped


def _root(square: float) -> float:
    return math.sqrt(max(float(square), 0.0))


# Summaries over a run, and what deserves a look.

FREE_RIDER_NORM = 0.01  # of the median norm of the round
DUPLICATE_COSINE = 0.999
CONSENT = 0.15  # median cosine to the others, above which disagreement means something
CONSENT_SHARE = 0.4  # of a client's rounds, which must have such a median to judge it by its cosine
DRIFT = 0.2  # fall of the cosine to the others, beyond that of the median client
DRIFT_SPREAD = 5.0  # the same, as a multiple of the clients' median absolute deviation
MOST = 0.5  # the share of rounds that a flag needs
FEWEST_ROUNDS = 5  # in which a client took part, before it can be flagged


def summarize(name: str, rounds: Sequence[RoundValues]) -> Contributions:
    """Return the contributions of all clients over all rounds.

    Args:
        name: the name of the run.
        rounds: the values of each round.
    """
    # The rounds of each client, with its position in them.
    places: dict[ClientId, list[tuple[RoundValues, int]]] = {}
    for values in rounds:
        for position, client in enumerate(values.ids):
            places.setdefault(client, []).append((values, position))

    # How far cosines fall in the course of the run: the usual fall, and the largest usual one.
    falls = {client: _cosine_fall(entries) for client, entries in places.items()}
    known_falls = [fall for fall in falls.values() if fall is not None]
    usual = float(np.median(known_falls)) if known_falls else 0.0
    spread = float(np.median(np.abs(np.array(known_falls) - usual))) if known_falls else 0.0
    largest = usual + max(DRIFT, DRIFT_SPREAD * spread)

    clients = []
    for client in sorted(places, key=sort_key):
        flags = _find_flags(places[client])
        fall = falls[client]
        if fall is not None and fall > largest:
            text = f"its cosine to the others fell by {fall:.2f} from the first to the last third"
            text += f" of its rounds, the median client's by {usual:.2f}"
            flags.append(Flag("drifting", text))
        clients.append(_summarize_client(client, places[client], flags))
    is_exact = all(len(values.ids) <= EXACT_CLIENTS for values in rounds)
    return Contributions(name, tuple(clients), tuple(rounds), is_exact)


def _summarize_client(
    client: ClientId, entries: Sequence[tuple[RoundValues, int]], flags: Sequence[Flag]
) -> ClientContribution:
    """Return the contribution of one client, from its rounds."""
    shapley = np.array([values.shapley[k] for values, k in entries])
    errors = np.array([values.errors[k] for values, k in entries])
    count = len(entries)
    # The variance of the sum: of the rounds, and of the drawn orders.
    variance = float((errors**2).sum())
    if count > 1:
        variance += float(shapley.var(ddof=1)) * count
    return ClientContribution(
        client=client,
        rounds=count,
        total=float(shapley.sum()),
        margin=_Z * math.sqrt(variance),
        leave_one_out=float(np.mean([values.leave_one_out[k] for values, k in entries])),
        share=float(np.mean([values.shares[k] for values, k in entries])),
        cosine=float(np.mean([values.cosines[k] for values, k in entries])),
        norm=float(np.mean([_relative_norm(values, k) for values, k in entries])),
        flags=tuple(flags),
    )


def _relative_norm(values: RoundValues, position: int) -> float:
    """Return the norm of an update as a multiple of the median of the round."""
    median = values.median_norm
    return float(values.norms[position]) / median if median > 0 else 0.0


def _find_flags(entries: Sequence[tuple[RoundValues, int]]) -> list[Flag]:
    """Return what deserves a look about one client.

    Args:
        entries: its rounds, with its position in each.
    """
    count = len(entries)
    if count < FEWEST_ROUNDS:
        return []
    flags = []

    # A free rider sends nothing.
    idle = sum(_relative_norm(values, k) < FREE_RIDER_NORM for values, k in entries)
    if idle > MOST * count:
        text = f"its update is shorter than {FREE_RIDER_NORM:.0%} of the median"
        flags.append(Flag("free rider", f"{text} in {idle} of {count} rounds"))

    # A duplicate sends what another client sends.
    twins: dict[ClientId, int] = {}
    for values, k in entries:
        if values.twin_cosines[k] >= DUPLICATE_COSINE:
            twin = values.ids[int(values.twins[k])]
            twins[twin] = twins.get(twin, 0) + 1
    if twins:
        twin = max(twins, key=lambda client: twins[client])
        if twins[twin] > MOST * count:
            text = f"its update has a cosine of at least {DUPLICATE_COSINE} to client {twin!r}"
            flags.append(Flag("duplicate", f"{text} in {twins[twin]} of {count} rounds"))

    # An opponent has a negative value, or points away from others that agree. Where clients do not
    # agree, as with very skewed labels, the cosine of an honest client may be negative, too.
    values_of_client = [values.shapley[k] for values, k in entries]
    agreeing = [(values, k) for values, k in entries if values.median_cosine > CONSENT]
    cosines = [values.cosines[k] for values, k in agreeing]
    if _is_negative(values_of_client):
        flags.append(Flag("opponent", _describe_negative("value", values_of_client, "rounds")))
    elif len(agreeing) >= max(FEWEST_ROUNDS, CONSENT_SHARE * count) and _is_negative(cosines):
        rounds = "rounds in which clients agree"
        text = _describe_negative("cosine to the others", cosines, rounds)
        flags.append(Flag("opponent", text))
    return flags


def _is_negative(numbers: Sequence[float]) -> bool:
    """Return whether most numbers are negative, and their mean is beyond chance."""
    array = np.array(numbers)
    highest = float(array.mean()) + _Z * float(array.std(ddof=1)) / math.sqrt(len(array))
    return int((array < 0).sum()) > MOST * len(array) and highest < 0


def _describe_negative(name: str, numbers: Sequence[float], rounds: str) -> str:
    """Return the evidence of an opponent as a sentence."""
    array = np.array(numbers)
    text = f"its {name} is negative in {int((array < 0).sum())} of {len(array)} {rounds}"
    return f"{text}, {array.mean():.3f} in the mean"


def _cosine_fall(entries: Sequence[tuple[RoundValues, int]]) -> float | None:
    """Return how far the cosine to the others fell, from the first to the last third of rounds."""
    if len(entries) < 3 * FEWEST_ROUNDS:
        return None
    cosines = [float(values.cosines[k]) for values, k in entries]
    third = len(cosines) // 3
    return float(np.mean(cosines[:third]) - np.mean(cosines[-third:]))


def cumulate_values(result: Contributions) -> dict[ClientId, tuple[list[int], Array, Array]]:
    """Return how the value of each client grew over the rounds.

    Args:
        result: the contributions of a run.

    Returns:
        For each client: the rounds in which it took part, the sum of its values up to each of
        them, and half the width of a 95 % interval of the sum.
    """
    # The values of each client.
    rounds: dict[ClientId, list[int]] = {}
    shapley: dict[ClientId, list[float]] = {}
    errors: dict[ClientId, list[float]] = {}
    for values in result.rounds:
        for position, client in enumerate(values.ids):
            rounds.setdefault(client, []).append(values.round)
            shapley.setdefault(client, []).append(float(values.shapley[position]))
            errors.setdefault(client, []).append(float(values.errors[position]))

    # Sums, and their variance as in the summary of a client.
    curves = {}
    for entry in result.clients:
        numbers = np.array(shapley[entry.client])
        counts = np.arange(1, len(numbers) + 1)
        totals = np.cumsum(numbers)
        deviations = np.maximum(np.cumsum(numbers**2) - totals**2 / counts, 0.0)
        variances = deviations / np.maximum(counts - 1, 1) * counts
        variances += np.cumsum(np.array(errors[entry.client]) ** 2)
        curves[entry.client] = (rounds[entry.client], totals, _Z * np.sqrt(variances))
    return curves


def group_flags(clients: Sequence[ClientContribution]) -> Mapping[str, list[ClientId]]:
    """Return the flagged clients by kind of flag."""
    by_kind: dict[str, list[ClientId]] = {}
    for entry in clients:
        for flag in entry.flags:
            by_kind.setdefault(flag.kind, []).append(entry.client)
    return by_kind
