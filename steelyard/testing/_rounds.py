"""Rounds to try rules on: a small model, clients around it, what clients report, and proxy data."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from steelyard.core._layout import Layout
from steelyard.core._state import ClientId
from steelyard.metrics import METRICS

# What both kinds of checks share.


def require(condition: Any, message: str) -> None:
    """Raises AssertionError with this sentence if the condition does not hold, also under `python -O`."""
    if not condition:
        raise AssertionError(message)


def is_frozen_dataclass(kind: type[Any]) -> bool:
    """Return whether a class was decorated with `@dataclass(frozen=True)`."""
    return dataclasses.is_dataclass(kind) and bool(kind.__dataclass_params__.frozen)  # type: ignore[attr-defined]


StateDict = dict[str, torch.Tensor]


def make_model(
    seed: int = 0,
    around: Mapping[str, torch.Tensor] | None = None,
    step: float = 0.01,
    wide: int = 90,
    dtype: torch.dtype = torch.float32,
) -> StateDict:
    """Return a small network with BatchNorm, a scalar parameter and an integer buffer.

    Args:
        seed: the seed of its parameters.
        around: the model it starts from; its parameters are then `around + step * noise`.
        step: the size of that noise.
        wide: the width of its layers.
        dtype: the dtype of its parameters.
    """
    g = torch.Generator().manual_seed(seed)
    shapes: dict[str, tuple[int, ...]] = {
        "conv.weight": (wide, 3, 3),
        "conv.bias": (wide,),
        "bn.weight": (wide,),
        "bn.bias": (wide,),
        "bn.running_mean": (wide,),
        "bn.running_var": (wide,),
        "scale": (),
        "fc.weight": (wide, 30),
    }
    params = {
        name: torch.randn(shape, generator=g, dtype=torch.float64) for name, shape in shapes.items()
    }
    if around is not None:
        params = {name: around[name].double() + step * value for name, value in params.items()}
    params["bn.running_var"] = params["bn.running_var"].abs() + 0.1
    params = {name: value.to(dtype) for name, value in params.items()}
    params["bn.num_batches_tracked"] = torch.tensor(seed)
    return params


def make_cohort(
    count: int = 6, seed: int = 0, **options: Any
) -> tuple[StateDict, dict[ClientId, StateDict]]:
    """Return a base model and the models of `count` clients by id.

    The options are those of `make_model`.
    """
    base = make_model(1000 + seed, **options)
    return base, {
        f"client-{k}": make_model(seed + k + 1, around=base, **options) for k in range(count)
    }


def make_reports(
    ids: Sequence[ClientId], seed: int = 0, extra: Iterable[str] = ()
) -> dict[str, dict[ClientId, Any]]:
    """Return every metric that clients can report, by id.

    `extra` ones, not ours, are drawn from (0.1, 1).
    """
    g = torch.Generator().manual_seed(seed)

    def draw(low: float, high: float) -> dict[ClientId, Any]:
        return {c: low + (high - low) * torch.rand((), generator=g).item() for c in ids}

    # In the order of the table: a metric at its end does not change the numbers of the others.
    metrics: dict[str, dict[ClientId, Any]] = {}
    for name, metric in METRICS.items():
        low, high = metric.typical
        if metric.is_integer:
            metrics[name] = {c: int(low + (high - low) * k) for k, c in enumerate(ids)}
        elif metric.is_per_class:
            metrics[name] = {
                c: torch.randint(int(low), int(high), (10,), generator=g).tolist() for c in ids
            }
        else:
            metrics[name] = draw(low, high)
    return metrics | {name: draw(0.1, 1.0) for name in sorted(extra) if name not in metrics}


class QuadraticProbe:
    """A stand-in for proxy data that fits any model.

    Sample j pulls every coordinate towards 0.1 j.
    """

    def open(self, layout: Layout, number: int, buffers: Any, state: Any) -> Any:
        """Starts a session."""
        return _QuadraticSession(layout)


class _QuadraticSession:
    def __init__(self, layout: Layout) -> None:
        self.params = torch.zeros(layout.dim, dtype=layout.row_dtype)
        self.grad = torch.zeros_like(self.params)
        self.rng = np.random.default_rng(0)

    def epoch(self) -> Iterator[torch.Tensor]:
        return iter(torch.split(torch.arange(3), 2))

    def backward(self, batch: torch.Tensor, objective: Any = None) -> float:
        self.grad.zero_()
        for sample in batch.tolist():
            away = self.params - 0.1 * sample
            self.grad += away / (1 + away.square()).sqrt() / (len(batch) * len(away))
        return float(self.grad[0])

    def slopes(self) -> list[tuple[int, torch.Tensor]]:
        return [(0, self.grad)]

    def close(self) -> None:
        pass

    def buffers(self) -> None:
        return None


def same_state(a: Any, b: Any) -> bool:
    """Return whether two states are equal; they may hold tensors."""
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        are_tensors = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
        return are_tensors and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same_state(a[key], b[key]) for key in a)
    return bool(a == b)


def same_bits(a: Any, b: Any) -> bool:
    """Return whether two models hold the same bits."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    return a.keys() == b.keys() and all(
        a[name].dtype == b[name].dtype and torch.equal(a[name], b[name]) for name in a
    )
