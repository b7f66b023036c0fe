"""The description of a run as plain data, and checks that a resumed run is the same one."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from steelyard.client._adapters import list_frozen
from steelyard.client._local import LocalTraining
from steelyard.client._losses import name_of_loss
from steelyard.core._errors import SteelyardError
from steelyard.core._options import drop_unstored, to_plain
from steelyard.core._spec import to_text
from steelyard.core._state import ClientId
from steelyard.data._proxy import Proxy
from steelyard.runs._directory import read_cohorts
from steelyard.runs._fingerprint import fingerprint, hash_code
from steelyard.sim._participation import Participation
from steelyard.sim._simulator import Simulation
from steelyard.sim._work import SimulationContext

_DEFINITIONS = {
    "layers": "model: other layers",
    "code": "model: other code in its classes",
    "loss": "loss: other settings, weights or code",
}  # hashes that runs from before they were written down lack, and what it means if they differ


def describe_run(
    work: SimulationContext, participation: Participation, proxy: Proxy
) -> dict[str, Any]:
    """Return the description of a run; two runs with the same description have the same bits."""
    local = to_plain(work.local)
    local["epochs"] = work.local.num_epochs
    local["schedule"] = to_text(work.local.rate_schedule)
    if work.local.augmentation is None:
        local["augment"] = None
    else:
        local["augment"] = to_text(work.local.augmentation)
    local = drop_unstored(LocalTraining, local)
    loss = work.model.loss
    leaves = [
        [leaf.name, leaf.kind, list(leaf.shape), str(leaf.dtype)]
        for leaf in work.model.layout.leaves
    ]
    digest = hashlib.sha256()
    digest.update(json.dumps(leaves).encode())
    params, stats, _ = work.model.vectors(work.model.module.state_dict())
    digest.update(params.numpy().tobytes())
    digest.update(stats.numpy().tobytes())
    description: dict[str, Any] = {
        "algorithm": {name: text for name, text in work.algorithm.texts.items() if text},
        "local": local,
        "participation": to_plain(participation),
        "seed": work.seed,
        "rounds": work.rounds,
        "loss": name_of_loss(loss)
        or f"{getattr(loss, '__module__', '')}.{getattr(loss, '__qualname__', type(loss).__name__)}",
        "metrics": list(work.metrics),
        "data": {
            "name": work.federation.name,
            "clients": len(work.federation.ids),
            "fingerprint": work.federation.fingerprint(),
        },
        "model": {
            "parameters": work.model.layout.dim,
            "initial": digest.hexdigest(),
            "layers": _layers(work.model.module),
            "code": hash_code(work.model.module),
            "loss": fingerprint(loss),
        },
        "device": work.model.device.type,
    }
    if work.model.layout.pairs:
        description["algorithm"]["lora"] = str(work.lora)
        description["model"]["frozen"] = _hash_frozen(work.model.module)
    if work.probe is not None:
        description["proxy"] = {
            **to_plain(proxy),
            "samples": len(work.probe.inputs),
            "fingerprint": work.probe.fingerprint(),
        }
    return description


def _hash_frozen(module: nn.Module) -> str:
    """Return a hash of the weights that are not trained."""
    digest = hashlib.sha256()
    for name, parameter in list_frozen(module):
        digest.update(name.encode())
        values = parameter.detach().cpu().contiguous()
        digest.update(values.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _layers(module: nn.Module) -> str:
    """Return a hash of the text form of a network.

    Activations and rates of dropout are not in its parameters.
    """
    return hashlib.sha256(re.sub(r" at 0x[0-9a-f]+", "", repr(module)).encode()).hexdigest()


def identity(about: Mapping[str, Any]) -> str:
    """Return a hash of the description without the number of rounds; checkpoints carry it."""
    fixed_parts = {
        name: value for name, value in _without_definitions(about).items() if name != "rounds"
    }
    return hashlib.sha256(json.dumps(fixed_parts, sort_keys=True).encode()).hexdigest()


def _without_definitions(
    about: Mapping[str, Any], names: Iterable[str] = _DEFINITIONS
) -> dict[str, Any]:
    """Return a description without these hashes, as older versions wrote it."""
    model = {name: value for name, value in about["model"].items() if name not in names}
    return {**about, "model": model}


def check_same(path: Path, before: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Raise an error if a resumed run is not the run in the directory.

    Only its length may change, unless learning rates depend on it.

    Args:
        path: the run directory.
        before: the description of the run in it.
        current: the description of the run to resume.
    """
    model_before = before["model"]
    current = _without_definitions(
        current, [name for name in _DEFINITIONS if name not in model_before]
    )  # the run may be older
    changed = [name for name, value in current.items() if before.get(name) != value]
    if changed == ["rounds"] and not current["local"]["schedule"].startswith("cosine"):
        return
    if changed:
        telling = [name for name in changed if name != "rounds"] or changed
        differences = "; ".join(
            _difference(name, before.get(name), current.get(name)) for name in telling
        )
        raise SteelyardError(
            f"{path}: the run in it is another one ({differences}): choose another directory (out, "
            f"--out)"
        )


def _difference(name: str, before: Any, after: Any) -> str:
    """Return the difference between two values of a description, as text."""
    if name != "model" or not isinstance(before, Mapping):
        return f"{name}: {before!r} then, {after!r} now"
    changed = [part for part in after if before.get(part) != after[part]]
    words = [
        _DEFINITIONS.get(part) or f"model.{part}: {before.get(part)!r} then, {after[part]!r} now"
        for part in changed
    ]
    return "; ".join(words)


def check_done(path: Path, simulation: Simulation) -> None:
    """Raise an error if the finished rounds had other cohorts, or if there are too many of them."""
    num_rounds = len(simulation.records)
    if num_rounds > simulation.work.rounds:
        raise SteelyardError(
            f"{path}: {num_rounds} rounds are done, rounds={simulation.work.rounds} asks for "
            f"fewer: give "
            f"rounds={num_rounds} or more, or choose another directory (out, --out)"
        )
    cohort_pairs = zip(
        (read_cohorts(path) or ())[:num_rounds], name_cohorts(simulation), strict=False
    )
    differs = next(
        (number for number, (before, current) in enumerate(cohort_pairs, 1) if before != current),
        None,
    )
    if differs is not None:
        raise SteelyardError(
            f"{path}: the run in it had another cohort in round {differs}: give the same cohorts=, "
            f"or choose another "
            "--out"
        )


def name_cohorts(simulation: Simulation) -> list[list[ClientId]]:
    """Return the cohorts as client ids."""
    ids = simulation.work.federation.ids
    return [[ids[client] for client in cohort] for cohort in simulation.cohorts]
