"""Losses by name, and checks that targets and outputs fit the loss."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from steelyard import threads
from steelyard.core._errors import SteelyardError, describe_unknown_name

if TYPE_CHECKING:
    from steelyard.client._flat import FlatModel

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_HINT = (
    'use loss="mse" for numbers, loss="bce" for several yes-or-no labels per sample, '
    "int64 targets [n] for classes, or a loss function of your own"
)


def mse(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean squared error.

    Outputs and targets have the same shape, or `[n, 1]` and `[n]`.
    """
    return functional.mse_loss(*_match_shapes("mse", outputs, targets))


def bce(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the binary cross-entropy of logits, a mean over samples and labels.

    Outputs and targets are both `[n, labels]`, or `[n]` for one label; `[n, 1]` is the same as
    `[n]`. Targets are in [0, 1].
    """
    return functional.binary_cross_entropy_with_logits(*_match_shapes("bce", outputs, targets))


LOSSES: dict[str, Loss] = {"cross_entropy": functional.cross_entropy, "mse": mse, "bce": bce}
"""The losses that `loss=` can name."""

_CROSS_ENTROPIES = (functional.cross_entropy, nn.CrossEntropyLoss)
_BINARY = (bce, functional.binary_cross_entropy_with_logits, nn.BCEWithLogitsLoss)


def resolve_loss(loss: str | Loss) -> Loss:
    """Return the loss of this name, or the function itself."""
    if isinstance(loss, str):
        if loss not in LOSSES:
            raise SteelyardError(describe_unknown_name("loss", loss, list(LOSSES)))
        return LOSSES[loss]
    function: Any = loss
    if not callable(function):
        names = ", ".join(LOSSES)
        raise SteelyardError(
            f"loss={loss!r}: use a name ({names}) or a function loss(outputs, targets)"
        )
    return loss


def name_of_loss(loss: Loss) -> str | None:
    """Return the name of a loss of this module; None for the functions of torch and of users."""
    for name, function in (("mse", mse), ("bce", bce)):
        if loss is function:
            return name
    return None


def check_targets(loss: Loss, targets: torch.Tensor) -> None:
    """Raise an error for targets with which the loss would silently be meaningless."""
    if _is_one_of(loss, _BINARY) and not bool(((targets >= 0) & (targets <= 1)).all()):
        raise SteelyardError(
            f"targets lie in {targets.min():g}..{targets.max():g}, but binary cross-entropy takes "
            'labels in [0, 1]: use 0 and 1, or loss="mse" for numbers'
        )
    is_float = targets.is_floating_point()
    if is_float and _is_one_of(loss, _CROSS_ENTROPIES) and not _are_probabilities(targets):
        dtype = str(targets.dtype).removeprefix("torch.")
        raise SteelyardError(
            f"targets are {dtype} {_shape(targets)}, but cross-entropy takes classes, or "
            f"probabilities [n, classes] that add up to 1: {_HINT}"
        )


def try_network(
    model: FlatModel, inputs: torch.Tensor, targets: torch.Tensor, required: bool = False
) -> torch.Tensor | None:
    """Run a copy of the network on the first two samples.

    Raise an error if outputs do not fit targets.

    Args:
        model: network and loss.
        inputs: all inputs.
        targets: all targets.
        required: whether to raise an error if the network fails. Otherwise training reports it,
            with client and round.

    Returns:
        The outputs; None if the network fails or does not return a tensor.
    """
    # Work on a copy: the network may change its buffers.
    module = copy.deepcopy(model.module).eval()
    first_inputs = inputs[:2]
    first_targets = targets[:2].to(model.device)
    devices = [model.device] if model.device.type == "cuda" else []

    # One thread at a time: torch's generator and the warning filters belong to the process.
    with (
        threads.seeded(0),
        torch.random.fork_rng(devices=devices),
        warnings.catch_warnings(),
        torch.no_grad(),
    ):
        # torch broadcasts [n, 1] and [n] to [n, n] with a warning, and would train on the result.
        warnings.filterwarnings("error", message="Using a target size")

        # Run the network.
        try:
            index = torch.arange(len(first_inputs), device=model.device)
            outputs = module(model.batch(model.prepare_inputs(first_inputs), index))
        except Exception as error:
            if required:
                raise SteelyardError(
                    f"the network fails on two samples: {type(error).__name__}: {error}"
                ) from error
            return None

        # Compute the loss.
        try:
            model.loss(outputs, first_targets)
        except SteelyardError:
            raise
        except UserWarning:
            sizes = ", ".join(["-1", *map(str, outputs.shape[1:])])
            raise SteelyardError(
                f"the network's outputs are {_shape(outputs)} and the targets "
                f"{_shape(first_targets)}, which the loss would broadcast to another shape: "
                f"use equal shapes, e.g. targets.reshape({sizes})"
            ) from None
        except Exception:  # an error of the user's code: training reports it with client and round
            pass
    return outputs if isinstance(outputs, torch.Tensor) else None


def _match_shapes(
    name: str, outputs: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return outputs and targets with the same shape and dtype; raise an error if shapes differ."""
    targets = targets.to(outputs.dtype)
    if outputs.shape == targets.shape:
        return outputs, targets
    if outputs.ndim == 2 and outputs.shape[1] == 1 and targets.ndim == 1:
        outputs = outputs.squeeze(1)
    elif targets.ndim == 2 and targets.shape[1] == 1 and outputs.ndim == 1:
        targets = targets.squeeze(1)
    if outputs.shape != targets.shape:
        raise SteelyardError(
            f"loss={name!r}: the network's outputs are {_shape(outputs)} and the targets "
            f"{_shape(targets)}: use a network with as many outputs as a sample has targets"
        )
    return outputs, targets


def _are_probabilities(targets: torch.Tensor) -> bool:
    """Return whether float targets are rows of probabilities of two or more classes."""
    if targets.ndim < 2 or targets.shape[1] < 2:
        return False
    return bool((targets >= 0).all()) and bool(((targets.sum(dim=1) - 1).abs() < 1e-3).all())


def _is_one_of(loss: Any, candidates: tuple[Any, ...]) -> bool:
    """Return whether a loss is one of these functions or an instance of one of these modules."""
    while isinstance(loss, partial):
        loss = loss.func
    for candidate in candidates:
        if loss is candidate or (isinstance(candidate, type) and isinstance(loss, candidate)):
            return True
    return False


def _shape(tensor: torch.Tensor) -> str:
    """Return the shape of a batch as text: `[n, 3]`."""
    return f"[{', '.join(['n', *map(str, tensor.shape[1:])])}]"
