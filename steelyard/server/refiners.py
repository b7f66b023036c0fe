"""Refiners: what the server does with proxy data after the sum.

    server_ft   trains the averaged model on the proxy labels                      the FedLAW paper's baseline
    feddf       distils the clients' models into it                                Lin et al., NeurIPS 2020
    fedbe       distils the clients', the average and models sampled around them   Chen & Chao, ICLR 2021

Presets `paper` are what the FedLAW paper says of its baselines, `official` what its authors' code does, which differs:

                     paper (FedLAW, appendix D)          official (FedLAW's code)
    optimizer        Adam, betas (0.5, 0.999), lr 0.01   SGD, lr 0.08, momentum 0.9, weight decay 5e-4; its momentum
                                                         persists from round to round
    epochs           server_ft 2, feddf and fedbe 100    20

The code's learning rate and weight decay are the clients'. Those of the preset are the paper's for CIFAR-10 and
Fashion-MNIST; for CIFAR-100 use `lr=0.01,weight_decay=5e-5`, and in general what the clients use.

FedDF's own authors train with Adam at 1e-3 under a cosine schedule for thousands of steps and average losses, logits or
probabilities (`average`); FedBE's take ten samples, sharpen the averaged probabilities by a temperature of 0.5 and
average weights over the last steps (`swa`). The code FedLAW compares to takes one sample and does neither.
The student trains in the mode the probe's `bn` says; teachers use their own running statistics (in the code the average
and the sampled teacher normalise by batch).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch.nn import functional

from steelyard.client.local import LocalTraining
from steelyard.core import checks
from steelyard.core.client_state import State
from steelyard.core.errors import SteelyardError
from steelyard.core.presets import UNSET, fill
from steelyard.core.refiner import RefineContext, Refiner
from steelyard.core.registry import REFINERS
from steelyard.core.weighting import Info

_SGD = {"optimizer": "sgd", "lr": 0.08, "momentum": 0.9, "weight_decay": 5e-4, "persistent": True}
_ADAM = {"optimizer": "adam", "lr": 0.01, "momentum": 0.0, "weight_decay": 0.0, "persistent": False}
_PRESETS: dict[str, dict[str, Any]] = {"paper": _ADAM, "official": _SGD}
_BETAS = (0.5, 0.999)

Objective = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # of outputs and the batch's positions


@dataclass(frozen=True)
class Trained(Refiner):
    """What all refiners here share: they train the aggregated model on the proxy data.

    Attributes:
        preset: `paper` or `official`.
        epochs: passes over the proxy data.
        lr: learning rate.
        optimizer: `adam` or `sgd`.
        momentum: of sgd.
        weight_decay: L2 on the parameters.
        persistent: keep the optimizer's state from round to round.
        paper_epochs: those of the preset `paper`.
    """

    preset: str = "paper"
    epochs: int = UNSET
    lr: float = UNSET
    optimizer: str = UNSET
    momentum: float = UNSET
    weight_decay: float = UNSET
    persistent: bool = UNSET

    paper_epochs: ClassVar[int]

    def __post_init__(self) -> None:
        checks.one_of("preset", self.preset, *_PRESETS)
        epochs = self.paper_epochs if self.preset == "paper" else 20
        fill(self, _PRESETS[self.preset] | {"epochs": epochs})
        checks.integer("epochs", self.epochs, 1)
        checks.one_of("persistent", self.persistent, True, False)
        _ = self._local  # checks its options

    @property
    def _local(self) -> LocalTraining:
        return LocalTraining(
            lr=self.lr, optimizer=self.optimizer, momentum=self.momentum, weight_decay=self.weight_decay, betas=_BETAS
        )

    def train(
        self, at: RefineContext, state: State, objective: Objective | None, swa: tuple[int, int] | None = None
    ) -> State:
        """Trains the model in the session; with `swa` it ends at the mean of its models from a step on."""
        local, x = self._local, at.session.params[None]  # [1, d]
        held = {slot: torch.zeros_like(x) for slot in local.slots}
        taken = torch.zeros(1, 1, dtype=torch.float64)
        if self.persistent and state:
            held = {slot: state[slot].clone() for slot in local.slots}
            taken += float(state["steps"])
        mean, seen, step = torch.zeros_like(x), 0, 0
        for _ in range(self.epochs):
            for batch in at.session.epoch():
                step += 1
                at.session.backward(batch, objective)
                local.update(x, at.session.gradient()[None], held, self.lr, taken, step, at.session.free)
                if swa is not None and step >= swa[0] and (step - swa[0]) % swa[1] == 0:
                    seen += 1
                    mean += (x - mean) / seen
        if seen:
            x.copy_(mean)
        return {**held, "steps": float(taken) + step} if self.persistent else {}


@REFINERS.register
@dataclass(frozen=True)
class ServerFT(Trained):
    """Fine-tunes the aggregated model on the proxy labels."""

    name = "server_ft"
    paper_epochs = 2
    info = Info("fine-tunes on proxy data", "Li et al. (FedLAW), ICML 2023")

    def refine(self, at: RefineContext, state: State) -> State:
        """Epochs of the proxy loss."""
        return self.train(at, state, None)


@REFINERS.register
@dataclass(frozen=True)
class FedDF(Trained):
    """Distils the clients into the aggregated model: KL(teachers, student) on the proxy inputs.

    Attributes:
        average: what is averaged over teachers, with equal weights: `logits`, `probabilities` or `losses`.
        temperature: divides all logits.
    """

    average: str = "logits"
    temperature: float = 1.0

    name = "feddf"
    paper_epochs = 100
    info = Info("distils the clients into the average", "Lin et al., NeurIPS 2020")

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of("average", self.average, "logits", "probabilities", "losses")
        checks.number("temperature", self.temperature, 0.0, open_low=True)

    def refine(self, at: RefineContext, state: State) -> State:
        """Teachers first, all at once: they do not change; then the student."""
        with _student_kept(at):
            logits = torch.stack([at.session.outputs() for _ in _clients(at)]) / self.temperature  # [K, n, C]
        objective = distillation(logits, self.average, self.temperature)
        return self.train(at, state, objective)


@REFINERS.register
@dataclass(frozen=True)
class FedBE(Trained):
    """Distils an ensemble of clients, their average and models sampled around them.

    Attributes:
        samples: how many models are sampled.
        mode: `gaussian` (per tensor, around the mean of unit-length updates) or `dirichlet` (random mixtures).
        scale: deviations of the Gaussian.
        alpha: of the Dirichlet.
        average: what is averaged over teachers: `logits` or `probabilities`.
        sharpen: temperature of the averaged probabilities; 1 leaves them as they are, FedBE's authors use 0.5.
        swa_start: step from which weights are averaged (SWA); 0 for never.
        swa_every: steps between averaged weights.
    """

    samples: int = 1
    mode: str = "gaussian"
    scale: float = 0.1
    alpha: float = 1.0
    average: str = "logits"
    sharpen: float = 1.0
    swa_start: int = 0
    swa_every: int = 25

    name = "fedbe"
    paper_epochs = 100
    info = Info("distils clients, average and sampled models into the average", "Chen & Chao, ICLR 2021")

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.integer("samples", self.samples, 0, 10_000)
        checks.one_of("mode", self.mode, "gaussian", "dirichlet")
        checks.number("scale", self.scale, 0.0)
        checks.number("alpha", self.alpha, 0.0, open_low=True)
        checks.one_of("average", self.average, "logits", "probabilities")
        checks.number("sharpen", self.sharpen, 0.0, open_low=True)
        checks.integer("swa_start", self.swa_start)
        checks.integer("swa_every", self.swa_every, 1)

    def refine(self, at: RefineContext, state: State) -> State:
        """The ensemble's outputs, then the student."""
        with _student_kept(at):
            logits = [at.session.outputs()]
            buffers = at.session.copy_buffers()
            logits += [at.session.outputs() for _ in _clients(at)]
            at.session.adopt(buffers)
            for _ in range(self.samples):
                self._sample(at)
                logits.append(at.session.outputs())
        objective = distillation(torch.stack(logits), self.average, 1.0, self.sharpen)
        return self.train(at, state, objective, (self.swa_start, self.swa_every) if self.swa_start else None)

    def _sample(self, at: RefineContext) -> None:
        """A model around the clients', into the network."""
        if self.mode == "dirichlet":
            at.trial.mix(at.session.rng.dirichlet(np.full(len(at.shares), self.alpha)), 1.0)
            return
        for leaf in at.store.layout.params:
            updates, theta = at.updates(leaf)
            norms = torch.linalg.vector_norm(updates, dim=1, keepdim=True)
            units = updates / norms.clamp(min=torch.finfo(updates.dtype).tiny)
            mean = units.mean(dim=0)
            variance = (units.square().mean(dim=0) - mean.square()).clamp(min=1e-5)
            noise = torch.from_numpy(at.session.rng.standard_normal(leaf.size)).to(mean.dtype)
            drawn = mean + self.scale * variance.sqrt() * noise
            at.session.params[leaf.start : leaf.stop] = drawn * norms.mean() + theta


class _student_kept:  # noqa: N801 - reads like a statement
    """Puts the student back after teachers went through the network."""

    def __init__(self, at: RefineContext) -> None:
        self.at = at

    def __enter__(self) -> None:
        self.params, self.buffers = self.at.session.params.clone(), self.at.session.copy_buffers()

    def __exit__(self, *_: object) -> None:
        self.at.session.params.copy_(self.params)
        self.at.session.adopt(self.buffers)


def _clients(at: RefineContext) -> Iterator[None]:
    """The clients' models, one after the other, in the network."""
    for row in range(len(at.store.ids)):
        at.client(row)
        yield


def distillation(logits: torch.Tensor, average: str, temperature: float = 1.0, sharpen: float = 1.0) -> Objective:
    """KL(teachers, student) of a batch, its mean over samples; teachers' logits `[T, n, C]`."""
    if logits.ndim != 3:
        raise SteelyardError(f"distillation needs outputs [n, classes], found {tuple(logits.shape[1:])}")
    if average == "losses":
        each = logits.softmax(dim=2)

        def mean_loss(outputs: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
            student = (outputs / temperature).log_softmax(dim=1)
            losses = [functional.kl_div(student, teacher[batch], reduction="batchmean") for teacher in each]
            return torch.stack(losses).mean()

        return mean_loss
    wanted = logits.mean(dim=0).softmax(dim=1) if average == "logits" else logits.softmax(dim=2).mean(dim=0)
    if sharpen != 1.0:
        wanted = wanted.pow(1 / sharpen)
        wanted = wanted / wanted.sum(dim=1, keepdim=True)

    def loss(outputs: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        return functional.kl_div((outputs / temperature).log_softmax(dim=1), wanted[batch], reduction="batchmean")

    return loss
