"""The loss of a network on fixed samples as a function of its parameters, and its Hessian."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from steelyard.client.flat import FlatModel, Loss
from steelyard.client.losses import check_targets
from steelyard.core.errors import SteelyardError
from steelyard.core.gram import Array
from steelyard.core.layout import Layout, Params

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
                f"surface: {len(inputs)} inputs and {len(targets)} targets: give one target per input, and at least one"
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
                raise SteelyardError(f"params have shape {list(params.shape)}: give a vector [{self.layout.dim}]")
            network.load(params.detach(), *self._buffers)
        else:
            reason = self.layout.mismatch({name: (tuple(t.shape), t.dtype) for name, t in params.items()})
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
                gradients = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True)
                # Its inner product with the vector. Where the loss is linear the gradient is constant.
                terms = []
                for (leaf, _), gradient in zip(self._learned, gradients, strict=True):
                    if gradient is not None and gradient.requires_grad:
                        terms.append((gradient * vector[leaf.start : leaf.stop].view(leaf.shape)).sum())
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


def _second_gradients(inner: torch.Tensor, parameters: list[nn.Parameter]) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of an expression of gradients.

    Raise an error if a layer has no second derivative.
    """
    try:
        return torch.autograd.grad(inner, parameters, allow_unused=True)
    except RuntimeError as error:  # such as that of nn.EmbeddingBag
        if "not implemented" not in str(error):
            raise
        reason = str(error).rstrip(".")
        raise SteelyardError(f"the network has no second derivative ({reason}): replace that layer") from None
