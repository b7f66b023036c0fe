"""The loss on the simplex of three clients' weights.

FedLAW (Li et al., ICML 2023), Appendix B.2, Figure 12: models `sum_k lambda_k theta_k` on a grid of
weights that sum to 1, with FedAvg's weights and the best ones. The more the clients' data differ,
the sharper the loss is and the further FedAvg is from the optimum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from steelyard.core import checks
from steelyard.core.client_state import State
from steelyard.core.errors import SteelyardError
from steelyard.core.gram import Array
from steelyard.core.layout import Params
from steelyard.core.mixture import Mixture
from steelyard.core.needs import Needs
from steelyard.core.round import Round, run
from steelyard.core.view import View
from steelyard.core.weighting import Info, Weighting
from steelyard.diagnostics.cohort import Weights, shares_of
from steelyard.stores.memory import MemorySink, MemoryStore

Evaluate = Callable[[Params], float | tuple[float, float]]
_CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(0.75)]])


@dataclass(frozen=True)
class Landscape:
    """Loss and accuracy over the weights of three clients.

    Attributes:
        weights: the points of the grid, `[n, 3]`.
        loss: of the mixed models, `[n]`.
        accuracy: of the mixed models, `[n]`; NaN if it was not measured.
        fedavg: FedAvg's weights, `[3]`.
        fedavg_loss: at those weights, which need not be on the grid.
        fedavg_accuracy: at those weights.
    """

    weights: Array
    loss: Array
    accuracy: Array
    fedavg: Array
    fedavg_loss: float
    fedavg_accuracy: float

    @property
    def optimum(self) -> Array:
        """The weights on the grid with the smallest loss, `[3]`."""
        best: Array = self.weights[self._lowest]
        return best

    @property
    def optimum_loss(self) -> float:
        """The smallest loss on the grid."""
        return float(self.loss[self._lowest])

    @property
    def _lowest(self) -> int:
        """The position of the smallest loss."""
        if np.isnan(self.loss).all():
            raise SteelyardError("the loss is NaN at all points: give models from before training diverged")
        return int(np.nanargmin(self.loss))

    @property
    def plane(self) -> Array:
        """The grid in the plane, `[n, 2]`: a triangle of side 1 with a client at each corner."""
        return to_plane(self.weights)


def to_plane(weights: Array) -> Array:
    """Return weights `[..., 3]` as points `[..., 2]` of a triangle of side 1."""
    points: Array = np.asarray(weights, dtype=np.float64) @ _CORNERS
    return points


def simplex_grid(points: int) -> Array:
    """Return a grid of weights of three clients, `[points (points + 1) / 2, 3]`.

    There are `points` on each side of the triangle.
    """
    checks.integer("points", points, 2)
    last = points - 1
    rows = [(i, j, last - i - j) for i in range(points) for j in range(points - i)]
    grid: Array = np.array(rows, dtype=np.float64) / last
    return grid


def weight_landscape(
    evaluate: Evaluate,
    clients: torch.Tensor | Sequence[Params],
    sizes: Weights | None = None,
    points: int = 21,
) -> Landscape:
    """Evaluate mixtures of three clients' models on a grid of weights.

    Args:
        evaluate: returns the loss, or loss and accuracy, of a model in the clients' form: a
            `Surface`, or any function.
        clients: the three models: `[3, d]`, or state dicts, whose running statistics are mixed with
            the same weights.
        sizes: of the clients' data, for FedAvg's point; equal by default.
        points: on each side of the triangle.
    """
    # Check the models.
    models = list(clients)
    if len(models) != 3:
        raise SteelyardError(f"there are {len(models)} clients: a plane of weights needs 3")
    store = MemoryStore.of(models[0], models)
    if store.quarantined:
        client, reason = next(iter(store.quarantined.items()))
        raise SteelyardError(f"clients: number {client} is refused, {reason}: give three models of the same form")

    def evaluate_at(weights: Array) -> tuple[float, float]:
        """Return loss and accuracy of the mixture with these weights."""
        sink = MemorySink(store.layout)
        run(_Fixed(tuple(weights.tolist())), store, Round(), sink)
        result = evaluate(sink.params(store.base))
        if isinstance(result, tuple):
            return result[0], result[1]
        return float(result), float("nan")

    # Evaluate the grid, then FedAvg's point.
    grid = simplex_grid(points)
    fedavg = shares_of(sizes, 3)
    values = np.array([evaluate_at(weights) for weights in grid])
    return Landscape(grid, values[:, 0], values[:, 1], fedavg, *evaluate_at(fedavg))


@dataclass(frozen=True)
class _Fixed(Weighting):
    """Fixed weights, for a point of the grid; not registered, because no round should use it."""

    weights: tuple[float, ...]

    name = "fixed"
    info = Info("weights as given", "")

    @property
    def needs(self) -> Needs:
        return Needs()

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        return prior.reweight(np.array([self.weights])), state
