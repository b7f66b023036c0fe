"""The trace of the Fisher information matrix of a network.

PA3Fed, Equations (2) and (3), after Yan, Wang and Li (CriticalFL), with g the gradient of log p_w(y
| x):

    F_i = E_x E_{y ~ p_w(y | x)} |g(x, y)|^2                                                  (2)
    F   = sum_i m_i F_i ,  m_i = n_i / n                                                       (3)

The expectation over classes is computed exactly, as in CriticalFL's code, not by drawing y. With
the observed labels y instead, the same expression is the empirical Fisher: another quantity, which
does not estimate (2) unless the fit is perfect.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from steelyard.core import checks
from steelyard.core._errors import SteelyardError

_ELEMENTS = 1 << 24  # of per-sample gradients in memory at the same time
_PER_SAMPLE = 64  # maximum number of samples in one call, whatever the size of their gradients

Parameters = dict[str, torch.Tensor]
SquaredNorms = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def fisher_trace(model: nn.Module, inputs: torch.Tensor, n: int = 10_000, seed: int = 0) -> float:
    """Return the mean over samples of `sum_y p(y | x) |grad log p(y | x)|^2` (PA3Fed, Equation 2).

    Args:
        model: a classifier with logits `[N, C]`, in evaluation mode; it is not changed.
        inputs: samples.
        n: the maximum number of samples, drawn without replacement.
        seed: of the draw.
    """
    positions = draw_samples(inputs, n, seed)
    own, squared_norms = prepare_norms(model, inputs[positions])
    total = 0.0
    for part in torch.split(inputs[positions], choose_batch(own)):
        with torch.no_grad():
            shares = compute_logits(own, part).softmax(dim=1)  # [B, C]
        for label in range(shares.shape[1]):
            labels = torch.full((len(part),), label, dtype=torch.int64, device=part.device)
            total += float((shares[:, label].double() * squared_norms(part, labels).double()).sum())
    return total / len(positions)


def draw_samples(inputs: torch.Tensor, n: int, seed: int) -> torch.Tensor:
    """Return the sorted positions of at most `n` samples."""
    checks.integer("n", n, 1)
    if not len(inputs):
        raise SteelyardError("inputs are empty: give at least one sample")
    order = np.random.default_rng(seed).permutation(len(inputs))[:n]
    return torch.from_numpy(np.sort(order)).to(inputs.device)


def prepare_norms(model: nn.Module, inputs: torch.Tensor) -> tuple[nn.Module, SquaredNorms]:
    """Return a copy of the model in evaluation mode and a function for `|grad log p(y | x)|^2`.

    The function takes a batch of samples and labels, and returns one number for each sample.
    """
    # Copy the model and check it.
    own = copy.deepcopy(model).eval()
    logits = compute_logits(own, inputs[:1])
    if logits.ndim != 2:
        raise SteelyardError(
            f"the model's output has shape {list(logits.shape)}: give a classifier, [samples, "
            f"classes]"
        )
    learned = {name: p.detach() for name, p in own.named_parameters() if p.requires_grad}
    if not learned:
        raise SteelyardError(
            "the model has no learned parameters: set requires_grad on some of them"
        )

    def log_likelihood(
        params: Parameters, sample: torch.Tensor, label: torch.Tensor
    ) -> torch.Tensor:
        logits: torch.Tensor = functional_call(own, params, (sample.unsqueeze(0),))[0]
        return logits.log_softmax(dim=0).gather(0, label.unsqueeze(0))[0]

    def squared_norm(sample: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        gradients = grad(log_likelihood)(learned, sample, label)
        return torch.stack([gradient.square().sum() for gradient in gradients.values()]).sum()

    def one_by_one(samples: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.stack(
            [squared_norm(sample, label) for sample, label in zip(samples, labels, strict=True)]
        )

    def compute_with_vmap(samples: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.MATH):  # the only attention kernel that vmap supports
            squares: torch.Tensor = vmap(squared_norm)(samples, labels)
        return squares

    # Try vmap on two samples. It fails, or warns that it is slow, for recurrent layers and some
    # others.
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "There is a performance drop")
            compute_with_vmap(
                inputs[:2], torch.zeros(len(inputs[:2]), dtype=torch.int64, device=inputs.device)
            )
    except (RuntimeError, UserWarning):
        return own, one_by_one
    return own, compute_with_vmap


def compute_logits(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        outputs: torch.Tensor = model(inputs)
    return outputs


def choose_batch(model: nn.Module) -> int:
    """Return how many samples to process at once."""
    size = sum(parameter.numel() for parameter in model.parameters())
    return max(1, min(_PER_SAMPLE, _ELEMENTS // max(1, size)))
