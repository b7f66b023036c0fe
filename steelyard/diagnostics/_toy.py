"""FedCos's example in the plane: quadratic clients, and the path of the global model.

Zhang et al., IEEE Internet of Things Journal, 2023, Figure 4 (two clients, functions and start in
footnote 3) and Figure 13 (three clients, start (4.53, 0.38)). FedAvg stops between the local
optima; FedCos circles around that point and so comes closer to the global optimum.

The paper gives neither the learning rate nor the number of local steps nor mu: here they are 0.1,
50 and the caller's. It does not give the functions of Figure 13 either: the third client is ours.
With mu = 0.5 and two clients the path is chaotic: a change in the last bit gives a different path
after about ten rounds. With mu = 0.2 it is not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from steelyard.core import checks
from steelyard.core._errors import SteelyardError
from steelyard.core._gram import Array
from steelyard.core._term import ClientContext, ClientTerm

Matrix = tuple[tuple[float, float], tuple[float, float]]
Vector = tuple[float, float]


@dataclass(frozen=True)
class Toy:
    """Clients `f_k(x) = (x - o_k)^T A_k (x - o_k) / 2` in the plane.

    The global objective is their sum.

    Attributes:
        curvatures: A_k, symmetric.
        optima: o_k.
        start: the initial global model.
    """

    curvatures: tuple[Matrix, ...]
    optima: tuple[Vector, ...]
    start: Vector

    @property
    def optimum(self) -> Array:
        """The minimum of the sum, `[2]`: `(sum A_k)^-1 sum A_k o_k`."""
        curvatures = np.array(self.curvatures)
        weighted_optima = np.einsum("kij,kj->i", curvatures, np.array(self.optima))
        optimum: Array = np.linalg.solve(curvatures.sum(axis=0), weighted_optima)
        return optimum

    def loss(self, points: Array) -> Array:
        """Return the global objective at `[..., 2]`."""
        difference = np.asarray(points, dtype=np.float64)[..., None, :] - np.array(self.optima)
        values: Array = 0.5 * np.einsum(
            "...ki,kij,...kj->...", difference, np.array(self.curvatures), difference
        )
        return values


TWO_CLIENTS = Toy(
    (((1.0, 0.75), (0.75, 1.0)), ((1.0, -0.5), (-0.5, 1.0))),
    ((6.0, 0.0), (3.0, 0.0)),
    (5.1, -3.1),
)
"""Figure 4, footnote 3."""

THREE_CLIENTS = Toy(
    (*TWO_CLIENTS.curvatures, ((1.0, 0.4), (0.4, 1.0))),
    (*TWO_CLIENTS.optima, (4.5, 2.0)),
    (4.53, 0.38),
)
"""Figure 13: the start is the paper's, the third client ours."""


@dataclass(frozen=True)
class Trajectory:
    """The path of the global model.

    Attributes:
        points: the global model before the first round and after each, `[T + 1, 2]`.
        optimum: of the global objective, `[2]`.
    """

    points: Array
    optimum: Array

    @property
    def distances(self) -> Array:
        """The distances to the optimum, `[T + 1]`."""
        distances: Array = np.linalg.norm(self.points - self.optimum, axis=1)
        return distances

    @property
    def closest(self) -> float:
        """The smallest distance to the optimum after a round."""
        return float(self.distances[1:].min())


def trajectory(
    toy: Toy = TWO_CLIENTS,
    term: ClientTerm | None = None,
    rounds: int = 80,
    steps: int = 50,
    lr: float = 0.1,
) -> Trajectory:
    """Run federated gradient descent on a toy, with equal weights.

    Args:
        toy: the clients and the start.
        term: changes the clients' gradients, such as `steelyard.fedcos(mu=0.5)`; None is FedAvg.
        rounds: the number of rounds.
        steps: local steps per round.
        lr: the local learning rate.
    """
    checks.integer("rounds", rounds, 1)
    checks.integer("steps", steps, 1)
    checks.number("lr", lr, 0.0, open_low=True)
    if term is not None and (term.client_slots or term.server_slots):
        raise SteelyardError(
            f"term {term.name!r} keeps vectors between rounds: use fedcos or fedprox, which keep "
            f"none"
        )
    curvatures = torch.tensor(toy.curvatures, dtype=torch.float64)  # [C, 2, 2]
    optima = torch.tensor(toy.optima, dtype=torch.float64)  # [C, 2]
    ones = torch.ones(len(optima), 1, dtype=torch.float64)
    points = [torch.tensor(toy.start, dtype=torch.float64)]
    step = torch.zeros(2, dtype=torch.float64)
    for _ in range(rounds):
        # All clients start from the global model and take their steps together.
        context = ClientContext(points[-1][None], lr, {}, {"step": step, "move": step}, ones)
        x = points[-1].expand_as(optima).clone()
        for _ in range(steps):
            gradient = torch.einsum("kij,kj->ki", curvatures, x - optima)
            if term is not None:
                term.add(gradient, x, context)
            x.sub_(gradient, alpha=lr)
        # The new global model is their mean.
        points.append(x.mean(dim=0))
        step = points[-1] - points[-2]
    return Trajectory(torch.stack(points).numpy(), toy.optimum)
