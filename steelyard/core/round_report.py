"""What a round's record says, read off the Gram: no extra pass over the updates."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from steelyard.core.gram import Array, Gram
from steelyard.core.layout import Layers
from steelyard.core.mixture import Mixture
from steelyard.core.store import UpdateStore

GEOMETRY = {
    "param_norm": "|theta|: norm of the model the round started from",
    "update_norm": "|sum_k w_k d_k|: norm of the aggregated step, before the server optimizer",
    "coherence": "local gradient coherence (FedLAW, Def. 5.1)",
    "moved": "mean |d_k|: how far local models moved (FedCos, Fig. 12a)",
    "spread": "mean |theta_i - theta_j| over pairs of clients (FedCos, Fig. 12b)",
    "mean_cosine": "mean cos(d_i, d_j) over pairs of clients (FedCos, Fig. 3)",
    "weighted_cosine": "sum_k psi_k cos(d_k, d), psi_k the share of client k, d as for divergence (FedAdp, Theorem 1)",
    "divergence": "mean |d_k - d|, d the mean by size, or plain where the rule does not know sizes (FedAdp, Fig. 7)",
    "shrinking": "|(1 - gamma) theta|: norm of the pseudo-gradient of weight shrinking (FedLAW, Eq. 4)",
    "shrinking_ratio": "r = update_norm / shrinking, times the lr of server=sgd (FedLAW, Fig. 3)",
}
"""What a record says of the updates as a whole, all of it read off the Gram."""

_SHRINKING = ("shrinking", "shrinking_ratio")  # only where a rule scales the global model


class Report(dict[str, Any]):
    """Plain data by name.

    Always: `round`, `clients`, `effective_clients` (1 / sum of squared shares), `quarantined` (id: reason), `void` (the
    reason, or None), `layers` (names). With a Gram: `norms` and `cosines` (of each update, to the aggregated one) and
    the numbers in `GEOMETRY`; in a run with FedCos, from round 2 on, `direction_cosines` (of each update, to the
    direction that clients were sent). And what the rule notes: `angles`, `alpha`, `gamma`, `clipped`, ...
    """

    def __missing__(self, key: str) -> Any:
        if key in ("norms", "cosines", *GEOMETRY) and key not in _SHRINKING:
            raise KeyError(f"{key!r}: this rule needs no Gram; ask for one with aggregate(..., diagnose=True)")
        raise KeyError(key)


def describe(
    store: UpdateStore,
    mixture: Mixture,
    weights: Array,
    cut: Layers,
    gram: Gram | None,
    number: int,
    sizes: Array | None = None,
    global_lr: float = 1.0,
) -> Report:
    """The report of a round that used these weights `[g, K]`.

    `sizes` are the clients', if the rule knows them; `global_lr` is the server's learning rate on the aggregated step.
    """
    overall = np.abs(weights).mean(axis=0)
    share = overall / overall.sum() if overall.sum() > 0 else overall
    report = Report(
        round=number,
        clients=list(store.ids),
        effective_clients=float(1 / (share**2).sum()) if share.any() else 0.0,
        quarantined={**store.quarantined, **mixture.notes.get("set_aside", {})},
        void=mixture.void,
        layers=list(cut.names),
    )
    if gram is not None:
        report.update(_geometry(store, gram, weights, share))
        report.update(_between(gram.merge_layers(), sizes, weights.mean(axis=0)))
        report.update(_shrinking(gram, mixture.base, global_lr * report["update_norm"]))
    report.update({name: value for name, value in mixture.notes.items() if name != "set_aside"})
    return report


def _geometry(store: UpdateStore, gram: Gram, weights: Array, share: Array) -> dict[str, Any]:
    whole = gram.merge_layers()
    along = (weights * gram.apply(weights)).sum()  # |aggregated step|^2, layer by layer
    towards = gram.apply(weights).sum(axis=0)  # <d_k, aggregated step>
    length = np.sqrt(max(float(along), 0.0))
    lengths = whole.norms[0] * length
    cosines = np.divide(towards, lengths, out=np.zeros_like(towards), where=lengths > 0)
    return {
        "norms": dict(zip(store.ids, whole.norms[0].tolist(), strict=True)),
        "cosines": dict(zip(store.ids, np.clip(cosines, -1, 1).tolist(), strict=True)),
        "param_norm": float(np.sqrt(whole.theta_sq[0])),
        "update_norm": float(length),
        "coherence": coherence(whole, share),
    }


def _between(whole: Gram, sizes: Array | None, weights: Array) -> dict[str, Any]:
    """How clients differ; what takes two of them is None for one. `weights` are the clients', `[K]`."""
    count = whole.norms.shape[1]
    mean = np.full(count, 1 / count) if sizes is None or not sizes.any() else sizes / sizes.sum()
    pairs = count * (count - 1)
    inverse = np.divide(1.0, whole.norms, out=np.zeros_like(whole.norms), where=whole.norms > 0)  # [1, K]
    cosines = (inverse * whole.apply(inverse)).sum() - np.count_nonzero(inverse)  # of pairs: less those with oneself
    total = np.abs(weights).sum()
    share = weights / total if total > 0 else weights
    return {
        "moved": float(whole.norms.mean()),
        "spread": float(np.sqrt(whole.sq_distances()).sum() / pairs) if pairs else None,
        "mean_cosine": float(cosines / pairs) if pairs else None,
        "weighted_cosine": float((share * whole.cosines_to(mean[None])[0]).sum()),
        "divergence": float(np.sqrt(whole.sq_distances_to(mean[None])).mean()),
    }


def _shrinking(gram: Gram, base: Array, update_norm: float) -> dict[str, float]:
    """Norm and ratio of FedLAW's Eq. (4), layer by layer; nothing where the global model keeps its length."""
    square = float(((1 - base) ** 2 * gram.theta_sq).sum())
    if square == 0.0:
        return {}
    return {"shrinking": math.sqrt(square), "shrinking_ratio": update_norm / math.sqrt(square)}


def coherence(gram: Gram, share: Array) -> float:
    """Local gradient coherence of a cohort, `(1/m) sum_{i != j} lambda_i lambda_j cos(d_i, d_j)` (FedLAW, Def. 5.1)."""
    cosines = gram.cosines()[0]
    pairs = np.outer(share, share) * cosines
    return float((pairs.sum() - np.trace(pairs)) / len(share))
