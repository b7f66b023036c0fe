"""The server's proxy data: a network, a few labelled samples, and the loss of any model on them.

BatchNorm on the proxy (`bn`), since a mixture has no running statistics of its own:

    proxy     batches are normalised by their own statistics; the running ones are updated on the way, from the global
              model's, and become the new model's. Clients' statistics are not used. This is what FedLAW's authors do.
    average   batches are normalised by their own statistics; the new model gets the average of the clients'.
    frozen    batches are normalised by the global model's running statistics; the new model gets the average.

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

from steelyard.client.flat import FlatModel, Loss
from steelyard.client.losses import check_targets, resolve_loss
from steelyard.core import checks
from steelyard.core.errors import SteelyardError
from steelyard.core.layout import Layout, Leaf
from steelyard.core.probe import Objective
from steelyard.data.dataset import Dataset
from steelyard.data.proxy import Proxy, balanced_order
from steelyard.kernels import Part

_STREAM = int.from_bytes(b"prox", "big")  # keeps these draws apart from all others of the same seed


class Probe:
    """Proxy samples and the network to try on them.

    Flat client vectors follow `model.parameters()`; state dicts are matched by name. The model itself is only a mould,
    with one exception: where clients are flat vectors, its BatchNorm buffers are the server's, and are updated.

    Attributes:
        model: the network.
        inputs: the samples, `[n, ...]`.
        targets: what to predict.
        batch_size: samples per step.
        shuffle: a new order for every epoch, drawn from seed and round; else the given one.
        loss: by name (`"mse"`), or `loss(outputs, targets)`, a mean over the batch.
        bn: `proxy`, `average` or `frozen`.
        balanced: draw as many samples of every class, again and again if need be.
        seed: of the order of batches.

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
        self.model, self.batch_size, self.shuffle, self.bn, self.seed = model, batch_size, shuffle, bn, seed
        self.inputs, self.targets = torch.as_tensor(inputs), torch.as_tensor(targets)
        if len(self.inputs) != len(self.targets) or len(self.inputs) == 0:
            found = f"{len(self.inputs)} inputs and {len(self.targets)} targets"
            raise SteelyardError(f"probe: {found}: give one target per input, and at least one")
        self.balanced, self.loss = balanced, resolve_loss(loss)
        check_targets(self.loss, self.targets)
        self.network: FlatModel | None = None  # only a run has one of its own

    @classmethod
    def within(cls, network: FlatModel, samples: Dataset, options: Proxy, seed: int) -> Probe:
        """A probe that borrows a run's own network: the clients' vectors are laid out as its own."""
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
        """The same probe with a network of its own, laid out and computing as a simulated run's does: the same bits."""
        probe = copy.copy(self)
        if probe.network is None:
            module = copy.deepcopy(self.model)
            probe.network = FlatModel(module, self.loss, self.inputs, torch.device("cpu"))
        return probe

    def fingerprint(self) -> str:
        """A hash of the samples."""
        digest = hashlib.sha256(self.targets.cpu().numpy().tobytes())
        digest.update(self.inputs.contiguous().numpy().tobytes())
        return digest.hexdigest()

    def open(
        self, layout: Layout, number: int, buffers: Mapping[str, torch.Tensor], state: Mapping[str, torch.Tensor]
    ) -> ProbeSession:
        """The network with the global model's statistics, ready for round `number`."""
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
        self.probe, self.flat = probe, layout.flat
        self.rng = np.random.Generator(
            np.random.Philox(np.random.SeedSequence(entropy=probe.seed, spawn_key=(_STREAM, number)))
        )
        self.network = probe.network or _moulded(probe, layout)
        self.stored = self.network.prepare_inputs(probe.inputs)
        self.targets = self.network.cast(probe.targets)
        turned = self.network.channels_last  # then the network's own vector is not in the clients' order
        self.params = torch.empty_like(self.network.params[0]) if turned else self.network.params[0]
        self.free = self.network.free  # alike over a leaf, so in any order
        named = dict(self.network.module.named_parameters())
        free = {leaf.name: leaf for leaf in self.network.layout.params if leaf.name in named}
        self.learned = [(leaf, named[name]) for name, leaf in free.items() if named[name].requires_grad]
        self._made: list[torch.Tensor | None] | None = None
        self.adopt(buffers if not layout.flat else state or dict(probe.model.named_buffers()))

    def adopt(self, buffers: Mapping[str, torch.Tensor]) -> None:
        """Takes over statistics and counters, by name."""
        own = dict(self.network.module.named_buffers())
        with torch.no_grad():
            for name in buffers.keys() & self.copy_buffers().keys():
                own[name].copy_(buffers[name])

    def copy_buffers(self) -> dict[str, torch.Tensor]:
        """Statistics and counters as they are now."""
        own, layout = dict(self.network.module.named_buffers()), self.network.layout
        return {leaf.name: own[leaf.name].detach().clone() for leaf in (*layout.stats, *layout.counts)}

    def epoch(self) -> Iterator[torch.Tensor]:
        """Positions of the samples, batch by batch."""
        count = len(self.probe.inputs)
        if self.probe.balanced:
            order = balanced_order(self.probe.targets, self.rng)
        else:
            order = self.rng.permutation(count) if self.probe.shuffle else np.arange(count)
        return iter(torch.split(torch.from_numpy(order), self.probe.batch_size))

    def backward(self, batch: torch.Tensor, objective: Objective | None = None) -> float:
        """Loss and gradient of a batch, in the layout's coordinates."""
        network = self.network
        self._mode(batch)
        self._take_over()
        self._made = None
        outputs = network.module(network.batch(self.stored, batch))
        loss = network.loss(outputs, self.targets[batch]) if objective is None else objective(outputs, batch)
        made = torch.autograd.grad(loss, [parameter for _, parameter in self.learned], allow_unused=True)
        self._made = list(made)
        return float(loss.item())

    def _take_over(self) -> None:
        """Brings the parameters into the network, if they do not lie in it."""
        if self.network.channels_last:
            with torch.no_grad():
                self.network.load_params(self.params)

    def slopes(self) -> list[Part]:
        """The gradient, leaf by leaf: it stays where autograd made it."""
        assert self._made is not None
        parts = [
            (leaf.start, grad.reshape(-1))
            for (leaf, _), grad in zip(self.learned, self._made, strict=True)
            if grad is not None
        ]
        return sorted(parts, key=lambda part: part[0])

    def gradient(self) -> torch.Tensor:
        """The gradient as one vector."""
        vector = torch.zeros_like(self.params)
        for start, values in self.slopes():
            vector[start : start + values.numel()] = values
        return vector

    def outputs(self) -> torch.Tensor:
        """What the network says of all samples, as it evaluates."""
        self.network.module.eval()
        self._take_over()
        every = torch.arange(len(self.probe.inputs))
        with torch.no_grad():
            parts = [self.network.module(self.network.batch(self.stored, at)) for at in torch.split(every, 512)]
        return torch.cat(parts)

    def close(self) -> None:
        """Gives back the memory of parameters and gradients, unless the network is a run's own."""
        if self.probe.network is None:
            self._made = None
            for tensor in self.network.module.parameters():
                tensor.grad = None
                tensor.data = tensor.data.new_empty(0)
            self.network.params = self.network.grad = self.params = torch.empty(0)

    def buffers(self) -> dict[str, torch.Tensor] | None:
        """The running statistics after these passes, if they are the ones to keep."""
        if self.probe.bn != "proxy":
            return None
        found = self.copy_buffers()
        if self.flat:
            kept = dict(self.probe.model.named_buffers())
            with torch.no_grad():
                for name, values in found.items():
                    kept[name].copy_(values)
        return found

    def _mode(self, batch: torch.Tensor) -> None:
        self.network.module.eval()
        if self.probe.bn != "frozen" and len(batch) > 1:  # one sample has no variance
            for part in self.network.module.modules():
                if isinstance(part, nn.modules.batchnorm._BatchNorm):
                    part.train()


def _moulded(probe: Probe, layout: Layout) -> FlatModel:
    """A copy of the probe's model whose parameters lie in one vector as the clients' do."""
    own = Layout.of(probe.model.state_dict())
    if layout.flat:
        own = _in_order(own, probe.model, layout.dim)
    else:
        _check_names(own, layout)
    # The copy's parameters begin as the model's own memory, and end in the vector: there is never a third model.
    known = {id(p): nn.Parameter(p.data, p.requires_grad) for p in probe.model.parameters()}
    return FlatModel(copy.deepcopy(probe.model, known), probe.loss, probe.inputs, torch.device("cpu"), own)


def _in_order(own: Layout, model: nn.Module, dim: int) -> Layout:
    """The layout with parameters in the order of `model.parameters()`."""
    starts, at = {}, 0
    for name, parameter in model.named_parameters():
        starts[name] = at
        at += parameter.numel()
    if at != dim:
        raise SteelyardError(f"probe.model has {at} parameters and the clients' vectors {dim}: they must agree")
    leaves = [replace(leaf, start=starts[leaf.name]) if leaf.kind == "param" else leaf for leaf in own.leaves]
    return replace(own, leaves=tuple(leaves))


def _check_names(own: Layout, clients: Layout) -> None:
    theirs = {leaf.name: _signature(leaf) for leaf in clients.leaves}
    for leaf in own.leaves:
        if theirs.get(leaf.name) != _signature(leaf):
            found = theirs.get(leaf.name, ("nothing",))
            raise SteelyardError(
                f"probe.model has {leaf.name!r} {_signature(leaf)}, the clients {found}: use one model"
            )
    extra = sorted(set(theirs) - {leaf.name for leaf in own.leaves})
    if extra:
        raise SteelyardError(f"the clients have {extra[0]!r}, which probe.model lacks: use one model")


def _signature(leaf: Leaf) -> tuple[str, tuple[int, ...], str]:
    return leaf.kind, leaf.shape, str(leaf.dtype)
