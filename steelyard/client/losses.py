"""Losses by name, and the targets each of them can learn from."""

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
from steelyard.core.errors import SteelyardError, unknown

if TYPE_CHECKING:
    from steelyard.client.flat import FlatModel

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_CURE = (
    'use loss="mse" for numbers, loss="bce" for several yes-or-no labels per sample, int64 targets [n] for classes, '
    "or a loss function of your own"
)


def mse(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean squared error; outputs and targets have one shape, where `[n, 1]` counts as `[n]`."""
    return functional.mse_loss(*_match_shapes("mse", outputs, targets))


def bce(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the binary cross-entropy of logits, a mean over samples and labels.

    Outputs and targets are both `[n, labels]`, or `[n]` for one label, where `[n, 1]` counts as `[n]`. Targets lie in
    [0, 1].
    """
    return functional.binary_cross_entropy_with_logits(*_match_shapes("bce", outputs, targets))


LOSSES: dict[str, Loss] = {"cross_entropy": functional.cross_entropy, "mse": mse, "bce": bce}
"""What `loss=` can be by name."""

_CROSS_ENTROPIES = (functional.cross_entropy, nn.CrossEntropyLoss)
_BINARY = (bce, functional.binary_cross_entropy_with_logits, nn.BCEWithLogitsLoss)


def resolve_loss(loss: str | Loss) -> Loss:
    """Return the loss of this name, or the function itself."""
    if isinstance(loss, str):
        if loss not in LOSSES:
            raise SteelyardError(unknown("loss", loss, list(LOSSES)))
        return LOSSES[loss]
    given: Any = loss
    if not callable(given):
        names = ", ".join(LOSSES)
        raise SteelyardError(f"loss={loss!r}: use a name ({names}) or a function loss(outputs, targets)")
    return loss


def name_of_loss(loss: Loss) -> str | None:
    """Return the name of a loss that is ours; None for torch's and users' functions, which have a path of their own."""
    return next((name for name, known in (("mse", mse), ("bce", bce)) if loss is known), None)


def check_targets(loss: Loss, targets: torch.Tensor) -> None:
    """Refuse targets that the loss would silently make nonsense of."""
    if _is_one_of(loss, _BINARY) and not bool(((targets >= 0) & (targets <= 1)).all()):
        raise SteelyardError(
            f"targets lie in {targets.min():g}..{targets.max():g}, and binary cross-entropy takes labels in [0, 1]: "
            'use 0 and 1, or loss="mse" for numbers'
        )
    is_float = targets.is_floating_point()
    if is_float and _is_one_of(loss, _CROSS_ENTROPIES) and not _are_probabilities(targets):
        dtype = str(targets.dtype).removeprefix("torch.")
        raise SteelyardError(
            f"targets are {dtype} {_shape(targets)}, and cross-entropy takes classes, or probabilities [n, classes] "
            f"that add up to 1: {_CURE}"
        )


def try_network(
    model: FlatModel, inputs: torch.Tensor, targets: torch.Tensor, required: bool = False
) -> torch.Tensor | None:
    """Run a copy of the network on the first two samples, and refuse outputs that do not fit the targets.

    Args:
        model: network and loss.
        inputs: all inputs.
        targets: all targets.
        required: whether a network that fails is an error here; else training reports it, with client and round.

    Returns:
        The outputs; None if the network fails, or returns something else than a tensor.
    """
    module = copy.deepcopy(model.module).eval()  # nothing that the network keeps is touched
    first = inputs[:2]
    wanted = targets[:2].to(model.device)
    devices = [model.device] if model.device.type == "cuda" else []
    # One thread at a time: torch's generator and the filters of warnings belong to the process.
    with threads.seeded(0), torch.random.fork_rng(devices=devices), warnings.catch_warnings(), torch.no_grad():
        # torch broadcasts [n, 1] and [n] to [n, n] with a warning, and would train on that
        warnings.filterwarnings("error", message="Using a target size")
        try:
            outputs = module(model.batch(model.prepare_inputs(first), torch.arange(len(first), device=model.device)))
        except Exception as error:
            if required:
                raise SteelyardError(f"the network fails on two samples: {type(error).__name__}: {error}") from error
            return None
        try:
            model.loss(outputs, wanted)
        except SteelyardError:
            raise
        except UserWarning:
            sizes = ", ".join(["-1", *map(str, outputs.shape[1:])])
            raise SteelyardError(
                f"the network's outputs are {_shape(outputs)} and the targets {_shape(wanted)}, which the loss would "
                f"broadcast to another shape: make them alike, e.g. targets.reshape({sizes})"
            ) from None
        except Exception:  # of the user's code: training names client and round
            pass
    return outputs if isinstance(outputs, torch.Tensor) else None


def _match_shapes(name: str, outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return outputs and targets in one shape and type; refuse what torch would broadcast."""
    targets = targets.to(outputs.dtype)
    if outputs.shape == targets.shape:
        return outputs, targets
    if outputs.ndim == 2 and outputs.shape[1] == 1 and targets.ndim == 1:
        outputs = outputs.squeeze(1)
    elif targets.ndim == 2 and targets.shape[1] == 1 and outputs.ndim == 1:
        targets = targets.squeeze(1)
    if outputs.shape != targets.shape:
        raise SteelyardError(
            f"loss={name!r}: the network's outputs are {_shape(outputs)} and the targets {_shape(targets)}: give the "
            "network as many outputs as a sample has targets"
        )
    return outputs, targets


def _are_probabilities(targets: torch.Tensor) -> bool:
    """Return whether float targets are rows of probabilities of two or more classes."""
    if targets.ndim < 2 or targets.shape[1] < 2:
        return False
    return bool((targets >= 0).all()) and bool(((targets.sum(dim=1) - 1).abs() < 1e-3).all())


def _is_one_of(loss: Any, known: tuple[Any, ...]) -> bool:
    """Return whether a loss is one of these functions or modules, with options of its own or without."""
    while isinstance(loss, partial):
        loss = loss.func
    return any(loss is one or (isinstance(one, type) and isinstance(loss, one)) for one in known)


def _shape(tensor: torch.Tensor) -> str:
    """The shape of a batch in words: `[n, 3]`."""
    return f"[{', '.join(['n', *map(str, tensor.shape[1:])])}]"
