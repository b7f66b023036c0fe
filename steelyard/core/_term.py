"""The interface of client terms: what a client adds to the gradient of plain SGD.

A term acts on flat parameters, where its gradient is a few vector operations without an autograd
graph. Vectors have a leading axis of clients that train side by side, `[C, d]`; C is 1 for most
models.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from steelyard.core._errors import SteelyardError
from steelyard.core._gram import Array
from steelyard.core._layout import Leaf
from steelyard.core._needs import Needs
from steelyard.core._weighting import Info

Vectors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class ClientContext:
    """What a term sees while clients train.

    Attributes:
        start: the models that the clients received, `[C, d]` or `[1, d]`.
        lr: the learning rate of this round.
        own: the clients' own vectors of this term, by slot, `[C, d]`.
        sent: vectors from the server, by name, `[d]`: its slots of this term and, if the term needs
            them, `step` (the last aggregated step) or `move` (the last change of the global
            model). Both are zero in round 1.
        relative_size: number of examples divided by the mean over all clients, `[C, 1]`.
    """

    start: torch.Tensor
    lr: float
    own: Vectors
    sent: Vectors
    relative_size: torch.Tensor

    def first(self, count: int) -> ClientContext:
        """Return the context of the first `count` clients: the others have finished."""
        start = self.start if self.start.shape[0] == 1 else self.start[:count]
        own = {name: rows[:count] for name, rows in self.own.items()}
        return ClientContext(start, self.lr, own, self.sent, self.relative_size[:count])


@dataclass(frozen=True)
class ServerContext:
    """What a term sees at the server after the aggregation, for n coordinates at a time.

    Attributes:
        theta: the new global model `[n]`; the term may change it in place.
        before: the global model that the round started from, `[n]`.
        updates: the cohort's updates, `[K, n]`.
        weights: their coefficients in the sum, `[K]`.
        old: the cohort's own vectors of this term before training, by slot, `[K, n]`.
        new: the same after training; a term whose tags say `changes_client_vectors` may change
            them in place.
        server_vectors: the server's vectors of this term, by slot, `[n]`; the term may change them in place.
        work: local steps of each client including the effect of momentum (FedNova's a_i), `[K]`;
            ones if clients do not report it.
        lr: the learning rate of this round; NaN if clients choose it themselves (on Flower).
        population: number of all clients.
    """

    theta: torch.Tensor
    before: torch.Tensor
    updates: torch.Tensor
    weights: torch.Tensor
    old: Vectors
    new: Vectors
    server_vectors: Vectors
    work: torch.Tensor
    lr: float
    population: int


@dataclass(frozen=True)
class TermTags:
    """Facts about a client term that the server, the simulator and Flower must know.

    Attributes:
        reported_slots: names of the client vectors whose change `server_update` reads. Where
            clients store their vectors themselves, they send these changes with their model.
        changes_model: whether `server_update` changes the new model.
        changes_client_vectors: whether `server_update` changes the clients' vectors. This is
            impossible where clients store them themselves.
        updates_outside_cohort: whether clients outside the cohort also keep their changed vectors
            when all clients train. `server_update` does not see these changes.
        requires_plain_average: whether the term is only correct if the new model is the rule's
            combination of the clients' models, unchanged.
        requires_global_start: whether the term is only correct if clients start from the global
            model.
        requires_plain_sgd: whether the term's correction is a mean of gradients, which is only
            correct for SGD whose velocity starts at zero in each round.
    """

    reported_slots: tuple[str, ...] = ()
    changes_model: bool = False
    changes_client_vectors: bool = False
    updates_outside_cohort: bool = False
    requires_plain_average: bool = False
    requires_global_start: bool = False
    requires_plain_sgd: bool = False


class ClientTerm(ABC):
    """A term that is added to a client's gradient.

    Subclasses are frozen dataclasses and are not subclassed further, like rules.

    Attributes:
        name: the key in spec strings and in the state.
        info: title and paper, shown by the command line.
        client_slots: names of the vectors that each client keeps between its rounds; they start at
            zero.
        server_slots: names of the vectors that the server keeps and sends with the parameters;
            they start at zero.
        proximal: the mu of a penalty `mu/2 |x - start|^2` in this term; FedNova's normaliser
            includes it.
        tags: facts that other parts must know, see `TermTags`.
        direction: the name of the sent vector that the penalty pulls along, if any. The record of
            a round then has the cosine of each client to it.
    """

    name: str
    info: Info
    client_slots: tuple[str, ...] = ()
    server_slots: tuple[str, ...] = ()
    direction: str = ""

    def key(self, slot: str) -> str:
        """Return the name of a slot among the slots of all terms."""
        return f"{self.name}.{slot}"

    @property
    def proximal(self) -> float:
        """See the class attributes; 0 by default."""
        return 0.0

    @property
    def tags(self) -> TermTags:
        """See the class attributes; a subclass may also set `tags = TermTags(...)`."""
        return TermTags()

    @property
    def needs(self) -> Needs:
        """What the term needs; nothing by default."""
        return Needs()

    @abstractmethod
    def add(self, grad: torch.Tensor, x: torch.Tensor, at: ClientContext) -> None:
        """Add the term's gradient at `x` to `grad`, in place."""

    def finish(self, x: torch.Tensor, at: ClientContext, work: torch.Tensor) -> None:  # noqa: B027 - optional
        """Update the clients' own vectors in place after the last step.

        `work` is FedNova's a_i `[C, 1]`.
        """

    def server_update(self, at: ServerContext) -> None:  # noqa: B027 - optional
        """Update vectors, and possibly the model, at the server after the aggregation.

        It is called once for each chunk of coordinates, possibly from several threads.
        """

    def params_to_evaluate(self, theta: torch.Tensor, server_vectors: Vectors) -> torch.Tensor:
        """Return the model to evaluate: by default `theta`, the model that clients receive."""
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
            raise SteelyardError(
                f"client terms {' + '.join(names)}: use each term once, with the sum of the options"
            )

    def __add__(self, other: ClientTerm | Terms) -> Terms:
        return Terms(self.terms + (other.terms if isinstance(other, Terms) else (other,)))

    def __iter__(self) -> Iterator[ClientTerm]:
        return iter(self.terms)

    @property
    def needs(self) -> Needs:
        """The needs of all terms together."""
        needs = Needs()
        for term in self.terms:
            needs = needs | term.needs
        return needs

    @property
    def direction(self) -> str:
        """The name of the sent vector that a term pulls along; empty if there is none."""
        return next((term.direction for term in self.terms if term.direction), "")

    @property
    def proximal(self) -> float:
        """The sum of the terms' mu."""
        return sum(term.proximal for term in self.terms)


class Broadcast(ABC):
    """Where clients start, if not at the global model."""

    name: str
    info: Info

    @abstractmethod
    def coefficients(
        self, clients: int, leaves: Sequence[Leaf], round: int, rng: np.random.Generator
    ) -> Array:
        """Return the coefficients of the last global step in each client's start, per leaf.

        Returns:
            float64 `[clients, leaves]`.
        """
