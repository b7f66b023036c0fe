"""Measurements over the models that a run kept: how flat the minimum is, round by round.

FedLAW (Li et al., ICML 2023), Appendix B.1, Figure 10: the norm of the model, lambda_1 and lambda_1
/ lambda_5 of the Hessian over the rounds. A run keeps all models that this needs with

    simulate(..., out="runs/one", checkpoint_every=10, checkpoint_pace=1, keep=1000)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from steelyard.client._adapters import load_model
from steelyard.client._losses import resolve_loss
from steelyard.core import checks
from steelyard.core._errors import SteelyardError
from steelyard.core._gram import Array
from steelyard.data import Dataset
from steelyard.diagnostics._landscape import hessian_spectrum
from steelyard.diagnostics._recorded import Rounds
from steelyard.runs._checkpoint import parse_round_number, read_verified
from steelyard.runs._directory import read_config
from steelyard.sim._experiment import Experiment
from steelyard.sim._inputs import build_federation, build_module


@dataclass(frozen=True)
class Spectra:
    """The largest eigenvalues of the Hessian at the models of several rounds.

    Attributes:
        rounds: `[T]`.
        values: eigenvalues, the largest first, `[T, k]`.
    """

    rounds: Rounds
    values: Array

    @property
    def top(self) -> Array:
        """lambda_1 of each round, `[T]`: the smaller, the flatter."""
        first: Array = self.values[:, 0]
        return first

    @property
    def ratio(self) -> Array:
        """lambda_1 / lambda_5 of each round, `[T]`: the smaller, the flatter."""
        if self.values.shape[1] < 5:
            raise SteelyardError(
                f"lambda_1 / lambda_5 of {self.values.shape[1]} eigenvalues: ask for k=5"
            )
        with np.errstate(divide="ignore"):
            ratios: Array = self.values[:, 0] / self.values[:, 4]
        return ratios


def read_models(
    run: str | Path, rounds: Sequence[int] | None = None
) -> Iterator[tuple[int, dict[str, torch.Tensor]]]:
    """Yield round and global model of each checkpoint that a run kept, in the order of rounds.

    Args:
        run: a run directory.
        rounds: the rounds to read; all that were kept by default.
    """
    directories = sorted(Path(run).glob("checkpoints/round-*"), key=parse_round_number)
    numbers = [parse_round_number(path) for path in directories]
    for number in numbers if rounds is None else rounds:
        if number not in numbers:
            kept_rounds = ", ".join(map(str, numbers)) or "none"
            raise SteelyardError(
                f"{run}: keeps no model of round {number} (it has {kept_rounds}): run with "
                f"checkpoint_every=..., checkpoint_pace=1 and a larger keep"
            )
        path = directories[numbers.index(number)]
        try:
            yield number, dict(read_verified(path).model)
        except SteelyardError as error:
            raise SteelyardError(f"{path}: {error}") from None


def hessian_spectra(
    run: str | Path,
    k: int = 5,
    *,
    rounds: Sequence[int] | None = None,
    model: nn.Module | None = None,
    data: Any = None,
    samples: int = 500,
    seed: int = 0,
    **options: Any,
) -> Spectra:
    """Return the `k` largest eigenvalues of the Hessian at each model that a run kept.

    Args:
        run: a run directory.
        k: how many eigenvalues.
        rounds: the rounds to measure; all that were kept by default.
        model: the network; by default that of the run's configuration.
        data: the samples of the loss, anything that `Dataset.of` takes; by default those that the
            clients of the run train on.
        samples: the maximum number of samples, drawn without replacement.
        seed: of that draw.
        options: further arguments of `hessian_spectrum`: `double`, `tolerance`.
    """
    checks.integer("samples", samples, 1)
    path = Path(run)
    network, dataset, loss = _rebuild(path, model, data)
    order = np.random.default_rng(seed).permutation(len(dataset))[:samples]
    part = dataset.take(np.sort(order))

    # One spectrum for each model.
    numbers = []
    rows = []
    for number, state in read_models(path, rounds):
        load_model(network, state)
        spectrum = hessian_spectrum(network, part.inputs, part.targets, k, loss=loss, **options)
        numbers.append(number)
        rows.append(spectrum.values)
    if not rows:
        raise SteelyardError(
            f"{path}: keeps no models: run with checkpoint_every=..., checkpoint_pace=1 and a "
            f"larger keep"
        )
    return Spectra(np.array(numbers, dtype=np.int64), np.array(rows))


def _rebuild(path: Path, model: nn.Module | None, data: Any) -> tuple[nn.Module, Dataset, Any]:
    """Return network, samples and loss of a run; those that are not given, by its configuration."""
    settings = read_config(path).get("config")
    if settings is None:
        if model is None or data is None:
            raise SteelyardError(
                f"{path}: its data or model was an object, which is not on disk: give model= and "
                f"data="
            )
        return model, Dataset.of(data), resolve_loss("cross_entropy")
    experiment = Experiment.from_dict(settings, str(path))
    loss = resolve_loss(experiment.loss)
    if model is not None and data is not None:
        return model, Dataset.of(data), loss
    federation = build_federation(experiment.data, experiment.seed).group_by_client()
    if model is None:
        model = build_module(experiment.model, federation, experiment.seed, loss)
    dataset = federation.train if data is None else Dataset.of(data)
    return model, dataset, loss
