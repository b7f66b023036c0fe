"""What client terms do at the server after the sum, a stretch of coordinates at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch

from steelyard import kernels
from steelyard.core.bounds import Bounds
from steelyard.core.client_state import State
from steelyard.core.rows import Array
from steelyard.core.store import UpdateStore
from steelyard.core.term import ClientTerm, ServerContext, Vectors

Own = Callable[[ClientTerm, slice], tuple[Vectors, Vectors]]
File = Callable[[ClientTerm, slice, Vectors], None]


@dataclass(frozen=True)
class Settling:
    """The end of a round, as terms see it; attributes are those of `AtServer`, whole.

    Attributes:
        own: a term's vectors of the cohort before and after training, `[K, n]` each, for a stretch of n coordinates.
        file: takes back the latter from a term that writes them.
        kept: the server's vectors of all terms, by `term.key(slot)`.
        bounds: a guard's, if there is one: terms see updates, and changes of clients' vectors, within them.
        usual: by `term.key(slot)`, what the last round's `run` returned.
    """

    store: UpdateStore
    theta: torch.Tensor
    weights: torch.Tensor
    own: Own
    file: File | None
    kept: Vectors
    work: torch.Tensor
    lr: float
    population: int
    bounds: Bounds | None = None
    usual: Mapping[str, float] = field(default_factory=dict)

    def run(self, terms: Iterable[ClientTerm]) -> dict[str, float]:
        """Lets each term update what the server keeps, and possibly the model; rows `[K, d]` are never held whole.

        Returns:
            The usual lengths of clients' vectors under a guard, for `usual` of the next round.
        """
        usual = dict(self.usual)
        acting = [term for term in terms if type(term).settle is not ClientTerm.settle]
        if not acting:
            return usual

        # What a guard found too long is cut for terms as it was for the sum.
        update_factors: torch.Tensor | None = None
        vector_factors: dict[str, torch.Tensor] = {}
        weights = self.weights
        if self.bounds is not None:
            update_factors = _as_column(self.bounds.factors)
            vector_factors = self._limit_vectors(acting, self.bounds, usual)
        if update_factors is not None:
            # The weights are coefficients on the updates as they came: they hold the factors already.
            positive = torch.where(update_factors > 0, update_factors, 1.0)[:, 0]
            weights = (weights.double() / positive).to(weights.dtype)

        def settle(piece: kernels.Piece, rows: torch.Tensor) -> None:
            part = slice(piece.start, piece.stop)
            updates = rows[:-1]
            if update_factors is not None:
                updates = (updates.double() * update_factors).to(updates.dtype)
            for term in acting:
                old, new = self.own(term, part)
                bounded = {slot: _cut_change(old[slot], new[slot], vector_factors.get(term.key(slot))) for slot in new}
                kept = {slot: self.kept[term.key(slot)][part] for slot in term.server_slots}
                at = ServerContext(
                    theta=self.theta[part],
                    before=rows[-1],
                    updates=updates,
                    weights=weights,
                    old=old,
                    new=bounded,
                    kept=kept,
                    work=self.work,
                    lr=self.lr,
                    population=self.population,
                )
                term.settle(at)
                if term.writes_slots and self.file is not None:
                    self.file(term, part, bounded)

        kernels.combine(self.store, len(self.store.ids) + 1, [(0, self.store.layout.dim)], settle)
        if self.bounds is not None:
            self._limit_server_vectors(acting, self.bounds.clip, usual)
        return usual

    def _limit_vectors(
        self, terms: Iterable[ClientTerm], bounds: Bounds, usual: dict[str, float]
    ) -> dict[str, torch.Tensor]:
        """By `term.key(slot)`: what the changes of clients' vectors are multiplied by, where any is cut.

        `usual` is brought up to date.
        """
        found: dict[str, torch.Tensor] = {}
        dim = self.store.layout.dim
        for term in terms:
            if not term.told_slots:
                continue
            squares = {slot: torch.zeros(len(self.store.ids), dtype=torch.float64) for slot in term.told_slots}
            for start in range(0, dim, kernels.BLOCK):
                old, new = self.own(term, slice(start, min(start + kernels.BLOCK, dim)))
                for slot, square in squares.items():
                    square += (new[slot].double() - old[slot]).square().sum(dim=1)
            for slot, square in squares.items():
                key = term.key(slot)
                factors, usual[key] = bounds.limit_vectors(square.sqrt().numpy(), usual.get(key, 0.0))
                column = _as_column(factors)
                if column is not None:
                    found[key] = column
        return found

    def _limit_server_vectors(self, terms: Iterable[ClientTerm], clip: float, usual: Mapping[str, float]) -> None:
        """Shortens what the server keeps as a mean of clients' vectors to `clip` times their usual length.

        Cut changes of one client, round after round, would add up without end otherwise.
        """
        for term in terms:
            for slot in term.told_slots:
                limit = clip * usual[term.key(slot)]
                if slot not in term.server_slots or limit == 0:
                    continue
                vector = self.kept[term.key(slot)]
                length = float(torch.linalg.vector_norm(vector, dtype=torch.float64))
                if length > limit:
                    vector.mul_(limit / length)


def usual_lengths(state: State) -> Mapping[str, float]:
    """The lengths that `Settling.run` returned in the last round, from the state handed on."""
    lengths: Mapping[str, float] = state.get("vector_norms", {})
    return lengths


def with_usual_lengths(state: State, lengths: Mapping[str, float]) -> State:
    """The state to hand on, with these lengths in it if there are any."""
    return {**state, "vector_norms": dict(lengths)} if lengths else state


def _as_column(factors: Array) -> torch.Tensor | None:
    """The factors `[K, 1]`; None if they change nothing."""
    return None if (factors == 1.0).all() else torch.from_numpy(factors)[:, None]


def _cut_change(old: torch.Tensor, new: torch.Tensor, factors: torch.Tensor | None) -> torch.Tensor:
    """`old + factors * (new - old)`: vectors `[K, n]` whose change is cut."""
    if factors is None:
        return new
    return (old + (new.double() - old) * factors).to(new.dtype)
