"""A small vision transformer: Dosovitskiy et al., "An Image is Worth 16x16 Words", ICLR 2021.

FedAWA's settings: patches of 4x4, 512 numbers per token, 6 layers, 8 heads of 64, 512 hidden units,
dropout 0.1. The parameter count of its code (9,523,722 at 32x32 and 10 classes) needs: no bias in
the projections to queries, keys and values; a norm before attention and before the hidden layer;
one norm after the class token and no other. Dropout is where the code has it (models_dict/vit.py):
after the position embedding, after the projection of the attention's output and after each of the
two linear maps of the hidden layer, but not on the attention itself. Initial embeddings are
standard normal. Patches are cut by a convolution, which is the same linear map as one of flattened
patches, with the same initial distribution.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from steelyard.core import checks
from steelyard.core._errors import SteelyardError
from steelyard.core._weighting import Info
from steelyard.models._registry import MODELS, Architecture, Shape, image_shape


@MODELS.register
@dataclass(frozen=True)
class ViT(Architecture):
    """FedAWA's vision transformer.

    Attributes:
        patch: side of a patch.
        dim: numbers per token.
        depth: number of layers.
        heads: of attention.
        head_dim: numbers per head.
        hidden: width of the hidden layer.
        dropout: after the embedding, the attention's projection and each linear map of the hidden
            layer.
    """

    patch: int = 4
    dim: int = 512
    depth: int = 6
    heads: int = 8
    head_dim: int = 64
    hidden: int = 512
    dropout: float = 0.1

    name = "vit"
    info = Info("vision transformer on patches of 4x4", "Dosovitskiy et al., ICLR 2021")

    def __post_init__(self) -> None:
        for option in ("patch", "dim", "heads", "head_dim", "hidden"):
            checks.integer(option, getattr(self, option), 1)
        checks.integer("depth", self.depth, 1, 1000)
        checks.number("dropout", self.dropout, 0.0, 1.0)

    def __call__(self, input_shape: Shape, classes: int) -> nn.Module:
        """Return the network: patches, layers, class token, linear layer."""
        channels, height, width = image_shape(self.name, input_shape, low=self.patch)
        if height % self.patch or width % self.patch:
            raise SteelyardError(
                f"patch={self.patch}: images are {height}x{width}, use a divisor of both sides"
            )
        patches = (height // self.patch) * (width // self.patch)
        layers: list[nn.Module] = []
        for _ in range(self.depth):
            layers.append(Attention(self.dim, self.heads, self.head_dim, self.dropout))
            layers.append(Hidden(self.dim, self.hidden, self.dropout))
        return nn.Sequential(
            Tokens(channels, self.patch, self.dim, patches),
            nn.Dropout(self.dropout),
            *layers,
            First(),
            nn.LayerNorm(self.dim),
            nn.Linear(self.dim, classes),
        )


class Tokens(nn.Module):
    """Makes tokens of images, `[N, C, H, W]` to `[N, 1 + patches, dim]`.

    The tokens are a class token and the patches, with their positions.
    """

    def __init__(self, channels: int, patch: int, dim: int, patches: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, dim, patch, stride=patch)
        self.position = nn.Parameter(torch.randn(1, 1 + patches, dim))
        self.token = nn.Parameter(torch.randn(1, 1, dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the tokens; the class token is the first."""
        patches = self.patches(x).flatten(2).transpose(1, 2)  # [N, patches, dim]
        return torch.cat([self.token.expand(len(x), -1, -1), patches], dim=1) + self.position


class Attention(nn.Module):
    """Softmax attention of several heads, added to its input."""

    def __init__(self, dim: int, heads: int, head_dim: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.project = nn.Linear(dim, 3 * heads * head_dim, bias=False)
        self.out = nn.Sequential(nn.Linear(heads * head_dim, dim), nn.Dropout(dropout))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the input plus the attention, scaled by the square root of the heads' width."""
        projections = self.project(self.norm(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = projections.permute(2, 0, 3, 1, 4)
        attention = nn.functional.scaled_dot_product_attention(
            query, key, value
        )  # [N, heads, T, d]
        output: torch.Tensor = self.out(attention.transpose(1, 2).flatten(2))
        return x + output


class Hidden(nn.Module):
    """One hidden layer with GELU, added to its input."""

    def __init__(self, dim: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(dim),
            nn.Linear(dim, hidden),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, dim),
            nn.Dropout(dropout),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of the input and the hidden layer's output."""
        output: torch.Tensor = self.layers(x)
        return x + output


class First(nn.Module):
    """Selects the class token, `[N, T, d]` to `[N, d]`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the first token."""
        return x[:, 0]
