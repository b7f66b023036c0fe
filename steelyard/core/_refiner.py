"""The interface of refiners: they train the aggregated model on the server's proxy data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch

from steelyard.core._errors import SteelyardError
from steelyard.core._gram import Array
from steelyard.core._layout import Leaf
from steelyard.core._probe import Session, Trial
from steelyard.core._state import State
from steelyard.core._store import Sink, UpdateStore
from steelyard.core._sums import UpdateMap
from steelyard.core._weighting import Info


@dataclass(frozen=True)
class RefineContext:
    """A round after the sum: the new model is in the session, ready to be trained.

    Attributes:
        session: the network; its parameters and statistics are those of the aggregated model.
        trial: loads mixtures of the clients into the network.
        shares: the clients' weights as a distribution, `[K]`.
    """

    session: Session
    trial: Trial
    shares: Array

    @property
    def store(self) -> UpdateStore:
        """The updates of the round."""
        return self.trial.store

    def updates(self, leaf: Leaf) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the clients' updates of a leaf `[K, n]` and the leaf of the global model `[n]`.

        If the rule has a guard, the updates are clipped as it clipped them.
        """
        rows = self.store.rows(leaf.start, leaf.stop, self.store.scratch(leaf.size))
        updates = rows[:-1]
        if self.trial.rows is not None:
            updates = UpdateMap(self.trial.rows, updates.dtype)(updates)
        return updates, rows[-1]

    def client(self, row: int) -> None:
        """Load a client's model and statistics into the network; `row` is its position."""
        layout = self.store.layout
        stats, _ = self.store.stats()
        self.trial.mix(np.eye(len(self.store.ids))[row], 1.0)
        buffers = {}
        for leaf in layout.stats:
            buffers[leaf.name] = stats[row, leaf.start : leaf.stop].view(leaf.shape)
        self.session.adopt(buffers)


class Refiner(ABC):
    """Trains the aggregated model on the proxy data.

    Attributes:
        name: the key in spec strings and in the state.
        info: title and paper, shown by the command line.
    """

    name: str
    info: Info

    @abstractmethod
    def refine(self, at: RefineContext, state: State) -> State:
        """Train `at.session.params` in place and return the state for the next round."""


class SessionSink:
    """A sink that writes the aggregated model into a session, where a refiner trains it."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.buffers: dict[str, tuple[Leaf, torch.Tensor]] = {}

    def room(self, start: int, stop: int) -> torch.Tensor:
        """Return a view of the session's parameters."""
        return self.session.params[start:stop]

    def write(self, start: int, values: torch.Tensor) -> None:
        """Copy a chunk into the session's parameters."""
        self.session.params[start : start + values.numel()].copy_(values)

    def write_leaf(self, leaf: Leaf, values: torch.Tensor) -> None:
        """Store a statistic or a counter."""
        self.buffers[leaf.name] = (leaf, values)

    def refine(
        self, refiner: Refiner, trial: Trial, shares: Array, state: State, sink: Sink
    ) -> State:
        """Run the refiner, write the trained model to `sink` and return the refiner's state."""
        # Train.
        self.session.adopt({name: values for name, (_, values) in self.buffers.items()})
        after = refiner.refine(RefineContext(self.session, trial, shares), state)
        params = self.session.params
        if not bool(torch.isfinite(params).all()):
            raise SteelyardError(
                f"{refiner.name}: the trained model holds NaN or infinity: use a lower lr"
            )

        # Write the parameters, then the statistics and counters.
        sink.write(0, params)
        trained = self.session.buffers() or {}
        for name, (leaf, values) in self.buffers.items():
            sink.write_leaf(leaf, trained.get(name, values).to(leaf.dtype).view(leaf.shape))
        return after
