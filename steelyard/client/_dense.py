"""Dense networks of several clients side by side, with the gradient in closed form.

For linear layers and ReLUs with cross-entropy, the backward pass is two matrix products per layer.
Written out, with a leading axis of clients, a step takes a sixth of the time of autograd for
logistic regression, and 0.6 of it for the MLP 784-200-200-10. For convolutions a leading axis is
slower, so they train one client at a time.

    forward    Z_l = W_l A_{l-1} + b_l ,  A_l = max(Z_l, 0)
    loss       mean over the batch of -log softmax(Z_L)[y]
    backward   D_L = (softmax(Z_L) - onehot(y)) / batch ,  dW_l = D_l A_{l-1}^T ,  db_l = D_l 1
               D_{l-1} = W_l^T D_l where A_{l-1} > 0
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from steelyard.core._layout import Layout
from steelyard.core._processor import find_processor_name

Floats = NDArray[np.float32]
Whole = NDArray[np.int64]

_MAX_CLIENTS = 8  # side by side: more were not faster in measurements
_CACHED = 800_000  # number of parameters that fit into a core's caches, with intermediate results
_HOOKS = tuple(
    f"_{kind}_hooks"
    for kind in ("forward_pre", "forward", "backward_pre", "backward", "post_accumulate_grad")
)


def find_numpy_limit(processor: str) -> float:
    """Return the number of multiply-adds of a product up to which numpy is faster than torch.

    Torch's BLAS, MKL, uses AVX-512 on Intel's processors only. On AMD's, numpy's OpenBLAS was
    faster at all sizes (`docs/simulator.md`).

    Args:
        processor: its name, from `find_processor_name`.
    """
    if "AMD" in processor:
        return math.inf
    return 1_000_000


_NUMPY_LIMIT = find_numpy_limit(find_processor_name())


class _Layer(NamedTuple):
    """A linear layer of C clients."""

    weight: Floats  # [C, out, in]
    bias: Floats | None  # [C, out, 1]


class DenseModels:
    """`count` networks of the same shape.

    `params` and `grad` are `[count, d]` in the layout's order.

    Samples are columns: a softmax along columns is nine times as fast as one along short rows.
    """

    def __init__(self, module: nn.Module, layout: Layout) -> None:
        count = max(1, min(_MAX_CLIENTS, _CACHED // layout.dim))
        self.params = torch.zeros(count, layout.dim, dtype=torch.float32)
        self.grad = torch.zeros_like(self.params)
        self.names = [(name, linear.bias is not None) for name, linear in _linears(module)]
        self.layout = layout
        self.relus = _relus(module)
        self.ones: dict[int, Floats] = {}
        self.corners: dict[tuple[int, int], Whole] = {}
        # Layers of parameters and gradients, by number of clients.
        self.layers: dict[int, tuple[list[_Layer], list[_Layer]]] = {}
        for clients in range(1, count + 1):
            params = self._layers(self.params[:clients])
            self.layers[clients] = (params, self._layers(self.grad[:clients]))

    @property
    def count(self) -> int:
        """The largest number of clients that train side by side."""
        return self.params.shape[0]

    @staticmethod
    def fits(
        module: nn.Module,
        layout: Layout,
        loss: object,
        device: torch.device,
        inputs: torch.Tensor,
        targets: torch.Tensor,
    ) -> bool:
        """Return whether the closed form is valid for this network.

        It must consist of linear layers with ReLUs in between, in float32, with cross-entropy.
        Targets must be class labels; torch handles all other targets of cross-entropy.
        """
        # The layers, without a first Flatten.
        parts = list(_parts(module))
        kinds = [type(part) for part in parts]
        has_flatten = False
        if parts and isinstance(parts[0], nn.Flatten):
            has_flatten = (parts[0].start_dim, parts[0].end_dim) == (1, -1)
        inner = kinds[1:] if has_flatten else kinds

        # All conditions.
        return (
            (has_flatten or inputs.ndim == 2)
            and all(kind in (nn.Linear, nn.ReLU) for kind in inner)
            and inner[:1] == [nn.Linear]
            and inner[-1:] == [nn.Linear]
            and inputs.dtype == torch.float32
            and _are_labels(targets, parts[-1])
            and not _has_hooks(module)
            and loss is nn.functional.cross_entropy
            and device.type == "cpu"
            and all(leaf.kind == "param" and leaf.tied is None for leaf in layout.leaves)
            and all(leaf.dtype == torch.float32 for leaf in layout.leaves)
            and all(parameter.requires_grad for parameter in module.parameters())
        )

    def _layers(self, rows: torch.Tensor) -> list[_Layer]:
        """Return views of flat rows `[C, d]` as the layers' weights and biases."""
        leaves = {leaf.name: leaf for leaf in self.layout.params}

        def view(name: str) -> Floats:
            leaf = leaves[name]
            return rows[:, leaf.start : leaf.stop].view(rows.shape[0], *leaf.shape).numpy()

        layers = []
        for prefix, has_bias in self.names:
            bias = view(f"{prefix}bias")[:, :, None] if has_bias else None
            layers.append(_Layer(view(f"{prefix}weight"), bias))
        return layers

    def gradient(self, inputs: Floats, index: Whole, labels: Whole, share: Floats) -> None:
        """Compute `grad[:C]`, the gradient of a batch of each client.

        Args:
            inputs: all inputs.
            index: positions of the samples, `[C, b]`.
            labels: labels of the samples, `[C, b]`.
            share: 1 / batch size for samples, 0 for padding, `[C, 1, b]`.
        """
        layers, grads = self.layers[len(index)]
        for number, delta, active in self._backward(layers, inputs, labels, index, share):
            weight, bias = grads[number]
            if bias is not None:
                np.matmul(delta, self._ones(delta), out=bias)
            _product(delta, active, out=weight)

    def descend(
        self, inputs: Floats, index: Whole, labels: Whole, share: Floats, keep: float
    ) -> None:
        """Run a step of plain SGD without storing the gradient.

        The arguments are those of `gradient`, except that `share` is `-lr / batch`. `keep` is the
        factor of weight decay, `1 - lr weight_decay`.
        """
        layers, _ = self.layers[len(index)]
        for number, delta, active in self._backward(layers, inputs, labels, index, share):
            weight, bias = layers[number]
            if bias is not None:
                if keep != 1:
                    bias *= np.float32(keep)
                bias += np.matmul(delta, self._ones(delta))
            _accumulate(weight, keep, delta, active)

    def _backward(
        self, layers: list[_Layer], inputs: Floats, labels: Whole, index: Whole, share: Floats
    ) -> Iterator[tuple[int, Floats, Floats]]:
        """Yield each layer from the last to the first, for a backward pass.

        Yields:
            Its number, `D_l` `[C, out, b]`, and `A_{l-1}` transposed `[C, b, in]`. The caller may
            change the layer's weights: they are not used afterwards.
        """
        # Forward pass; activations are [C, in, b] each.
        count, size = index.shape
        flat = index.reshape(-1)
        active = [inputs.take(flat, axis=0).reshape(count, size, -1).transpose(0, 2, 1)]
        for layer, relu in zip(layers, self.relus, strict=True):
            z = _product(layer.weight, active[-1])
            if layer.bias is not None:
                z += layer.bias
            active.append(np.maximum(z, 0, out=z) if relu else z)

        # The gradient of the loss: (softmax - onehot) * share.
        delta = active.pop()
        delta -= delta.max(axis=1, keepdims=True)
        np.exp(delta, out=delta)
        delta *= share / delta.sum(axis=1, keepdims=True)
        delta.reshape(-1)[self._corners(delta) + labels.reshape(-1) * size] -= share.reshape(-1)

        # Backward pass.
        for number in range(len(layers) - 1, -1, -1):
            below = _product(layers[number].weight.transpose(0, 2, 1), delta) if number else delta
            if number and self.relus[number - 1]:
                below *= active[number] > 0
            yield number, delta, active[number].transpose(0, 2, 1)
            delta = below

    def _ones(self, delta: Floats) -> Floats:
        """Return a column of ones.

        A product with it is three times as fast as a sum over samples.
        """
        size = delta.shape[2]
        if size not in self.ones:
            self.ones[size] = np.ones((size, 1), dtype=np.float32)
        return self.ones[size]

    def _corners(self, delta: Floats) -> Whole:
        """Return the position of the first class of every sample in a flat `[C, classes, b]`."""
        count, classes, size = delta.shape
        if (count, size) not in self.corners:
            first = np.arange(count)[:, None] * (classes * size) + np.arange(size)
            self.corners[count, size] = first.reshape(-1)
        return self.corners[count, size]


def _product(a: Floats, b: Floats, out: Floats | None = None) -> Floats:
    """Return the product `[C, m, k] x [C, k, n]`, with the library that is faster at this size."""
    if a.shape[1] * a.shape[2] * b.shape[2] <= _NUMPY_LIMIT:
        return np.matmul(a, b, out=out)
    if out is None:
        return torch.bmm(torch.from_numpy(a), torch.from_numpy(b)).numpy()
    torch.bmm(torch.from_numpy(a), torch.from_numpy(b), out=torch.from_numpy(out))
    return out


def _accumulate(weight: Floats, keep: float, a: Floats, b: Floats) -> None:
    """Compute `weight <- keep * weight + a b` in place."""
    if a.shape[1] * a.shape[2] * b.shape[2] > _NUMPY_LIMIT:
        torch.from_numpy(weight).baddbmm_(torch.from_numpy(a), torch.from_numpy(b), beta=keep)
        return
    if keep != 1:
        weight *= np.float32(keep)
    weight += np.matmul(a, b)


def _parts(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules of nested Sequentials in order; any other module is yielded itself."""
    if type(module) is nn.Sequential:
        for part in module:
            yield from _parts(part)
    else:
        yield module


def _are_labels(targets: torch.Tensor, last: nn.Module) -> bool:
    """Return whether targets are class numbers, one per sample, within the outputs of `last`."""
    if targets.dtype != torch.int64 or targets.ndim != 1 or not isinstance(last, nn.Linear):
        return False
    return not len(targets) or bool(targets.min() >= 0 and targets.max() < last.out_features)


def _has_hooks(module: nn.Module) -> bool:
    """Return whether the network has hooks, which the closed form would not call."""
    parts = (*module.modules(), *module.parameters())
    return any(getattr(part, name, None) for part in parts for name in _HOOKS)


def _linears(module: nn.Module) -> list[tuple[str, nn.Linear]]:
    """Return the linear layers with the prefixes of their parameters' names."""
    layers = []
    for name, part in module.named_modules():
        if isinstance(part, nn.Linear):
            layers.append((f"{name}." if name else "", part))
    return layers


def _relus(module: nn.Module) -> list[bool]:
    """Return for each linear layer whether a ReLU follows (two in a row count as one)."""
    after: list[bool] = []
    for part in _parts(module):
        if isinstance(part, nn.Linear):
            after.append(False)
        elif isinstance(part, nn.ReLU) and after:
            after[-1] = True
    return after
