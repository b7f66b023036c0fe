"""What client terms do at the server after the sum, a stretch of coordinates at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from steelyard import kernels
from steelyard.core.store import UpdateStore
from steelyard.core.term import AtServer, ClientTerm, Vectors

Own = Callable[[ClientTerm, slice], tuple[Vectors, Vectors]]
File = Callable[[ClientTerm, slice, Vectors], None]


@dataclass(frozen=True)
class Settling:
    """The end of a round, as terms see it; attributes are those of `AtServer`, whole.

    Attributes:
        own: a term's vectors of the cohort before and after training, `[K, n]` each, for a stretch of n coordinates.
        file: takes back the latter from a term that writes them.
        kept: the server's vectors of all terms, by `term.key(slot)`.
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

    def run(self, terms: Iterable[ClientTerm]) -> None:
        """Lets each term update what the server keeps, and possibly the model; rows `[K, d]` are never held whole."""
        acting = [term for term in terms if type(term).settle is not ClientTerm.settle]

        def settle(piece: kernels.Piece, rows: torch.Tensor) -> None:
            part = slice(piece.start, piece.stop)
            for term in acting:
                old, new = self.own(term, part)
                kept = {slot: self.kept[term.key(slot)][part] for slot in term.server_slots}
                at = AtServer(
                    theta=self.theta[part],
                    before=rows[-1],
                    updates=rows[:-1],
                    weights=self.weights,
                    old=old,
                    new=new,
                    kept=kept,
                    work=self.work,
                    lr=self.lr,
                    population=self.population,
                )
                term.settle(at)
                if term.writes_slots and self.file is not None:
                    self.file(term, part, new)

        if acting:
            kernels.combine(self.store, len(self.store.ids) + 1, [(0, self.store.layout.dim)], settle)
