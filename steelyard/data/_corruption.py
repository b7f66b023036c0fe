"""Corrupt the data of some clients: FedLAW's Table 8, and two other common kinds.

FedLAW corrupts 25, 50 or 75 % of the clients "by swapping two labels". The paper does not say which
labels, and its code does not contain the corruption. Here every corrupted client exchanges one of
its own labels with another label; both are drawn at random for each client.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from steelyard.core import checks
from steelyard.core._errors import SteelyardError
from steelyard.core._rng import data_stream
from steelyard.core._state import ClientId
from steelyard.data._dataset import Federation, slices
from steelyard.data._partitions import Index


def corrupt(
    federation: Federation,
    share: float,
    kind: str = "swap",
    *,
    deviation: float = 1.0,
    seed: int = 0,
) -> Federation:
    """Return the federation with some of its clients corrupted.

    The test set and the federation passed in do not change.

    Args:
        federation: clients and their data.
        share: of the clients that have samples; rounded to a whole number of clients.
        kind: `swap`: a client exchanges two labels. `flip`: label y becomes C-1-y, C the number of
            classes, as in the label-flipping attack. `noise`: Gaussian noise on the inputs.
        deviation: the standard deviation of the noise, in units of the inputs.
        seed: determines which clients are corrupted, and how.
    """
    checks.one_of("kind", kind, "swap", "flip", "noise")
    checks.number("deviation", deviation, 0.0)
    clients = _choose_clients(federation, share, seed)
    _check_kind(federation, kind)
    if not clients:
        return federation

    # Give each client its own copy of its samples.
    own = _copy_shared_samples(federation)
    inputs = own.train.inputs.clone() if kind == "noise" else own.train.inputs
    targets = own.train.targets if kind == "noise" else own.train.targets.clone()

    # Corrupt one client after the other.
    for client in clients:
        rng = _rng(seed, 1, client)
        positions = torch.from_numpy(own.index[client])
        if kind == "noise":
            noise = rng.standard_normal((len(positions), *inputs.shape[1:]), dtype=np.float32)
            inputs[positions] += deviation * torch.from_numpy(noise)
        else:
            table = _label_table(kind, targets[positions].numpy(), federation.classes or 0, rng)
            targets[positions] = torch.from_numpy(table)[targets[positions]]

    classes = own.train.classes if kind == "noise" else federation.classes
    return replace(own, train=replace(own.train, inputs=inputs, targets=targets, classes=classes))


def find_corrupted_clients(
    federation: Federation, share: float, seed: int = 0
) -> tuple[ClientId, ...]:
    """Return the ids of the clients that `corrupt` corrupts."""
    return tuple(federation.ids[client] for client in _choose_clients(federation, share, seed))


def _check_kind(federation: Federation, kind: str) -> None:
    """Raise an error if this kind of corruption does not apply to the data."""
    if kind == "noise":
        if not federation.train.inputs.is_floating_point():
            raise SteelyardError("kind='noise': inputs are tokens, use 'swap' or 'flip'")
        return
    classes = federation.classes
    if classes is None or classes < 2 or federation.train.targets.ndim != 1:
        raise SteelyardError(
            f"kind={kind!r}: targets are not labels of two classes or more, use 'noise'"
        )


def _choose_clients(federation: Federation, share: float, seed: int) -> list[int]:
    """Return the numbers of the corrupted clients, sorted.

    With the same seed, the clients of a smaller share are among those of a larger share.
    """
    checks.number("share", share, 0.0, 1.0)
    checks.integer("seed", seed)
    holders = np.flatnonzero(federation.sizes)
    order = _rng(seed, 0, 0).permutation(holders)
    return sorted(int(client) for client in order[: round(share * len(holders))])


def _label_table(kind: str, labels: Index, classes: int, rng: np.random.Generator) -> Index:
    """Return the new label of each label, `[classes]`."""
    table = np.arange(classes, dtype=np.int64)
    if kind == "flip":
        return table[::-1].copy()
    own_label = int(
        rng.choice(np.unique(labels))
    )  # a label of this client: otherwise nothing changes
    new_label = int(rng.choice(np.delete(table, own_label)))
    table[own_label] = new_label
    table[new_label] = own_label
    return table


def _copy_shared_samples(federation: Federation) -> Federation:
    """Return a federation in which no two clients share a sample: shared samples are copied."""
    order = np.concatenate(federation.index)
    if len(np.unique(order)) == len(order):
        return federation
    return replace(
        federation, train=federation.train.take(order), index=slices(federation.sizes.tolist())
    )


def _rng(seed: int, purpose: int, client: int) -> np.random.Generator:
    return data_stream(seed, "corruption", purpose, client)
