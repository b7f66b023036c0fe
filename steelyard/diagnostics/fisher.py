"""The trace of the Fisher information matrix, by which critical learning periods are told.

PA3Fed, Equations (2) and (3), after Yan, Wang and Li (CriticalFL), with g the gradient of log p_w(y | x):

    F_i = E_x E_{y ~ p_w(y | x)} |g(x, y)|^2                                                  (2)
    F   = sum_i m_i F_i ,  m_i = n_i / n                                                       (3)

The expectation over classes is taken exactly, as CriticalFL's code does, not by drawing y. Given labels, the same with
the observed y is the empirical Fisher: another quantity, and no estimate of (2) away from a perfect fit.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from steelyard.core import checks
from steelyard.core.errors import SteelyardError
from steelyard.diagnostics.cohort import Weights, shares_of

_ELEMENTS = 1 << 24  # of per-sample gradients held at once
_PER_SAMPLE = 64  # samples at most in one call, whatever their gradients' size

Named = dict[str, torch.Tensor]
Slopes = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def fisher_trace(model: nn.Module, inputs: torch.Tensor, n: int = 10_000, seed: int = 0) -> float:
    """PA3Fed, Equation (2): the mean over samples of `sum_y p(y | x) |grad log p(y | x)|^2`.

    Args:
        model: a classifier with logits `[N, C]`, in evaluation mode; it is not changed.
        inputs: samples.
        n: at most so many, drawn without replacement.
        seed: of the draw.
    """
    chosen = _draw_samples(inputs, n, seed)
    own, squares = _prepared(model, inputs[chosen])
    total = 0.0
    for part in torch.split(inputs[chosen], _batch(own)):
        with torch.no_grad():
            shares = _logits(own, part).softmax(dim=1)  # [B, C]
        for label in range(shares.shape[1]):
            labels = torch.full((len(part),), label, dtype=torch.int64, device=part.device)
            total += float((shares[:, label].double() * squares(part, labels).double()).sum())
    return total / len(chosen)


def empirical_fisher_trace(
    model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, n: int = 10_000, seed: int = 0
) -> float:
    """The mean over samples of `|grad log p(y | x)|^2` with the observed labels `[N]`."""
    if len(inputs) != len(targets) or targets.is_floating_point() or targets.ndim != 1:
        raise SteelyardError(f"targets are {targets.dtype} {list(targets.shape)}: give {len(inputs)} class numbers")
    chosen = _draw_samples(inputs, n, seed)
    own, squares = _prepared(model, inputs[chosen])
    classes = _logits(own, inputs[:1]).shape[1]
    if targets.min() < 0 or targets.max() >= classes:
        found = f"{int(targets.min())} to {int(targets.max())}"
        raise SteelyardError(f"targets go from {found}: the model has {classes} classes: use 0 to {classes - 1}")
    parts = zip(torch.split(inputs[chosen], _batch(own)), torch.split(targets[chosen], _batch(own)), strict=True)
    return sum(float(squares(part, labels).double().sum()) for part, labels in parts) / len(chosen)


def federated_fisher_trace(traces: Sequence[float], sizes: Weights | None = None) -> float:
    """PA3Fed, Equation (3): the clients' traces weighed by the sizes of their data; equal ones by default."""
    return float(np.dot(shares_of(sizes, len(traces)), traces))


def _draw_samples(inputs: torch.Tensor, n: int, seed: int) -> torch.Tensor:
    checks.integer("n", n, 1)
    if not len(inputs):
        raise SteelyardError("inputs are empty: give at least one sample")
    order = np.random.default_rng(seed).permutation(len(inputs))[:n]
    return torch.from_numpy(np.sort(order)).to(inputs.device)


def _prepared(model: nn.Module, inputs: torch.Tensor) -> tuple[nn.Module, Slopes]:
    """A copy of the model in evaluation mode, and `|grad log p(y | x)|^2` for each sample and label of a batch."""
    own = copy.deepcopy(model).eval()
    logits = _logits(own, inputs[:1])
    if logits.ndim != 2:
        raise SteelyardError(
            f"the model's output has shape {list(logits.shape)}: give a classifier, [samples, classes]"
        )
    learned = {name: p.detach() for name, p in own.named_parameters() if p.requires_grad}
    if not learned:
        raise SteelyardError("the model learns no parameter: nothing depends on it")

    def log_likelihood(params: Named, sample: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = functional_call(own, params, (sample.unsqueeze(0),))[0]
        return logits.log_softmax(dim=0).gather(0, label.unsqueeze(0))[0]

    def square(sample: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        slopes = grad(log_likelihood)(learned, sample, label)
        return torch.stack([slope.square().sum() for slope in slopes.values()]).sum()

    def one_by_one(samples: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.stack([square(sample, label) for sample, label in zip(samples, labels, strict=True)])

    def together(samples: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.MATH):  # the only kernel of attention that is mapped
            squares: torch.Tensor = vmap(square)(samples, labels)
        return squares

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "There is a performance drop")
            together(inputs[:2], torch.zeros(len(inputs[:2]), dtype=torch.int64, device=inputs.device))
    except (RuntimeError, UserWarning):  # recurrent layers and the like: not mapped, or only in name
        return own, one_by_one
    return own, together


def _logits(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        outputs: torch.Tensor = model(inputs)
    return outputs


def _batch(model: nn.Module) -> int:
    size = sum(parameter.numel() for parameter in model.parameters())
    return max(1, min(_PER_SAMPLE, _ELEMENTS // max(1, size)))
