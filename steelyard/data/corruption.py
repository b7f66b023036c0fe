"""Clients whose data are wrong: FedLAW's Table 8, and two usual kinds beside it.

FedLAW corrupts 25, 50 or 75 % of the clients "by swapping two labels"; which labels it does not say, and its code has
no corruption. Here every corrupted client exchanges a label it holds with another one, both drawn for this client.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from steelyard.core import checks
from steelyard.core.client_state import ClientId
from steelyard.core.errors import SteelyardError
from steelyard.data.dataset import Federation
from steelyard.data.partitions import Index

_STREAM = int.from_bytes(b"corr", "big")  # keeps these draws apart from all others of the same seed


def corrupt(
    federation: Federation, share: float, kind: str = "swap", *, deviation: float = 1.0, seed: int = 0
) -> Federation:
    """The federation with a share of its clients corrupted; the test set and the given federation stay as they are.

    Args:
        federation: clients and their data.
        share: of the clients that hold samples; rounded to a whole number of them.
        kind: `swap`: a client takes one label for another and the other way round. `flip`: label y becomes C-1-y, C
            the number of classes, as in the label-flipping attack. `noise`: Gaussian noise on the inputs.
        deviation: the noise's standard deviation, in units of the inputs.
        seed: who is corrupted, and how, is a function of it.
    """
    checks.one_of("kind", kind, "swap", "flip", "noise")
    checks.number("deviation", deviation, 0.0)
    chosen = _choose_clients(federation, share, seed)
    if kind == "noise" and not federation.train.inputs.is_floating_point():
        raise SteelyardError("kind='noise': inputs are tokens, use 'swap' or 'flip'")
    if kind != "noise" and (federation.classes is None or federation.classes < 2 or federation.train.targets.ndim != 1):
        raise SteelyardError(f"kind={kind!r}: targets are no labels of two classes or more, use 'noise'")
    if not chosen:
        return federation
    own = _unshared(federation)
    inputs = own.train.inputs.clone() if kind == "noise" else own.train.inputs
    targets = own.train.targets if kind == "noise" else own.train.targets.clone()
    for client in chosen:
        rng, at = _rng(seed, 1, client), torch.from_numpy(own.index[client])
        if kind == "noise":
            noise = rng.standard_normal((len(at), *inputs.shape[1:]), dtype=np.float32)
            inputs[at] += deviation * torch.from_numpy(noise)
        else:
            table = _relabelled(kind, targets[at].numpy(), federation.classes or 0, rng)
            targets[at] = torch.from_numpy(table)[targets[at]]
    classes = own.train.classes if kind == "noise" else federation.classes
    return replace(own, train=replace(own.train, inputs=inputs, targets=targets, classes=classes))


def corrupted(federation: Federation, share: float, seed: int = 0) -> tuple[ClientId, ...]:
    """The clients that `corrupt` corrupts."""
    return tuple(federation.ids[client] for client in _choose_clients(federation, share, seed))


def _choose_clients(federation: Federation, share: float, seed: int) -> list[int]:
    """Their numbers, in order. The same seed's clients at a smaller share are among those at a larger one."""
    checks.number("share", share, 0.0, 1.0)
    checks.integer("seed", seed)
    holders = np.flatnonzero(federation.sizes)
    order = _rng(seed, 0, 0).permutation(holders)
    return sorted(int(client) for client in order[: round(share * len(holders))])


def _relabelled(kind: str, labels: Index, classes: int, rng: np.random.Generator) -> Index:
    """What each label becomes, `[classes]`."""
    table = np.arange(classes, dtype=np.int64)
    if kind == "flip":
        return table[::-1].copy()
    one = int(rng.choice(np.unique(labels)))  # one it holds: else nothing would be wrong with this client
    other = int(rng.choice(np.delete(table, one)))
    table[[one, other]] = other, one
    return table


def _unshared(federation: Federation) -> Federation:
    """The federation with a copy of each sample for every client that holds it, if any is shared."""
    order = np.concatenate(federation.index)
    if len(np.unique(order)) == len(order):
        return federation
    ends = np.cumsum(federation.sizes)
    index = tuple(np.arange(end - size, end, dtype=np.int64) for size, end in zip(federation.sizes, ends, strict=True))
    return replace(federation, train=federation.train.take(order), index=index)


def _rng(seed: int, purpose: int, client: int) -> np.random.Generator:
    sequence = np.random.SeedSequence(entropy=seed, spawn_key=(_STREAM, purpose, client))
    return np.random.Generator(np.random.Philox(sequence))
