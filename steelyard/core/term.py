"""The interface of what a client adds to plain SGD, and of what the server sends beside the parameters.

A term acts on flat parameters, where its gradient is a few vector operations: it needs no autograd graph. Vectors have
a leading axis of clients that are trained side by side, `[C, d]`; C is 1 for most models.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from steelyard.core.errors import SteelyardError
from steelyard.core.gram import Array
from steelyard.core.layout import Leaf
from steelyard.core.needs import Needs
from steelyard.core.weighting import Info

Vectors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class ClientContext:
    """What a term sees while clients train.

    Attributes:
        start: the models the clients received, `[C, d]` or `[1, d]`.
        lr: the learning rate of this round.
        own: the clients' own vectors of this term, by slot, `[C, d]`.
        sent: vectors the server sent, by name, `[d]`: its slots of this term, and `step` where declared (the last
            aggregated step) or `move` (the last change of the global model), both zero in round 1.
        relative_size: number of examples over the mean of all clients, `[C, 1]`.
    """

    start: torch.Tensor
    lr: float
    own: Vectors
    sent: Vectors
    relative_size: torch.Tensor

    def first(self, count: int) -> ClientContext:
        """The same for the first `count` clients, once the others have finished."""
        start = self.start if self.start.shape[0] == 1 else self.start[:count]
        own = {name: rows[:count] for name, rows in self.own.items()}
        return ClientContext(start, self.lr, own, self.sent, self.relative_size[:count])


@dataclass(frozen=True)
class ServerContext:
    """What a term sees after the sum, n coordinates at a time; some of it may be changed in place.

    Attributes:
        theta: the new global model `[n]`; may be changed.
        before: the global model the round started from `[n]`.
        updates: the cohort's updates `[K, n]`.
        weights: their coefficients in the sum `[K]`.
        old: the cohort's own vectors of this term before training, by slot `[K, n]`.
        new: the same after training; may be changed by a term that says so in `writes_slots`.
        kept: the server's vectors of this term, by slot `[n]`; may be changed.
        work: local steps of each client, momentum counted in (FedNova's a_i) `[K]`; ones where clients do not tell.
        lr: the learning rate of this round; NaN where clients choose it themselves (on Flower).
        population: number of all clients.
    """

    theta: torch.Tensor
    before: torch.Tensor
    updates: torch.Tensor
    weights: torch.Tensor
    old: Vectors
    new: Vectors
    kept: Vectors
    work: torch.Tensor
    lr: float
    population: int


class ClientTerm(ABC):
    """Something added to a client's gradient. Abstract or final, a frozen dataclass, as rules are.

    Attributes:
        name: the key in text form and in the state.
        info: what the command line says of it.
        client_slots: vectors every client keeps from one participation to the next; they start at zero.
        server_slots: vectors the server keeps and sends with the parameters; they start at zero.
        files_all: whether, where all train, clients outside the cohort keep what that changed, unknown to `settle`.
        proximal: the mu of a term `mu/2 |x - start|^2` inside this one, which FedNova's normaliser counts in.
        wants_average: whether it is sound only where the new model is what the rule made of the clients' models.
        moves_model: whether `settle` moves the new model away from that.
        told_slots: clients' vectors whose change `settle` looks at.
        writes_slots: whether `settle` changes clients' vectors: where they keep them themselves, it cannot.
        wants_start: whether it is sound only where clients start from the global model itself.
        wants_sgd: whether its correction is a mean of gradients: sound only for SGD whose velocity starts at zero in
            each round.
        direction: the name of the sent vector that its penalty pulls along, if any: the record of a round then has
            each client's cosine to it.
    """

    name: str
    info: Info
    client_slots: tuple[str, ...] = ()
    server_slots: tuple[str, ...] = ()
    wants_average: bool = False
    moves_model: bool = False
    told_slots: tuple[str, ...] = ()
    writes_slots: bool = False
    wants_start: bool = False
    wants_sgd: bool = False
    direction: str = ""

    def key(self, slot: str) -> str:
        """The name of one of its vectors among those of all terms."""
        return f"{self.name}.{slot}"

    @property
    def proximal(self) -> float:
        """None, by default."""
        return 0.0

    @property
    def files_all(self) -> bool:
        """The cohort alone, by default."""
        return False

    @property
    def needs(self) -> Needs:
        """Nothing, by default."""
        return Needs()

    @abstractmethod
    def add(self, grad: torch.Tensor, x: torch.Tensor, at: ClientContext) -> None:
        """Adds the term's gradient at `x` to `grad`, in place."""

    def finish(self, x: torch.Tensor, at: ClientContext, work: torch.Tensor) -> None:  # noqa: B027 - most keep nothing
        """Updates the clients' own vectors in place after the last step; `work` is FedNova's a_i `[C, 1]`."""

    def settle(self, at: ServerContext) -> None:  # noqa: B027
        """Updates vectors, and possibly the model, at the server after the sum: coordinate by coordinate.

        It is called for one stretch of the model after another, possibly from several threads.
        """

    def params_to_evaluate(self, theta: torch.Tensor, kept: Vectors) -> torch.Tensor:
        """The model to evaluate, where it is not the one that is sent."""
        return theta

    def __add__(self, other: ClientTerm | Terms) -> Terms:
        return Terms((self,)) + other


@dataclass(frozen=True)
class Terms:
    """A sum of terms: `fedprox(mu=0.01) + fedcos()`."""

    terms: tuple[ClientTerm, ...] = ()

    def __post_init__(self) -> None:
        names = [term.name for term in self.terms]
        if len(set(names)) < len(names):
            raise SteelyardError(f"client terms {' + '.join(names)}: each may occur once; add up their options instead")

    def __add__(self, other: ClientTerm | Terms) -> Terms:
        return Terms(self.terms + (other.terms if isinstance(other, Terms) else (other,)))

    def __iter__(self) -> Iterator[ClientTerm]:
        return iter(self.terms)

    @property
    def needs(self) -> Needs:
        """Those of all terms."""
        needs = Needs()
        for term in self.terms:
            needs = needs | term.needs
        return needs

    @property
    def direction(self) -> str:
        """The name of the sent vector that one of them pulls along; empty if none does."""
        return next((term.direction for term in self.terms if term.direction), "")

    @property
    def proximal(self) -> float:
        """The sum of the terms' mu."""
        return sum(term.proximal for term in self.terms)


class Broadcast(ABC):
    """What clients start from, where that is not the global model itself."""

    name: str
    info: Info

    @abstractmethod
    def coefficients(self, clients: int, leaves: Sequence[Leaf], round: int, rng: np.random.Generator) -> Array:
        """How much of the last global step each client's start holds, for each leaf: float64 `[clients, leaves]`."""
