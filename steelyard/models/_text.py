"""Networks for text: samples are int64 tokens `[T]`, from 0 to `vocabulary` - 1."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from steelyard.core import checks
from steelyard.core._errors import SteelyardError
from steelyard.core._weighting import Info
from steelyard.models._registry import MODELS, Architecture, Shape


@MODELS.register
@dataclass(frozen=True)
class CharLSTM(Architecture):
    """Predicts the next character: the LSTM of LEAF, FedDyn and FedCos for Shakespeare.

    With 80 characters and classes: 133,520 parameters; CriticalFL's is `embedding=256,hidden=512`
    (3,739,728). FedCos's repository has no LSTM; this one follows its paper, which agrees with
    FedDyn's code. The prediction is made from the last time step.

    Attributes:
        embedding: numbers per character.
        hidden: numbers per time step and layer.
        layers: LSTM layers.
        vocabulary: number of characters; by default the number of classes, because characters are
            predicted.
    """

    embedding: int = 8
    hidden: int = 100
    layers: int = 2
    vocabulary: int | None = None

    name = "char_lstm"
    info = Info("embedding and LSTM layers for the next character", "Caldas et al. (LEAF), 2018")

    def __post_init__(self) -> None:
        checks.integer("embedding", self.embedding, 1)
        checks.integer("hidden", self.hidden, 1)
        checks.integer("layers", self.layers, 1, 1000)
        if self.vocabulary is not None:
            checks.integer("vocabulary", self.vocabulary, 1)

    def __call__(self, input_shape: Shape, classes: int) -> nn.Module:
        """Return the network: embedding, LSTM, linear layer."""
        _check_tokens(self.name, input_shape)
        return nn.Sequential(
            nn.Embedding(self.vocabulary or classes, self.embedding),
            LastStep(self.embedding, self.hidden, self.layers),
            nn.Linear(self.hidden, classes),
        )


@MODELS.register
@dataclass(frozen=True)
class TextMean(Architecture):
    """Classifies a text by the mean embedding of its tokens: fastText without n-grams.

    Joulin et al., EACL 2017.

    FedAWA's paper has results on AG News and Sogou News, but neither the paper nor its code says
    which network: this one is our choice, and no number of parameters can be checked. Token 0 is
    padding and not counted; a text of padding only has mean 0.

    Attributes:
        embedding: numbers per token.
        vocabulary: number of tokens, including padding.
    """

    embedding: int = 64
    vocabulary: int = 20000

    name = "text_mean"
    info = Info("mean of embeddings and one linear layer", "Joulin et al. (fastText), EACL 2017")

    def __post_init__(self) -> None:
        checks.integer("embedding", self.embedding, 1)
        checks.integer("vocabulary", self.vocabulary, 2)

    def __call__(self, input_shape: Shape, classes: int) -> nn.Module:
        """Return the network: embeddings, mean, linear layer."""
        _check_tokens(self.name, input_shape)
        bag = nn.EmbeddingBag(self.vocabulary, self.embedding, mode="mean", padding_idx=0)
        return nn.Sequential(bag, nn.Linear(self.embedding, classes))


class LastStep(nn.Module):
    """An LSTM of which only the last time step is returned, `[N, T, d]` to `[N, hidden]`."""

    def __init__(self, width: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, hidden, layers, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the last time step of the last layer."""
        steps: torch.Tensor = self.lstm(x)[0]
        return steps[:, -1]


def _check_tokens(name: str, input_shape: Shape) -> None:
    """Raise an error if samples are not sequences of tokens."""
    if len(input_shape) != 1:
        raise SteelyardError(f"input_shape={input_shape}: {name} takes tokens (length,)")
