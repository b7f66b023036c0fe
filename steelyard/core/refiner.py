"""The interface of what the server does with proxy data after the sum: fine-tuning, distillation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch

from steelyard.core.client_state import State
from steelyard.core.errors import SteelyardError
from steelyard.core.gram import Array
from steelyard.core.layout import Leaf
from steelyard.core.probe import Session, Trial
from steelyard.core.sink import Sink
from steelyard.core.store import UpdateStore
from steelyard.core.sums import UpdateMap
from steelyard.core.weighting import Info


@dataclass(frozen=True)
class RefineContext:
    """A round after the sum: the new model is in the session, ready to be trained.

    Attributes:
        session: the network; `params` and its statistics are the aggregated model's.
        trial: puts any mixture of the clients into the network.
        shares: the clients' weights, as a distribution `[K]`.
    """

    session: Session
    trial: Trial
    shares: Array

    @property
    def store(self) -> UpdateStore:
        """The updates."""
        return self.trial.store

    def updates(self, leaf: Leaf) -> tuple[torch.Tensor, torch.Tensor]:
        """The clients' updates of a leaf `[K, n]`, as a guard lets them pass, and the global parameters `[n]`."""
        rows = self.store.rows(leaf.start, leaf.stop, self.store.scratch(leaf.size))
        updates = rows[:-1]
        if self.trial.rows is not None:
            updates = UpdateMap(self.trial.rows, updates.dtype)(updates)
        return updates, rows[-1]

    def client(self, row: int) -> None:
        """Puts a client's model into the network, with its own statistics."""
        layout, (stats, _) = self.store.layout, self.store.stats()
        self.trial.mix(np.eye(len(self.store.ids))[row], 1.0)
        self.session.adopt({leaf.name: stats[row, leaf.start : leaf.stop].view(leaf.shape) for leaf in layout.stats})


class Refiner(ABC):
    """Changes the aggregated model in the session by means of the proxy data.

    Attributes:
        name: the key in text form and in the state.
        info: what the command line says of it.
    """

    name: str
    info: Info

    @abstractmethod
    def refine(self, at: RefineContext, state: State) -> State:
        """Trains `at.session.params` in place; returns the state for the next round."""


class SessionSink:
    """A sink that keeps the sum in a session, for a refiner, before the real sink gets it."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.others: dict[str, tuple[Leaf, torch.Tensor]] = {}

    def room(self, start: int, stop: int) -> torch.Tensor:
        """A view of the session's parameters."""
        return self.session.params[start:stop]

    def write(self, start: int, values: torch.Tensor) -> None:
        """Copies a chunk into place."""
        self.session.params[start : start + values.numel()].copy_(values)

    def put(self, leaf: Leaf, values: torch.Tensor) -> None:
        """Keeps a statistic or a counter."""
        self.others[leaf.name] = (leaf, values)

    def refined(self, refiner: Refiner, trial: Trial, shares: Array, state: State, sink: Sink) -> State:
        """Lets the refiner train, and hands the result on; returns the refiner's state."""
        self.session.adopt({name: values for name, (_, values) in self.others.items()})
        after = refiner.refine(RefineContext(self.session, trial, shares), state)
        params = self.session.params
        if not bool(torch.isfinite(params).all()):
            raise SteelyardError(f"{refiner.name}: the model it trained holds NaN or infinity: use a lower lr")
        sink.write(0, params)
        trained = self.session.buffers() or {}
        for name, (leaf, values) in self.others.items():
            sink.put(leaf, trained.get(name, values).to(leaf.dtype).view(leaf.shape))
        return after
