"""The server's proxy data: a network, a few labelled samples, and the loss of any model on them.

A mixture has no running statistics of its own. The option `bn` selects what BatchNorm uses:

    proxy     batches are normalised by their own statistics; the running statistics start at those
              of the global model, are updated by the passes and become those of the new model.
              Clients' statistics are not used. This is what FedLAW's authors do.
    average   batches are normalised by their own statistics; the new model gets the average of the
              clients' statistics.
    frozen    batches are normalised by the global model's running statistics; the new model gets
              the average of the clients' statistics.

Dropout is off.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from steelyard.client._flat import FlatModel, Loss
from steelyard.client._losses import check_targets, resolve_loss
from steelyard.core import checks
from steelyard.core._errors import SteelyardError
from steelyard.core._layout import Layout, Leaf
from steelyard.core._probe import Objective
from steelyard.core._rng import data_stream
from steelyard.data._dataset import Dataset
from steelyard.data._proxy import Proxy, balanced_order
from steelyard.kernels import Part


class Probe:
    """Proxy samples and the network that is evaluated on them.

    Flat client vectors are in the order of `model.parameters()`; state dicts are matched by name.
    The model is copied and not changed, with one exception: if clients are flat vectors, its
    BatchNorm buffers are those of the server, and are updated.

    Attributes:
        model: the network.
        inputs: the samples, `[n, ...]`.
        targets: the targets of the samples.
        batch_size: samples per step.
        shuffle: whether to draw a new order for every epoch, from seed and round.
        loss: a name (`"mse"`), or a function `loss(outputs, targets)`, a mean over the batch.
        bn: `proxy`, `average` or `frozen`.
        balanced: whether to draw the same number of samples of every class, repeating samples if
            necessary.
        seed: seed of the order of batches.

    Examples:
        >>> import steelyard
        >>> model = nn.Linear(2, 2, bias=False)
        >>> base = model.state_dict()
        >>> clients = [{"weight": base["weight"] + step} for step in (0.1, -0.1)]
        >>> probe = steelyard.Probe(model, torch.eye(2), torch.tensor([0, 1]))
        >>> out = steelyard.aggregate(
        ...     "law:epochs=2", base, clients, metrics={"num_examples": [1, 1]}, probe=probe
        ... )
        >>> out.params["weight"].shape
        torch.Size([2, 2])
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Any,
        targets: Any,
        batch_size: int = 128,
        shuffle: bool = True,
        *,
        loss: str | Loss = "cross_entropy",
        bn: str = "proxy",
        balanced: bool = False,
        seed: int = 0,
    ) -> None:
        checks.integer("batch_size", batch_size, 1)
        checks.one_of("bn", bn, "proxy", "average", "frozen")
        checks.integer("seed", seed)
        self.model = model
        self.inputs = torch.as_tensor(inputs)
        self.targets = torch.as_tensor(targets)
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.loss = resolve_loss(loss)
        self.bn = bn
        self.balanced = balanced
        self.seed = seed
        self.network: FlatModel | None = None  # set in a run
        if len(self.inputs) != len(self.targets) or len(self.inputs) == 0:
            raise SteelyardError(
                f"probe: {len(self.inputs)} inputs and {len(self.targets)} targets: "
                "pass one target per input, and at least one"
            )
        check_targets(self.loss, self.targets)

    @classmethod
    def within(cls, network: FlatModel, samples: Dataset, options: Proxy, seed: int) -> Probe:
        """Return a probe that uses the network of a run, with the same layout as the clients."""
        probe = cls(
            network.module,
            samples.inputs,
            samples.targets,
            options.batch_size,
            options.shuffle,
            loss=network.loss,
            bn=options.bn,
            balanced=options.balanced,
            seed=seed,
        )
        probe.network = network
        return probe

    def resident(self) -> Probe:
        """Return the probe with its own network, laid out as in a simulated run: the same bits."""
        probe = copy.copy(self)
        if probe.network is None:
            module = copy.deepcopy(self.model)
            probe.network = FlatModel(module, self.loss, self.inputs, torch.device("cpu"))
        return probe

    def fingerprint(self) -> str:
        """Return a hash of the samples."""
        digest = hashlib.sha256(self.targets.cpu().numpy().tobytes())
        digest.update(self.inputs.contiguous().numpy().tobytes())
        return digest.hexdigest()

    def open(
        self,
        layout: Layout,
        number: int,
        buffers: Mapping[str, torch.Tensor],
        state: Mapping[str, torch.Tensor],
    ) -> ProbeSession:
        """Return a session for round `number`, with the statistics of the global model."""
        return ProbeSession(self, layout, number, buffers, state)


class ProbeSession:
    """A probe in use for one round."""

    def __init__(
        self,
        probe: Probe,
        layout: Layout,
        number: int,
        buffers: Mapping[str, torch.Tensor],
        state: Mapping[str, torch.Tensor],
    ) -> None:
        # Samples and their random order.
        self.probe = probe
        self.flat = layout.flat
        self.rng = data_stream(probe.seed, "proxy", number)
        self.network = probe.network or _copy_network(probe, layout)
        self.inputs = self.network.prepare_inputs(probe.inputs)
        self.targets = self.network.cast(probe.targets)

        # Parameters. With channels last, the network's own vector is not in the clients' order.
        # `free` has the same value over a leaf, so its order does not matter.
        self.params = self.network.params[0]
        if self.network.channels_last:
            self.params = torch.empty_like(self.params)
        self.free = self.network.free

        # The trained parameters, and their gradients after a pass.
        parameters = dict(self.network.module.named_parameters())
        self.trained = []
        for leaf in self.network.layout.params:
            if leaf.name in parameters and parameters[leaf.name].requires_grad:
                self.trained.append((leaf, parameters[leaf.name]))
        self._grads: list[torch.Tensor | None] | None = None

        # Statistics and counters.
        if layout.flat:
            buffers = state or dict(probe.model.named_buffers())
        self.adopt(buffers)

    def adopt(self, buffers: Mapping[str, torch.Tensor]) -> None:
        """Set statistics and counters, by name."""
        own = dict(self.network.module.named_buffers())
        with torch.no_grad():
            for name in buffers.keys() & self.copy_buffers().keys():
                own[name].copy_(buffers[name])

    def copy_buffers(self) -> dict[str, torch.Tensor]:
        """Statistics and counters as they are now."""
        own, layout = dict(self.network.module.named_buffers()), self.network.layout
        return {
            leaf.name: own[leaf.name].detach().clone() for leaf in (*layout.stats, *layout.counts)
        }

    def epoch(self) -> Iterator[torch.Tensor]:
        """Positions of the samples, batch by batch."""
        count = len(self.probe.inputs)
        if self.probe.balanced:
            order = balanced_order(self.probe.targets, self.rng)
        else:
            order = self.rng.permutation(count) if self.probe.shuffle else np.arange(count)
        return iter(torch.split(torch.from_numpy(order), self.probe.batch_size))

    def backward(self, batch: torch.Tensor, objective: Objective | None = None) -> float:
        """Compute the gradient of a batch, in the layout's coordinates; return the loss."""
        network = self.network
        self._mode(batch)
        self._load_params()
        self._grads = None
        outputs = network.module(network.batch(self.inputs, batch))
        if objective is None:
            loss = network.loss(outputs, self.targets[batch])
        else:
            loss = objective(outputs, batch)
        parameters = [parameter for _, parameter in self.trained]
        self._grads = list(torch.autograd.grad(loss, parameters, allow_unused=True))
        return float(loss.item())

    def _load_params(self) -> None:
        """Copy the parameters into the network, if they are not a view of it."""
        if self.network.channels_last:
            with torch.no_grad():
                self.network.load_params(self.params)

    def slopes(self) -> list[Part]:
        """Return the gradient leaf by leaf, without a copy."""
        assert self._grads is not None
        parts = []
        for (leaf, _), grad in zip(self.trained, self._grads, strict=True):
            if grad is not None:
                parts.append((leaf.start, grad.reshape(-1)))
        return sorted(parts, key=lambda part: part[0])

    def gradient(self) -> torch.Tensor:
        """Return the gradient as one vector."""
        vector = torch.zeros_like(self.params)
        for start, values in self.slopes():
            vector[start : start + values.numel()] = values
        return vector

    def outputs(self) -> torch.Tensor:
        """Return the outputs of the network for all samples, in evaluation mode."""
        network = self.network
        network.module.eval()
        self._load_params()
        index = torch.arange(len(self.probe.inputs))
        outputs = []
        with torch.no_grad():
            for batch in torch.split(index, 512):
                outputs.append(network.module(network.batch(self.inputs, batch)))
        return torch.cat(outputs)

    def evaluate(self) -> float:
        """Return the mean loss of all samples, in evaluation mode."""
        with torch.no_grad():
            return float(self.network.loss(self.outputs(), self.targets).item())

    def close(self) -> None:
        """Free the memory of parameters and gradients, unless the network belongs to a run."""
        if self.probe.network is None:
            self._grads = None
            for tensor in self.network.module.parameters():
                tensor.grad = None
                tensor.data = tensor.data.new_empty(0)
            self.network.params = self.network.grad = self.params = torch.empty(0)

    def buffers(self) -> dict[str, torch.Tensor] | None:
        """Return the statistics after the passes if `bn` is `proxy`; None otherwise."""
        if self.probe.bn != "proxy":
            return None
        buffers = self.copy_buffers()
        if self.flat:
            model_buffers = dict(self.probe.model.named_buffers())
            with torch.no_grad():
                for name, values in buffers.items():
                    model_buffers[name].copy_(values)
        return buffers

    def _mode(self, batch: torch.Tensor) -> None:
        """Set the network's mode: evaluation, except for BatchNorm as `bn` says."""
        self.network.module.eval()
        # One sample has no variance.
        if self.probe.bn != "frozen" and len(batch) > 1:
            for part in self.network.module.modules():
                if isinstance(part, nn.modules.batchnorm._BatchNorm):
                    part.train()


def _copy_network(probe: Probe, layout: Layout) -> FlatModel:
    """Return a copy of the probe's model with its parameters in one vector, ordered as the clients'."""
    own = Layout.of(probe.model.state_dict())
    if layout.flat:
        own = _in_order(own, probe.model, layout.dim)
    else:
        _check_names(own, layout)
    # The copied parameters first share the model's memory, until they become views of the vector:
    # no second copy is made.
    shared = {}
    for parameter in probe.model.parameters():
        shared[id(parameter)] = nn.Parameter(parameter.data, parameter.requires_grad)
    module = copy.deepcopy(probe.model, shared)
    return FlatModel(module, probe.loss, probe.inputs, torch.device("cpu"), own)


def _in_order(own: Layout, model: nn.Module, dim: int) -> Layout:
    """Return the layout with parameters in the order of `model.parameters()`."""
    starts = {}
    total = 0
    for name, parameter in model.named_parameters():
        starts[name] = total
        total += parameter.numel()
    if total != dim:
        raise SteelyardError(
            f"probe.model has {total} parameters, but the clients' vectors have {dim}: use the "
            f"same model"
        )
    leaves = []
    for leaf in own.leaves:
        if leaf.kind == "param":
            leaf = replace(leaf, start=starts[leaf.name])
        leaves.append(leaf)
    return replace(own, leaves=tuple(leaves))


def _check_names(own: Layout, clients: Layout) -> None:
    """Raise an error unless both layouts have the same leaves."""
    signatures = {leaf.name: _signature(leaf) for leaf in clients.leaves}
    for leaf in own.leaves:
        if signatures.get(leaf.name) != _signature(leaf):
            signature = signatures.get(leaf.name, ("nothing",))
            raise SteelyardError(
                f"probe.model has {leaf.name!r} {_signature(leaf)}, the clients {signature}: use "
                f"the same model"
            )
    extra = sorted(set(signatures) - {leaf.name for leaf in own.leaves})
    if extra:
        raise SteelyardError(
            f"the clients have {extra[0]!r}, which is not in probe.model: use the same model"
        )


def _signature(leaf: Leaf) -> tuple[str, tuple[int, ...], str]:
    """Return kind, shape and dtype of a leaf."""
    return leaf.kind, leaf.shape, str(leaf.dtype)
