"""The frozen weights under LoRA adapters, in memory that the server and its workers share.

With `lora=residual` and `lora=stack`, the server adds to them what the adapters cannot hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from steelyard.client._adapters import find_adapted_weight
from steelyard.core._errors import RoundOverflow
from steelyard.core._layout import LoraPair
from steelyard.core._lora import Factors
from steelyard.core._sums import are_finite
from steelyard.sim._buffers import shared_zeros


class BaseWeights:
    """The weights that adapters change, by the name of the adapter."""

    def __init__(self, module: nn.Module, pairs: Sequence[LoraPair]) -> None:
        self._weights = {pair.name: find_adapted_weight(module, pair) for pair in pairs}
        for weight in self._weights.values():
            parameter = weight.parameter
            memory = shared_zeros(list(parameter.shape), parameter.dtype)
            memory.copy_(parameter.data)
            parameter.data = memory

    def add(self, residuals: Mapping[str, Factors]) -> None:
        """Add products to the weights.

        Raises:
            RoundOverflow: if a product is not finite; then no weight was changed.
        """
        products = {}
        for name, factors in residuals.items():
            product = (factors.left @ factors.right).to(self._weights[name].parameter.dtype)
            if not are_finite(product):
                raise RoundOverflow(f"the change of the weight under {name!r} is not finite")
            products[name] = product
        for name, product in products.items():
            self._weights[name].add(product)

    def state(self) -> dict[str, torch.Tensor]:
        """Return the weights as a state dict in new memory."""
        return {weight.name: weight.parameter.detach().clone() for weight in self._weights.values()}

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Set the weights to those of a state dict."""
        for weight in self._weights.values():
            with torch.no_grad():
                weight.parameter.copy_(state[weight.name])
