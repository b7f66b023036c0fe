"""Networks with LoRA adapters: which tensors are sent, and the frozen weights that stay.

Clients of such a network send what they train: the adapters, and whole modules beside them if there
are any. Of other networks, all tensors are sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from steelyard.core._errors import SteelyardError
from steelyard.core._layout import LoraPair, is_lora_factor


def state_to_send(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the part of a network's state dict that clients and server send to each other.

    This is all of it, unless the network has LoRA adapters: then frozen weights are left out.
    """
    state: dict[str, torch.Tensor] = module.state_dict()
    frozen = {name for name, _ in list_frozen(module)}
    if not any(is_lora_factor(name) for name in state.keys() - frozen):
        return state
    return {name: tensor for name, tensor in state.items() if name not in frozen}


def list_frozen(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters of a network that are not trained, with their names."""
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if not parameter.requires_grad:
            yield name, parameter


def load_model(module: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
    """Load a model of a run into its network; frozen weights that were not sent stay.

    Raises:
        SteelyardError: if the model does not fit the network.
    """
    expected = state_to_send(module)
    try:
        result = module.load_state_dict(state, strict=False)
    except RuntimeError as error:  # other shapes
        raise SteelyardError(f"the model is not one of this network: {error}") from None
    missing = [name for name in result.missing_keys if name in expected]
    wrong = [*missing, *result.unexpected_keys]
    if wrong:
        verb = "lacks" if missing else "has an unknown"
        raise SteelyardError(f"the model is not one of this network: it {verb} {wrong[0]!r}")


@dataclass(frozen=True)
class AdaptedWeight:
    """The frozen weight that a LoRA adapter changes.

    Attributes:
        name: its name in the state dict.
        parameter: the weight.
        scale: the factor of the adapter's product.
        is_transposed: whether the weight is `[inputs, outputs]`.
    """

    name: str
    parameter: nn.Parameter
    scale: float
    is_transposed: bool

    def add(self, product: torch.Tensor) -> None:
        """Add the product of two factors, `[outputs, inputs]`, times the scale."""
        change = product.T if self.is_transposed else product
        with torch.no_grad():
            self.parameter.add_(
                change.reshape(self.parameter.shape).to(self.parameter.dtype), alpha=self.scale
            )


def find_adapted_weight(module: nn.Module, pair: LoraPair) -> AdaptedWeight:
    """Return the frozen weight of an adapter, in a network that PEFT wrapped.

    Raises:
        SteelyardError: if the adapted module is not PEFT's.
    """
    # The names are `path.lora_A.adapter.weight`, or `path.lora_embedding_A.adapter`.
    path, _, rest = pair.a.name.rpartition(".lora_")
    adapter = rest.split(".")[1] if "." in rest else "default"
    layer = module.get_submodule(path)
    base = getattr(layer, "base_layer", None)
    scales = getattr(layer, "scaling", {})
    weight = getattr(base, "weight", None)
    if not isinstance(weight, nn.Parameter) or adapter not in scales:
        raise SteelyardError(
            f"{path!r} is not a layer of PEFT, so the weight under its adapter is unknown: wrap the "
            "network with peft.get_peft_model, or use lora=svd"
        )
    is_embedding = rest.startswith("embedding_")
    is_transposed = is_embedding or bool(getattr(layer, "fan_in_fan_out", False))
    return AdaptedWeight(f"{path}.base_layer.weight", weight, float(scales[adapter]), is_transposed)
