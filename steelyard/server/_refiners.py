"""Refiners: the server trains the aggregated model on proxy data.

    server_ft   trains the averaged model on the proxy labels                      the FedLAW paper's baseline
    feddf       distils the clients' models into it                                Lin et al., NeurIPS 2020
    fedbe       distils the clients', the average and models sampled around them   Chen & Chao, ICLR 2021

The preset `paper` has the settings of the baselines in the FedLAW paper, `official` those of its
authors' code, which differ:

                     paper (FedLAW, appendix D)          official (FedLAW's code)
    optimizer        Adam, betas (0.5, 0.999), lr 0.01   SGD, lr 0.08, momentum 0.9, weight decay
                                                         5e-4; momentum persists between rounds
    epochs           server_ft 2, feddf and fedbe 100    20

The code's learning rate and weight decay are those of the clients. The preset has the paper's
values for CIFAR-10 and Fashion-MNIST; for CIFAR-100 use `lr=0.01,weight_decay=5e-5`, and in general
the values of the clients.

FedDF's own authors train with Adam at 1e-3 with a cosine schedule for thousands of steps, and
average losses, logits or probabilities (`average`). FedBE's authors take ten samples, sharpen the
averaged probabilities by a temperature of 0.5 and average weights over the last steps (`swa`). The
code that FedLAW compares with takes one sample and does neither. The student trains with BatchNorm
as the probe's `bn` says; teachers use their own running statistics (in the code, the average and
the sampled teacher normalise by batch).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch.nn import functional

from steelyard.client._local import LocalTraining
from steelyard.core import checks
from steelyard.core._errors import SteelyardError
from steelyard.core._refiner import RefineContext, Refiner
from steelyard.core._registry import REFINERS, UNSET, fill
from steelyard.core._state import State
from steelyard.core._weighting import Info

_SGD = {"optimizer": "sgd", "lr": 0.08, "momentum": 0.9, "weight_decay": 5e-4, "persistent": True}
_ADAM = {"optimizer": "adam", "lr": 0.01, "momentum": 0.0, "weight_decay": 0.0, "persistent": False}
_PRESETS: dict[str, dict[str, Any]] = {"paper": _ADAM, "official": _SGD}
_BETAS = (0.5, 0.999)

# A loss as a function of outputs and the positions of the batch.
Objective = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Trained(Refiner):
    """The base of the refiners in this module: it trains the aggregated model on the proxy data.

    Attributes:
        preset: `paper` or `official`.
        epochs: passes over the proxy data.
        lr: learning rate.
        optimizer: `adam` or `sgd`.
        momentum: momentum of sgd.
        weight_decay: L2 penalty on the parameters.
        persistent: whether to keep the optimizer's state between rounds.
        paper_epochs: the epochs of the preset `paper`.
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
        _ = self._local  # checks the options of the optimizer

    @property
    def _local(self) -> LocalTraining:
        """The optimizer."""
        return LocalTraining(
            lr=self.lr,
            optimizer=self.optimizer,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            betas=_BETAS,
        )

    def train(
        self,
        at: RefineContext,
        state: State,
        objective: Objective | None,
        swa: tuple[int, int] | None = None,
    ) -> State:
        """Train the model in the session.

        Args:
            at: the round after the sum.
            state: the state of the previous round.
            objective: the loss; by default that of the probe.
            swa: first step and distance of the models that are averaged, if any: the result is
                their mean.

        Returns:
            The state for the next round; empty unless `persistent`.
        """
        # The optimizer's state.
        local = self._local
        x = at.session.params[None]  # [1, d]
        slots = {slot: torch.zeros_like(x) for slot in local.slots}
        past_steps = torch.zeros(1, 1, dtype=torch.float64)
        if self.persistent and state:
            slots = {slot: state[slot].clone() for slot in local.slots}
            past_steps += float(state["steps"])

        # Train, and average models.
        mean = torch.zeros_like(x)
        averaged = 0
        step = 0
        free = at.session.free
        for _ in range(self.epochs):
            for batch in at.session.epoch():
                step += 1
                at.session.backward(batch, objective)
                grad = at.session.gradient()[None]
                local.update(x, grad, slots, self.lr, past_steps, step, free)
                if swa is not None and step >= swa[0] and (step - swa[0]) % swa[1] == 0:
                    averaged += 1
                    mean += (x - mean) / averaged
        if averaged:
            x.copy_(mean)
        return {**slots, "steps": float(past_steps) + step} if self.persistent else {}


@REFINERS.register
@dataclass(frozen=True)
class ServerFT(Trained):
    """Fine-tunes the aggregated model on the proxy labels."""

    name = "server_ft"
    paper_epochs = 2
    info = Info("fine-tunes on proxy data", "Li et al. (FedLAW), ICML 2023")

    def refine(self, at: RefineContext, state: State) -> State:
        """Train on the proxy loss."""
        return self.train(at, state, None)


@REFINERS.register
@dataclass(frozen=True)
class FedDF(Trained):
    """Distils the clients into the aggregated model: KL(teachers, student) on the proxy inputs.

    Attributes:
        average: what is averaged over teachers, with equal weights: `logits`, `probabilities` or
            `losses`.
        temperature: divisor of all logits.
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
        """Compute the teachers' outputs once, then train the student."""
        with _restore_student(at):
            outputs = torch.stack([at.session.outputs() for _ in _clients(at)])  # [K, n, C]
            logits = outputs / self.temperature
        objective = distillation(logits, self.average, self.temperature)
        return self.train(at, state, objective)


@REFINERS.register
@dataclass(frozen=True)
class FedBE(Trained):
    """Distils an ensemble of clients, their average and models sampled around them.

    Attributes:
        samples: number of sampled models.
        mode: `gaussian` (per tensor, around the mean of unit-length updates) or `dirichlet` (random
            mixtures).
        scale: factor of the Gaussian's standard deviation.
        alpha: parameter of the Dirichlet distribution.
        average: what is averaged over teachers: `logits` or `probabilities`.
        sharpen: temperature of the averaged probabilities; 1 has no effect, FedBE's authors use
            0.5.
        swa_start: step from which on weights are averaged (SWA); 0 for never.
        swa_every: number of steps between averaged weights.
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
    info = Info(
        "distils clients, average and sampled models into the average", "Chen & Chao, ICLR 2021"
    )

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
        """Compute the ensemble's outputs, then train the student."""
        # The average, the clients and the sampled models.
        with _restore_student(at):
            logits = [at.session.outputs()]
            buffers = at.session.copy_buffers()
            logits += [at.session.outputs() for _ in _clients(at)]
            at.session.adopt(buffers)
            for _ in range(self.samples):
                self._sample(at)
                logits.append(at.session.outputs())

        # The student.
        objective = distillation(torch.stack(logits), self.average, 1.0, self.sharpen)
        swa = (self.swa_start, self.swa_every) if self.swa_start else None
        return self.train(at, state, objective, swa)

    def _sample(self, at: RefineContext) -> None:
        """Load a sampled model into the network."""
        # A random mixture of the clients.
        if self.mode == "dirichlet":
            weights = at.session.rng.dirichlet(np.full(len(at.shares), self.alpha))
            at.trial.mix(weights, 1.0)
            return

        # A Gaussian around the mean of unit-length updates, tensor by tensor.
        for leaf in at.store.layout.params:
            updates, theta = at.updates(leaf)
            norms = torch.linalg.vector_norm(updates, dim=1, keepdim=True)
            units = updates / norms.clamp(min=torch.finfo(updates.dtype).tiny)
            mean = units.mean(dim=0)
            variance = (units.square().mean(dim=0) - mean.square()).clamp(min=1e-5)
            noise = torch.from_numpy(at.session.rng.standard_normal(leaf.size)).to(mean.dtype)
            direction = mean + self.scale * variance.sqrt() * noise
            at.session.params[leaf.start : leaf.stop] = direction * norms.mean() + theta


class _restore_student:  # noqa: N801 - a context manager that is used like a function
    """Restores the student in the network after teachers were loaded into it."""

    def __init__(self, at: RefineContext) -> None:
        self.at = at

    def __enter__(self) -> None:
        self.params = self.at.session.params.clone()
        self.buffers = self.at.session.copy_buffers()

    def __exit__(self, *_: object) -> None:
        self.at.session.params.copy_(self.params)
        self.at.session.adopt(self.buffers)


def _clients(at: RefineContext) -> Iterator[None]:
    """Load the clients' models into the network, one per iteration."""
    for row in range(len(at.store.ids)):
        at.client(row)
        yield


def distillation(
    logits: torch.Tensor, average: str, temperature: float = 1.0, sharpen: float = 1.0
) -> Objective:
    """Return the objective KL(teachers, student), a mean over the samples of a batch.

    Args:
        logits: the teachers' logits, `[T, n, C]`, divided by the temperature.
        average: what is averaged over teachers: `logits`, `probabilities` or `losses`.
        temperature: divisor of the student's logits.
        sharpen: temperature of the averaged probabilities.
    """
    if logits.ndim != 3:
        raise SteelyardError(
            f"distillation needs outputs [n, classes], found {tuple(logits.shape[1:])}"
        )

    # The mean of the losses to each teacher.
    if average == "losses":
        teachers = logits.softmax(dim=2)

        def mean_loss(outputs: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
            student = (outputs / temperature).log_softmax(dim=1)
            losses = []
            for teacher in teachers:
                losses.append(functional.kl_div(student, teacher[batch], reduction="batchmean"))
            return torch.stack(losses).mean()

        return mean_loss

    # The loss to the mean teacher.
    if average == "logits":
        probabilities = logits.mean(dim=0).softmax(dim=1)
    else:
        probabilities = logits.softmax(dim=2).mean(dim=0)
    if sharpen != 1.0:
        probabilities = probabilities.pow(1 / sharpen)
        probabilities = probabilities / probabilities.sum(dim=1, keepdim=True)

    def loss(outputs: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        student = (outputs / temperature).log_softmax(dim=1)
        return functional.kl_div(student, probabilities[batch], reduction="batchmean")

    return loss
