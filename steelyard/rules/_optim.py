"""Torch's Adam and SGD for small float64 vectors, for rules that optimise weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from steelyard.core._gram import Array

# From a point, its gradient and a learning rate to the next point.
Step = Callable[[Array, Array, float], Array]


def adam(betas: tuple[float, float] = (0.5, 0.999), eps: float = 1e-8) -> Step:
    """Return a new Adam optimizer."""
    m: Array | float = 0.0
    v: Array | float = 0.0
    t = 0

    def step(x: Array, gradient: Array, lr: float) -> Array:
        nonlocal m, v, t
        t += 1
        m = betas[0] * m + (1 - betas[0]) * gradient
        v = betas[1] * v + (1 - betas[1]) * gradient**2
        scale = np.sqrt(v) / np.sqrt(1 - betas[1] ** t) + eps
        next_x: Array = x - lr / (1 - betas[0] ** t) * m / scale
        return next_x

    return step


def sgd(momentum: float = 0.9, decay: float = 0.0) -> Step:
    """Return a new SGD optimizer with momentum and weight decay."""
    velocity: Array | None = None

    def step(x: Array, gradient: Array, lr: float) -> Array:
        nonlocal velocity
        gradient = gradient + decay * x
        velocity = gradient if velocity is None else momentum * velocity + gradient
        next_x: Array = x - lr * velocity
        return next_x

    return step


def softmax(logits: Array) -> Array:
    """Return the softmax along the last axis."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares: Array = powers / powers.sum(axis=-1, keepdims=True)
    return shares
