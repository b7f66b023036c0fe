"""The loss around a model: on the simplex of three clients' weights, and its flatness.

The simplex: `weight_landscape` and `Landscape`. Flatness: the largest eigenvalues of the Hessian.

FedLAW (Li et al., ICML 2023), Appendix B.2, Figure 12: models `sum_k lambda_k theta_k` on a grid of
weights that sum to 1, with FedAvg's weights and the best ones. The more the clients' data differ,
the sharper the loss is and the further FedAvg is from the optimum.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from steelyard.client._flat import FlatModel, Loss
from steelyard.client._losses import check_targets
from steelyard.core import checks
from steelyard.core._errors import SteelyardError
from steelyard.core._gram import Array
from steelyard.core._layout import Layout, Params
from steelyard.core._mixture import Mixture
from steelyard.core._needs import Needs
from steelyard.core._round import Round, run
from steelyard.core._state import State
from steelyard.core._view import View
from steelyard.core._weighting import Info, Weighting
from steelyard.diagnostics._distances import Weights, shares_of
from steelyard.sim._callbacks import Callback
from steelyard.sim._simulator import Simulation
from steelyard.stores._memory import MemorySink, MemoryStore

# The loss of a network on fixed samples as a function of its parameters, and its Hessian.

_BATCH = 512  # samples per pass


class Point(NamedTuple):
    """Mean loss and accuracy of a model; the accuracy is NaN if targets are not classes."""

    loss: float
    accuracy: float


class Surface:
    """The loss surface of a network. The network itself does not change.

    BatchNorm and dropout are in evaluation mode.

    Vectors contain the parameters in the order of their names, which may differ from that of
    `model.parameters()`.

    Attributes:
        layout: where each parameter is in a vector.
        theta: the network's own parameters `[d]`.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: torch.Tensor,
        targets: torch.Tensor,
        loss: str | Loss = "cross_entropy",
        double: bool = False,
    ) -> None:
        """Copy the network; `double` also converts it to float64."""
        if len(inputs) != len(targets) or len(inputs) == 0:
            raise SteelyardError(
                f"surface: {len(inputs)} inputs and {len(targets)} targets: give one target per "
                f"input, and at least one"
            )
        # Copy the network, and convert everything to float64 if asked.
        own = copy.deepcopy(model)
        if double:
            own = own.double()
            inputs = inputs.double() if inputs.is_floating_point() else inputs
            targets = targets.double() if targets.is_floating_point() else targets
        device = next((parameter.device for parameter in own.parameters()), torch.device("cpu"))
        # Flatten it.
        self.layout = Layout.of(own.state_dict())
        self._network = FlatModel(own, loss, inputs, device, self.layout)
        check_targets(self._network.loss, targets)
        self._network.module.eval()
        self.theta = self._network.params[0].clone()
        self._buffers = self._network.stats.clone(), self._network.counts()
        # The samples.
        self._inputs = self._network.prepare_inputs(inputs)
        self._targets = targets.to(device)
        self._index = torch.arange(len(inputs), device=device)
        # The learned parameters, with their position in the vector.
        by_name = dict(own.named_parameters(remove_duplicate=False))
        self._learned = []
        for leaf in self.layout.params:
            parameter = by_name.get(leaf.name)
            if parameter is not None and parameter.requires_grad:
                self._learned.append((leaf, parameter))

    def __call__(self, params: Params) -> Point:
        """Return loss and accuracy of another model.

        It is a vector `[d]`, used with the network's own statistics, or a state dict.
        """
        network = self._network
        if isinstance(params, torch.Tensor):
            if params.shape != self.theta.shape:
                raise SteelyardError(
                    f"params have shape {list(params.shape)}: give a vector [{self.layout.dim}]"
                )
            network.load(params.detach(), *self._buffers)
        else:
            reason = self.layout.mismatch(
                {name: (tuple(t.shape), t.dtype) for name, t in params.items()}
            )
            if reason is not None:
                raise SteelyardError(f"params do not fit the network, {reason}: use the same model")
            network.load(*network.vectors(params))
        loss, num_correct, count = network.evaluate(self._inputs, self._targets, self._index)
        return Point(loss / count, num_correct / count)

    @property
    def free(self) -> torch.Tensor:
        """Which coordinates are learned, bool `[d]`."""
        mask = self._network.free
        return torch.ones_like(self.theta, dtype=torch.bool) if mask is None else mask.bool()

    def curvature(self, vector: torch.Tensor) -> torch.Tensor:
        """Return the Hessian of the mean loss at the network's parameters times a vector `[d]`."""
        network = self._network
        network.load(self.theta, *self._buffers)
        parameters = [parameter for _, parameter in self._learned]
        product = torch.zeros_like(self.theta)
        with sdpa_kernel(SDPBackend.MATH):  # the fast attention kernels have no second derivative
            for part in torch.split(self._index, _BATCH):
                # The gradient.
                outputs = network.module(network.batch(self._inputs, part))
                loss = network.loss(outputs, self._targets[part]) * (len(part) / len(self._index))
                gradients = torch.autograd.grad(
                    loss, parameters, create_graph=True, allow_unused=True
                )
                # Its inner product with the vector. Where the loss is linear the gradient is
                # constant.
                terms = []
                for (leaf, _), gradient in zip(self._learned, gradients, strict=True):
                    if gradient is not None and gradient.requires_grad:
                        terms.append(
                            (gradient * vector[leaf.start : leaf.stop].view(leaf.shape)).sum()
                        )
                if not terms:
                    continue
                # The gradient of this product is the Hessian times the vector.
                columns = _second_gradients(torch.stack(terms).sum(), parameters)
                for (leaf, _), column in zip(self._learned, columns, strict=True):
                    if column is not None:
                        product[leaf.start : leaf.stop] += column.reshape(-1)
        return product

    def losses(self, points: Iterable[torch.Tensor]) -> Array:
        """Return the loss at each of these vectors `[d]`, float64 `[n]`."""
        return np.array([self(point).loss for point in points], dtype=np.float64)


def _second_gradients(
    inner: torch.Tensor, parameters: list[nn.Parameter]
) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of an expression of gradients.

    Raise an error if a layer has no second derivative.
    """
    try:
        return torch.autograd.grad(inner, parameters, allow_unused=True)
    except RuntimeError as error:  # such as that of nn.EmbeddingBag
        if "not implemented" not in str(error):
            raise
        reason = str(error).rstrip(".")
        raise SteelyardError(
            f"the network has no second derivative ({reason}): replace that layer"
        ) from None


# Flatness of the loss around a model, measured by the largest eigenvalues of its Hessian.
#
# FedLAW (Li et al., ICML 2023), Figure 4 and Appendix B.1, Figure 10: the largest eigenvalue
# lambda_1, the ratio lambda_1 / lambda_5, and the loss along the eigenvector of lambda_1. Small
# values mean flat minima. The paper gives neither the samples nor the method; here it is Lanczos
# iteration on Hessian-vector products, so the Hessian is never formed. "Top" means the largest in
# value, not in magnitude: at a minimum the two are the same.


@dataclass(frozen=True)
class Spectrum:
    """The largest eigenvalues of a Hessian.

    Attributes:
        values: eigenvalues, the largest first, `[k]`.
        vectors: their eigenvectors of length 1, `[k, d]`, parameters in the order of their names; 0
            for frozen parameters.
    """

    values: Array
    vectors: Array

    @property
    def top(self) -> float:
        """lambda_1: the smaller, the flatter."""
        return float(self.values[0])

    @property
    def ratio(self) -> float:
        """lambda_1 / lambda_5: the smaller, the flatter; infinite where lambda_5 is 0."""
        if len(self.values) < 5:
            raise SteelyardError(
                f"lambda_1 / lambda_5 of {len(self.values)} eigenvalues: ask for k=5"
            )
        return float(self.values[0] / self.values[4]) if self.values[4] else float("inf")


def hessian_spectrum(
    model: nn.Module,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    k: int = 5,
    *,
    loss: Loss = nn.functional.cross_entropy,
    double: bool = False,
    tolerance: float = 1e-4,
    seed: int = 0,
) -> Spectrum:
    """Return the `k` largest eigenvalues of the Hessian of the mean loss, and their eigenvectors.

    Args:
        model: the network, in evaluation mode; it is not changed.
        inputs: samples.
        targets: what to predict.
        k: how many eigenvalues; less than the number of learned parameters.
        loss: a mean over samples.
        double: compute in float64: up to ten times slower; float32 is accurate to about three
            digits.
        tolerance: relative error at which to stop.
        seed: of the start vector of the iteration.
    """
    try:
        from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh
    except ModuleNotFoundError:
        raise SteelyardError(
            "Hessian spectra need scipy: pip install 'steelyard[diagnostics]'"
        ) from None
    checks.integer("k", k, 1)
    checks.number("tolerance", tolerance, 0.0)
    surface = Surface(model, inputs, targets, loss, double)
    is_learned = surface.free.cpu()
    size = int(is_learned.sum())
    if k >= size:
        raise SteelyardError(
            f"k={k} eigenvalues of a model with {size} learned parameters: use k less than {size}"
        )

    def product(vector: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the Hessian times a vector of the learned parameters."""
        direction = torch.zeros_like(surface.theta, device="cpu")
        direction[is_learned] = torch.from_numpy(vector.reshape(-1)).to(direction.dtype)
        curvature = surface.curvature(direction.to(surface.theta.device))
        return curvature.cpu()[is_learned].double().numpy()

    # Try one product, to explain what is wrong before the iteration starts.
    start = np.random.default_rng(seed).standard_normal(size)
    first = product(start)
    if not np.isfinite(first).all():
        raise SteelyardError(
            "the curvature of the loss is not finite: give a model and samples with a finite loss"
        )
    if not first.any():
        raise SteelyardError("the curvature of the loss is 0 around this model: give other samples")

    # Lanczos iteration.
    operator = LinearOperator((size, size), matvec=product, dtype=np.float64)
    try:
        values, vectors = eigsh(operator, k=k, which="LA", tol=tolerance, v0=start)
    except ArpackError as error:
        raise SteelyardError(
            f"tolerance={tolerance}: use a larger one or double=True ({error})"
        ) from None

    # The largest first, with zeros for frozen parameters.
    order = np.argsort(values)[::-1]
    all_vectors = np.zeros((k, len(is_learned)))
    all_vectors[:, is_learned.numpy()] = vectors[:, order].T
    return Spectrum(values[order], all_vectors)


def losses_along(
    model: nn.Module,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    direction: Array,
    steps: Sequence[float],
    *,
    loss: Loss = nn.functional.cross_entropy,
) -> Array:
    """Return the loss at `theta + s v` for each step s along a direction v `[d]`.

    The direction may be the top eigenvector.
    """
    surface = Surface(model, inputs, targets, loss)
    if np.shape(direction) != tuple(surface.theta.shape):
        raise SteelyardError(
            f"direction has shape {list(np.shape(direction))}: give [{surface.layout.dim}]"
        )
    along = torch.as_tensor(direction).to(surface.theta)
    return surface.losses(surface.theta + step * along for step in steps)


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
            raise SteelyardError(
                "the loss is NaN at all points: give models from before training diverged"
            )
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
        raise SteelyardError(
            f"clients: number {client} is refused, {reason}: give three models of the same form"
        )

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


class OptimumPath(Callback):
    """Finds the best weights of three clients in each round of a run (FedLAW, Figure 12, right).

    A callback of `simulate`. It adds `optimal_weights` to the record, by client, and
    `optimal_weights_loss`: the point of the grid with the smallest loss on the test set. The run
    itself goes on with the weights of its own rule. `by_client(run, "optimal_weights")` reads the
    path.

    Args:
        points: on each side of the triangle.
        every: rounds between measurements.
        samples: the number of test samples that the loss is measured on, the first ones; all by
            default.
    """

    def __init__(self, points: int = 11, every: int = 1, samples: int | None = None) -> None:
        checks.integer("points", points, 2)
        checks.integer("every", every, 1)
        if samples is not None:
            checks.integer("samples", samples, 1)
        self.points = points
        self.every = every
        self.samples = samples
        self.last: Landscape | None = None

    def start(self, simulation: Simulation) -> None:
        """Prepare the loss on the test set."""
        work = simulation.work
        test = work.federation.test
        if test is None:
            raise SteelyardError("OptimumPath: the run has no test set: give test=")
        part = test if self.samples is None else test.take(slice(self.samples))
        self.surface = Surface(work.model.module, part.inputs, part.targets, work.model.loss)

    def round(self, simulation: Simulation, record: dict[str, Any]) -> None:
        """Evaluate the grid of weights, and record the best ones."""
        if record["void"] or record["round"] % self.every:
            return
        clients = list(record["weights"])
        if len(clients) != 3 or record["quarantined"]:
            raise SteelyardError(
                f"OptimumPath: round {record['round']} has {len(clients)} clients: a plane of "
                f"weights needs 3"
            )
        # The updates are in the first rows, the model before the round in the row after them.
        buffers = simulation.buffers
        models = []
        for row in range(3):
            params = buffers.matrix[3] + buffers.matrix[row]
            model = simulation.work.model
            models.append(model.state_dict(params, buffers.row_stats[row], buffers.row_counts[row]))

        # The landscape of the round.
        ids = [str(client) for client in simulation.work.federation.ids]
        sizes = [simulation.work.sizes[ids.index(client)] for client in clients]
        landscape = weight_landscape(self.surface, models, sizes=sizes, points=self.points)
        record["optimal_weights"] = dict(zip(clients, landscape.optimum.tolist(), strict=True))
        record["optimal_weights_loss"] = landscape.optimum_loss
        self.last = landscape
