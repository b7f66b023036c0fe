"""The loss of a network on fixed samples, as a function of its parameters: values, and Hessian times vector."""

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
    """A model's mean loss and its accuracy, NaN where targets are no classes."""

    loss: float
    accuracy: float


class Surface:
    """The loss surface of a network. The network itself stays as it is; BatchNorm and dropout are as in evaluation.

    Vectors hold the parameters in the order of their names, which need not be that of `model.parameters()`.

    Attributes:
        layout: where each parameter lies in a vector.
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
        """Copies the network; `double` also makes it float64."""
        if len(inputs) != len(targets) or len(inputs) == 0:
            found = f"{len(inputs)} inputs and {len(targets)} targets"
            raise SteelyardError(f"surface: {found}: give one target per input, and at least one")
        own = copy.deepcopy(model)
        if double:
            own = own.double()
            inputs, targets = (t.double() if t.is_floating_point() else t for t in (inputs, targets))
        device = next((parameter.device for parameter in own.parameters()), torch.device("cpu"))
        self.layout = Layout.of(own.state_dict())
        self._network = FlatModel(own, loss, inputs, device, self.layout)
        check_targets(self._network.loss, targets)
        self._network.module.eval()
        self._inputs, self._targets = self._network.prepare_inputs(inputs), targets.to(device)
        self._index = torch.arange(len(inputs), device=device)
        self.theta = self._network.params[0].clone()
        self._buffers = self._network.stats.clone(), self._network.counts()
        named = dict(own.named_parameters(remove_duplicate=False))
        leaves = [(leaf, named[leaf.name]) for leaf in self.layout.params if leaf.name in named]
        self._learned = [(leaf, parameter) for leaf, parameter in leaves if parameter.requires_grad]

    def __call__(self, params: Params) -> Point:
        """Loss and accuracy of another model: a vector `[d]` with the network's statistics, or a state dict."""
        network = self._network
        if isinstance(params, torch.Tensor):
            if params.shape != self.theta.shape:
                raise SteelyardError(f"params have shape {list(params.shape)}: give a vector [{self.layout.dim}]")
            network.load(params.detach(), *self._buffers)
        else:
            reason = self.layout.mismatch({name: (tuple(t.shape), t.dtype) for name, t in params.items()})
            if reason is not None:
                raise SteelyardError(f"params do not fit the network, {reason}: use one model")
            network.load(*network.vectors(params))
        loss, right, count = network.evaluate(self._inputs, self._targets, self._index)
        return Point(loss / count, right / count)

    @property
    def free(self) -> torch.Tensor:
        """Which coordinates are learned, bool `[d]`."""
        mask = self._network.free
        return torch.ones_like(self.theta, dtype=torch.bool) if mask is None else mask.bool()

    def curvature(self, vector: torch.Tensor) -> torch.Tensor:
        """The Hessian of the mean loss at the network's own parameters times a vector `[d]`, by double backward."""
        network = self._network
        network.load(self.theta, *self._buffers)
        parameters = [parameter for _, parameter in self._learned]
        product = torch.zeros_like(self.theta)
        with sdpa_kernel(SDPBackend.MATH):  # the fast kernels of attention have no second derivative
            for part in torch.split(self._index, _BATCH):
                outputs = network.module(network.batch(self._inputs, part))
                loss = network.loss(outputs, self._targets[part]) * (len(part) / len(self._index))
                slopes = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True)
                bent = [
                    (slope * vector[leaf.start : leaf.stop].view(leaf.shape)).sum()
                    for (leaf, _), slope in zip(self._learned, slopes, strict=True)
                    if slope is not None and slope.requires_grad  # constant where the loss is linear
                ]
                if not bent:
                    continue
                for (leaf, _), bend in zip(self._learned, _again(torch.stack(bent).sum(), parameters), strict=True):
                    if bend is not None:
                        product[leaf.start : leaf.stop] += bend.reshape(-1)
        return product

    def losses(self, points: Iterable[torch.Tensor]) -> Array:
        """The loss at each of some vectors `[d]`, float64 `[n]`."""
        return np.array([self(point).loss for point in points], dtype=np.float64)


def _again(inner: torch.Tensor, parameters: list[nn.Parameter]) -> tuple[torch.Tensor | None, ...]:
    """The second backward pass."""
    try:
        return torch.autograd.grad(inner, parameters, allow_unused=True)
    except RuntimeError as error:  # nn.EmbeddingBag's, for one
        if "not implemented" not in str(error):
            raise
        reason = str(error).rstrip(".")
        raise SteelyardError(f"the network has no second derivative ({reason}): replace that layer") from None
