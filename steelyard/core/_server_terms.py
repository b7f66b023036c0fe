"""The server part of client terms after the aggregation, and the limits a guard sets on it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from steelyard import kernels
from steelyard.core._rng import stream
from steelyard.core._side_channel import Classifier
from steelyard.core._state import State
from steelyard.core._store import UpdateStore
from steelyard.core._sums import Array, Selection
from steelyard.core._term import ClientTerm, FeatureTerm, ServerContext, TensorContext, Vectors

# Limits that a guard applies to single clients: typical norms, and factors for longer vectors.

# The smallest number of clients whose median one dishonest client cannot choose.
FEWEST = 3


@dataclass(frozen=True)
class Bounds:
    """The limits that a guard applied to the clients of a round.

    Everything at the server that reads the clients' vectors applies them, too.

    Attributes:
        factors: the factor of each update, `[K]`: 1 if it is short enough, 0 for a client that was
            set aside.
        clip: the limit for vectors that clients keep, as a multiple of their usual norm.
    """

    factors: Array
    clip: float

    @property
    def aside(self) -> list[int]:
        """Positions of the clients that were set aside."""
        return [int(k) for k in np.flatnonzero(self.factors == 0)]

    @property
    def rows(self) -> Selection:
        """The map from the updates to the clipped ones."""
        return Selection.of(range(len(self.factors)), self.factors)

    def limit_vectors(self, norms: Array, usual: float) -> tuple[Array, float]:
        """Return factors for clients' vectors of these norms, and the new usual norm.

        Vectors that clients keep change much in early rounds and little later. An honest client
        that joins late has a long one, so norms are compared with the largest median of all rounds
        so far. The vector of a client that was set aside gets the factor 0.

        Args:
            norms: norms of the clients' vectors, `[K]`.
            usual: the usual norm of the previous rounds; 0 in the first round.

        Returns:
            The factors, `[K]`, and the usual norm for the next round.
        """
        accepted = self.factors > 0
        lengths = np.where(accepted, norms, 0.0)
        # One or two clients are too few to update the usual norm.
        if np.count_nonzero(lengths) >= FEWEST:
            usual = max(usual, typical_norm(lengths))
        limit = self.clip * (usual or typical_norm(lengths))
        return np.where(accepted, clip_factors(lengths, limit), 0.0), usual


def typical_norm(norms: Array) -> float:
    """Return the norm that the others are compared with; 0 if all are zero.

    It is the median including zeros, so that idle clients cannot raise it; if that is zero, the
    median of the positive norms. With fewer than three positive norms a single client could choose
    the median, and it is their minimum instead.
    """
    positive = norms[norms > 0]
    if len(positive) == 0:
        return 0.0
    if len(positive) < FEWEST:
        return float(positive.min())
    return float(np.median(norms)) or float(np.median(positive))


def clip_factors(norms: Array, limit: float | Array) -> Array:
    """Return the factors that reduce vectors of these norms to at most `limit`."""
    factors: Array = np.minimum(1.0, limit / np.where(norms > 0, norms, 1.0))
    return np.where(norms > 0, factors, 1.0)


# Reads a term's client vectors, `[K, n]` by slot, before and after training.
ReadVectors = Callable[[ClientTerm, slice], tuple[Vectors, Vectors]]
# Writes client vectors that a term changed.
WriteVectors = Callable[[ClientTerm, slice, Vectors], None]


@dataclass(frozen=True)
class ServerTermStep:
    """The step of a round in which client terms update their vectors at the server.

    Attributes:
        store: the updates, and the global model that the round started from.
        theta: the new global model `[d]`; terms may change it.
        weights: coefficients of the updates in the sum, `[K]`.
        read_client_vectors: returns a term's vectors of the cohort before and after training,
            `[K, n]` each, for a slice of n coordinates.
        write_client_vectors: stores the vectors after training again, for a term that changes
            them; None where clients store their vectors themselves.
        server_vectors: the server's vectors of all terms, by `term.key(slot)`.
        work: local steps of each client, `[K]`, as in `ServerContext`.
        lr: the learning rate of the round.
        population: number of all clients.
        bounds: the bounds of a guard, if there is one: terms see updates, and changes of clients'
            vectors, clipped to them.
        usual_norms: what `run` returned in the previous round, by `term.key(slot)`.
    """

    store: UpdateStore
    theta: torch.Tensor
    weights: torch.Tensor
    read_client_vectors: ReadVectors
    write_client_vectors: WriteVectors | None
    server_vectors: Vectors
    work: torch.Tensor
    lr: float
    population: int
    bounds: Bounds | None = None
    usual_norms: Mapping[str, float] = field(default_factory=dict)

    def run(self, terms: Iterable[ClientTerm]) -> dict[str, float]:
        """Call `server_update` of each term: it updates the server's vectors, perhaps the model.

        The updates are read chunk by chunk; `[K, d]` is never in memory.

        Returns:
            With a guard, the usual norms of clients' vectors, for `usual_norms` of the next round.
        """
        usual = dict(self.usual_norms)
        acting = [
            term for term in terms if type(term).server_update is not ClientTerm.server_update
        ]
        if not acting:
            return usual

        # Updates and vectors that a guard clipped for the sum are clipped for terms, too.
        update_factors: torch.Tensor | None = None
        vector_factors: dict[str, torch.Tensor] = {}
        weights = self.weights
        if self.bounds is not None:
            update_factors = _as_column(self.bounds.factors)
            vector_factors = self._limit_vectors(acting, self.bounds, usual)
        if update_factors is not None:
            # The weights are coefficients on the updates before clipping: take the factors out.
            positive = torch.where(update_factors > 0, update_factors, 1.0)[:, 0]
            weights = (weights.double() / positive).to(weights.dtype)

        def update_piece(piece: kernels.Piece, rows: torch.Tensor) -> None:
            part = slice(piece.start, piece.stop)
            updates = rows[:-1]
            if update_factors is not None:
                updates = (updates.double() * update_factors).to(updates.dtype)
            for term in acting:
                old, new = self.read_client_vectors(term, part)
                clipped = {}
                for slot in new:
                    factors = vector_factors.get(term.key(slot))
                    clipped[slot] = _scale_change(old[slot], new[slot], factors)
                vectors = {
                    slot: self.server_vectors[term.key(slot)][part] for slot in term.server_slots
                }
                at = ServerContext(
                    theta=self.theta[part],
                    before=rows[-1],
                    updates=updates,
                    weights=weights,
                    old=old,
                    new=clipped,
                    server_vectors=vectors,
                    work=self.work,
                    lr=self.lr,
                    population=self.population,
                )
                term.server_update(at)
                if term.tags.changes_client_vectors and self.write_client_vectors is not None:
                    self.write_client_vectors(term, part, clipped)

        # Run the pass; afterwards, limit the server's own vectors.
        kernels.combine(
            self.store, len(self.store.ids) + 1, [(0, self.store.layout.dim)], update_piece
        )
        if self.bounds is not None:
            self._limit_server_vectors(acting, self.bounds.clip, usual)
        return usual

    def _limit_vectors(
        self, terms: Iterable[ClientTerm], bounds: Bounds, usual: dict[str, float]
    ) -> dict[str, torch.Tensor]:
        """Return factors `[K, 1]` for the changes of clients' vectors, by `term.key(slot)`.

        Slots in which no change is too long are left out. Updates `usual` in place.
        """
        factors_by_key: dict[str, torch.Tensor] = {}
        dim = self.store.layout.dim
        for term in terms:
            if not term.tags.reported_slots:
                continue
            # Squared norms of the changes, block by block.
            squares = {}
            for slot in term.tags.reported_slots:
                squares[slot] = torch.zeros(len(self.store.ids), dtype=torch.float64)
            for start in range(0, dim, kernels.BLOCK):
                old, new = self.read_client_vectors(
                    term, slice(start, min(start + kernels.BLOCK, dim))
                )
                for slot, square in squares.items():
                    square += (new[slot].double() - old[slot]).square().sum(dim=1)
            # Factors for the changes that are too long.
            for slot, square in squares.items():
                key = term.key(slot)
                norms = square.sqrt().numpy()
                factors, usual[key] = bounds.limit_vectors(norms, usual.get(key, 0.0))
                column = _as_column(factors)
                if column is not None:
                    factors_by_key[key] = column
        return factors_by_key

    def _limit_server_vectors(
        self, terms: Iterable[ClientTerm], clip: float, usual: Mapping[str, float]
    ) -> None:
        """Limit the norm of server vectors that are means of clients' vectors.

        The limit is `clip` times the usual norm of the clients' vectors. Without it, the clipped
        changes of one client would add up from round to round.
        """
        for term in terms:
            for slot in term.tags.reported_slots:
                limit = clip * usual[term.key(slot)]
                if slot not in term.server_slots or limit == 0:
                    continue
                vector = self.server_vectors[term.key(slot)]
                length = float(torch.linalg.vector_norm(vector, dtype=torch.float64))
                if length > limit:
                    vector.mul_(limit / length)


# Reads a tensor that clients sent, `[K, ...]`, by `term.key(name)`, for some rows of the cohort.
ReadTensors = Callable[[str, Sequence[int]], torch.Tensor]


@dataclass(frozen=True)
class TensorStep:
    """The step of a round in which feature terms update their tensors at the server.

    Attributes:
        classifier: the last linear layer of the network.
        server_tensors: the server's tensors of all terms, by `term.key(name)`.
        read_client_tensors: returns what clients sent.
        rows: the clients that count: a guard did not set them aside.
        bounds: the bounds of a guard, if there is one.
        seed: random seed of the run.
        round: number of the round.
    """

    classifier: Classifier
    server_tensors: Vectors
    read_client_tensors: ReadTensors
    rows: Sequence[int]
    bounds: Bounds | None
    seed: int
    round: int

    def run(self, terms: Iterable[FeatureTerm]) -> None:
        """Call `update_tensors` of each term."""
        if not self.rows:
            return
        for term in terms:
            messages = {}
            for name in term.client_tensors(self.classifier):
                message = self.read_client_tensors(term.key(name), self.rows)
                if self.bounds is not None:
                    message = limit_messages(message, self.bounds.clip)
                messages[name] = message
            names = term.server_tensors(self.classifier)
            tensors = {name: self.server_tensors[term.key(name)] for name in names}
            before = {name: tensor.clone() for name, tensor in tensors.items()}
            rng = stream(self.seed, "term", self.round, term.name)
            term.update_tensors(TensorContext(messages, tensors, self.classifier, rng))
            # Numbers that overflow would spoil the training of all clients: keep the previous ones.
            if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values()):
                for name, tensor in tensors.items():
                    tensor.copy_(before[name])
                warnings.warn(
                    f"round {self.round}: client={term.name} computed NaN or infinity at the "
                    "server: its tensors stay as they were; use smaller weights or learning rates",
                    RuntimeWarning,
                    stacklevel=2,
                )


def limit_messages(message: torch.Tensor, clip: float) -> torch.Tensor:
    """Return the tensors that clients sent, limited as a guard limits other vectors.

    The part of a class, which is a slice of the first axis, is shortened to `clip` times the usual
    norm of this class. Counts are reduced so that no client has more than `clip` times the usual
    total.

    Args:
        message: one tensor of each client, `[K, ...]`.
        clip: the limit of the guard.
    """
    # Counts: a client that has a class still has it afterwards.
    if not message.is_floating_point():
        totals = message.flatten(1).double().sum(dim=1).numpy()
        factors = clip_factors(totals, clip * typical_norm(totals))
        if (factors == 1.0).all():
            return message
        column = torch.from_numpy(factors).view(-1, *[1] * (message.ndim - 1))
        limited = (message * column).floor().to(message.dtype)
        return torch.where(message > 0, limited.clamp(min=1), message)

    # Vectors.
    parts = message.flatten(2) if message.ndim > 2 else message[:, None]
    norms = torch.linalg.vector_norm(parts, dim=2, dtype=torch.float64).numpy()
    limits = clip * _usual_norms_by_class(norms)
    factors = np.stack([clip_factors(row, limits) for row in norms])
    if (factors == 1.0).all():
        return message
    limited = parts.double() * torch.from_numpy(factors)[:, :, None]
    return limited.to(message.dtype).view(message.shape)


def _usual_norms_by_class(norms: Array) -> Array:
    """Return the usual norm of each class, from the norms by client and class, `[K, classes]`.

    It is the median over the clients that have the class. For a class that fewer than three clients
    have, it is the typical norm of all classes, in which each client has one vote.
    """
    votes = np.array([np.median(row[row > 0]) if (row > 0).any() else 0.0 for row in norms])
    usual = np.full(norms.shape[1], typical_norm(votes))
    for number, column in enumerate(norms.T):
        positive = column[column > 0]
        if len(positive) >= FEWEST:
            usual[number] = np.median(positive)
    return usual


def read_usual_norms(state: State) -> Mapping[str, float]:
    """Return the norms that `ServerTermStep.run` returned in the previous round, from the state."""
    norms: Mapping[str, float] = state.get("vector_norms", {})
    return norms


def add_usual_norms(state: State, norms: Mapping[str, float]) -> State:
    """Return the state with these norms added, if there are any."""
    return {**state, "vector_norms": dict(norms)} if norms else state


def _as_column(factors: Array) -> torch.Tensor | None:
    """Return the factors as `[K, 1]`; None if all of them are 1."""
    return None if (factors == 1.0).all() else torch.from_numpy(factors)[:, None]


def _scale_change(
    old: torch.Tensor, new: torch.Tensor, factors: torch.Tensor | None
) -> torch.Tensor:
    """Return `old + factors * (new - old)`, for vectors `[K, n]`."""
    if factors is None:
        return new
    return (old + (new.double() - old) * factors).to(new.dtype)
