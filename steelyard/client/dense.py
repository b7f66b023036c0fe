"""Several clients' dense networks side by side, with the gradient in closed form.

For a stack of linear layers and ReLUs under cross-entropy the backward pass is two matrix products per layer. Written
out, over a leading axis of clients, a step takes a sixth of the time of autograd for logistic regression and 0.6 of it
for the MLP 784-200-200-10. For convolutions a leading axis is slower, so they have none.

    forward    Z_l = W_l A_{l-1} + b_l ,  A_l = max(Z_l, 0)
    loss       mean over the batch of -log softmax(Z_L)[y]
    backward   D_L = (softmax(Z_L) - onehot(y)) / batch ,  dW_l = D_l A_{l-1}^T ,  db_l = D_l 1
               D_{l-1} = W_l^T D_l where A_{l-1} > 0
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from steelyard.core.layout import Layout

_SMALL = 1_000_000  # multiply-adds of one product up to which OpenBLAS (numpy) beats torch's BLAS on a CPU


class _Layer(NamedTuple):
    weight: torch.Tensor  # [C, out, in]
    bias: torch.Tensor | None  # [C, 1, out]


class DenseModels:
    """`count` networks of one shape; `params` and `grad` are `[count, d]` in the layout's order."""

    def __init__(self, module: nn.Module, layout: Layout, count: int) -> None:
        self.params = torch.zeros(count, layout.dim)
        self.grad = torch.zeros(count, layout.dim)
        self.names = [(name, linear.bias is not None) for name, linear in _linears(module)]
        self.layout = layout
        self.relus = _relus(module)
        self.cut = {c: (self._layers(self.params[:c]), self._layers(self.grad[:c])) for c in range(1, count + 1)}

    @staticmethod
    def fits(module: nn.Module, layout: Layout, loss: object, device: torch.device, inputs: torch.Tensor) -> bool:
        """Whether the closed form is this network's: linear layers with ReLUs in between, cross-entropy, float32."""
        parts = list(_parts(module))
        kinds = [type(part) for part in parts]
        flattened = (
            bool(parts) and isinstance(parts[0], nn.Flatten) and (parts[0].start_dim, parts[0].end_dim) == (1, -1)
        )
        inner = kinds[1:] if flattened else kinds
        return (
            (flattened or inputs.ndim == 2)
            and all(kind in (nn.Linear, nn.ReLU) for kind in inner)
            and inner[:1] == [nn.Linear]
            and inner[-1:] == [nn.Linear]
            and loss is nn.functional.cross_entropy
            and device.type == "cpu"
            and all(leaf.kind == "param" and leaf.tied is None for leaf in layout.leaves)
            and all(leaf.dtype == torch.float32 for leaf in layout.leaves)
            and all(parameter.requires_grad for parameter in module.parameters())
        )

    def _layers(self, rows: torch.Tensor) -> list[_Layer]:
        """Views of flat rows `[C, d]` as the layers' weights and biases."""
        places = {leaf.name: leaf for leaf in self.layout.params}

        def view(name: str) -> torch.Tensor:
            leaf = places[name]
            return rows[:, leaf.start : leaf.stop].view(rows.shape[0], *leaf.shape)

        return [
            _Layer(view(f"{name}weight"), view(f"{name}bias").unsqueeze(1) if bias else None)
            for name, bias in self.names
        ]

    def gradient(self, inputs: torch.Tensor, targets: torch.Tensor, index: torch.Tensor, share: torch.Tensor) -> None:
        """Fills `grad[:C]` for the samples `index` `[C, b]`; `share` `[C, b, 1]` is 1 / batch, 0 where padded."""
        count, size = index.shape
        flat = index.reshape(-1)
        layers, grads = self.cut[count]
        active = [inputs.index_select(0, flat).view(count, size, -1)]
        for number, layer in enumerate(layers):
            z = _product(active[-1], layer.weight.transpose(1, 2))
            if layer.bias is not None:
                z.add_(layer.bias)
            active.append(z.relu_() if self.relus[number] else z)
        delta = torch.softmax(active.pop(), dim=2).mul_(share)
        wanted = targets.index_select(0, flat).view(count, size, 1)
        delta.scatter_add_(2, wanted, -share)
        for number in range(len(layers) - 1, -1, -1):
            weight, bias = grads[number]
            if bias is not None:
                torch.sum(delta, dim=1, keepdim=True, out=bias)
            _product(delta.transpose(1, 2), active[number], out=weight)
            if number:
                delta = _product(delta, layers[number].weight)
                if self.relus[number - 1]:
                    delta.mul_(active[number] > 0)


def _product(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """A batched matrix product `[C, m, k] x [C, k, n]` by whichever library is faster at this size."""
    if a.shape[1] * a.shape[2] * b.shape[2] > _SMALL:
        return torch.bmm(a, b) if out is None else torch.bmm(a, b, out=out)
    if out is None:
        return torch.from_numpy(np.matmul(a.numpy(), b.numpy()))
    np.matmul(a.numpy(), b.numpy(), out=out.numpy())
    return out


def _parts(module: nn.Module) -> Iterator[nn.Module]:
    """The modules of nested Sequentials, in order; anything else as it is."""
    if type(module) is nn.Sequential:
        for part in module:
            yield from _parts(part)
    else:
        yield module


def _linears(module: nn.Module) -> list[tuple[str, nn.Linear]]:
    """The linear layers with the prefix of their parameters' names."""
    named = module.named_modules()
    return [(f"{name}." if name else "", part) for name, part in named if isinstance(part, nn.Linear)]


def _relus(module: nn.Module) -> list[bool]:
    """For each linear layer, whether a ReLU comes after it (two in a row are one)."""
    after: list[bool] = []
    for part in _parts(module):
        if isinstance(part, nn.Linear):
            after.append(False)
        elif isinstance(part, nn.ReLU) and after:
            after[-1] = True
    return after
