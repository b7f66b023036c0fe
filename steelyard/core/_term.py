"""The interface of client terms: what a client adds to the gradient of plain SGD.

A term acts on flat parameters, where its gradient is a few vector operations without an autograd
graph. Vectors have a leading axis of clients that train side by side, `[C, d]`; C is 1 for most
models. A feature term adds to the loss instead, as a function of the network's features, and
exchanges small tensors with the server.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from steelyard.core._errors import SteelyardError
from steelyard.core._gram import Array
from steelyard.core._layout import Leaf
from steelyard.core._needs import Needs
from steelyard.core._side_channel import Classifier, Specs
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
        tensors: for a feature term, the small tensors that the server sent, by name.
    """

    start: torch.Tensor
    lr: float
    own: Vectors
    sent: Vectors
    relative_size: torch.Tensor
    tensors: Vectors = field(default_factory=dict)

    def first(self, count: int) -> ClientContext:
        """Return the context of the first `count` clients: the others have finished."""
        start = self.start if self.start.shape[0] == 1 else self.start[:count]
        own = {name: rows[:count] for name, rows in self.own.items()}
        relative_size = self.relative_size[:count]
        return ClientContext(start, self.lr, own, self.sent, relative_size, self.tensors)


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
class TensorContext:
    """What a feature term sees at the server after the aggregation.

    Attributes:
        messages: the tensors that clients sent, by name, `[K, ...]`. Clients that a guard set aside
            are not among them.
        server_tensors: the server's tensors of this term, by name; the term changes them in place.
        classifier: the last linear layer of the network.
        rng: random generator of this term and round.
    """

    messages: Vectors
    server_tensors: Vectors
    classifier: Classifier
    rng: np.random.Generator


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


class FeatureTerm(ClientTerm):
    """A term that adds to the loss of a client, as a function of the network's features.

    The features of a sample are the inputs of the classifier, the last linear layer of the network.
    With its model, a client sends small tensors that summarize the features of its data; the server
    combines them, and sends its own tensors in the next round.

    Attributes:
        classifier: the name of the classifier in the network; empty to find it. Then it is the
            layer `classifier`, or else the last linear layer that the network defines.
        summarized_model: the model whose features `summarize` gets: `trained`, or `received` for
            the model from the server.
    """

    classifier: str = ""
    summarized_model: str = "trained"

    def set_classifier_name(self) -> None:
        """Check the option `classifier`; a number, as layers of a Sequential have, becomes text.

        A subclass with this option calls it in `__post_init__`.
        """
        name: Any = self.classifier
        if isinstance(name, int) and not isinstance(name, bool):
            name = str(name)
        if not isinstance(name, str):
            raise SteelyardError(
                f"classifier={name!r}: use the name of a layer, in quotes if it has the form of a "
                f'number: classifier="0.1"'
            )
        object.__setattr__(self, "classifier", name)

    @property
    def has_loss(self) -> bool:
        """Whether the term adds to the loss."""
        return type(self).loss is not FeatureTerm.loss

    def client_tensors(self, classifier: Classifier) -> Specs:
        """Return the declarations of the tensors that each client sends, by name."""
        return {}

    def server_tensors(self, classifier: Classifier) -> Specs:
        """Return the declarations of the tensors that the server keeps, by name.

        Those that are not declared with `is_sent=False` are sent to clients.
        """
        return {}

    def init_tensors(self, classifier: Classifier, rng: np.random.Generator) -> Vectors:
        """Return the server's tensors before the first round; those that are missing are zero."""
        return {}

    def add(self, grad: torch.Tensor, x: torch.Tensor, at: ClientContext) -> None:
        """Add nothing: `loss` adds to the loss."""

    def loss(
        self,
        features: torch.Tensor,
        outputs: torch.Tensor,
        targets: torch.Tensor,
        at: ClientContext,
    ) -> torch.Tensor:
        """Return what is added to the mean loss of a batch.

        Args:
            features: the features of the batch, `[n, dim]`, with their graph.
            outputs: the outputs of the network, `[n, classes]`, with their graph.
            targets: the classes, int64 `[n]`.
            at: what the term sees, above all `at.tensors`.
        """
        return features.new_zeros(())

    def summarize(
        self,
        features: torch.Tensor,
        targets: torch.Tensor,
        classifier: Classifier,
        at: ClientContext,
    ) -> Vectors:
        """Return the tensors that a client sends, by name.

        Args:
            features: the features of all training samples, in evaluation mode, `[n, dim]`.
            targets: their classes, int64 `[n]`.
            classifier: the last linear layer of the network.
            at: what the term sees, above all `at.tensors`.
        """
        return {}

    def update_tensors(self, at: TensorContext) -> None:
        """Update the server's tensors in place, after the aggregation."""

    def classifier_to_evaluate(self, server_tensors: Vectors) -> torch.Tensor | None:
        """Return weight and bias of another classifier to evaluate, `[classes, dim + 1]`.

        By default None: the classifier of the aggregated model is evaluated. The last column is the
        bias; without a bias in the network it is not used.
        """
        return None


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
        layers = {term.classifier for term in self.feature_terms}
        if len(layers) > 1:
            texts = " and ".join(sorted(repr(layer) for layer in layers))
            raise SteelyardError(
                f"client terms {' + '.join(names)} have classifier={texts}: use the same layer"
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
    def feature_terms(self) -> list[FeatureTerm]:
        """The terms that are functions of features."""
        return [term for term in self.terms if isinstance(term, FeatureTerm)]

    @property
    def classifier(self) -> str:
        """The name of the classifier that the feature terms specify; empty to find it."""
        return next((term.classifier for term in self.feature_terms), "")

    def client_tensors(self, classifier: Classifier | None) -> Specs:
        """Return the declarations of all tensors that clients send, by `term.key(name)`."""
        if classifier is None:
            return {}
        return {
            term.key(name): spec
            for term in self.feature_terms
            for name, spec in term.client_tensors(classifier).items()
        }

    def server_tensors(self, classifier: Classifier | None) -> Specs:
        """Return the declarations of all tensors that the server keeps, by `term.key(name)`."""
        if classifier is None:
            return {}
        return {
            term.key(name): spec
            for term in self.feature_terms
            for name, spec in term.server_tensors(classifier).items()
        }

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
