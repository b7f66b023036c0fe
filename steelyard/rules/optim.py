"""Torch's Adam and SGD on small float64 vectors: what rules optimise with, fresh in every round."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from steelyard.core.gram import Array

Step = Callable[[Array, Array, float], Array]  # from a point, its gradient and a learning rate to the next point


def adam(betas: tuple[float, float] = (0.5, 0.999), eps: float = 1e-8) -> Step:
    """Adam."""
    m: Array | float = 0.0
    v: Array | float = 0.0
    t = 0

    def step(x: Array, gradient: Array, lr: float) -> Array:
        nonlocal m, v, t
        t += 1
        m = betas[0] * m + (1 - betas[0]) * gradient
        v = betas[1] * v + (1 - betas[1]) * gradient**2
        moved: Array = x - lr / (1 - betas[0] ** t) * m / (np.sqrt(v) / np.sqrt(1 - betas[1] ** t) + eps)
        return moved

    return step


def sgd(momentum: float = 0.9, decay: float = 0.0) -> Step:
    """SGD with momentum."""
    velocity: Array | None = None

    def step(x: Array, gradient: Array, lr: float) -> Array:
        nonlocal velocity
        gradient = gradient + decay * x
        velocity = gradient if velocity is None else momentum * velocity + gradient
        moved: Array = x - lr * velocity
        return moved

    return step


def softmax(logits: Array) -> Array:
    """Along the last axis."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares: Array = powers / powers.sum(axis=-1, keepdims=True)
    return shares
