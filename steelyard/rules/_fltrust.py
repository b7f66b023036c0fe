"""FLTrust: trust clients as far as they agree with the server's own update.

Cao, Fang, Liu, Gong, "FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping", NDSS
2021. The server trains the global model on its own clean samples (the root data set; here the proxy
data), as a client does, and gets the update d_0:

    trust_k = max(0, cos(d_k, d_0))
    theta'  = theta + sum_k (trust_k / sum_j trust_j) (|d_0| / |d_k|) d_k

d_0 is one more row of the Gram, of which the products `<d_0, d_k>` and the length are needed: one
projection of the updates. Attackers cannot increase their influence by the length of their update,
by a false size or by agreeing with each other. They can by being numerous and close to d_0.

The step is never longer than the server's update, so the server should train as the clients do:
the same learning rate, and about as many steps (`lr`, `epochs`; the batch size is the probe's).

Differences from the public code (we read copies in several repositories, not the authors' archive):
it adds 1e-9 to all norms and to the sum of the scores, so that nothing is divided by zero. Here a
zero update has no trust, and if no client is trusted, the round is void: the model does not change.
BatchNorm statistics follow the probe's option `bn`: by default they are those of the server's
training and not of the clients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch

from steelyard import kernels, threads
from steelyard.core import checks
from steelyard.core._errors import NonFiniteLoss
from steelyard.core._gram import Array
from steelyard.core._mixture import Mixture
from steelyard.core._needs import Needs
from steelyard.core._probe import Trial
from steelyard.core._registry import RULES
from steelyard.core._state import State
from steelyard.core._view import View
from steelyard.core._weighting import Info, Weighting


@RULES.register
@dataclass(frozen=True)
class FLTrust(Weighting):
    """Clients weighted by their cosine to the server's update, and rescaled to its length.

    Attributes:
        epochs: the server's passes over its proxy data.
        lr: the server's learning rate (plain SGD).
    """

    epochs: int = 1
    lr: float = 0.1

    name = "fltrust"
    modifies = False
    info = Info(
        "trusts clients as far as they agree with the server's own update",
        "Cao et al., NDSS 2021",
        secagg="yes, in two passes: the server's update is sent to clients, each scales its own",
        passes="three passes over the updates: inner products, products with the server's update, "
        "then the sum; and the training of one network on the proxy data",
    )

    def __post_init__(self) -> None:
        checks.integer("epochs", self.epochs, 1)
        checks.number("lr", self.lr, 0.0, open_low=True)

    @property
    def needs(self) -> Needs:
        """The proxy data, to train on, and the Gram, for the norms of the updates."""
        return Needs(probe=True, gram=True)

    @property
    def remarks(self) -> tuple[str, ...]:
        """How long the step is."""
        return (
            "the step is at most as long as the server's own update: set lr and epochs so that the "
            "server trains as much as a client",
        )

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Train on the proxy data, score the clients and rescale their updates."""
        # Norms come first: they refuse updates that hold NaN or infinity.
        norms = view.norms
        length, dots = self.train_server(view)

        # Trust scores.
        products = norms * length
        cosines = np.divide(dots, products, out=np.zeros_like(dots), where=products > 0)
        trust = np.clip(cosines, 0.0, 1.0)
        if not trust.any():
            mixture = Mixture.convex(np.ones((1, len(norms))))
            void = "fltrust trusts no client: every update is against the server's own update"
            return replace(mixture, void=void), state

        # Weights on the updates.
        factors = np.divide(length, norms, out=np.zeros_like(norms), where=trust > 0)
        weights = trust / trust.sum() * factors
        return Mixture(weights[None], np.ones(1)), state

    def train_server(self, view: View) -> tuple[float, Array]:
        """Return the length of the server's update and its products with the clients', `[K]`."""
        # Start from the global model.
        trial = view.probe
        session = trial.session
        trial.mix(np.zeros(len(view.ids)), 1.0)
        params = session.params

        # Train. The update is added up on its own: the difference of two models would lose digits.
        update = torch.zeros_like(params)
        for _ in range(self.epochs):
            for batch in trial.epoch():
                loss = session.backward(batch)
                if not math.isfinite(loss):
                    raise NonFiniteLoss(
                        f"fltrust: the loss of the server's training is NaN or infinite in round "
                        f"{view.round}: lower lr={self.lr}"
                    )
                with torch.no_grad():
                    for start, slope in session.slopes():
                        stop = start + slope.numel()
                        params[start:stop].sub_(slope, alpha=self.lr)
                        update[start:stop].sub_(slope, alpha=self.lr)

        # Compare the update with those of the clients.
        with threads.alone():
            length = float(torch.linalg.vector_norm(update, dtype=torch.float64))
        return length, project_updates(trial, update)


def project_updates(trial: Trial, vector: torch.Tensor) -> Array:
    """Return the inner products of the clients' updates with a vector, `[K]`."""
    store = trial.store
    dots = kernels.project(store, len(store.ids) + 1, [(0, vector)], trial.chunk)[:-1]
    return dots if trial.rows is None else trial.rows @ dots
