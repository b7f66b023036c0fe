"""What a server keeps from round to round, and the steps of a round that every server runs.

The simulator and Flower both use `ServerState`. They differ in where the clients' models and
vectors are (shared memory, or messages and files), and pass these to it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import torch

from steelyard.core import _round as rounds
from steelyard.core._errors import SteelyardError
from steelyard.core._layout import Granularity, Layout, Leaf
from steelyard.core._lora import FACTORS
from steelyard.core._optimizer import ServerOptimizer
from steelyard.core._probe import ProxyLoss
from steelyard.core._refiner import Refiner
from steelyard.core._rng import stream
from steelyard.core._round_gram import RoundGram
from steelyard.core._server_terms import (
    ServerTermStep,
    TensorStep,
    add_usual_norms,
    read_usual_norms,
)
from steelyard.core._side_channel import Classifier
from steelyard.core._state import ClientId, State
from steelyard.core._store import Sink, UpdateStore
from steelyard.core._term import ClientTerm, Terms, Vectors
from steelyard.core._weighting import Weighting

Metrics = Mapping[str, Mapping[ClientId, Any]]


class CohortVectors(Protocol):
    """Access to the vectors that the accepted clients of a round keep.

    Attributes:
        local_steps: local steps of each client, `[K]`, as `ServerContext.work`.
    """

    local_steps: torch.Tensor

    def read(self, term: ClientTerm, part: slice) -> tuple[Vectors, Vectors]:
        """Return a term's vectors before and after training, by slot, for a slice, `[K, n]`."""

    def write(self, term: ClientTerm, part: slice, vectors: Vectors) -> None:
        """Store vectors that a term changed at the server."""

    def read_tensors(self, name: str, rows: Sequence[int]) -> torch.Tensor:
        """Return a tensor that clients sent, by `term.key(name)`, for some rows, `[K, ...]`."""


class Observer(Protocol):
    """Sees every round beside the rule, and cannot change it: shadow rules."""

    def observe(
        self, round_gram: RoundGram, store: UpdateStore, probe: ProxyLoss | None
    ) -> dict[str, Any]:
        """Return entries for the record of a round; must not raise an error."""

    def snapshot(self) -> dict[str, Any]:
        """Return the state, as checkpoints store it."""

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Continue from a snapshot."""


class ServerState:
    """The rule's state and the server's vectors, and how a round changes them.

    Attributes:
        rule: computes the weights.
        terms: the client terms, which may have a part at the server.
        optimizer: the server optimizer, if any.
        refiner: trains the new model on proxy data, if any.
        probe: the proxy data, if any.
        rule_state: what the rule and the optimizer remember of the previous rounds.
        vectors: the vectors that the server sends beside the parameters, by name: `step`, `move`,
            and `term.key(slot)` for each server slot of a term.
        classifier: the last linear layer of the network, if there are feature terms.
        tensors: the small tensors that the server keeps for feature terms, by `term.key(name)`.
        seed: random seed of the run.
        observer: shadow rules, if any.
        record_layers: a granularity whose Gram the outcome of a round has beside that of the whole
            model, if any.
        lora: what to return for LoRA adapters.
    """

    def __init__(
        self,
        rule: Weighting,
        terms: Terms,
        *,
        optimizer: ServerOptimizer | None = None,
        refiner: Refiner | None = None,
        probe: ProxyLoss | None = None,
        vectors: dict[str, torch.Tensor] | None = None,
        seed: int = 0,
    ) -> None:
        self.rule = rule
        self.terms = terms
        self.optimizer = optimizer
        self.refiner = refiner
        self.probe = probe
        self.rule_state: State = {}
        self.vectors: dict[str, torch.Tensor] = {} if vectors is None else vectors
        self.observer: Observer | None = None
        self.record_layers: Granularity | None = None
        self.lora = FACTORS
        self.classifier: Classifier | None = None
        self.tensors: dict[str, torch.Tensor] = {}
        self.seed = seed

    def prepare_tensors(
        self, classifier: Classifier, tensors: dict[str, torch.Tensor] | None = None
    ) -> None:
        """Set the small tensors of feature terms to their values before the first round.

        Args:
            classifier: the last linear layer of the network.
            tensors: memory for the tensors, by `term.key(name)`; by default new memory.
        """
        self.classifier = classifier
        self.tensors = {} if tensors is None else tensors
        for term in self.terms.feature_terms:
            rng = stream(self.seed, "term", 0, term.name)
            values = term.init_tensors(classifier, rng)
            for name, spec in term.server_tensors(classifier).items():
                tensor = self.tensors.get(term.key(name))
                if tensor is None:
                    tensor = torch.zeros(spec.shape, dtype=spec.dtype)
                    self.tensors[term.key(name)] = tensor
                if name in values:
                    tensor.copy_(values[name])

    @property
    def sent_tensors(self) -> dict[str, torch.Tensor]:
        """The small tensors that clients receive, by `term.key(name)`."""
        specs = self.terms.server_tensors(self.classifier)
        return {name: self.tensors[name] for name, spec in specs.items() if spec.is_sent}

    def aggregate(
        self,
        store: UpdateStore,
        sink: Sink,
        number: int,
        metrics: Metrics,
        *,
        diagnose: bool = True,
        population_examples: int | None = None,
    ) -> rounds.Outcome:
        """Weigh and sum the updates; `apply_server_terms` finishes the round.

        Args:
            store: the updates of the cohort.
            sink: receives the new model.
            number: number of the round.
            metrics: values that clients reported, by metric name, then by client id.
            diagnose: whether to compute a complete report.
            population_examples: number of examples of all clients; None if unknown.

        Returns:
            The outcome. If it is void, the state did not change, and the round is finished.
        """
        job = rounds.Round(
            metrics,
            self.rule_state,
            number,
            self.optimizer,
            diagnose=diagnose or self.observer is not None,
            step=self.vectors.get("step"),
            direction=self.vectors.get(self.terms.direction),
            probe=self.probe,
            refine=self.refiner,
            population_examples=population_examples,
            record_layers=self.record_layers,
            lora=self.lora,
        )
        outcome = rounds.run_or_void(self.rule, store, job, sink)
        if self.observer is not None and outcome.round_gram is not None:
            entries = self.observer.observe(outcome.round_gram, outcome.store, self.probe)
            outcome.report.update(entries)
        return outcome

    def apply_server_terms(
        self,
        outcome: rounds.Outcome,
        theta: torch.Tensor,
        cohort: CohortVectors,
        read_start: Callable[[Leaf], torch.Tensor],
        *,
        number: int,
        population: int,
        lr: float,
    ) -> None:
        """Let client terms update the server's vectors and the model, and keep the new state.

        Args:
            outcome: what `aggregate` returned; not void.
            theta: the new global model `[d]`; terms may change it in place.
            cohort: the vectors of the clients in `outcome.store.ids`.
            read_start: returns the flat values of a leaf before the round.
            number: number of the round.
            population: number of all clients.
            lr: the learning rate of the round; NaN if clients choose it.
        """
        # The server's part of the client terms.
        step = ServerTermStep(
            store=outcome.store,
            theta=theta,
            weights=torch.from_numpy(outcome.weights.mean(axis=0)).to(theta.dtype),
            read_client_vectors=cohort.read,
            write_client_vectors=cohort.write,
            server_vectors=self.vectors,
            work=cohort.local_steps,
            lr=lr,
            population=population,
            bounds=outcome.bounds,
            usual_norms=read_usual_norms(self.rule_state),
        )
        usual_norms = step.run(self.terms)

        # The small tensors of feature terms.
        if self.classifier is not None:
            tensor_step = TensorStep(
                classifier=self.classifier,
                server_tensors=self.tensors,
                read_client_tensors=cohort.read_tensors,
                rows=outcome.counted_rows,
                bounds=outcome.bounds,
                seed=self.seed,
                round=number,
            )
            tensor_step.run(self.terms.feature_terms)

        # The last change of the model, if clients or a broadcast use it.
        if "move" in self.vectors:
            move = self.vectors["move"]
            for leaf in outcome.store.layout.params:
                part = slice(leaf.start, leaf.stop)
                torch.sub(theta[part], read_start(leaf), out=move[part])

        self.rule_state = add_usual_norms(outcome.state, usual_norms)

    def params_to_evaluate(self, theta: torch.Tensor, layout: Layout) -> torch.Tensor:
        """Return the parameters to evaluate: `theta` itself, unless a term returns others."""
        for term in self.terms:
            vectors = {slot: self.vectors[term.key(slot)] for slot in term.server_slots}
            theta = term.params_to_evaluate(theta, vectors)
        return self._replace_classifier(theta, layout)

    def _replace_classifier(self, theta: torch.Tensor, layout: Layout) -> torch.Tensor:
        """Return the parameters with the classifier of a feature term, if one has another."""
        if self.classifier is None:
            return theta
        for term in self.terms.feature_terms:
            names = term.server_tensors(self.classifier)
            tensors = {name: self.tensors[term.key(name)] for name in names}
            matrix = term.classifier_to_evaluate(tensors)
            if matrix is None:
                continue
            weight_name = self.classifier.weight_name
            if any(leaf.tied and weight_name in (leaf.name, leaf.tied) for leaf in layout.leaves):
                raise SteelyardError(
                    f"client={term.name}: the layer {self.classifier.name!r} shares its weight with "
                    "another layer, so it cannot be replaced: use a layer with its own weight"
                )
            theta = theta.clone()
            for leaf in layout.params:
                part = theta[leaf.start : leaf.stop]
                if leaf.name == weight_name:
                    part.copy_(matrix[:, :-1].reshape(-1))
                elif leaf.name == self.classifier.bias_name:
                    part.copy_(matrix[:, -1])
        return theta

    def snapshot(self) -> dict[str, Any]:
        """Return the state and copies of the vectors, as checkpoints store them."""
        vectors = {name: vector.clone() for name, vector in self.vectors.items()}
        snapshot: dict[str, Any] = {"rule": self.rule_state, "sent": vectors}
        if self.tensors:
            tensors = {name: tensor.clone() for name, tensor in self.tensors.items()}
            snapshot["tensors"] = tensors
        if self.observer is not None:
            snapshot["shadow"] = self.observer.snapshot()
        return snapshot

    def restore(self, snapshot: Mapping[str, Any], without: Collection[str] = ()) -> None:
        """Continue from a snapshot.

        Args:
            snapshot: what `snapshot` returned.
            without: names of vectors that keep their present values.
        """
        self.rule_state = snapshot["rule"]
        if self.observer is not None and "shadow" in snapshot:
            self.observer.restore(snapshot["shadow"])
        for name, vector in snapshot["sent"].items():
            if name in without:
                continue
            if name in self.vectors:
                self.vectors[name].copy_(vector)
            else:
                self.vectors[name] = vector
        for name, tensor in self.tensors.items():
            tensor.copy_(snapshot["tensors"][name])
