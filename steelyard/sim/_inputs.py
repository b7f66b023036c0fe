"""Build the inputs of a run from its options: federation, network, device and proxy data."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from steelyard.algorithm import Algorithm
from steelyard.client._losses import Loss, name_of_loss
from steelyard.core._errors import SteelyardError
from steelyard.core._evidence import part_needing_proxy_data
from steelyard.data import Dataset, Federation, corrupt, load
from steelyard.data._proxy import Proxy
from steelyard.data._sources import SOURCES, Source
from steelyard.models import build
from steelyard.sim._experiment import Data


def build_federation(section: Data, seed: int) -> Federation:
    """Return the clients and their data, some of it corrupted if the options say so."""
    federation = _divide_data(section, seed)
    if section.corrupt is None:
        return federation
    return corrupt(federation, kind=section.corrupt, seed=seed)


def _divide_data(section: Data, seed: int) -> Federation:
    """Return the clients and their data."""
    data = section.name
    test = section.test
    if isinstance(data, Federation):
        return data
    if isinstance(data, Mapping) and not hasattr(
        data, "column_names"
    ):  # Hugging Face's dict of train and test
        return Federation.of(data, test=test)
    if isinstance(data, list) and not _is_one_data_set(data):
        if len(data) == 2:
            raise SteelyardError(
                "data is a list of two data sets, which may mean (train, test) or two clients: "
                "give the tuple "
                "(train, test), or the clients by id, {0: first, 1: second}"
            )
        return Federation.of(data, test=test)
    if isinstance(data, str):
        train, held_out = load(data, section.dir)
    else:
        train, held_out = _split_pair(data, test)
    return Federation.partitioned(train, held_out, section.partition, section.clients, seed)


def _is_one_data_set(data: Sequence[Any]) -> bool:
    """Return whether a list or tuple is a data set itself, inputs and targets, rather than several data sets."""
    return len(data) > 0 and all(isinstance(part, (torch.Tensor, np.ndarray)) for part in data)


def _split_pair(data: Any, test: Any) -> tuple[Any, Any]:
    """Return what to train and to test on: a tuple of two data sets, or one and `test`."""
    if not isinstance(data, tuple) or _is_one_data_set(data):
        return data, test
    if len(data) != 2:
        raise SteelyardError(
            f"data is a tuple of {len(data)}: give a pair (train, test), or a dict or a list of "
            f"one data set per client"
        )
    if test is not None:
        raise SteelyardError(
            "data is a pair (train, test), and test is given too: give one of them"
        )
    return data[0], data[1]


def _default_model(data: str) -> str:
    """Return the spec string of the network for a data set of this name."""
    source = SOURCES[data].make if data in SOURCES else Source
    model: str = getattr(source, "default_model", Source.default_model)
    return model


def build_module(
    model: str | nn.Module | None, federation: Federation, seed: int, loss: Loss
) -> nn.Module:
    """Return the network with its initial parameters."""
    if isinstance(model, nn.Module):
        return copy.deepcopy(model)  # the user's module does not change
    if model is not None and not isinstance(model, str):
        raise SteelyardError(f"model is a {type(model).__name__}: give a name or an nn.Module")
    shape = tuple(federation.train.inputs.shape[1:])
    name = model or _default_model(federation.name)
    outputs = _count_outputs(federation, loss)
    if outputs is None:
        raise SteelyardError(
            f"model={name!r}: the targets are not classes: pass a module of your own"
        )
    return build(name, shape, outputs, seed)


def _count_outputs(federation: Federation, loss: Loss) -> int | None:
    """Return how many outputs a network needs.

    One per class, or one per number to predict of a sample.
    """
    targets = federation.train.targets
    if name_of_loss(loss) is None and not targets.is_floating_point():
        return federation.classes
    return {1: 1, 2: targets.shape[-1]}.get(targets.ndim)


def find_device(name: str) -> torch.device:
    """Return the device; `auto` is the fastest that is available."""
    if name == "auto":
        name = "cpu"
        if torch.cuda.is_available():
            name = "cuda"
        elif torch.backends.mps.is_available():
            name = "mps"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise SteelyardError(
            f"device={name!r}: not available here ({str(error).splitlines()[0]})"
        ) from None


def split_proxy(
    federation: Federation, proxy: Proxy, algorithm: Algorithm, seed: int
) -> tuple[Federation, Dataset | None, str | None]:
    """The federation less the test samples that become proxy data, the proxy data, and a warning if it is short."""
    wanting = part_needing_proxy_data(algorithm.rule, algorithm.refine)
    if not proxy.has_samples:
        if wanting:
            raise SteelyardError(
                f"{wanting} looks at proxy data and there is none: --set proxy.per_class=10 takes "
                f"ten samples per "
                'class from the test set (in Python, proxy={"per_class": 10} or proxy={"data": (inputs, targets)})'
            )
        return federation, None, None
    samples, test, warning = proxy.split(federation.test, seed)
    return replace(federation, test=test), samples, warning
