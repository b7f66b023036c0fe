"""The features of a network, which are the inputs of its classifier, and the loss of feature terms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from steelyard.client._flat import FlatModel
from steelyard.core._errors import SteelyardError
from steelyard.core._side_channel import Classifier, describe_missing_classifier
from steelyard.core._term import ClientContext, FeatureTerm

_EVALUATE = 512  # samples per forward pass


def find_classifier(module: nn.Module, name: str = "") -> Classifier:
    """Return the classifier of a network.

    It is the layer of this name, or else the layer `classifier`, or else the last linear layer that
    the network defines.

    Args:
        module: the network.
        name: the name of the layer; empty to find it.

    Raises:
        SteelyardError: if there is no such layer.
    """
    layers = {key: part for key, part in module.named_modules() if isinstance(part, nn.Linear)}
    if not name:
        name = "classifier" if "classifier" in layers else next(reversed(layers), "")
    if name not in layers:
        raise SteelyardError(describe_missing_classifier(name))
    layer = layers[name]
    return Classifier(name, layer.out_features, layer.in_features, layer.bias is not None)


def check_class_targets(targets: torch.Tensor, terms: Sequence[FeatureTerm]) -> None:
    """Raise an error if a feature term cannot use these targets: it needs one class per sample."""
    if terms and (targets.dtype != torch.int64 or targets.ndim != 1):
        raise SteelyardError(
            f"client={terms[0].name} needs one class per sample, but the targets are "
            f"{targets.dtype} {list(targets.shape)}: leave the term out"
        )


class FeatureRecorder:
    """Records the features of each forward pass while it is open."""

    def __init__(self, module: nn.Module, classifier: Classifier) -> None:
        self.classifier = classifier
        self._layer = module.get_submodule(classifier.name)
        self._features: torch.Tensor | None = None
        self._handle: Any = None

    def __enter__(self) -> FeatureRecorder:
        self._handle = self._layer.register_forward_pre_hook(self._record)
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.remove()
        self._features = None

    def _record(self, layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        self._features = inputs[0]

    def take(self) -> torch.Tensor:
        """Return the features of the last forward pass, `[n, dim]`.

        Raises:
            SteelyardError: if the pass did not use the classifier, or not with one vector per sample.
        """
        features = self._features
        self._features = None
        name = self.classifier.name
        if features is None:
            raise SteelyardError(
                f"the network does not call its layer {name!r}: name its last linear layer with "
                "classifier=..."
            )
        if features.ndim != 2:
            raise SteelyardError(
                f"the layer {name!r} gets inputs of shape {list(features.shape)}: features must be "
                "one vector per sample; name another layer with classifier=..."
            )
        return features


@dataclass(frozen=True)
class FeatureLoss:
    """The sum of the losses of feature terms, as a function of a forward pass.

    Attributes:
        recorder: holds the features of the pass.
        terms: the terms that add to the loss, with their contexts.
    """

    recorder: FeatureRecorder
    terms: Sequence[tuple[FeatureTerm, ClientContext]]

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the sum of the losses for the batch of the last forward pass."""
        features = self.recorder.take()
        total = features.new_zeros(())
        for term, at in self.terms:
            total = total + term.loss(features, outputs, targets, at)
        return total


@torch.no_grad()
def compute_features(
    model: FlatModel, classifier: Classifier, prepared: torch.Tensor, index: torch.Tensor
) -> torch.Tensor:
    """Return the features of some samples in evaluation mode, `[n, dim]`.

    Args:
        model: the network, with the parameters to use.
        classifier: its last linear layer.
        prepared: all inputs, from `FlatModel.prepare_inputs`.
        index: positions of the samples.
    """
    model.module.eval()
    parts = []
    with FeatureRecorder(model.module, classifier) as recorder:
        for part in torch.split(index, _EVALUATE):
            model.module(model.batch(prepared, part))
            parts.append(recorder.take())
    return torch.cat(parts)


def compute_prototypes(
    features: torch.Tensor, targets: torch.Tensor, classes: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean feature of each class, and the number of its samples.

    Args:
        features: `[n, dim]`.
        targets: classes, int64 `[n]`.
        classes: number of classes.

    Returns:
        Prototypes, float32 `[classes, dim]`, zero for a class without samples; counts, int64
        `[classes]`.
    """
    counts = torch.bincount(targets, minlength=classes)
    sums = torch.zeros(classes, features.shape[1], dtype=torch.float64, device=features.device)
    sums.index_add_(0, targets, features.double())
    means = sums / counts.clamp(min=1)[:, None]
    return means.float(), counts
